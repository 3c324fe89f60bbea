"""Pure decisions about the fleet: nothing in here waits, reads a clock, an environment or a random number, or logs."""

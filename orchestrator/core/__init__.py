"""Pure decisions about the fleet. This package does no I/O, reads no clock or environment, and writes no log."""

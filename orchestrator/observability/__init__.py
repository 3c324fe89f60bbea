"""What the process says about itself: logging, redaction of secrets, metrics, the health record."""

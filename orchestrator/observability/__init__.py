"""Logging, redaction of secrets, metrics, and the health record of the process."""

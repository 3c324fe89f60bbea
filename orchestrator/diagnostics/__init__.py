"""What an operator asks: every error with a stable id, and what to do about it."""

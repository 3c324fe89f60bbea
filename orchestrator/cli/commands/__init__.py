"""One file for each group of commands; main.py imports a file only when its command runs."""

"""The command line: main.py lists the commands; session.py opens what they need; output.py and tables.py print."""

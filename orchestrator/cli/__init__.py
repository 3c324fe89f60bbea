"""The command line.

main.py           runs a command line; command_table.py lists the commands, commands/ has them
session.py        opens what commands need: settings, the database, RunPod, the bucket
output.py         stdout and stderr, JSON, formats of times and money; tables.py, *_view.py and *_rows.py lay out
report_builder.py builds the report of `diagnose` and `health`; report_sources.py asks for its parts
log_*.py          read, merge and print the logs of workers
top/              the live screen; assistants/ is `mcp`
"""

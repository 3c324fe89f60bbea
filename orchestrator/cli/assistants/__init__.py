"""`orchestrator mcp`: the facts and actions of the API and the command line, for AI assistants.

api.py answers from the API in this process, commands.py from a command's `--json`. tools.py is the table of tools,
answers.py bounds and marks what they return, and server.py implements the protocol. Only server.py imports `mcp`.
"""

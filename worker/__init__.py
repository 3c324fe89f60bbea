"""The agent that runs on a pod: standard library only, Python 3.9 or newer, shipped as one .pyz.

`protocol` is the contract with the orchestrator and the database. All other modules are internal to the agent. Fifty
agents may start at once, so rarely needed modules are imported where they are used. `start` avoids pathlib, typing,
argparse and http.client: importing them would double its time.
"""

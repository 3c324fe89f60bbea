"""The agent that runs on a pod: standard library only, Python 3.9 or newer, shipped as one .pyz.

`protocol` is the contract with the orchestrator and with the database; everything else is the agent's own business.
Fifty agents may start at once: what only some need is imported where it is needed, and `start` does without pathlib,
typing, argparse and http.client, which would cost as much again as all of the rest.
"""

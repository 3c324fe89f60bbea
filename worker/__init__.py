"""The agent that runs on a pod: standard library only, Python 3.9 or newer, shipped as one .pyz.

`protocol` is the contract with the orchestrator and with the database; everything else is the agent's own business.
"""

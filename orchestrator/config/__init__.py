"""The environment as settings.

connection_settings.py  declares the settings of what the orchestrator talks to
fleet_settings.py       declares those of the fleet: how many workers, which machines, what they run
setting.py              what a declaration has: default, meaning, unit, key of a pool
settings.py             all settings together, and what follows from them
env_file.py             reads .env of the working directory into the environment
environment.py          reads them, names every problem and every variable that nothing reads
validation.py           contradictions, and what each part of the product needs
pools.py                POOLS_FILE
ssh_keys.py             key pairs as people paste them
"""

"""The environment as settings.

connection_settings.py  declares the settings of what the orchestrator talks to
fleet_settings.py       declares those of the fleet: how many workers, which machines, what they run
setting.py              what a declaration has: default, meaning, unit, key of a pool; types.py parses the values
settings.py             all settings together, and what follows from them
env_file.py             reads .env of the working directory into the environment
environment.py          reads settings from it, names every problem and every variable that nothing reads
validation.py           contradictions, and what each part of the product needs
command_check.py        whether the set-up and start commands can run
doubtful.py             warnings about values that are valid and probably wrong; weak_secrets.py refuses weak secrets
handler_check.py        whether the handlers exist
pools.py                POOLS_FILE; cluster_pools.py checks its cluster pools
ssh_keys.py             key pairs as people paste them; plain_key_pair.py recognises the usual pair fast
effective.py            the configuration in effect, for `doctor`
"""

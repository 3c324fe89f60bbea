"""The environment as settings.

settings.py     every setting: name, type, default
environment.py  reads them and names every problem
validation.py   contradictions, and what each part of the product needs
pools.py        POOLS_FILE
ssh_keys/       key pairs as people paste them
"""

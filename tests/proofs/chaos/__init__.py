"""`./run soak chaos`: real processes under seeded random faults, then a quiet phase, then the assertions.

run.py          the steps: set up, submit tasks and inject faults, wait, check
environment.py  the stack behind TCP proxies, two orchestrators, and what the faults need to know of them
faults.py       the faults that are drawn at random
assertions.py   the checks at the end, the figures, the table
restart.py      an orchestrator that returns to 200 pods
"""

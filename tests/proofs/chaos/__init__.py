"""`./run soak chaos`: real processes under seeded random faults, then a quiet phase, then the assertions.

run.py          the order: set up, feed, break, wait, check
environment.py  the stack behind TCP proxies, two orchestrators, and what the faults need to know of them
faults.py       the faults that are drawn at random
tcp_proxy.py    delays, cuts, swallows and refuses connections
assertions.py   what must hold in the end, the figures, the table
restart.py      an orchestrator that returns to 200 pods
"""

"""`./run soak chaos`: real processes under a seeded shower of harms, then calm, then the reckoning.

line.py       a TCP proxy that delays, cuts, swallows and refuses
field.py      the stack behind such lines, two orchestrators, and what harms need to know of them
harms.py      the deck of harms
run.py        the order of it: set up, feed, harm, calm, rest
reckoning.py  what must hold in the end, the figures, the table
restart.py    an orchestrator that comes back to 200 pods
"""

"""The control loop.

daemon.py       one tick after another: lead, observe, plan, record, execute
observe.py      one consistent snapshot of pods, rows and queue
execute.py      carries a plan's actions out, concurrently and bounded
decisions.py    each tick's decision as a row
jobs.py         the timers of the leader's other jobs
store_watch.py  whether the object store answers
watchdog.py     ends a process whose loop hangs
"""

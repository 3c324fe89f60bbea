"""The control loop.

daemon.py        the timers of one process, its lease and its end; hooks.py has its callbacks to the process
leadership.py    requests, renews and releases the lease
tick.py          one tick of a leader: observe, plan, record, execute
observe.py       one consistent snapshot of pods, rows and queue; contacts.py remembers how workers were last heard
decisions.py     writes each tick's decisions as rows, and the cycle summary to the log
execute.py       carries out the actions of a plan, concurrently and bounded; row_writer.py writes their rows
jobs.py          the timers of the leader's other jobs
housekeeping.py  counts finished tasks, and deletes old rows
store_watch.py   whether the object store answers
runtime.py       the objects that these parts share
watchdog.py      ends a process whose loop hangs
"""

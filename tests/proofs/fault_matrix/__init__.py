"""The fault matrix: each case breaks one thing of a running stack and checks what becomes of it.

    runner.py            what a case is, and how one is run
    environment.py       a case under way: the stack, its orchestrators, and ways to break them
    provider.py          a case for every kind in the emulator's table of faults
    failure_codes.py     cases for failure codes that an operator, the market or a machine's history causes
    infrastructure.py    pods, agents, orchestrators, Postgres, S3 and money taken away
    sick_workers.py      machines that look healthy and fail every task
    sick_machines.py     machines that fail while a task runs, as their agents report
    clusters.py          Slurm on several pods: daemons, keys, clocks, networks and pods fail while a job runs
    cluster_acts.py      … and what is done in each of these cases
    load_balancer.py     one address for several orchestrators
    observer.py          reads the rows all the time: sentences that name a cause, waits that nobody ends
    health.py            what `health` must say during each fault
    invariants.py        what must hold when a case is over
    secret_scan.py       looks for the stack's secrets in everything that the case leaves
    report.py            the table, for a terminal and for docs/faults.md

`./run faults` runs it. The sentences come from the rows that the fleet writes, never from a log.
"""

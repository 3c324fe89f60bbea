"""Faults under load: what is done to a running stack, what must come of it, and the table of what came.

    ground.py    Postgres and S3 shared by a run; a migrated database for each trial
    door.py      one address for several orchestrators, as a load balancer gives
    scene.py     a trial under way: the stack, its orchestrators, and ways to do harm
    witness.py   looks at the rows all the while: sentences that name a cause, waits that nobody ends
    verdict.py   the invariants, judged when all is over
    canaries.py  the stack's secrets, looked for in all that it leaves
    trial.py     what a trial is, and how one is run
    kinds.py     a trial for every kind in the emulator's table of faults
    codes.py     … for what an operator, the market or a machine's history brings about
    harms.py     pods, agents, orchestrators, Postgres, S3 and money taken away
    table.py     the table, for a terminal and for docs/faults.md
    __main__.py  `./run faults`

The sentences come from the rows that the fleet writes, never from a log.
"""

"""An orchestrator of rented GPU workers: a task queue in Postgres or Supabase in, exactly as many RunPod pods out.

Where to look first:

    core/       pure decisions: states.py (the table), plan.py (the phases of one tick)
    daemon.py   the tick: lead, observe, plan, record, execute; service.py puts it together with its HTTP door
    bringup.py  the ladder that a worker climbs before it counts
    shipping.py worker logs to S3, by byte offset
    teardown.py the end of a worker: drain, flush, delete
    ports.py    what all of this needs from the world; adapters/ and wiring.py provide it
    web/        health, and the worker's door to the database
    emulator/   a RunPod API server with local pods, an embedded Postgres and S3: for demo and tests only
"""

__version__ = "0.1.0"

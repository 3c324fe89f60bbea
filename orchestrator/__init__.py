"""An orchestrator of rented GPU workers: a task queue in Postgres or Supabase in, exactly as many RunPod pods out.

Where to look first:

    core/        pure decisions: states.py (the table), plan.py (the phases of one tick)
    daemon.py    the tick: lead, observe.py, plan, record (journal.py), execute.py; service.py gives it its HTTP door
    renting.py   asks for a worker's pod; bringup.py is the ladder that it climbs before it counts
    shipping.py  worker logs to S3, by byte offset; teardown.py the end of a worker: drain, flush, delete
    ports.py     what all of this needs from the world; adapters/ and wiring.py provide it
    settings.py  the environment; values.py, pools.py, needs.py, keys/ make sense of it, redaction.py hides its secrets
    web/         health, metrics, and the worker's door to the database
    cli.py       the commands, each in a cli_*.py; diagnostics/ and doctor/ know the answers
    emulator/    a RunPod API server with local pods, an embedded Postgres and S3; demo/ plays on them. Not for servers
    database.py  and runpod_client.py are for operators' own snippets alone
"""

__version__ = "0.1.0"

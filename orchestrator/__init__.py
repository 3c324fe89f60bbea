"""Run a GPU task queue on rented RunPod pods.

The control loop reads the queue's depth from Postgres or Supabase, decides how many pods to rent, starts them, checks
that each one works before it counts, and removes it when the work is done.

    core/           pure decisions. states.py is the transition table, plan.py the phases of one tick
    loop/           the tick: lead, observe, plan, record, execute
    pods/           create a pod, bring it up stage by stage, end it
    clusters/       Slurm on the members of a cluster
    worker_logs/    ship worker logs to S3, by byte offset
    leader_jobs/    periodic jobs of the leader: conditions, alerts, schedules, outbox, …
    ports/          what the parts above need from the outside world: protocols and their errors
    adapters/       implementations of the ports: Postgres, Supabase, RunPod, SSH, S3
    web/            health, metrics, and the gateway between the agents and the database
    config/         settings, pools and SSH keys, read from the environment
    observability/  logging, redaction, metrics, the process's health record
    diagnostics/    explanations of what the fleet waits for; doctor/ holds the set-up checks
    cli/            the commands; commands/ has one file for each group, assistants/ is `mcp`
    wiring.py       builds adapters from settings; service/ builds and runs the whole process
    migrate/        brings a database to this version
    database.py     and runpod_client.py serve operators' own snippets; client.py is the Python client of the API
"""

__version__ = "0.1.0"

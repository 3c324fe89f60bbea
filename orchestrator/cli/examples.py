"""The examples at the end of each command's `--help`. A test runs them."""

import click

from orchestrator.cli.program import typed

WORKER = "gpu-20261120_223104-18865e9b"
TASK = "6545cbb7-13ac-42cf-8f81-c2154cbc4659"

# Command -> (arguments, explanation). The end of a worker's id is enough.
EXAMPLES: dict[str, tuple[tuple[str, str], ...]] = {
    "run": (("", "until SIGTERM or Ctrl-C"),),
    "once": (("", "one tick, then stop"), ("--json", "the decisions as JSON")),
    "mcp": (("", "on stdin and stdout, for an assistant on this machine"), ("--http 8090", "over HTTP, with tokens")),
    "plan": (("", "exit 2 if the next tick would act"),),
    "pause": (('--reason "bad image" --for 30', "no spawns for half an hour"), ("--pool big", "one pool only")),
    "resume": (("", "every pool"), ("--pool big", "one pool only")),
    "scale limit": (
        ("--max 8 --for 2h", "the whole fleet, for two hours"),
        ('--pool big --max 2 --until 18:00 --reason "the GPUs are needed elsewhere"', "one pool, until 18:00 UTC"),
    ),
    "scale list": (("", "what is in force, and until when"),),
    "scale policy": (
        ("learned --pool big", "this pool follows the learned rule from the next tick on"),
        ("settings", "the settings decide again, in every pool"),
    ),
    "scale unlimit": (("", "every limit"), ("--pool big", "one pool only")),
    "explain": (
        ("18865e9b", "a worker, by the end of its id"),
        (TASK, "a task"),
        ("scaling", "why the pools have this size"),
        ("AUTH_FAILED", "a failure code; error ids (E012) too"),
        ('"must be less than 2^16"', "a phrase from a log"),
    ),
    "health": (("", "the daily check"), ("--json", "for a monitor; exit 1 if urgent")),
    "alerts test": (("", "one message, now"),),
    "alerts list": (("", "what is open, and what could not be sent"),),
    "schedules add": (
        ('nightly --cron "0 2 * * *" --timezone Europe/Berlin --type report', "every night at two o'clock in Berlin"),
        ("sweep --every 15m --type sweep --overlap queue", "every quarter of an hour, also if the last one still runs"),
    ),
    "limits list": (("", "what runs and what waits, by key and type"),),
    "limits set": (
        ("--key acme-account 2", "two tasks with this concurrency key at once"),
        ("--type upscale 3", "three tasks of this type at once"),
    ),
    "limits remove": (("--type upscale", "no limit"),),
    "tenants list": (("", "who has tasks, and who gets how much"),),
    "tenants set": (("acme --weight 3", "three of its tasks for each one of another tenant"),),
    "schedules list": (("", "when each is due next, and what came of the last time"),),
    "schedules next": (("nightly", "the next due times"), ("nightly -n 20", "more of them")),
    "schedules pause": (("nightly", "no tasks until it is resumed"),),
    "schedules resume": (("nightly", "from the next due time on"),),
    "schedules remove": (("nightly --force", "its tasks stay"),),
    "webhooks add": (
        ("app --url https://app.example.com/hooks", "the end of every task"),
        ("app --url https://app.example.com/hooks --type render --progress", "tasks of one type, with their progress"),
    ),
    "webhooks list": (("", "the addresses and the newest messages"), ("--state undeliverable", "what was given up")),
    "webhooks retry": (("", "all that were given up, for another day"),),
    "webhooks remove": (("app --force", "its unsent messages too"),),
    "webhooks key": (("https://app.example.com/hooks", "what the receiver needs to verify messages"),),
    "webhooks test": (("https://app.example.com/hooks", "one message, now"), ("app", "to the webhook of this name")),
    "diagnose": (
        ("--save-report", "everything, saved to a file"),
        (WORKER, "one worker"),
        ("--since last", "also the changes since the last saved report"),
    ),
    "verify": (
        ("18865e9b", "the results of its bring-up"),
        ("18865e9b --now", "also the present state of its pod, over SSH"),
    ),
    "timeline": (("18865e9b", "by the end of the worker's id"),),
    "cost": (
        ("--since 7d --by type", "a week, by type of task"),
        ("--by kind", "booting, busy, idle, draining"),
        ("--by label:show", "by the value of a label; or --by tenant"),
    ),
    "efficiency": (("", "the last hour, 6 h, 24 h and week"), ("--window 90m", "one window")),
    "what-if": (
        ("", "your queue of the last week, with your settings and with the other policy"),
        ("--set TASKS_PER_GPU_THRESHOLD=2 --set SCALING_POLICY=learned", "with other settings"),
        ("--since 14d --pool big --html what-if.html", "one pool, with pictures"),
        ("--trace tasks.csv --boot 90 --usd-per-hour 0.44", "a trace under both rules, in dollars"),
        ("--trace tasks.csv --usd-per-hour 0.44 --daily-usd 20", "with a budget"),
        ("--trace tasks.csv --policy fixed --json", "the pods and the starts of today's rule"),
    ),
    "list": (
        ("", "the live workers"),
        ("--all", "also ended ones, and when and why they ended"),
        ("--since 24h", "also those that ended since, and why"),
        ("--pool big --state idle --gpu 4090", "some of them"),
        ("--watch", "refreshed"),
    ),
    "status": (("18865e9b", "by the end of its id"), (f"{WORKER} --json", "for a program")),
    "logs": (
        ("18865e9b --lines 500", "more of it"),
        ("-f", "all live workers, followed"),
        ("18865e9b --stream agent", "the agent's own log"),
        (f"--task {TASK}", "one task"),
    ),
    "ssh": (("18865e9b", "a shell; needs OpenSSH's client here"),),
    "exec": (
        ("18865e9b -- nvidia-smi", "one command; exits with its code"),
        ("18865e9b -- sh -c 'df -h | tail -n +2'", "a shell's pipe"),
    ),
    "gpus": (("", "what is in stock, and what the pools take"), ("--all --gpu H100", "also what is not in stock")),
    "shutdown": (
        ("--dry-run", "what would end"),
        ("", "asks, ends all workers, and verifies that nothing is left"),
        ("--yes", "without asking"),
    ),
    "sync": (
        ("analyze", "show where RunPod and the database differ"),
        ("terminate_orphaned", "delete pods without rows; asks first"),
        ("update_database", "end rows without pods; asks first"),
        ("terminate_orphaned --database ID", "delete the pods of another database that is gone; asks first"),
        ("database_moved", "this restored database replaces the original; asks first"),
    ),
    "spawn": (("--wait", "one more worker; follows its bring-up"), ("--pool big", "of another pool")),
    "terminate": (
        ("18865e9b", "drains it: it finishes its tasks"),
        ("--pod-id 7h9k2m4n6p --now --yes", "at once, without asking"),
    ),
    "cluster create": (
        ("train --pool train --nodes 4", "rents four nodes now, and keeps them"),
        (
            "train --pool train --nodes 4 --min-nodes 0",
            "rents four nodes now, and returns them while no task needs them",
        ),
    ),
    "cluster list": (("", "the live ones, and what each waits for"), ("--all", "also ended ones, and why")),
    "cluster status": (("train", "what it waits for, its members, what is wrong"), ("train --json", "for a program")),
    "cluster members": (("train", "with what Slurm says of each, and their addresses"),),
    "cluster operations": (("train", "what is done to the members, and what came of it"),),
    "cluster reconcile": (("train", "every member"), ("train --worker 18865e9b", "one of them")),
    "cluster bootstrap-ssh": (("train", "the orchestrator's key on every member, again"),),
    "cluster scale": (
        ("train 6 --max-nodes 8", "six nodes, and up to eight if the tasks need them"),
        ("train --max-nodes 8", "the limit only"),
    ),
    "cluster submit": (
        ("train --script train.sh --nodes 4 --time-limit 12h", "one job over four nodes"),
        ("train --script - --nodes 2 --output 'results/*.pt' --wait", "from stdin; followed to its end"),
    ),
    "cluster drain": (("train 18865e9b", "its jobs end first, then its worker"),),
    "cluster explain": (
        ("train", "each cause with its evidence and its fix"),
        ("train --history", "also its last changes of state, and why"),
    ),
    "cluster delete": (("train", "asks first"), ("train --reason done --yes", "without asking")),
    "tasks submit": (
        ("--type travel_segment --params '{\"frames\": 48}'", "one task"),
        (f"--type travel_stitch --depends {TASK}", "after another"),
        ("--type travel_segment --wait", "follow it to its end"),
        ("--type travel_segment --run-after 2h --label show=7", "later, and with a label"),
    ),
    "tasks list": (
        ("--status Failed --limit 20", "the newest that failed"),
        ("--type travel_segment --since 24h --label show=7", "by type, age and label"),
    ),
    "tasks watch": (
        ("6545cbb7", "one task to its end, by its first digits"),
        ("--status queued", "the list, refreshed"),
    ),
    "tasks show": (("6545cbb7", "its attempts and failures"),),
    "tasks output": (
        ("6545cbb7", "its result and its files"),
        ("6545cbb7 -o results", "download them"),
        ("6545cbb7 --url", "addresses to share, valid for an hour"),
    ),
    "tasks import": (("tasks.jsonl --type travel_segment", "one JSON object per line; may be repeated"),),
    "tasks cancel": (
        ("6545cbb7", "asks first"),
        ("--type travel_segment --status queued", "all of them, after a question"),
        ("--type travel_segment --background", "the leader does it, also after you log out"),
    ),
    "tasks retry": (
        ("6545cbb7", "its attempts count from zero"),
        ("--status failed --type travel_segment --yes", "all of them, without a question"),
        ("--status failed --since 24h --background", "the leader does it; prints the number of the change"),
    ),
    "tasks changes": (("", "the newest"), ("1", "how far one is"), ("1 --stop", "what is changed stays changed")),
    "handlers new": (("hello", "writes handlers/hello.py"),),
    "handlers test": (('hello --params \'{"name": "you"}\'', "runs it here; exit 1 if it fails"),),
    "init": (("", "asks, checks each answer, writes .env"), ("--no-input", "takes the answers from the environment")),
    "doctor": (("", "every part"), ("ssh s3", "these parts"), ("ssh --repair", "prints the key pair for pasting")),
    "migrate": (
        ("--plan", "what it would apply; exit 2 if anything"),
        ("", "the database at DATABASE_URL; with only SUPABASE_URL, a check"),
    ),
    "tokens create": (
        ("webapp --tenant acme", "may submit and read tasks of this tenant"),
        ("ci --scope operate --days 30", "may also cancel, pause and terminate; expires by itself"),
    ),
    "tokens list": (("", "names, rights and last uses"),),
    "tokens link": (("", "opens the dashboard once, to read"),),
    "tokens revoke": (("webapp", "asks first"),),
    "completion": (("bash", "the script; see below where to put it"),),
}


def examples(command: str, line: str | None = None) -> str:
    """Return the end of a command's help. `line` replaces `python -m orchestrator …` in a script."""
    start = line or f"{typed()} {command}"
    shown = [f"  {f'{start} {tail}'.rstrip()}\n      {what}" for tail, what in EXAMPLES[command]]
    return "\n".join(["\b", "Examples:", *shown])


def added(command: click.Command, name: str, line: str | None = None) -> click.Command:
    """Add the examples to a command, or to the commands of a group."""
    if isinstance(command, click.Group):
        for child in command.commands.values():
            added(child, f"{name} {child.name}", line and f"{line} {child.name}")
    elif command.epilog is None or "Examples:" not in command.epilog:
        command.epilog = "\n\n".join(filter(None, (examples(name, line), command.epilog)))
    return command

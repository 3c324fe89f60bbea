"""What to type: the examples at the end of each command's `--help`. A test types them."""

import click

PROGRAM = "python -m orchestrator"
WORKER = "gpu-20261120_223104-18865e9b"
TASK = "6545cbb7-13ac-42cf-8f81-c2154cbc4659"

# Command -> (what follows its name, what that does). The end of a worker's id does for the whole of it.
EXAMPLES: dict[str, tuple[tuple[str, str], ...]] = {
    "run": (("", "until SIGTERM or Ctrl-C"),),
    "once": (("", "one tick, then stop"), ("--json", "what was decided, for a program")),
    "plan": (("", "exit 2 if the next tick would act"),),
    "pause": (('--reason "bad image" --for 30', "spawn nothing for half an hour"), ("--pool big", "one pool only")),
    "resume": (("", "every pool"), ("--pool big", "one pool only")),
    "explain": (
        ("18865e9b", "a worker, by the end of its id"),
        (TASK, "a task"),
        ("scaling", "why there are as many workers as there are"),
        ("AUTH_FAILED", "a failure code; error ids (E012) too"),
    ),
    "health": (("", "the daily check"), ("--json", "for a monitor; exit 1 if urgent")),
    "diagnose": (
        ("--save-report", "everything, kept in a file"),
        (WORKER, "one worker"),
        ("--since last", "and what changed since the last saved report"),
    ),
    "verify": (("18865e9b", "what its bring-up proved"), ("18865e9b --now", "and its pod, over SSH, at this moment")),
    "timeline": (("18865e9b", "by the end of the worker's id"),),
    "cost": (("--since 7d --by type", "a week, by type of task"), ("--by kind", "booting, busy, idle, draining")),
    "efficiency": (("", "the last hour, 6 h, 24 h and week"), ("--window 90m", "one window")),
    "list": (("", "the live workers"), ("--all", "ended ones too, and why they ended"), ("--watch", "as it changes")),
    "top": (("", "live; enter explains, l shows logs, q quits"),),
    "status": (("18865e9b", "by the end of its id"), (f"{WORKER} --json", "for a program")),
    "logs": (
        ("18865e9b --lines 500", "more of it"),
        ("18865e9b -f --stream handler", "follow what the handler says"),
        (f"--task {TASK}", "one task"),
    ),
    "shutdown": (
        ("--dry-run", "what would end"),
        ("", "asks, ends all, and sees that nothing is left"),
        ("--force", "without asking"),
    ),
    "sync": (
        ("analyze", "show where RunPod and the database differ"),
        ("terminate_orphaned", "delete pods without rows; asks first"),
        ("update_database", "end rows without pods; asks first"),
        ("terminate_orphaned --database ID", "delete the pods of another database that is gone; asks first"),
    ),
    "spawn": (("--wait", "one more, and follow its bring-up"), ("--pool big", "of another pool")),
    "terminate": (
        ("18865e9b", "drain it: it finishes its tasks"),
        ("--pod-id 7h9k2m4n6p --now --force", "at once, without asking"),
    ),
    "tasks submit": (
        ("--type travel_segment --params '{\"frames\": 48}'", "one task"),
        (f"--type travel_stitch --depends {TASK}", "after another"),
    ),
    "tasks list": (("--status Failed --limit 20", "the newest that failed"),),
    "tasks show": ((TASK, "its attempts, and how it failed"),),
    "tasks cancel": ((TASK, "asks first"),),
    "tasks retry": ((TASK, "attempts counted anew"),),
    "doctor": (("", "every part"), ("ssh s3", "these parts"), ("ssh --repair", "the key pair, for pasting")),
    "migrate": (("", "the database in DATABASE_URL; behind SUPABASE_URL alone, only a look"),),
    "completion": (("bash", "the script; where it goes is said below"),),
}


def examples(command: str, line: str | None = None) -> str:
    """The end of a command's help; `line` is how it is called here, where that is not `python -m orchestrator …`."""
    start = line or f"{PROGRAM} {command}"
    shown = [f"  {f'{start} {tail}'.rstrip()}\n      {what}" for tail, what in EXAMPLES[command]]
    return "\n".join(["\b", "Examples:", *shown])


def added(command: click.Command, name: str, line: str | None = None) -> click.Command:
    """The same command with its examples; a group's commands with theirs."""
    if isinstance(command, click.Group):
        for child in command.commands.values():
            added(child, f"{name} {child.name}", line and f"{line} {child.name}")
    elif command.epilog is None or "Examples:" not in command.epilog:
        command.epilog = "\n\n".join(filter(None, (examples(name, line), command.epilog)))
    return command

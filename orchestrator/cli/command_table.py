"""The table of commands: the section, the module and the short help of each, and the examples of `--help`.

The short help is here so that the list of commands imports no command.
"""

# Section -> command -> (module:function, short help).
COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "The loop": {
        "run": ("orchestrator.cli.commands.loop:run", "Run the orchestrator until SIGTERM or Ctrl-C."),
        "once": (
            "orchestrator.cli.commands.loop:once",
            "Run one tick and stop. It does nothing if another orchestrator leads.",
        ),
        "plan": (
            "orchestrator.cli.commands.loop:plan",
            "Show what the next tick would do; write nothing. Exit 2 if it would act.",
        ),
        "pause": ("orchestrator.cli.commands.loop:pause", "Stop spawning, with a reason. Running workers continue."),
        "resume": ("orchestrator.cli.commands.loop:resume", "Spawn again."),
        "scale": (
            "orchestrator.cli.commands.scale:scale",
            "Allow at most so many workers for a time, and choose the rule of scaling: limit, unlimit, policy, list.",
        ),
    },
    "Why": {
        "explain": (
            "orchestrator.cli.commands.explain:explain",
            "Explain a worker, a task, the scaling, a code, or a phrase from a log.",
        ),
        "health": (
            "orchestrator.cli.commands.health:health",
            "The daily check: summary, actions, numbers. Exit 1 if unhealthy.",
        ),
        "alerts": (
            "orchestrator.cli.commands.alerts:alerts",
            "Test the address that alerts are sent to, and list the open ones.",
        ),
        "diagnose": (
            "orchestrator.cli.commands.diagnose:diagnose",
            "The whole report: settings, database, RunPod, every worker, network, actions.",
        ),
        "verify": (
            "orchestrator.cli.commands.verify:verify",
            "Check that a worker is ready; with --now, also its pod over SSH.",
        ),
        "timeline": ("orchestrator.cli.commands.timeline:timeline", "All events of a worker, in order."),
        "cost": (
            "orchestrator.cli.commands.cost:cost",
            "The cost by worker, pool, state or task, compared with RunPod's bill.",
        ),
        "efficiency": (
            "orchestrator.cli.commands.efficiency:efficiency",
            "Tasks per hour, utilisation, queue depth and dollars per task, by window.",
        ),
        "what-if": (
            "orchestrator.cli.commands.what_if:what_if",
            "What recorded tasks would cost and wait under each rule of scaling.",
        ),
    },
    "Workers": {
        "list": ("orchestrator.cli.commands.workers:list_workers", "The workers, one line each."),
        "status": ("orchestrator.cli.commands.workers:status", "Everything about one worker."),
        "logs": (
            "orchestrator.cli.commands.logs:logs",
            "Logs of workers in the order of time, from S3; also after their end.",
        ),
        "ssh": ("orchestrator.cli.commands.remote:ssh", "A shell on a worker's pod, with its pinned host key."),
        "exec": ("orchestrator.cli.commands.remote:execute", "Run a command on a worker's pod; its exit code."),
        "shutdown": (
            "orchestrator.cli.commands.shutdown:shutdown",
            "End every worker at once, and verify with RunPod that nothing is left.",
        ),
        "gpus": ("orchestrator.cli.commands.gpus:gpus", "GPU types: price, stock, places, and what the pools take."),
        "sync": (
            "orchestrator.cli.commands.sync:sync",
            "Find pods without rows and rows without pods, and repair them.",
        ),
        "spawn": ("orchestrator.cli.commands.requests:spawn", "Request one more worker."),
        "terminate": (
            "orchestrator.cli.commands.requests:terminate",
            "Request a worker's end: it is drained, its logs are kept, its pod is deleted.",
        ),
    },
    "Clusters": {
        "cluster": (
            "orchestrator.cli.commands.clusters:cluster",
            "Run jobs that need several pods: create, status, submit, scale, explain, delete.",
        ),
    },
    "Tasks": {
        "tasks": (
            "orchestrator.cli.commands.tasks:tasks",
            "Submit, list, follow, cancel and retry tasks; fetch outputs.",
        ),
        "schedules": (
            "orchestrator.cli.commands.schedules:schedules",
            "Submit a task again and again: add, list, next, pause, resume, remove.",
        ),
        "webhooks": (
            "orchestrator.cli.commands.webhooks:webhooks",
            "Tell addresses about the end of tasks: add, list, test, key, retry, remove.",
        ),
        "limits": (
            "orchestrator.cli.commands.limits:limits",
            "Limit the running tasks of a concurrency key or a type: list, set, remove.",
        ),
        "tenants": (
            "orchestrator.cli.commands.tenants:tenants",
            "Share each pool between tenants by weight: list, set.",
        ),
        "handlers": (
            "orchestrator.cli.commands.handlers:handlers",
            "Write a handler, and try it on this machine.",
        ),
    },
    "For programs": {
        "mcp": (
            "orchestrator.cli.commands.mcp:mcp",
            "Serve the fleet's facts and actions to AI assistants (MCP).",
        ),
    },
    "Setting up": {
        "init": ("orchestrator.cli.commands.init:init", "Ask for what is needed, check it, and write .env."),
        "doctor": (
            "orchestrator.cli.commands.doctor:doctor",
            "Check every part: settings, database, RunPod, SSH, S3, clock.",
        ),
        "migrate": ("orchestrator.cli.commands.migrate:migrate", "Bring the database's schema up to this version."),
        "tokens": ("orchestrator.cli.commands.tokens:tokens", "Create, list and revoke tokens of the API."),
        "completion": (
            "orchestrator.cli.commands.completion:completion",
            "Print a completion script for your shell.",
        ),
    },
}


EXAMPLES = (
    ("migrate", "prepare DATABASE_URL"),
    ("run", "the daemon"),
    ("list --watch", "the workers, refreshed"),
    ("explain <worker>", "why it is in this state"),
    ("explain scaling", "why the pools have this size"),
    ("logs <worker> -f", "its log"),
    ("tasks submit --type T", "submit a task"),
)

"""A worker program of the user's own instead of the agent's loop: started, seen alive, reported when it ends."""

from __future__ import annotations

from . import exits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .config import Config, RunDir
    from .journal import Journal
    from .life import Life
    from .runner import Runner

POLL_S = 0.5


def supervise(config: Config, run: RunDir, life: Life, journal: Journal, runner: Runner) -> str:
    """Run the program until it ends or is no longer wanted; says which. Its claims and completions are its own."""
    run.write("token", config.token)
    child = runner.spawn(own=True)
    child.send({
        "op": "program", "command": config.start_command,
        "env": {
            "WORKER_ID": config.worker_id, "WORKER_NONCE": config.nonce, "WORKER_API_URL": config.api_url,
            "WORKER_TOKEN_FILE": run.at("token"),
        },
    })  # fmt: skip
    journal.log("program_started", pid=child.pid)
    life.health["program"] = {"running": True}
    asked = False
    while not life.ending:
        if life.draining and not asked:
            child.send({"op": "terminate"})  # it may finish what it holds; `stop` will not wait
            asked = True
        last = [message for message in child.receive(POLL_S, life) if message["op"] == "ended"]
        if last or child.closed:
            status = last[0]["status"] if last else child.end()
            child.end()
            if status == 0:
                exit_class, text = None, "the program ended"
            else:
                exit_class, _, text = exits.of_process(status, None, "")
            life.health["program"] = {"running": False, "status": status, "exit_class": exit_class}
            journal.log("program_ended", status=status, exit_class=exit_class, message=text)
            return "drained" if asked else text
    child.end()
    life.health["program"] = {"running": False, "status": None, "exit_class": None}
    return life.ending

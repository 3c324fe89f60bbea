"""A user's own worker program (WORKER_START_COMMAND), which replaces the agent's loop. The agent supervises it."""

from __future__ import annotations

from . import exits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .agent_state import AgentState
    from .config import Config, RunDir
    from .journal import Journal
    from .runner import Runner

POLL_S = 0.5


def supervise(config: Config, run: RunDir, state: AgentState, journal: Journal, runner: Runner) -> str:
    """Run the program until it ends or must end. Return the reason. The program itself claims and completes tasks."""
    run.write("token", config.token)
    child = runner.hosts.spawn(own=True)
    child.send({
        "op": "program", "command": config.start_command,
        "env": {
            "WORKER_ID": config.worker_id, "WORKER_NONCE": config.nonce, "WORKER_API_URL": config.api_url,
            "WORKER_TOKEN_FILE": run.at("token"),
        },
    })  # fmt: skip
    journal.log("program_started", pid=child.pid)
    state.health["program"] = {"running": True}
    asked = False
    while not state.ending:
        if state.draining and not asked:
            child.send({"op": "terminate"})  # the program may finish its tasks; `stop` does not wait for them
            asked = True
        last = [message for message in child.receive(POLL_S, state) if message["op"] == "ended"]
        if last or child.closed:
            status = last[0]["status"] if last else child.end()
            child.end()
            if status == 0:
                exit_class, text = None, "the program ended"
            else:
                exit_class, _, text = exits.of_process(status, None, "")
            state.health["program"] = {"running": False, "status": status, "exit_class": exit_class}
            journal.log("program_ended", status=status, exit_class=exit_class, message=text)
            return "drained" if asked else text
    child.end()
    state.health["program"] = {"running": False, "status": None, "exit_class": None}
    return state.ending

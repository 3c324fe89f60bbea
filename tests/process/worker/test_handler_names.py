"""Files of the user's with the names of other modules, and handlers that cannot run."""

import importlib.util
import sys
from collections.abc import Callable

import pytest

from orchestrator.config.environment import load
from orchestrator.config.handler_check import handler_problems
from tests.process.worker.scripted import Orchestrator, Pod

HARMLESS = "def run(params, task):\n    return {'of': __file__.rpartition('/')[2]}\n"
NAMES = [  # those that this system has
    name for name in sorted(sys.stdlib_module_names)
    if name[0] != "_" and importlib.util.find_spec(name) and name != "this"
]  # fmt: skip
USES = """
import queue, threading, json, sibling

def run(params, task):
    (task.dir / "out.txt").write_text(json.dumps(params))
    task.upload("out.txt")
    task.progress(0.5)
    return {"queue": queue.Queue().qsize(), "sibling": sibling.VALUE}

async def later(params, task):
    import asyncio
    await asyncio.sleep(0)
    return {"later": params["n"]}
"""


def test_no_file_of_the_users_replaces_a_module_of_python(
    orchestrator: Orchestrator, make_pod: Callable[..., Pod]
) -> None:
    """One for each module of the standard library: the agent, its host and libraries import Python's own."""
    shadows = {f"{name}.py": f"raise SystemExit('the {name} of the user')\n" for name in NAMES}
    pod = make_pod({**shadows, "uses.py": USES, "sibling.py": "VALUE = 1\n", "worker.py": HARMLESS})
    pod.start({"uses": "uses:run", "later": "uses:later", "worker": "worker:run", "command": "cmd:true"})
    orchestrator.submit("uses", "uses", {})
    orchestrator.submit("later", "later", {"n": 2})
    orchestrator.submit("worker", "worker")
    orchestrator.submit("command", "command")
    result = orchestrator.completion("uses")["p_result_data"]
    assert (result["queue"], result["sibling"]) == (0, 1)
    assert orchestrator.completion("later")["p_result_data"] == {"later": 2}
    assert orchestrator.completion("worker")["p_result_data"] == {"of": "worker.py"}
    orchestrator.completion("command")


def test_a_handler_may_be_in_a_file_with_such_a_name(orchestrator: Orchestrator, make_pod: Callable[..., Pod]) -> None:
    """It is loaded by its path."""
    names = ["queue", "json", "types", "signal", "code", "orchestrator_worker"]
    pod = make_pod({**{f"{name}.py": HARMLESS for name in names}, "email/__init__.py": "", "email/jobs.py": HARMLESS})
    pod.start({**{name: f"{name}:run" for name in names}, "email": "email.jobs:run"})
    for name in [*names, "email"]:
        orchestrator.submit(name, name)
        of = "jobs.py" if name == "email" else f"{name}.py"
        assert orchestrator.completion(name)["p_result_data"] == {"of": of}


REFUSED = {
    "no such module": "nothing:run",
    "no such function": "good:nothing",
    "no function": "good:VALUE",
    "rebound": "good:rebound",
    "no name of a module": "a-b:run",
    "no name of a function": "good:not-one",
    "two colons": "good:run:run",
    "no function's name": "good:",
    "no module's name": ":run",
    "a path": "./good.py:run",
    "no words": "cmd: ",
    "an open quote": "cmd:sh -c 'true",
    "no such file": "cmd:./nothing.sh",
    "a directory": "cmd:./package",
    "not executable": "cmd:./plain",
    "broken": "broken:run",
}
ACCEPTED = {"a function": "good:run", "a method": "good:Class.run", "async": "good:later", "a file": "cmd:./good.sh"}
GOOD = """
VALUE = 5
def rebound(params, task): pass
rebound = None
def run(params, task): pass
async def later(params, task): pass
class Class:
    @staticmethod
    def run(params, task): pass
"""


def test_the_check_on_this_machine_and_the_pod_agree(
    orchestrator: Orchestrator, make_pod: Callable[..., Pod], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one of them refuses, the other refuses too; `handlers test` asks both."""
    files = {
        "good.py": GOOD, "a-b.py": HARMLESS, "broken.py": "def run(:\n", "package/x.py": HARMLESS,
        "good.sh": "#!/bin/sh\n", "plain": "#!/bin/sh\n",
    }  # fmt: skip
    pod = make_pod(files)
    monkeypatch.setenv("WORKER_CODE_DIR", str(pod.home / "source"))
    handlers = REFUSED | ACCEPTED
    for name, handler in handlers.items():
        monkeypatch.setenv("WORKER_HANDLERS", f"t={handler}")
        assert bool(handler_problems(load())) is (name in REFUSED), name
    pod.start(handlers)
    for name in handlers:
        orchestrator.submit(name, name)
    for name in handlers:
        orchestrator.until(lambda name=name: name in orchestrator.completed | orchestrator.failures)  # type: ignore[misc]
        assert (name in orchestrator.failures) is (name in REFUSED), name

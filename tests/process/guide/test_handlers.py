"""docs/handlers.md and docs/tasks.md: the test writes the files, sets the settings, runs the commands and the SQL."""

import re
import shlex
from pathlib import Path

from orchestrator.config.settings import Settings
from orchestrator.diagnostics import causes
from testbed.stack import ROOT
from tests.process.guide.conftest import Fleet

DOC = (ROOT / "docs" / "handlers.md").read_text()
TASKS = (ROOT / "docs" / "tasks.md").read_text()
FILES = re.findall(r"```\w+\n((?:#!.*\n)?# mine/(\S+)\n.*?)```", DOC, re.DOTALL)
SETTINGS = dict(word.split("=", 1) for word in shlex.split(re.findall(r"^export (.*)$", DOC, re.MULTILINE)[0]))
SUBMITTED = [shlex.split(line) for line in re.findall(r"^\./run (tasks submit .*)$", DOC, re.MULTILINE)]
LIBRARIES = ("OMP", "MKL", "OPENBLAS")
SQL = re.findall(r"```sql\n(.*?)```", TASKS, re.DOTALL)[0]


def test_the_settings_that_it_names_are_there() -> None:
    """Every word in capitals with an underscore is one, a failure code, or a variable of other programs or `init`."""
    others = {"HF_TOKEN", "HF_HOME", "PYTORCH_CUDA_ALLOC_CONF", "REGISTRY_USERNAME", "REGISTRY_PASSWORD"}
    others |= {f"{name}_NUM_THREADS" for name in LIBRARIES}
    named = set(re.findall(r"\b[A-Z]+_[A-Z_]+\b", DOC + TASKS)) - others
    assert named <= {name.upper() for name in Settings.model_fields} | set(causes.codes())


async def test_what_it_shows_does_what_it_says(guided: Fleet, tmp_path: Path) -> None:
    """Both kinds of handler, with progress, an upload and results; in a task's environment is what WORKER_ENV names."""
    mine = tmp_path / "mine"
    mine.mkdir()
    for text, name in FILES:
        (mine / name).write_text(text)
        (mine / name).chmod(0o755)
    (mine / "env.sh").write_text('#!/bin/sh\nprintf \'{"said": "%s"}\\n\' "$GREETING$DATABASE_URL"\n')
    (mine / "env.sh").chmod(0o755)
    given = SETTINGS | {"WORKER_CODE_DIR": str(mine), "WORKER_ENV": "GREETING", "GREETING": "good day"}
    await guided.orchestrator(**{**given, "WORKER_HANDLERS": f"{given['WORKER_HANDLERS']},env=cmd:./env.sh"})
    for command in (*SUBMITTED, ["tasks", "submit", "--type", "env"]):
        ran = await guided.cli(*command)
        assert ran.code == 0, ran.err
    await guided.sql.execute(SQL.encode())
    await guided.until("select 1 from tasks having count(*) filter (where status = 'Complete') = 5")
    rows = await guided.until("select task_type, result_data, output_location, progress from tasks order by created_at")
    hello, count, env, *_ = rows
    assert hello["result_data"]["steps"] == 3
    key = hello["output_location"].partition(f"/{guided.stack.prefix}/")[2]
    assert await guided.stack.blobs().get(key) == b"hello you\n"
    assert count["result_data"]["counted"] is True
    assert count["output_location"].endswith("/bytes.txt")
    assert env["result_data"] == {"said": "good day"}

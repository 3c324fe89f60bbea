"""The guide's commands, as its text has them (commands.txt), each run where it is meant to be run."""

import asyncio
import json
import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config.settings import Settings
from orchestrator.config.ssh_keys import login_pair
from testbed.stack import ROOT
from tests.process.cli.builders import Ran
from tests.process.guide.conftest import Fleet

COMMANDS = Path(__file__).with_name("commands.txt").read_text().rstrip().split("\n---\n")
SETTING = re.compile(r"([A-Z_]+)=[^(]*")
RAILWAY = "Railway's own program, on an account that a test has not got; docs/railway.md has these commands"
LOGGED = (r"^\d\d:\d\d:\d\d[ ~] handler \| ",)  # a clock time and the stream, before each line
KEY_FILE = "shows the operator's own file; that such keys are accepted is tested by ssh-keygen's line"


@dataclass(frozen=True)
class Row:
    """One command: what comes of it on a fleet that has done its work, or why it is not run."""

    command: str
    out: tuple[str, ...] = ()  # patterns that stdout has
    err: tuple[str, ...] = ()  # … and stderr
    code: int = 0
    place: str = "scripts"
    exempt: str = ""


TABLE = (
    Row(
        "cd scripts && python spawn_gpu.py list",
        (r"^worker .*waiting on / note", "<worker_id>", "1 worker "),
        place=".",
    ),
    Row("cd orchestrator && railway logs", exempt=RAILWAY),
    Row("cd scripts", place="."),
    Row("cd orchestrator", place="."),
    Row(
        "python comprehensive_diagnostics.py --save-report",
        ("^✅ HEALTHY",),
        (r"saved: .*diagnostic_report_\d{8}_\d{6}",),
    ),
    Row("python comprehensive_diagnostics.py <worker_id> --save-report", ("✅ Connected",), ("saved: ",)),
    Row("python comprehensive_diagnostics.py --include-sensitive --save-report", ("^✅ HEALTHY",), ("saved: ",)),
    Row(
        "python spawn_gpu.py status <worker_id>",
        ("<worker_id>", r"SSH: [\d.]+:\d+", "RunPod: RUNNING", "1 done, 0 failed"),
    ),
    Row("python comprehensive_diagnostics.py <worker_id>", ("^✅ HEALTHY", "^<worker_id> ", "^SSH .*✅ Connected")),
    Row("cd orchestrator && railway variables | grep SSH", exempt=RAILWAY),
    Row("cat ~/.ssh/id_ed25519", exempt=KEY_FILE),
    Row("cat ~/.ssh/id_ed25519.pub", exempt=KEY_FILE),
    Row('railway variables --set "RUNPOD_SSH_PRIVATE_KEY=$(cat ~/.ssh/id_ed25519)"', exempt=RAILWAY),
    Row('railway variables --set "RUNPOD_SSH_PUBLIC_KEY=$(cat ~/.ssh/id_ed25519.pub)"', exempt=RAILWAY),
    Row("railway variables", exempt=RAILWAY),
    Row("railway up --detach", exempt=RAILWAY),
    Row("python fetch_worker_logs.py <worker_id> --lines 200", LOGGED, ("<worker_id>: from S3",)),
    Row("python fetch_worker_logs.py <worker_id> --lines 500", LOGGED, ("<worker_id>: from S3",)),
    Row("python fetch_worker_logs.py --lines 200", LOGGED, ("<worker_id>: from S3",)),
    Row("python fetch_worker_logs.py <worker_id>", LOGGED, ("<worker_id>: from S3",)),
    Row("python scripts/shutdown_all_workers.py", err=(r"error\[E050\]", "repeat it with --force"), code=2, place="."),
    Row("python spawn_gpu.py list", ("<worker_id> +idle",)),
    Row("ssh-keygen -t ed25519 -f ~/.ssh/id_ed25519 -N ''", exempt="run by a test of its own, in a home of its own"),
)
# The guide's snippets, by words that only they have -> what they print.
SNIPPETS = {
    "Tasks in progress": ("Tasks in progress: 0\nTasks queued: 0\n",),
    ".limit(5)": (r"^[0-9a-f]{8}\.\.\. Complete work$",),
    "Completed segments": (r"^Completed segments: 1$", r"^  [0-9a-f]{8}\.\.\. s3://b/segment\.mp4\.\.\.$"),
    "get_pod_ssh_details": (r"^SSH Details: \{'ip': '127\.0\.0\.1', 'port': \d+\}$",),
    "in ['Queued'": ("^Queued: 0\nIn Progress: 0\nComplete: 2\nFailed: 0$",),
    "Recent task activity": (r"^Recent task activity:$", r"Complete travel_segment 20"),
    "Current queue depth": ("^Tasks completed in last hour: 1\nCurrent queue depth: 0$",),
    "db.get_workers()": (r"\A\Z",),
}
SEGMENT = """
    insert into tasks (task_type, params, status, output_location)
    values ('travel_segment', '{}', 'Complete', 's3://b/segment.mp4')
"""


def test_every_command_of_the_guide_is_in_the_table() -> None:
    """Once, and nothing in the table is not in the guide; what is not run has a reason."""
    snippets = [command for command in COMMANDS if command.startswith("python -c")]
    settings = [command for command in COMMANDS if SETTING.fullmatch(command)]
    assert sorted(set(COMMANDS) - set(snippets) - set(settings)) == sorted(row.command for row in TABLE)
    for words in SNIPPETS:
        assert sum(words in snippet for snippet in snippets) == 1, words
    assert len(snippets) == len(SNIPPETS)
    fields = {name.upper() for name in Settings.model_fields}
    assert {command.partition("=")[0] for command in settings} <= fields
    assert len(settings) == 12


@dataclass(frozen=True)
class Answer:
    """What came of a command, and the reports that it saved."""

    ran: Ran
    reports: Sequence[dict[str, Any]]


@pytest.fixture(scope="module")
async def answers(steady: Fleet) -> Mapping[str, Answer]:
    """Run each command. Those that save a report run one after another, the others at the same time."""
    worker, found = (await steady.active())["id"], {}

    async def typed(rows: Iterable[Row]) -> None:
        for row in rows:
            line = row.command.replace("<worker_id>", worker)
            ran = await _typed(steady, line, cwd=ROOT / row.place)
            paths = [Path(path) for path in re.findall(r"saved: (\S+)", ran.err)]
            found[row.command] = Answer(ran, [json.loads(path.read_text()) for path in paths])
            for path in paths:
                path.unlink()  # the next one may come within the second of its name

    saving = [row for row in TABLE if "--save-report" in row.command]
    await asyncio.gather(typed(saving), typed(row for row in TABLE if row not in saving and not row.exempt))
    return found


@pytest.mark.parametrize("row", [row for row in TABLE if not row.exempt], ids=lambda row: row.command)
async def test_the_commands_do_what_the_guide_says(steady: Fleet, answers: Mapping[str, Answer], row: Row) -> None:
    """As typed, from where the guide stands."""
    worker = (await steady.active())["id"]
    ran = answers[row.command].ran
    assert ran.code == row.code, ran.out + ran.err
    for pattern in row.out:
        assert re.search(pattern.replace("<worker_id>", worker), ran.out, re.MULTILINE), ran.out
    for pattern in row.err:
        assert re.search(pattern.replace("<worker_id>", worker), ran.err, re.MULTILINE), ran.err
    assert len(answers[row.command].reports) == row.command.count("--save-report")
    for report in answers[row.command].reports:
        assert report["workers"][worker]["log_analysis"]["s3_logs_available"] is True


async def test_the_snippets_print_what_the_guide_says(steady: Fleet) -> None:
    """Over the synchronous Supabase client, on a real PostgREST, under the package name that the guide uses."""
    await steady.sql.execute(SEGMENT)
    worker = await steady.active()
    typed = {
        words: command.replace("<pod_id>", worker["pod_id"]).replace("from orchestrator.", "from gpu_orchestrator.")
        for words in SNIPPETS
        for command in COMMANDS
        if command.startswith("python -c") and words in command
    }
    programs = (_typed(steady, command, cwd=ROOT / "scripts") for command in typed.values())
    for words, ran in zip(typed, await asyncio.gather(*programs), strict=True):
        assert ran.code == 0, ran.err
        for pattern in SNIPPETS[words]:
            assert re.search(pattern, ran.out, re.MULTILINE), (words, ran.out)


async def test_keys_made_as_the_guide_says_are_accepted(steady: Fleet, tmp_path: Path) -> None:
    """ssh-keygen's line, and the two files as environment variables carry them."""
    [command] = [command for command in COMMANDS if command.startswith("ssh-keygen")]
    (tmp_path / ".ssh").mkdir()
    ran = await steady.program("bash", "-c", command, cwd=tmp_path, HOME=str(tmp_path))
    assert ran.code == 0, ran.err
    private, public = [(tmp_path / ".ssh" / f"id_ed25519{end}").read_text() for end in ("", ".pub")]
    assert login_pair(private.replace("\n", "\\n"), public).private.key.get_algorithm() == "ssh-ed25519"


async def test_a_healthy_log_has_the_healthy_patterns_and_no_other(steady: Fleet) -> None:
    """What operators search the log for."""
    text = (steady.stack.directory / "orchestrator.log").read_text()
    mine = text[text.index(f'"fleet": "{steady.environment["FLEET_ID"]}"') :]
    for healthy in ("ORCHESTRATOR CYCLE", "Worker startup completed successfully", '"workers_promoted": 1'):
        assert healthy in mine
    for problem in ("Authentication failed", "Failed to reset", "SSH connection failed", "No valid segment videos"):
        assert problem not in mine
    cycles = [json.loads(line) for line in mine.splitlines() if "ORCHESTRATOR CYCLE" in line]
    assert sum(cycle["actions"]["workers_promoted"] for cycle in cycles) == 1
    assert all(cycle["timestamp"] and cycle["status"]["total_workers"] <= 1 for cycle in cycles)


async def test_logs_are_found_where_they_still_are(steady: Fleet) -> None:
    """S3 first; without it the pod itself; after the pod's end the database. Which, is said."""
    worker = await steady.active()
    shipped = await steady.script("fetch_worker_logs.py", worker["id"], "--lines", "200", "--stream", "agent")
    assert shipped.code == 0, shipped.err
    assert f"{worker['id']}: from S3" in shipped.err
    assert shipped.out
    live = await steady.script("fetch_worker_logs.py", worker["id"], "--stream", "agent", S3_BUCKET=None)
    assert live.code == 0, live.err
    assert "live over SSH from its pod" in live.err
    assert live.lines_with("agent   | ")
    kept = await steady.script("fetch_worker_logs.py", worker["id"], S3_BUCKET=None, RUNPOD_SSH_PRIVATE_KEY=None)
    assert kept.code == 0, kept.err
    assert "from the database" in kept.err
    assert kept.lines_with("spawning -> active")


async def _typed(fleet: Fleet, line: str, cwd: Path) -> Ran:
    """What comes of a line in a shell. `python …` alone is run as a fork, because most of its time is imports."""
    words = shlex.split(line)
    if words[0] == "python":
        return await fleet.script(*words[1:], cwd=cwd)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # `python` is ours
    return await fleet.program("bash", "-c", line, cwd=cwd, PATH=path, PYTHONPATH=str(ROOT))

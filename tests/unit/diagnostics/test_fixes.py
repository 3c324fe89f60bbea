"""No command recommends itself: every fix of every catalogue, at each command that shows it."""

import ast
import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from string import Formatter

import pytest

from orchestrator.adapters import s3
from orchestrator.adapters.s3 import Patience, S3Blobs
from orchestrator.cli.worker_rows import warning
from orchestrator.core.blocked import Blocked, BlockedReason
from orchestrator.core.cluster_states import ClusterStatus
from orchestrator.core.clusters.diagnoses import ClusterDiagnosis, Diagnosis
from orchestrator.core.findings import GUARDS
from orchestrator.diagnostics import causes, clusters, scaling
from orchestrator.diagnostics.advice import recommends, without
from orchestrator.diagnostics.causes import Cause
from orchestrator.diagnostics.condition_kinds import ConditionKind
from orchestrator.diagnostics.conditions import Condition
from orchestrator.diagnostics.database_errors import MEANINGS
from orchestrator.diagnostics.doctor import SECTIONS
from orchestrator.diagnostics.doctor.findings import REMEDIES, Section, examine
from orchestrator.ports import Unavailable
from tests.unit.core.clusters.rows import cluster
from tests.unit.diagnostics.test_conditions import CASES, CAUSES, facts, found_in

DOCTOR = Path(__file__).resolve().parents[3] / "orchestrator" / "diagnostics" / "doctor"
REPORTS = ("health", "diagnose", "diagnose gpu-1")
LISTS = ("list", "tasks list", "tasks submit", "tasks watch")
WORKER, TASK = "gpu-1", "6545cbb1-13ac-42cf-8f81-c2154cbc4659"


def condition_fixes() -> Iterator[str]:
    for wrong in [*(case[0] for case in CASES.values()), *(case[0] for case in CAUSES.values())]:
        report = facts()
        wrong(report)
        yield from (one.fix for one in found_in(report))


def code_fixes() -> Iterator[Cause]:
    """Every code that `explain` knows, with the ids of a worker and a task."""
    words = (*causes.codes(), *causes.ENDINGS, *causes.WAITS, *GUARDS, "XID_79")
    for word in words:
        yield from (one.about(worker=WORKER, task=TASK) for one in causes.lookup(word))


def doctor_texts() -> set[str]:
    """Every text in the modules of the doctor that names a command."""
    trees = [ast.parse(path.read_text()) for path in DOCTOR.glob("*.py")]
    texts = {node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    return {text for text in texts if isinstance(text, str) and "python -m orchestrator" in text}


@pytest.mark.parametrize("kind", ConditionKind)
def test_a_fix_quotes_nothing_that_a_submitter_or_a_pod_writes(kind: ConditionKind) -> None:
    """An AI assistant takes it for the orchestrator's own advice."""
    ours = {"fix", "worker", "task", "pool", "code", "url", "name"}  # ids, and what the operator has set
    assert {name for _, name, _, _ in Formatter().parse(kind.row.fix) if name} <= ours


def test_conditions() -> None:
    """In the reports and the footers of lists."""
    fixes = set(condition_fixes())
    assert len(fixes) > 50
    assert not [(fix, shown) for fix in fixes for shown in REPORTS if recommends(fix, shown)]
    for fix in fixes:
        row = Condition(
            ConditionKind.MACHINE_NOTE, detail={"worker": "w", "means": "m", "code": "c", "fix": fix}
        ).as_json()
        standing = {"leader": {"holder": "us"}, "conditions": [row | {"priority": "HIGH", "pools": None}]}
        for pools in (None, ["default"]):
            line = warning(standing, pools)
            assert line is not None
            assert not [shown for shown in LISTS if recommends(line, shown)], line


def test_codes() -> None:
    """By `explain CODE`, and of a worker or a task that it explains."""
    fixes = list(code_fixes())
    assert len(fixes) > 100
    bad = [one.code for one in fixes for shown in (f"explain {one.code}", *REPORTS) if recommends(one.fix, shown)]
    assert not bad
    for one in fixes:
        for shown in (f"explain {WORKER}", f"explain {TASK}"):
            assert not recommends(without(one.fix, shown, instead="x"), shown), one.code


@pytest.mark.parametrize("kind", BlockedReason)
def test_blocked_reasons(kind: BlockedReason) -> None:
    """By `explain scaling` and `plan`."""
    fix = scaling.explained_reason(Blocked(kind)).fix
    assert fix
    assert not [shown for shown in ("explain scaling", "plan") if recommends(fix, shown)]


@pytest.mark.parametrize("status", ClusterStatus)
def test_clusters(status: ClusterStatus) -> None:
    """By `cluster explain`, `cluster status` and `cluster list`."""
    shown = ("cluster explain train", "cluster status train", "cluster list")
    fixes = [clusters.standing(cluster(status=status)).fix]
    fixes += [ClusterDiagnosis(code, "train", WORKER, "").fix for code in Diagnosis]
    assert not [(fix, name) for fix in fixes for name in shown if recommends(fix, name)]


@pytest.mark.parametrize("name", SECTIONS)
def test_doctor(name: str) -> None:
    """Whatever a check says, and if it gets no answer or none in time."""
    texts = (
        doctor_texts() | set(condition_fixes()) | {fix for _, _, fix in MEANINGS} | {one.fix for one in code_fixes()}
    )
    section = Section(name)
    for text in texts:
        section.fail("what", "why", text)

    async def no_answer(_: Section) -> None:
        raise Unavailable("no")

    async def late(_: Section) -> None:
        await asyncio.Event().wait()

    found = [*section.findings, *asyncio.run(examine({name: no_answer})), *asyncio.run(examine({name: late}, 0.01))]
    assert all(one.fix for one in found)
    commands = ("doctor", *(f"doctor {other}" for other in SECTIONS))
    assert not [one for one in found for shown in commands if recommends(one.fix, shown)]


def test_every_section_has_a_remedy() -> None:
    """For what its checks do not explain."""
    assert REMEDIES.keys() == SECTIONS.keys()


@pytest.mark.parametrize(
    ("fix", "left"),
    [
        ("python -m orchestrator doctor s3", "look at S3"),
        ("python -m orchestrator doctor; correct S3_BUCKET", "correct S3_BUCKET"),
        ("see its status; python -m orchestrator doctor s3", "see its status"),
        ("correct the key: python -m orchestrator doctor s3", "correct the key"),
        ("python -m orchestrator doctor database", "python -m orchestrator doctor database"),
        ("python -m orchestrator doctor ssh --repair", "python -m orchestrator doctor ssh --repair"),
    ],
)
def test_only_the_command_itself_is_left_out(fix: str, left: str) -> None:
    assert without(fix, "doctor", "doctor s3", instead="look at S3") == left


async def test_a_silent_server_is_asked_once_by_a_check() -> None:
    """Three attempts of half a minute each are for the loop, and not for a person who waits."""
    asked = []

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        await reader.read()
        writer.close()

    assert (s3.ONE_LOOK.attempts, s3.ONE_LOOK.read_timeout_s < s3.USUAL.read_timeout_s) == (1, True)
    async with await asyncio.start_server(silent, "127.0.0.1", 0, family=socket.AF_INET) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        hasty = Patience(0.2, s3.ONE_LOOK.attempts, s3.ONE_LOOK.call_timeout_s)
        blobs = S3Blobs(url, "key", "secret", "bucket", "", "us-east-1", patience=hasty)
        with pytest.raises(Unavailable):
            await blobs.get("doctor/x")
        await blobs.close()
    assert len(asked) == 1

"""What the leader knows of the fleet's conditions: from its ticks, and from what it asks once a minute."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from orchestrator.adapters.store import SqlStore
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.failures import FailureCode
from orchestrator.core.model import Demand, EndedBringUp
from orchestrator.core.plan import plan
from orchestrator.diagnostics.account import money
from orchestrator.diagnostics.condition_kinds import ConditionKind
from orchestrator.diagnostics.conditions import Condition
from orchestrator.leader_jobs import conditions
from orchestrator.leader_jobs.conditions import LeaderConditions, Sources
from orchestrator.observability.metrics import Metrics
from orchestrator.ports import Unavailable
from tests.unit.core.build import ago, busy, policy, snapshot

LOST = {
    "task_id": "t-1", "task_type": "work", "status": "Queued", "workers": 2, "last_at": ago(60).isoformat(),
    "worker_id": "gpu-9", "exit_cause": "pod_lost", "code": "POD_EXITED", "look": None,
}  # fmt: skip
TROUBLES = {"waiting_types": [{"pool": "default", "task_type": "stitch", "n": 3}], "lost_tasks": [LOST], "of_later": []}
WAITING = (Demand("default", 3, 1, {}, ago(60)),)


class Leader:
    """A leader whose database, RunPod and S3 answer as told."""

    def __init__(self) -> None:
        self.troubles: Any = TROUBLES
        self.usd: Any = 0.0
        self.metrics, self.found, self.now_s = Metrics(), list[Condition](), 1_000.0
        sources = Sources(SqlStore(self, "fleet"), ("travel",), self.balance, lambda: 3.0)
        self.conditions = LeaderConditions(sources, self.metrics, self.tell, lambda: self.now_s)

    def tell(self, found: Sequence[Condition]) -> None:
        self.found = list(found)

    async def balance(self) -> float:
        if isinstance(self.usd, Exception):
            raise self.usd
        return float(self.usd)

    async def call(self, function: str, /, **args: Any) -> Any:
        if isinstance(self.troubles, Exception):
            raise self.troubles
        return self.troubles

    async def notifications(self) -> AsyncIterator[tuple[str, str]]:
        yield ("connected", "")

    async def close(self) -> None: ...

    def tick(self, **changes: Any) -> set[str]:
        """The kinds that a tick shows, in the gauge and in the messages."""
        seen = snapshot(busy("gpu-1"), **({"demand": WAITING} | changes))
        self.conditions.planned(seen, plan(seen, policy()))
        return self.shown()

    def shown(self) -> set[str]:
        """What the gauge has, which is what is told."""
        samples = [sample for family in self.metrics.condition.collect() for sample in family.samples]
        shown = {sample.labels["kind"] for sample in samples if sample.value}
        assert shown == {str(one.kind) for one in self.found}
        return shown


ASKED = {"no_handler", "tasks_lost", "poison_task", "store_slow"}
BROKE = {"no_money", "backlog"}  # a cause, and its effect


async def test_a_tick_shows_what_was_asked_within_the_last_minutes() -> None:
    """By the gauge and to the messages; an older answer is unknown."""
    leader = Leader()
    assert leader.tick() == set()
    await leader.conditions.ask()
    assert leader.tick() == ASKED | BROKE
    leader.now_s += conditions.KEPT_S
    assert leader.tick() == set()


async def test_messages_have_the_cause_and_the_evidence_that_health_shows() -> None:
    """Of bring-ups that fail, and of tasks that fail."""
    leader = Leader()
    failed = {"task_type": "travel", "code": "OOM", "n": 3, "last_at": ago(9).isoformat(), "last_task": "t-1",
              "message": "no memory", "no_segments": 0}  # fmt: skip
    refused = {"code": "AUTH_FAILED", "cause": "REFUSED", "pool": "default", "stage": "ssh_auth", "n": 1, "workers": 1,
               "last_at": ago(60).isoformat(), "ok_at": None, "evidence": {"banner": "SSH-2.0-x"}}  # fmt: skip
    leader.troubles = {"failed_tasks": [failed], "failed_bringups": [refused]}
    await leader.conditions.ask()
    ended = EndedBringUp("gpu-9", "default", ago(60), False, ExitCause.SPAWN_FAILED, FailureCode.AUTH_FAILED, "r")
    assert {"tasks_failed", "bringups_fail", "auth_fails"} <= leader.tick(ended=[ended])
    told = {one.kind: one for one in leader.found}
    assert told[ConditionKind.TASKS_FAILED].text == "3 tasks of type travel failed within 15 minutes: OOM"
    assert told[ConditionKind.TASKS_FAILED].evidence == "no memory"
    assert "SSH-2.0-x" in told[ConditionKind.BRINGUPS_FAIL].evidence


async def test_a_check_without_an_answer_is_unknown() -> None:
    """An outage of one source hides nothing that the others say."""
    leader = Leader()
    leader.usd = Unavailable("this key is not told")
    await leader.conditions.ask()
    assert leader.tick() == ASKED
    leader.usd, leader.troubles = 0.0, Unavailable("no database")
    await leader.conditions.ask()
    assert leader.tick() == ASKED | BROKE, "no condition ends because nobody could ask"
    leader.now_s += conditions.KEPT_S
    await leader.conditions.ask()
    assert leader.tick() == BROKE | {"store_slow"}


async def test_a_rule_that_breaks_stops_no_tick() -> None:
    """The gauge keeps what it had, and the log has the traceback."""
    leader = Leader()
    assert leader.tick(expired_leases=2) == {"no_holder"}
    leader.troubles = {"waiting_types": [], "lost_tasks": [{"task_id": "without anything else"}]}
    await leader.conditions.ask()
    with capture_logs() as logs:
        assert leader.tick() == {"no_holder"}
    assert [entry["event"] for entry in logs] == ["conditions_unknown"]


def test_a_tick_shows_a_slow_database() -> None:
    """By the time that its own snapshot took."""
    assert Leader().tick(database_s=2.5, expired_leases=2) == {"database_slow", "no_holder"}


def test_failed_ticks_are_shown_with_the_last_known_conditions() -> None:
    """After some seconds, because one failure may be an accident; also if no tick has ever gone through."""
    leader = Leader()
    assert leader.tick(expired_leases=2) == {"no_holder"}
    leader.conditions.failed("BadArgument: no")
    assert leader.shown() == {"no_holder"}
    leader.now_s += 11
    leader.conditions.failed("BadArgument: no")
    assert leader.shown() == {"no_holder", "ticks_fail", "backlog"}
    assert leader.tick() == set()
    leader.conditions.forget()
    for _ in range(2):
        leader.conditions.failed("BadArgument: no")
        leader.now_s += 11
    assert [(one.kind, one.severity) for one in leader.found] == [(ConditionKind.TICKS_FAIL, "HIGH")]


async def test_a_balance_that_is_not_shown_is_seldom_asked_for() -> None:
    """It is unknown, which is no trouble; one failure is none either, and it is shown again when it is known again."""
    leader, asked, known = Leader(), list[float](), [False]

    async def balance_usd() -> float:
        asked.append(leader.now_s)
        if not known[0]:
            raise Unavailable("RunPod shows no balance to programs (410)")
        return 0.0

    leader.conditions._sources = replace(leader.conditions._sources, balance_usd=balance_usd)
    for _ in range(120):
        await leader.conditions.ask()
        assert "no_money" not in leader.tick()
        leader.now_s += 60
    assert len(asked) == conditions.UNSHOWN + 1
    known[0] = True
    leader.now_s += conditions.UNSHOWN_S
    for _ in range(3):
        await leader.conditions.ask()
        assert "no_money" in leader.tick()
        leader.now_s += 60
    assert len(asked) == conditions.UNSHOWN + 4


async def test_only_failures_in_a_row_make_the_balance_unshown() -> None:
    """Each second question fails for hours: it is asked again every time, and the last answer counts meanwhile."""
    leader, asked = Leader(), list[bool]()

    async def balance_usd() -> float:
        asked.append(len(asked) % 2 == 1)
        if asked[-1]:
            raise Unavailable("busy")
        return 0.0

    leader.conditions._sources = replace(leader.conditions._sources, balance_usd=balance_usd)
    for _ in range(4 * conditions.UNSHOWN):
        await leader.conditions.ask()
        assert "no_money" in leader.tick()
        leader.now_s += 60
    assert len(asked) == 4 * conditions.UNSHOWN


@pytest.mark.parametrize("status", [301, 401, 403, 404, 405, 410, 429, 500, 503])
async def test_a_refusal_to_show_the_balance_is_unknown(status: int) -> None:
    """RunPod's old API ends; the reason has its status."""
    transport = httpx.MockTransport(lambda _request: httpx.Response(status, content=b"<html>Gone</html>"))
    async with httpx.AsyncClient(transport=transport, base_url="http://runpod") as client:
        with pytest.raises(Unavailable, match=str(status)):
            await money(client)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"not json", b"[]", b'{"data": null}', b'{"data": {"myself": {"clientBalance": "x"}}}',
        b'{"data": {"myself": {"clientBalance": NaN, "currentSpendPerHr": 0}}}', b"[" * 60_000, b" " * 70_000,
    ],
)  # fmt: skip
async def test_an_odd_answer_about_the_balance_is_unknown(content: bytes) -> None:
    """It is neither money nor the lack of it."""
    transport = httpx.MockTransport(lambda _request: httpx.Response(200, content=content))
    async with httpx.AsyncClient(transport=transport, base_url="http://runpod") as client:
        with pytest.raises(Unavailable):
            await money(client)

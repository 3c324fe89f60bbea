"""In each situation, every screen, the API and the messages name the same first cause, from the same condition.

A situation is built once as facts. What the leader finds in them goes through the record in the database, as the other
commands read it.
"""

import json
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console
from rich.text import Text

from orchestrator.adapters.api_rows import ApiRows
from orchestrator.adapters.store import SqlStore
from orchestrator.cli import task_follow
from orchestrator.cli.commands import task_lists, workers
from orchestrator.cli.commands.diagnose import advised, headline
from orchestrator.cli.output import Output
from orchestrator.core.api_tokens import TokenHolder, TokenScope
from orchestrator.core.failures import FailureCode
from orchestrator.diagnostics import first_cause, tasks
from orchestrator.diagnostics.advice import without
from orchestrator.diagnostics.alerts import Alert, AlertPolicy, checked
from orchestrator.diagnostics.condition_kinds import ConditionKind, Impact
from orchestrator.diagnostics.conditions import Condition
from orchestrator.errors import Failure
from orchestrator.leader_jobs.conditions import RECORD_AGAIN_S, ConditionRecord
from orchestrator.ports import Unavailable
from orchestrator.web.api import explanations, fleet
from orchestrator.web.api.operations import Api, ApiCall
from tests.unit.core.build import NOW
from tests.unit.diagnostics import test_conditions as given
from tests.unit.diagnostics.test_conditions import CASES, CAUSES, Facts, failed_bringup, found_in, held, seen, setting

TASK_ID = "6545cbb1-13ac-42cf-8f81-c2154cbc4659"
LEADER = {"holder": "us", "since": NOW.isoformat(), "term": 1}
SETUP = "deploy: exit_status 127, stderr .venv/bin/pip: not found"


def set_up_fails(report: Facts) -> None:
    """The breaker is open, because WORKER_SETUP_COMMAND fails on each pod."""
    held("breaker_open", detail={"failed": 6, "ended": 6, "window_min": 5, "code": "SETUP_FAILED"})(report)
    seen(*[failed_bringup("SETUP_FAILED")] * 6)(report)
    evidence = {"exit_status": 127, "stderr": ".venv/bin/pip: not found"}
    row = {"code": "SETUP_FAILED", "cause": None, "stage": "deploy", "n": 6, "workers": 6, "pool": "default"}
    rows = [row | {"last_at": given.when(30), "ok_at": None, "evidence": evidence}]
    report["database_state"]["failed_bringups"] = rows


def no_pool(report: Facts) -> None:
    held("pool_unknown", unit="task", detail={"pool": "default"})(report)


def no_handler(report: Facts) -> None:
    held("paced")(report)
    setting("database_state.waiting_types", [{"pool": "default", "task_type": "stitch", "n": 4}])(report)


def claims_nothing(report: Facts) -> None:
    given.waits({"Queued": 4}, claimable=4, oldest_claimable_at=given.when(90))(report)
    report["workers"] = {"gpu-1": given.worker(tasks_running=0)}


SITUATIONS = {
    **{name: wrong for name, (wrong, *_) in CAUSES.items()},
    "set-up command": set_up_fails,
    "no pool for the type": no_pool,
    "no handler": no_handler,
    "a worker claims nothing": claims_nothing,
}


class Database:
    """A database that answers as its functions do, with what the leader has recorded."""

    def __init__(self, report: Facts) -> None:
        self.led = report["database_state"]["leader"] is not None
        self.read_only = False
        self.conditions: Any = None
        self.decided = report["orchestrator_analysis"]["scaling_decisions"]
        self.paused = report["database_state"]["paused"]
        row = {"id": TASK_ID, "status": "Queued", "task_type": "stitch", "pool": "default", "attempts": 0}
        row |= {"uncounted": 0, "max_attempts": 3, "worker_id": None, "created_at": NOW.isoformat()}
        row |= {"waits": {"kind": "worker"}, "progress": None, "cancel_requested_at": None, "state": "ready"}
        row |= {"run_after": None, "failure_code": None, "error_message": None, "updated_at": NOW.isoformat()}
        self.task = row | {"timeout_s": None, "depends_on": []}

    async def call(self, function: str, /, **args: Any) -> Any:
        if function == "fleet_note_conditions":
            self.conditions = json.loads(json.dumps(args["p_conditions"]))
            return {"noted": len(self.conditions)}
        leader = LEADER if self.led else None
        last = None if self.led else {"holder": "us", "until": NOW.isoformat()}
        standing = {"now": NOW.isoformat(), "leader": leader, "last": last, "conditions": self.conditions}
        standing |= {"read_only": self.read_only}
        match function:
            case "fleet_leadership":
                return standing
            case "task_find":
                return {"now": NOW.isoformat(), "tasks": [self.task], "counts": {"Queued": 4}}
            case "task_get_for":
                return {"task": self.task, "attempts": []}
            case "fleet_find_workers":
                return {"now": NOW.isoformat(), "workers": [], "counts": []}
            case "fleet_task_explain":
                usual = {"task_type": "stitch", "n": 0, "p50_s": None, "p95_s": None}
                decision = next(iter(self.decided), None)
                facts: dict[str, Any] = {
                    "task": self.task,
                    "usual": usual,
                    "holder": None,
                    "declared": None,
                    "limit": None,
                }
                facts |= {"refusal": None, "decision": decision, "ahead": 0, "workers": {}, "worker": None}
                lists = {"dependencies": [], "dependants": 0, "waiting": [], "attempts": []}
                return standing | {"paused": self.paused} | facts | lists
        raise AssertionError(function)

    async def notifications(self) -> AsyncIterator[tuple[str, str]]:
        yield ("connected", "")

    async def close(self) -> None: ...


class Fleet:
    """A situation, and what each surface says of it."""

    def __init__(self, wrong: Callable[[Facts], None]) -> None:
        report = given.facts()
        wrong(report)
        self.db = Database(report)
        self.store = SqlStore(self.db, "fleet")
        self.found = found_in(report)
        self.rows = [one.as_json() for one in self.found]

    @property
    def cause(self) -> Condition:
        return self.found[0]

    async def recorded(self) -> "Fleet":
        record = ConditionRecord(self.store)
        record.note(self.found)
        await record.step(1)
        return self

    def health(self) -> str:
        """`health`, `diagnose` and scripts/comprehensive_diagnostics.py."""
        console = Console(width=400, force_terminal=False)
        report = {"timestamp": NOW.isoformat(), "healthy": False, "recommendations": self.rows}
        with console.capture() as shown:
            for part in (headline(report), *advised(report)):
                console.print(part)
        return shown.get()

    async def follow(self) -> str:
        """`tasks submit --wait`, until the task is cancelled."""
        waits = task_follow.WaitCause(self.store)
        row = await self.store.find.task(TASK_ID)
        assert row is not None
        cause = await waits.of(row)
        return "" if cause is None else cause.line

    async def listed(self) -> tuple[str, str]:
        """The footers of `list` and of `tasks list`."""
        output = Output()
        of_workers = await workers._ask(self.store, output, {"ended": False})
        of_tasks = await task_lists._ask(self.store, output, {}, 10)
        return of_workers.warning or "", of_tasks.warning or ""

    async def explained(self) -> tasks.TaskExplanation:
        return tasks.explained(await self.store.explain_task(TASK_ID))

    async def api(self) -> tuple[Any, Any]:
        """GET /health, and the explanation of the task."""
        holder = TokenHolder("test", frozenset({TokenScope.READ}), frozenset({"default"}))
        call = ApiCall(cast("Any", None), holder, {"task_id": TASK_ID}, None, None)
        api = Api(ApiRows(self.db, "fleet"), cast("Any", None), cast("Any", SimpleNamespace(closed=False)))
        answers = [await operation(api, call) for operation in (fleet.health, explanations.task)]
        health, task = [json.loads(bytes(answer.body)) for answer in answers]
        return health, task

    def first_message(self) -> Any:
        """The first message about the condition itself, when each kind has lasted long enough."""
        policy = AlertPolicy("fleet", max_per_hour=100)
        late = NOW + timedelta(seconds=max(kind.row.after_s + kind.row.waits_s for kind in ConditionKind))
        known = [Alert.of(one, NOW) for one in self.found]
        made = checked(self.found, known, policy, late, sent_1h=0)
        return next((one["body"] for one in made.messages if one["body"]["kind"] == self.cause.kind), None)


@pytest.mark.parametrize("name", SITUATIONS)
async def test_every_surface_names_the_same_first_cause(name: str) -> None:
    """The same sentence and the same fix."""
    fleet = await Fleet(SITUATIONS[name]).recorded()
    cause = fleet.cause
    assert cause.severity == "HIGH"
    assert "UNHEALTHY" in (report := fleet.health())
    assert report.splitlines()[2].startswith(f"1. [HIGH] {cause.kind.row.category}: {cause.text}"), report
    of_workers, of_tasks = await fleet.listed()
    assert cause.text in of_workers
    assert without(cause.fix, "list", instead="python -m orchestrator health") in of_workers
    assert cause.text in of_tasks.splitlines()[-1]
    assert cause.text in await fleet.follow()
    told = await fleet.explained()
    assert cause.text in told.what
    assert (told.condition, told.fix) == (cause.kind, cause.fix.replace("<task>", TASK_ID))
    health, task = await fleet.api()
    assert (health["healthy"], health["first_cause"]["kind"]) == (False, cause.kind)
    assert health["first_cause"]["text"] == cause.text
    assert cause.text in task["what"]
    assert task["detail"]["condition"] == cause.kind
    message = fleet.first_message()
    assert message is not None
    assert (message["text"], message["fix"]) == (cause.text, cause.fix)


async def test_without_a_record_the_explanation_of_a_task_follows_from_the_decision() -> None:
    """As after `once`, or while the leader is of an earlier version."""
    for name in ("no money", "day's budget", "sold out", "pause", "no leader", "a pool that is off"):
        fleet = Fleet(SITUATIONS[name])
        assert (await fleet.explained()).condition == fleet.cause.kind, name


async def test_a_database_that_allows_no_writes_is_the_cause_and_not_that_nobody_can_lead() -> None:
    """The orchestrator runs: to start it would not help. While its lease lasts, the same holds."""
    for led in (False, True):
        fleet = Fleet(given.waits({"Queued": 4}, claimable=4))
        fleet.db.led, fleet.db.read_only = led, True
        of_workers, of_tasks = await fleet.listed()
        health, task = await fleet.api()
        told = await fleet.explained()
        assert (told.condition, health["first_cause"]["kind"]) == (ConditionKind.DATABASE_DOWN,) * 2
        for said in (of_workers, of_tasks.splitlines()[-1], await fleet.follow(), told.what, task["what"]):
            assert "The database allows no writes" in said
            assert "process is not running" not in said


async def test_a_fleet_without_trouble_has_no_footer() -> None:
    """And the task waits for its turn."""
    fleet = await Fleet(given.waits({"Queued": 1}, claimable=1)).recorded()
    assert fleet.found == []
    of_workers, of_tasks = await fleet.listed()
    assert (of_workers, of_tasks.splitlines()[-1]) == ("", "in all: 4 Queued")
    assert await fleet.follow() == ""


async def test_waiting_says_why_once_and_again_when_the_cause_changes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not again for each further failure of the same kind."""
    monkeypatch.setattr(task_follow, "EVERY_S", 0.0)
    monkeypatch.setattr(task_follow, "CAUSE_EVERY_S", 0.0)
    fleet = await Fleet(set_up_fails).recorded()
    fleet.db.conditions[0]["action"] += "; python -m orchestrator timeline gpu-20261129_013139-f426b3ef"
    asked: list[int] = []

    async def call(function: str, /, **args: Any) -> Any:
        if function == "task_find":
            asked.append(1)
            if len(asked) in {3, 12}:  # the database restarts
                raise Unavailable("task_find: the connection is lost")
            if len(asked) == 5:  # another bring-up has failed in the same way
                fleet.db.conditions[0]["action"] = fleet.db.conditions[0]["action"].replace(
                    "3139-f426b3ef", "4218-a1b2c3"
                )
                fleet.db.conditions[0]["issue"] = fleet.db.conditions[0]["issue"].replace("6 bring-ups", "7 bring-ups")
            if len(asked) == 8:  # and in another way
                fleet.db.conditions[0]["issue"] = fleet.db.conditions[0]["issue"].replace("SETUP_FAILED", "BOOT_FAILED")
            if len(asked) == 10:
                fleet.db.conditions = json.loads(json.dumps((Fleet(CAUSES["no money"][0])).rows))
            if len(asked) == 15:
                fleet.db.task |= {"status": "Cancelled"}
        return await Database.call(fleet.db, function, **args)

    monkeypatch.setattr(fleet.db, "call", call)
    with pytest.raises(Failure):
        await task_follow.follow(fleet.store, Output(), TASK_ID)
    said = capsys.readouterr().err
    first = fleet.cause.text.partition(":")[0]
    assert said.count(first) == 2
    assert [said.count(code) for code in ("(SETUP_FAILED)", "(BOOT_FAILED)")] == [1, 1]
    assert said.count("(BALANCE)") == 1
    assert said.count("fix: ") == 3


@pytest.mark.parametrize("code", FailureCode)
def test_no_bring_up_fails_without_a_condition(code: FailureCode) -> None:
    """If the last three of a pool ended with any code, and its tasks wait, the fleet is UNHEALTHY because of it."""
    report = given.facts()
    given.waits({"Queued": 4}, claimable=4, running=0, oldest_claimable_at=given.when(60))(report)
    report["workers"] = {}
    seen(*[failed_bringup(code)] * 3)(report)
    rows = [one.as_json() for one in found_in(report)]
    cause = first_cause.of_pools(rows, ["default"])
    assert cause is not None
    assert cause == first_cause.of_fleet(rows)
    assert code in cause.text or cause.kind == ConditionKind.SOLD_OUT


def test_a_condition_because_of_which_tasks_wait_says_whose() -> None:
    """Otherwise `explain <task>` and the footer of `tasks list` do not find it."""
    wrongs = {name: case[0] for name, case in CASES.items()} | {name: case[0] for name, case in CAUSES.items()}
    for name, wrong in wrongs.items():
        report = given.facts()
        wrong(report)
        for one in found_in(report):
            if one.impact & Impact.WAIT and one.kind is not ConditionKind.BACKLOG:
                assert one.pools is None or one.pools, (name, one.kind)


def test_tasks_of_another_pool_do_not_wait_for_it() -> None:
    """Neither do tasks of another type for a missing handler."""
    report = given.facts()
    set_up_fails(report)
    rows = [one.as_json() for one in found_in(report)]
    assert first_cause.of_pools(rows, ["default"]) is not None
    assert first_cause.of_pools(rows, ["other"]) is None
    report = given.facts()
    setting("database_state.waiting_types", [{"pool": "default", "task_type": "stitch", "n": 4}])(report)
    rows = [one.as_json() for one in found_in(report)]
    assert first_cause.of_task(rows, "default", "stitch") is not None
    assert first_cause.of_task(rows, "default", "segment") is None


class Records:
    """A leader that records what it is told."""

    def __init__(self) -> None:
        self.db, self.now_s, self.written = Database(given.facts()), 0.0, 0
        self.record = ConditionRecord(SqlStore(self, "fleet"), lambda: self.now_s)

    async def call(self, function: str, /, **args: Any) -> Any:
        self.written += 1
        return await self.db.call(function, **args)

    async def notifications(self) -> AsyncIterator[tuple[str, str]]:
        yield ("connected", "")

    async def close(self) -> None: ...

    async def after(self, seconds: float, *found: Condition) -> int:
        """How often it has written by then."""
        self.now_s = seconds
        self.record.note(found)
        await self.record.step(1)
        return self.written


async def test_a_leader_records_a_change_at_once_and_the_same_seldom() -> None:
    """The numbers in a text change with each tick; the record says them a little later."""
    halted, more = (Condition(ConditionKind.BREAKER_OPEN, "default", {"pool": "default", "n": n}) for n in (1, 2))
    leader = Records()
    assert await leader.after(0) == 1
    assert await leader.after(1, halted) == 2
    assert await leader.after(2, more) == 2
    assert await leader.after(RECORD_AGAIN_S + 2, more) == 3
    leader.record.forget()
    await leader.record.step(2)
    assert leader.written == 3
    assert await leader.after(RECORD_AGAIN_S + 3, more) == 4


def test_a_line_is_one_sentence_and_the_fix() -> None:
    """For a footer."""
    [row] = [Condition(ConditionKind.NO_LEADER, impact=Impact.WAIT, pools=None).as_json()]
    cause = first_cause.of_fleet([row])
    assert cause is not None
    assert Text(cause.line).plain.startswith("The orchestrator process is not running. fix: ")


@pytest.mark.parametrize(
    ("kind", "priority", "minutes", "presses"),
    [
        (ConditionKind.BACKLOG, "MEDIUM", 5, False),
        (ConditionKind.BACKLOG, "MEDIUM", 20, True),
        (ConditionKind.BACKLOG, "HIGH", 0, True),
        (ConditionKind.PROVIDER_DOWN, "MEDIUM", 0, True),
        (ConditionKind.PROVIDER_DOWN, "LOW", 20, False),
    ],
)
def test_a_queue_that_is_worked_off_needs_nobody(
    kind: ConditionKind, priority: str, minutes: int, presses: bool
) -> None:
    """Unless its oldest task waits for long, or something is wrong."""
    row = {"kind": str(kind), "priority": priority, "since": (NOW - timedelta(minutes=minutes)).isoformat()}
    assert list(first_cause.pressing([row], NOW.isoformat())) == ([row] if presses else [])

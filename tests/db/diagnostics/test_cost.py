"""What it cost: by state, worker, pool, type and task, within a window, up to the moment when a pod was last there."""

from datetime import datetime, timedelta
from typing import Any, cast

import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow

from orchestrator.adapters.store import SqlStore
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.states import Stage, State
from orchestrator.diagnostics.cost import GONE, lines, named_lines, reconciled
from orchestrator.diagnostics.spending import bought, wasted
from orchestrator.leader_jobs.bill import BillRecord
from orchestrator.ports import BadArgument, Bill, Cloud, Db, NotLeader, PortError, Unavailable
from tests.db.conformance.builders import FLEET, START, Fleet, rows_read
from tests.db.diagnostics.build import attempt

PRICE = 3.6  # dollars an hour of the conformance suite's workers: a tenth of a cent a second


async def cost(fleet: Fleet, since_s: float = 0, until_s: float | None = None) -> Any:
    """The report from so many seconds after the start."""
    until = None if until_s is None else START + timedelta(seconds=until_s)
    since = START + timedelta(seconds=since_s)
    return await fleet.call("fleet_cost", p_fleet=FLEET, p_since=since, p_until=until)


def kinds(report: Any) -> dict[str, float]:
    """Dollars by kind."""
    return {kind: float(part["usd"]) for kind, part in report["kinds"].items()}


async def worked(fleet: Fleet) -> Any:
    """A worker that was 100 s busy with a task, 40 s idle, and is ending since 5 s."""
    await fleet.submit(task_type="segment")
    agent = await fleet.agent()
    (task,) = await agent.claim()
    fleet.wait(100)
    await agent.complete(task)
    await agent.claim()
    fleet.wait(40)
    await fleet.end(agent.id, State.IDLE)
    fleet.wait(5)
    return agent


async def test_dollars_are_split_by_what_the_worker_did(fleet: Fleet) -> None:
    """The interval that is still open counts too."""
    await worked(fleet)
    report = await cost(fleet)
    assert kinds(report) == {"busy": 0.1, "idle": 0.04, "draining": 0.005}
    assert float(report["usd"]) == pytest.approx(0.145)
    (line,) = lines(report, "worker")
    assert (line.usd, line.kinds["idle"]) == pytest.approx((0.145, 0.04))


async def test_the_lists_add_up_after_a_worker_is_deleted(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """One line has the workers whose rows are gone, by pool, cluster and GPU, and what of it did no work."""
    first = await worked(fleet)
    await fleet.move(first.id, State.TERMINATING, State.TERMINATED)
    await worked(fleet)
    await hand.execute("delete from workers where id = %s", (first.id,))
    report = await cost(fleet)
    for by in ("pool", "cluster", "gpu"):
        found = lines(report, by)
        assert sum(line.usd for line in found) == pytest.approx(float(report["usd"]))
        deleted = next(line for line in found if line.name == GONE)
        assert (deleted.usd, deleted.seconds, deleted.kinds["busy"]) == pytest.approx((0.145, 145, 0.1))
    spent = {one.name: one.usd for one in wasted(report)}
    assert spent["deleted rows"] == pytest.approx(0.045)


async def test_tasks_of_one_claim_share_its_time(fleet: Fleet) -> None:
    """One after the other: each has the time since the one before it ended; together they cost what the worker did."""
    await fleet.submit(*({"task_type": kind} for kind in ("long", "quick", "quick", "unbegun")))
    agent = await fleet.agent()
    tasks = {task["id"]: task for task in await agent.claim(batch=4)}
    long, *quick, unbegun = tasks.values()
    fleet.wait(60)
    await agent.complete(long)
    fleet.wait(2)
    await agent.complete_many(*({"task_id": task["id"], "attempt": 1} for task in quick))
    await agent.release(unbegun)
    report = await cost(fleet)
    spent = {row["task_type"]: (float(row["seconds"]), float(row["usd"])) for row in report["types"]}
    # Those that ended at one moment share the last two seconds.
    assert spent == {
        "long": (60, 0.06), "quick": pytest.approx((4 / 3, 4 / 3_000), abs=1e-3),
        "unbegun": pytest.approx((2 / 3, 2 / 3_000), abs=1e-3),
    }  # fmt: skip
    assert sum(usd for _, usd in spent.values()) == pytest.approx(kinds(report)["busy"])
    ends = await fleet.call("fleet_efficiency", p_fleet=FLEET, p_since=START, p_until=None)
    assert float(ends["run_p50_s"]) == pytest.approx(2 / 3, abs=1e-3)
    pools = (await fleet.call("fleet_report", p_fleet=FLEET))["queue"]
    assert float(pools[0]["mean_task_s"]) == pytest.approx((60 + 4 / 3) / 3, abs=1e-2)


async def test_a_task_counts_once_where_its_first_paid_attempt_ended(
    fleet: Fleet, hand: AsyncConnection[DictRow]
) -> None:
    """Not where an attempt cost nothing; and the numbers of two windows add up."""
    await fleet.submit()
    for paid in (False, True, True):
        agent = await fleet.agent()
        (task,) = await agent.claim()
        fleet.wait(10)
        await agent.fail(task, code="OOM")
        if not paid:
            await hand.execute("update workers set billing_until = billing_since where id = %s", (agent.id,))
        await fleet.end(agent.id, State.ACTIVE)
        fleet.wait(90)
    fleet.wait(3_600)
    windows = ((0, 50), (50, 150), (150, 3_700), (0, 3_700))
    for _ in range(2):
        reports = [(await cost(fleet, *window))["types"] for window in windows]
        counts = [[(row["tasks"], row["attempts"]) for row in rows] for rows in reports]
        assert counts == [[], [(1, 1)], [(0, 1)], [(1, 2)]]
        while (await fleet.fleet("record"))["more"]:  # the same from the roll-ups
            pass


async def test_a_claim_that_began_before_the_window_is_shared_as_ever(fleet: Fleet) -> None:
    """What ended before the window ended the first task's time, though its row is none of the window's."""
    await fleet.submit(*({"task_type": kind} for kind in ("before", "within", "running")))
    agent = await fleet.agent()
    before, within, _ = await agent.claim(batch=3)
    fleet.wait(60)
    await agent.complete(before)
    fleet.wait(10)
    await agent.complete(within)
    fleet.wait(30)
    report = await cost(fleet, since_s=62)
    assert {row["task_type"]: float(row["seconds"]) for row in report["types"]} == {"within": 8, "running": 30}
    since = START + timedelta(seconds=62)
    ends = await fleet.call("fleet_efficiency", p_fleet=FLEET, p_since=since, p_until=None)
    assert (ends["completed"], float(ends["run_p50_s"])) == (1, 10)


async def test_attempts_before_the_window_are_not_read(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """Of a worker that has done many: one that it still has, and what began or ended since."""
    await hand.execute(
        "truncate orchestrator.attempts"
    )  # the pages that other tests left would be read with the newest
    await fleet.submit(count=2)
    agent = await fleet.agent()
    began, _ = await agent.claim(batch=2)
    past = (
        "insert into orchestrator.attempts (task_id, attempt, worker_id, nonce, claim_no, started_at, ended_at, "
        "outcome) select gen_random_uuid(), 1, %s, 'n', -n, s, s + interval '1 s', 'complete' "
        "from generate_series(1, 20000) n, "
        "lateral (select %s - interval '2 days' + n * interval '3 s') x (s)"
    )
    await hand.execute(past, (agent.id, START))
    await hand.execute("vacuum analyze orchestrator.attempts")
    fleet.wait(3 * 86_400)
    await agent.complete(began)
    window = {"p_since": fleet.now - timedelta(hours=1), "p_until": None}
    for function, args in (("fleet_efficiency", window), ("fleet_cost", window), ("fleet_report", {})):
        named = {"p_fleet": FLEET, **args, "p_now": fleet.now}
        call = ", ".join(f"{name} => %({name})s" for name in named)
        async with hand.transaction():
            before = await rows_read(hand, "attempts")
            await hand.execute(f"select {function}({call})".encode(), named)
            # a scan reads one range of blocks at the least, about 1,100 rows; fleet_report scans three times
            assert 0 < await rows_read(hand, "attempts") - before < 4_000, function


@pytest.mark.parametrize(
    ("since_s", "until_s", "expected"),
    [
        (50, None, {"busy": 0.05, "idle": 0.04, "draining": 0.005}),
        (50, 120, {"busy": 0.05, "idle": 0.02}),
        (110, 130, {"idle": 0.02}),
        (143, 9999, {"draining": 0.002}),
    ],
)
async def test_only_what_lies_within_the_window_counts(
    fleet: Fleet, since_s: float, until_s: float | None, expected: dict[str, float]
) -> None:
    """Intervals that reach over its edge count with their part."""
    await worked(fleet)
    report = await cost(fleet, since_s, until_s)
    assert kinds(report) == expected


async def test_a_window_that_ends_before_it_begins_is_refused(fleet: Fleet) -> None:
    """It is the caller's mistake."""
    with pytest.raises(BadArgument, match="p_since must be before p_until"):
        await cost(fleet, 10, 5)


async def test_a_tasks_share_is_its_time_on_the_worker(fleet: Fleet) -> None:
    """By type and by task; what an attempt cost that came to nothing is shown apart."""
    agent = await worked(fleet)
    other = await fleet.agent()
    (failed,) = await fleet.submit(task_type="stitch")
    (task,) = await other.claim()
    fleet.wait(20)
    await other.fail(task, code="OOM")
    by_type = {line.name: line for line in lines(await cost(fleet), "type")}
    assert (by_type["segment"].usd, by_type["segment"].wasted_usd) == pytest.approx((0.1, 0))
    assert (by_type["stitch"].usd, by_type["stitch"].wasted_usd) == pytest.approx((0.02, 0.02))
    names = [line.name for line in lines(await cost(fleet), "task")]
    assert names[1] == f"{failed} stitch"
    assert agent.id in {line.name for line in lines(await cost(fleet), "worker")}


async def test_pools_and_kinds_add_up(fleet: Fleet) -> None:
    """Every way of grouping has the same sum."""
    await worked(fleet)
    await fleet.agent(pool="big")
    fleet.wait(60)
    report = await cost(fleet)
    for by in ("worker", "pool", "kind"):
        assert sum(line.usd for line in lines(report, by)) == pytest.approx(float(report["usd"])), by
    assert {line.name: line.count for line in lines(report, "pool")} == {"default": 1, "big": 1}


async def test_another_fleets_dollars_are_its_own(fleet: Fleet) -> None:
    """A fleet sees nothing of them."""
    await worked(fleet)
    report = await fleet.call("fleet_cost", p_fleet="other", p_since=START, p_until=None)
    assert (report["usd"], report["workers"], report["tasks"]) == (0, [], [])


async def test_a_vanished_pod_costs_nothing_after_it_was_last_seen(fleet: Fleet) -> None:
    """It was seen with its last heartbeat; nobody looked for two hours."""
    agent = await fleet.agent()
    fleet.wait(100)
    await agent.beat()
    fleet.wait(7200)
    lost = {"exit_cause": ExitCause.POD_LOST, "failure_code": "POD_MISSING"}
    row = await fleet.move(agent.id, State.ACTIVE, State.TERMINATING, stage=Stage.DRAINING, **lost)
    assert row["billing_until"] is not None
    fleet.wait(60)
    assert kinds(await cost(fleet)) == {"busy": 0.1}
    await fleet.move(agent.id, State.TERMINATING, State.TERMINATED)
    fleet.wait(60)
    assert kinds(await cost(fleet)) == {"busy": 0.1}
    report = await fleet.call("fleet_worker", p_fleet=FLEET, p_worker_id=agent.id)
    assert float(report["worker"]["cost_usd"]) == pytest.approx(0.1)


async def test_a_vanished_pod_costs_what_it_did_until_a_list_last_showed_it(fleet: Fleet) -> None:
    """Its agent was silent for longer than the machine was there."""
    agent = await fleet.agent()
    fleet.wait(100)
    listed = {"listed_at": fleet.now.isoformat()}
    fleet.wait(60)
    lost: dict[str, Any] = {"exit_cause": ExitCause.POD_LOST, "failure_code": "POD_MISSING", "metadata": listed}
    await fleet.move(agent.id, State.ACTIVE, State.TERMINATING, stage=Stage.DRAINING, **lost)
    assert kinds(await cost(fleet)) == {"busy": 0.1}


async def test_a_pod_that_vanished_during_bring_up_was_there_at_its_last_stage(fleet: Fleet) -> None:
    """The last stage that was proven."""
    agent = await fleet.agent(State.SPAWNING)
    await attempt(fleet, agent.id, Stage.POD_RUNNING, "ok", took_s=30)
    fleet.wait(3600)
    lost = {"exit_cause": ExitCause.SPAWN_FAILED, "failure_code": "POD_MISSING"}
    await fleet.move(agent.id, State.SPAWNING, State.TERMINATING, stage=Stage.DRAINING, **lost)
    assert kinds(await cost(fleet)) == {"booting": 0.03}


async def test_a_deleted_pod_costs_nothing_after_the_delete_that_worked(fleet: Fleet) -> None:
    """Its absence was proven later."""
    agent = await worked(fleet)
    await attempt(fleet, agent.id, Stage.DELETING, "ok", took_s=5, known=True)
    fleet.wait(600)
    await fleet.move(agent.id, State.TERMINATING, State.TERMINATED)
    assert kinds(await cost(fleet))["draining"] == pytest.approx(0.01)


async def test_a_delete_that_did_nothing_ends_no_bill(fleet: Fleet) -> None:
    """The provider did not know the pod, which proves nothing."""
    agent = await worked(fleet)
    await attempt(fleet, agent.id, Stage.DELETING, "ok", took_s=5, known=False)
    fleet.wait(600)
    await fleet.move(agent.id, State.TERMINATING, State.TERMINATED)
    assert kinds(await cost(fleet))["draining"] == pytest.approx(0.61)


async def test_the_providers_bill_is_compared_with_our_records(fleet: Fleet) -> None:
    """Pod by pod, the widest difference first; what it charged for pods of no worker is told apart."""
    agent = await worked(fleet)
    second = await fleet.agent()
    fleet.wait(10)
    bills = [Bill(f"pod-{agent.id}", START, 0.1), Bill(f"pod-{agent.id}", START + timedelta(hours=1), 0.05)]
    both = reconciled(await cost(fleet), [*bills, Bill("outsider", START, 0.5), Bill("free", START, 0.0)])
    wider, closer = both.pods
    assert (wider.worker_id, closer.worker_id) == (second.id, agent.id)
    assert (wider.ours_usd, wider.theirs_usd) == pytest.approx((0.01, 0))
    assert (closer.ours_usd, closer.theirs_usd) == pytest.approx((0.155, 0.15))
    assert [(pod.pod_id, pod.theirs_usd) for pod in both.unbooked] == [("outsider", 0.5)]
    assert both.theirs_usd - both.ours_usd == pytest.approx(-0.015)


async def test_the_report_says_what_idle_and_booting_time_bought(fleet: Fleet) -> None:
    """A task of an idle worker is a start without a boot; its second task in a row is none."""
    agent = await fleet.agent()
    assert await agent.claim() == []
    fleet.wait(60)
    await fleet.submit(count=2)
    for _ in range(2):
        (task,) = await agent.claim()
        await agent.complete(task)
    failed = await fleet.spawn()
    await fleet.end(failed, State.SPAWNING)
    report = await cost(fleet, -1)
    assert report["bought"] == {"warm_starts": 1, "workers": 1, "failed_workers": 1}
    assert bought(report) == (
        "$0.06 of idle time bought 1 start without a boot; "
        "$0.00 of booting bought 1 worker, and 1 that did not come up."
    )
    assert bought({**report, "bought": None}) is None
    long = await fleet.call("fleet_cost", p_fleet=FLEET, p_since=START - timedelta(days=30), p_until=None)
    assert long["bought"] is None


class Account:
    """RunPod's side of the bill: the hours that it was asked for, and what it charged."""

    def __init__(self, *charged: Bill) -> None:
        self.charged, self.asked = charged, list[tuple[datetime, datetime]]()
        self.error: PortError | None = None

    async def billing(self, since: datetime, until: datetime) -> tuple[Bill, ...]:
        self.asked.append((since, until))
        if self.error:
            raise self.error
        return self.charged


async def test_the_leader_compares_a_day_of_the_bill(fleet: Fleet) -> None:
    """Of full hours that RunPod has billed; an hour beyond them that it returns as well does not count."""
    agent = await worked(fleet)
    fleet.now = START + timedelta(hours=2, minutes=59)
    outside = START + timedelta(hours=1)
    account = Account(
        Bill(f"pod-{agent.id}", START, 0.2), Bill(f"pod-{agent.id}", outside, 9.0), Bill("outsider", START, 0.5)
    )
    store = SqlStore(cast("Db", AtTime(fleet)), FLEET)
    record = BillRecord(store, cast("Cloud", account), lambda: fleet.now)
    assert (await fleet.call("fleet_bill", p_fleet=FLEET))["bill"] is None
    await record.step(fleet.term)
    begin, end = START - timedelta(hours=23), START + timedelta(hours=1)
    assert account.asked == [(begin, end)]
    bill = (await fleet.call("fleet_bill", p_fleet=FLEET))["bill"]
    assert (bill["theirs_usd"], bill["unbooked_usd"], bill["unbooked_pods"]) == (0.2, 0.5, 1)
    assert (bill["pods"], bill["our_pods"]) == (1, 1)
    await record.step(fleet.term)
    assert len(account.asked) == 1  # these hours are compared
    fleet.wait(3_600)
    assert bill["ours_usd"] == pytest.approx(float((await cost(fleet, -82_800, 3_600))["usd"]))
    assert datetime.fromisoformat(bill["at"]) == fleet.now - timedelta(hours=1)
    with pytest.raises(NotLeader):
        await record.step(fleet.term - 1)
    with pytest.raises(BadArgument):
        await fleet.fleet("note_bill", p_bill={"x": "y" * 10_001})
    fleet.wait(2 * 86_400)
    assert (await fleet.call("fleet_bill", p_fleet=FLEET))["bill"] is None


async def test_a_pod_that_is_charged_without_a_cost_has_the_worker_that_had_it(
    fleet: Fleet, hand: AsyncConnection[DictRow]
) -> None:
    """One that ended days ago, one of another fleet, or none. The most expensive are named, and all are counted."""
    leaked, other = await fleet.agent(), await fleet.agent()
    ended = fleet.now - timedelta(hours=60)
    await hand.execute("update workers set fleet = 'b', pod_id = 'pod-b' where id = %s", (other.id,))
    await fleet.end(leaked.id, State.ACTIVE)
    await fleet.move(leaked.id, State.TERMINATING, State.TERMINATED)
    await hand.execute("delete from costs where worker_id = %s", (leaked.id,))
    await hand.execute("update workers set terminated_at = %s where id = %s", (ended, leaked.id))
    hour = START + timedelta(minutes=5)
    fleet.now = START + timedelta(hours=3)
    small = [Bill(f"small-{n}", hour, 0.001 * (n + 1)) for n in range(22)]
    account = Account(Bill("outsider", hour, 0.5), Bill(f"pod-{leaked.id}", hour, 9), Bill("pod-b", hour, 3), *small)
    store = SqlStore(cast("Db", AtTime(fleet)), FLEET)
    await BillRecord(store, cast("Cloud", account), lambda: fleet.now).step(fleet.term)
    bill = await store.bill()
    assert bill is not None
    assert (bill["unbooked_pods"], bill["unbooked_usd"]) == (25, pytest.approx(12.753))
    assert len(bill["unbooked"]) == 20
    first = [
        (one["pod_id"], one["usd"], one["worker_id"], one["fleet"], one["terminated_at"]) for one in bill["unbooked"]
    ][:3]
    assert datetime.fromisoformat(first[0][4]) == ended
    assert first == [
        (f"pod-{leaked.id}", 9, leaked.id, FLEET, first[0][4]),
        ("pod-b", 3, other.id, "b", None),
        ("outsider", 0.5, None, None, None),
    ]


async def test_a_bill_that_cannot_be_read_is_recorded_beside_the_last_comparison(fleet: Fleet) -> None:
    """Since when and why, without secrets, until it is read again."""
    store, account = SqlStore(cast("Db", AtTime(fleet)), FLEET), Account(Bill("outsider", START, 0.5))
    fleet.now = START + timedelta(hours=3)
    record = BillRecord(store, cast("Cloud", account), lambda: fleet.now)
    account.error = Unavailable(f"HTTP 500 from RunPod, rpa_{'A1b2' * 10} {'x' * 500}")
    with pytest.raises(Unavailable):
        await record.step(fleet.term)
    failed, began = await store.bill(), fleet.now
    assert failed is not None
    assert (failed.get("at"), failed["unbooked"], len(failed["error"])) == (None, [], 300)
    assert failed["error"].startswith("Unavailable: HTTP 500 from RunPod, ")
    assert "A1b2" not in failed["error"]
    account.error = None
    await record.step(fleet.term)
    good = await store.bill()
    assert good is not None
    assert "error" not in good
    account.error = Unavailable("HTTP 502")
    for _ in range(2):
        fleet.wait(3_600)
        with pytest.raises(Unavailable):
            await record.step(fleet.term)
    found = await store.bill()
    assert found is not None
    assert {name: found[name] for name in good} == good
    assert [datetime.fromisoformat(found[name]) - began for name in ("at", "failing_since", "failed_at")] == [
        timedelta(hours=hours) for hours in (0, 1, 2)
    ]
    assert found["error"] == "Unavailable: HTTP 502"


class AtTime:
    """A database whose calls carry the fleet's time."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def call(self, function: str, /, **args: Any) -> Any:
        return await self._fleet.call(function, **args)


async def test_dollars_of_tasks_by_tenant_and_by_label(fleet: Fleet) -> None:
    """Each attempt's share under the value that its task has; the rest under no name. The most expensive come first."""
    acme = {"tenant": "acme", "labels": {"show": "7"}}
    await fleet.submit(acme | {"priority": 3}, {"tenant": "other", "labels": {"show": "7"}, "priority": 2}, {})
    agent = await fleet.agent()
    for seconds in (10, 20, 40):
        (task,) = await agent.claim()
        fleet.wait(seconds)
        await agent.complete(task)

    async def by(what: str, limit: int = 9) -> list[tuple[str, float, int]]:
        answer = await fleet.call("fleet_cost_by", p_fleet=FLEET, p_since=START, p_until=None, p_by=what, p_limit=limit)
        assert answer["of"] >= len(answer["lines"])
        return [(line.name, round(line.usd, 6), line.count) for line in named_lines(answer["lines"], what)]

    assert await by("tenant") == [("(no tenant)", 0.04, 1), ("other", 0.02, 1), ("acme", 0.01, 1)]
    assert await by("tenant", limit=1) == [("(no tenant)", 0.04, 1)]
    assert await by("label:show") == [("(no label show)", 0.04, 1), ("7", 0.03, 2)]
    assert await by("label:none") == [("(no label none)", 0.07, 3)]
    for wrong in ("label:", "task_type", "params"):
        with pytest.raises(BadArgument, match="p_by is not valid"):
            await by(wrong)

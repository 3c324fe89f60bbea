"""The lead, and the rows of workers: compare-and-set, under a term, each change with its reason and its cost."""

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest
from psycopg import AsyncClientCursor, AsyncConnection, sql
from psycopg.rows import DictRow

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.rows import worker_of
from orchestrator.adapters.store import SqlStore
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.failures import FailureCode
from orchestrator.core.model import Pause
from orchestrator.core.states import Stage, State, WaitingOn
from orchestrator.core.worker_metadata import WorkerMetadata, metadata
from orchestrator.ports import BadArgument, Db, LogRange, LostRace, NotLeader, StageAttempt, UnknownWorker
from tests.db.conformance.builders import FLEET, START, Agent, Fleet, rows_read


@pytest.fixture
def store(db: Db) -> SqlStore:
    """The port under test."""
    return SqlStore(db, FLEET)


async def test_one_leads_until_its_time_is_over_or_it_resigns(fleet: Fleet) -> None:
    """Renewing keeps the term; a change of leader raises it; the time is the database's."""
    refused = await fleet.lead("a", 15)
    assert (refused["leader"], refused["term"], refused["holder"]) == (False, 1, "us")
    assert refused["expires_at"] == (START + timedelta(hours=1)).isoformat()
    fleet.wait(3600)
    first = await fleet.lead("a", 15)
    assert (first["leader"], first["term"], first["since"]) == (True, 2, fleet.now.isoformat())
    fleet.wait(10)
    renewed = await fleet.lead("a", 15)
    assert (renewed["term"], renewed["since"]) == (2, first["since"])
    assert (await fleet.lead("b", 15))["leader"] is False
    fleet.wait(15)
    assert (await fleet.lead("b", 15))["term"] == 3
    resign = {"p_fleet": FLEET, "p_holder": "b", "p_term": 2}
    assert await fleet.call("fleet_resign", **resign) == {"resigned": False}
    assert await fleet.call("fleet_resign", **resign | {"p_term": 3}) == {"resigned": True}
    assert (await fleet.lead("a", 15))["term"] == 4


async def test_a_leader_that_slept_past_its_lease_gets_a_new_term(fleet: Fleet) -> None:
    """Somebody else may have led in between: its old term is over."""
    fleet.wait(3601)
    assert (await fleet.lead("us"))["term"] == 2


async def test_of_many_that_ask_at_once_one_leads(fleet: Fleet) -> None:
    """One term, one holder."""
    fleet.wait(3601)
    answers = await asyncio.gather(*(fleet.lead(f"holder-{n}", 15) for n in range(8)))
    assert [answer["leader"] for answer in answers].count(True) == 1
    assert {answer["term"] for answer in answers} == {2}


async def test_fleets_have_leaders_of_their_own(fleet: Fleet) -> None:
    """Another environment in the same database."""
    answer = await fleet.call("fleet_lead", p_fleet="staging", p_holder="b", p_ttl_s=15)
    assert (answer["leader"], answer["term"]) == (True, 1)


WRITES: list[tuple[str, dict[str, Any]]] = [
    ("spawn", {"p_worker": {"id": "gpu-new"}}),
    ("move", {"p_worker_id": "gpu-1", "p_from": ["spawning"], "p_to": None, "p_stage": None, "p_reason": "r",
              "p_fields": {}}),
    ("rescue", {"p_worker_id": None}),
    ("attempt_open", {"p_worker_id": "gpu-1", "p_stage": "tcp"}),
    ("attempt_close", {"p_id": 1, "p_outcome": "ok", "p_failure_code": None, "p_exception_type": None,
                       "p_evidence": None}),
    ("note_offer", {"p_key": "k", "p_refused": True, "p_code": None}),
    ("record_decision", {"p_decision": {"pool": "p", "rule": "r", "target": 1}}),
    *(
        (name, {"p_worker_id": "gpu-1", "p_boot_id": "b", "p_stream": "s", "p_seq": 0, "p_first": 0, "p_last": 1,
                "p_sha256": "x", "p_key": "k"})
        for name in ("log_begin", "log_shipped")
    ),
    ("log_lost", {"p_worker_id": "gpu-1", "p_boot_id": "b", "p_stream": "s", "p_first": 0, "p_last": 1,
                  "p_reason": "r"}),
    ("retention", {}),
]  # fmt: skip


@pytest.mark.parametrize(("function", "args"), WRITES, ids=[name for name, _ in WRITES])
async def test_a_stale_term_writes_nothing(fleet: Fleet, function: str, args: dict[str, Any]) -> None:
    """Neither an older one nor one that nobody has."""
    await fleet.spawn()
    fleet.wait(3601)
    await fleet.lead("another")
    for term in (1, 3, *([None] if function != "spawn" else [])):
        with pytest.raises(NotLeader):
            await fleet.fleet(function, **args | {"p_term": term})


async def test_an_intent_is_a_row_with_a_name_and_a_clock(fleet: Fleet, store: SqlStore) -> None:
    """Everything that the core reads, decoded."""
    intent = {"id": "gpu-1", "pool": "p", "gpu_type": "RTX", "gpu_count": 2, "data_center": "EU-1", "reserved_usd": 0.5}
    assert await store.spawn(
        fleet.term, intent | {"deadline_s": 60, "reason": "3 tasks", "metadata": metadata(offer="o")}
    )
    assert not await store.spawn(fleet.term, intent)
    (worker,) = (await store.snapshot()).workers
    assert (worker.id, worker.pool, worker.state, worker.stage) == ("gpu-1", "p", State.SPAWNING, Stage.INTENT)
    assert (worker.waiting_on, worker.gpu_count, worker.reserved_usd) == (WaitingOn.ORCHESTRATOR, 2, 0.5)
    assert worker.deadline_at - worker.created_at == timedelta(seconds=60)
    assert worker.created_at.tzinfo is not None
    assert (worker.last_heartbeat, worker.pod_id, worker.metadata) == (None, None, WorkerMetadata(offer="o"))
    (event,) = (await store.worker("gpu-1"))["events"]
    assert (event["from_state"], event["to_state"], event["reason"], event["term"]) == (None, "spawning", "3 tasks", 1)
    assert await store.request_spawn({"id": "gpu-2", "reason": "by hand"})
    (event,) = (await store.worker("gpu-2"))["events"]
    assert (event["actor"], event["term"]) == ("operator", None)


@pytest.mark.parametrize("worker_id", ["", "-x", "a b", "a/b", "ä", "x" * 64, "a\n", None])
async def test_a_dangerous_id_is_refused(fleet: Fleet, worker_id: str | None) -> None:
    """It becomes a pod's name, a path and a key."""
    with pytest.raises(BadArgument, match="worker id is not a valid id"):
        await fleet.fleet("spawn", p_worker={"id": worker_id})


async def test_a_move_changes_only_the_fields_that_it_names(fleet: Fleet, store: SqlStore) -> None:
    """Null clears, absence keeps, metadata merges, seconds count from now."""
    worker_id = await fleet.spawn(metadata=metadata(offer="o"))
    where = {"pod_id": "pod-1", "ssh_host": "1.2.3.4", "ssh_port": 22}
    fields = {**where, "waiting_for": "boot", "metadata": metadata(deletes=2)}
    first = await store.move(
        fleet.term, worker_id, from_states=[State.SPAWNING], stage=Stage.POD_RUNNING, reason="created",
        fields=fields | {"deadline_s": 600, "waiting_on": WaitingOn.PROVIDER, "price_usd_per_hour": 0.44},
    )  # fmt: skip
    assert (first.state, first.stage, first.ssh_port, first.price_usd_per_hour) == ("spawning", "pod_running", 22, 0.44)
    assert first.metadata == WorkerMetadata(offer="o", deletes=2)
    assert first.deadline_at - first.stage_since == timedelta(seconds=600)
    second = await store.move(
        fleet.term, worker_id, from_states=[State.SPAWNING], reason="waits", fields={"waiting_for": None}
    )
    assert (second.waiting_for, second.pod_id, second.stage_since) == (None, "pod-1", first.stage_since)


async def test_an_address_that_changes_is_an_event(fleet: Fleet, store: SqlStore) -> None:
    """With its reason and the new address; the first one comes with its stage, and what stays the same is none."""
    worker_id = await fleet.spawn()
    for stage, host, port, why in (
        (Stage.TCP, "1.2.3.4", 22, "bring-up: tcp"),
        (None, "1.2.3.4", 22, "nothing new"),
        (None, "1.2.3.4", 23, "SSH moved"),
        (Stage.SSH_AUTH, "5.6.7.8", 23, "bring-up: ssh_auth"),
    ):
        where = {"ssh_host": host, "ssh_port": port}
        await store.move(fleet.term, worker_id, from_states=[State.SPAWNING], stage=stage, reason=why, fields=where)
    events = (await store.worker(worker_id))["events"][1:]
    assert [(e["reason"], e["from_stage"], e["to_stage"], e["detail"].get("ssh")) for e in events] == [
        ("bring-up: tcp", "intent", "tcp", None),
        ("SSH moved", "tcp", "tcp", "1.2.3.4:23"),
        ("bring-up: ssh_auth", "tcp", "ssh_auth", "5.6.7.8:23"),
    ]
    assert events[1]["term"] == fleet.term


async def test_a_move_from_another_state_is_a_lost_race(fleet: Fleet, store: SqlStore) -> None:
    """And changes nothing."""
    worker_id = await fleet.spawn()
    with pytest.raises(LostRace, match=f"{worker_id} is spawning: expected it to be active or idle"):
        await store.move(fleet.term, worker_id, from_states=[State.ACTIVE, State.IDLE], reason="r")
    with pytest.raises(UnknownWorker):
        await store.move(fleet.term, "gpu-none", from_states=[State.ACTIVE], reason="r")
    with pytest.raises(UnknownWorker):
        await SqlStore(fleet.db, "staging").move(
            (await SqlStore(fleet.db, "staging").lead("x", 60)).term,
            worker_id,
            from_states=[State.SPAWNING],
            reason="r",
        )


async def test_of_two_moves_at_once_one_is_lost(fleet: Fleet) -> None:
    """Eight promotions, one of which happens."""
    worker_id = await fleet.spawn()
    answers = await asyncio.gather(
        *(fleet.move(worker_id, State.SPAWNING, State.ACTIVE) for _ in range(8)), return_exceptions=True
    )
    assert sum(isinstance(answer, dict) for answer in answers) == 1
    assert sum(isinstance(answer, LostRace) for answer in answers) == 7


@pytest.mark.parametrize(
    ("path", "changed", "complaint"),
    [
        ((State.SPAWNING, State.IDLE), {}, "cannot go from spawning to idle"),
        ((State.SPAWNING, State.TERMINATING), {}, "without an exit_cause"),
        ((State.SPAWNING,), {"status": "active"}, "unknown key 'status'"),
        ((State.SPAWNING,), {"reason": ""}, "needs a reason"),
        ((State.SPAWNING,), {"waiting_on": "godot"}, "workers_waiting_on_known"),
        ((State.SPAWNING,), {"waiting_on": None}, "workers_live_waits"),
        ((State.SPAWNING,), {"stage": "heaven"}, "workers_stage_known"),
        ((State.SPAWNING, State.TERMINATING), {"exit_cause": "boredom"}, "workers_exit_cause_known"),
        ((State.SPAWNING,), {"ssh_port": "many"}, "invalid input syntax"),
    ],
)
async def test_a_move_that_makes_no_sense_is_refused(
    fleet: Fleet, path: tuple[State, ...], changed: dict[str, Any], complaint: str
) -> None:
    """As the caller's fault, by name."""
    worker_id = await fleet.spawn()
    with pytest.raises(BadArgument, match=complaint):
        await fleet.move(worker_id, *path, **changed)


async def test_a_new_launch_begins_without_a_heartbeat(fleet: Fleet, store: SqlStore) -> None:
    """Bring-up waits for this launch's own sign of life, not for an old one's."""
    agent = await fleet.agent()
    assert (await store.snapshot()).workers[0].last_heartbeat == fleet.now
    await fleet.move(agent.id, State.ACTIVE, nonce="second")
    assert (await store.snapshot()).workers[0].last_heartbeat is None


async def test_a_heartbeat_never_changes_a_state(fleet: Fleet) -> None:
    """In whichever it comes."""
    for state in (State.SPAWNING, State.ACTIVE, State.IDLE, State.TERMINATING):
        agent = await fleet.agent(state)
        await agent.beat(p_health={"gpu": "fine"}, p_logs={"agent": 10, "handler": 20})
        assert await fleet.status(agent.id) == state
    row = (await fleet.call("fleet_worker", p_fleet=FLEET, p_worker_id=agent.id))["worker"]
    assert (row["health"], row["log_bytes"]) == ({"gpu": "fine"}, {agent.nonce: {"agent": 10, "handler": 20}})


@pytest.mark.parametrize("together", [False, True])
async def test_a_heartbeat_winds_the_clock_of_a_ready_workers_row(fleet: Fleet, together: bool) -> None:
    """Alone or with others': from then on the next one is due, and what it holds is its own. Other rows keep theirs."""

    async def clock(agent: Agent) -> tuple[datetime, datetime]:
        row = (await fleet.call("fleet_worker", p_fleet=FLEET, p_worker_id=agent.id))["worker"]
        return datetime.fromisoformat(row["next_attempt_at"]), datetime.fromisoformat(row["deadline_at"])

    for state in (State.SPAWNING, State.ACTIVE, State.IDLE, State.TERMINATING):
        agent = await fleet.agent(state, heartbeat_s=20, lease_s=60)
        before = await clock(agent)
        fleet.wait(300)
        if together:
            beat = {"worker_id": agent.id, "nonce": agent.nonce, "jti": f"jti-{agent.id}", "health": None, "logs": None}
            await fleet.call("fleet_heartbeats", p_beats=[beat])
        else:
            await agent.beat()
        wound = (fleet.now + timedelta(seconds=20), fleet.now + timedelta(seconds=60))
        assert await clock(agent) == (wound if state in {State.ACTIVE, State.IDLE} else before)


@pytest.mark.parametrize("logs", [{"agent": "x"}, {"agent": -1}, {"agent": 1.5}, {"agent": None}, [1], {"agent": {}}])
async def test_log_sizes_that_are_no_sizes_are_refused(fleet: Fleet, logs: Any) -> None:
    """A pod's nonsense must not reach what the orchestrator computes with."""
    agent = await fleet.agent()
    with pytest.raises(BadArgument, match="p_logs"):
        await agent.beat(p_logs=logs)


async def test_an_invalid_heartbeat_of_a_batch_has_no_answer_and_the_others_have_theirs(fleet: Fleet) -> None:
    """One worker with nonsense must not make a hundred others call alone."""
    agents = [await fleet.agent() for _ in range(4)]
    beats = [
        {"worker_id": one.id, "nonce": one.nonce, "jti": f"jti-{one.id}", "health": {"gpus": 1}, "logs": {"agent": n}}
        for n, one in enumerate(agents, start=-1)
    ]
    answers = await fleet.call("fleet_heartbeats", p_beats=beats)
    assert answers.keys() == {one.id for one in agents[1:]}
    assert {answer["outcome"] for answer in answers.values()} == {"ok"}
    for n, one in enumerate(agents):
        row = (await fleet.call("fleet_worker", p_fleet=FLEET, p_worker_id=one.id))["worker"]
        assert (row["health"] == {"gpus": 1}) == (n > 0)


async def test_costs_follow_the_states_from_the_pods_first_second(fleet: Fleet) -> None:
    """Nothing before there is a pod; the open interval counts too."""
    worker_id = await fleet.spawn()
    fleet.wait(100)
    await fleet.move(worker_id, State.SPAWNING, pod_id="p", price_usd_per_hour=3.6, nonce="n", token_jti="j")
    fleet.wait(50)
    await fleet.move(worker_id, State.SPAWNING, State.ACTIVE, stage=Stage.PROMOTED)
    fleet.wait(200)
    await fleet.call("worker_claim", p_worker_id=worker_id, p_nonce="n", p_claim_no=1, p_batch=1, p_wait_s=0)
    fleet.wait(300)
    await fleet.end(worker_id, State.IDLE)
    fleet.wait(10)
    listing = {"p_fleet": FLEET, "p_all": True, "p_limit": 10}
    (row,) = (await fleet.call("fleet_workers", **listing))["workers"]
    assert row["cost_by_kind"] == {"booting": 0.05, "busy": 0.2, "idle": 0.3, "draining": 0.01}
    assert row["cost_usd"] == 0.56
    await fleet.move(worker_id, State.TERMINATING, State.TERMINATED)
    fleet.wait(1000)
    (row,) = (await fleet.call("fleet_workers", **listing))["workers"]
    assert row["cost_usd"] == 0.56


async def test_a_pod_without_a_machine_costs_nothing(fleet: Fleet) -> None:
    """RunPod's bill begins with the machine; what was seen later moves the begin of ours, and never back."""
    worker_id = await fleet.spawn()
    await fleet.move(worker_id, State.SPAWNING, pod_id="p", price_usd_per_hour=3.6, nonce="n", token_jti="j")
    fleet.wait(50)
    await fleet.move(worker_id, State.SPAWNING, unbilled_s=10)
    await fleet.move(worker_id, State.SPAWNING, unbilled_s=45)
    fleet.wait(10)
    await fleet.move(worker_id, State.SPAWNING, State.ACTIVE, stage=Stage.PROMOTED)
    await fleet.move(worker_id, State.ACTIVE, unbilled_s=0)
    row = (await fleet.call("fleet_worker", p_fleet=FLEET, p_worker_id=worker_id))["worker"]
    assert row["cost_by_kind"] == {"booting": 0.02}


async def test_a_pod_that_was_found_late_costs_from_when_it_was_asked_for(fleet: Fleet) -> None:
    """The reply was lost, and so was the orchestrator: for an hour nobody knew of it, but RunPod."""
    worker_id = await fleet.spawn()
    fleet.wait(3_600)
    await fleet.move(worker_id, State.SPAWNING, pod_id="p", price_usd_per_hour=3.6, billed_s=3_590)
    await fleet.end(worker_id, State.SPAWNING)
    row = (await fleet.call("fleet_worker", p_fleet=FLEET, p_worker_id=worker_id))["worker"]
    assert row["cost_by_kind"] == {"booting": 3.59}
    assert (await fleet.snapshot())["spent"]["today_usd"] == pytest.approx(3.59)


async def test_the_snapshot_counts_demand_by_pool(fleet: Fleet, store: SqlStore) -> None:
    """Claimable, running, and what waits for something, apart."""
    later = (fleet.now + timedelta(hours=1)).isoformat()
    await fleet.submit({}, {}, {"depends_on": ["#0"]}, {"run_after": later}, {"pool": "b"})
    agent = await fleet.agent()
    fleet.wait(1)
    await agent.claim()
    await fleet.call("fleet_pause", p_fleet=FLEET, p_pool="b", p_reason="maintenance", p_for_s=1e9)
    half = await fleet.snapshot()
    assert half["demand"] == [
        {"pool": "b", "claimable": 0, "running": 0,
         "blocked": {"dependencies": 0, "concurrency": 0, "scheduled": 0, "paused": 1},
         "oldest_claimable_at": half["demand"][0]["oldest_claimable_at"]},
        {"pool": "default", "claimable": 1, "running": 1,
         "blocked": {"dependencies": 1, "concurrency": 0, "scheduled": 1, "paused": 0},
         "oldest_claimable_at": half["demand"][1]["oldest_claimable_at"]},
    ]  # fmt: skip
    assert (half["queued_total"], half["expired_leases"]) == (4, 0)
    (worker,) = half["workers"]
    assert (worker["id"], worker["tasks_running"]) == (agent.id, 1)
    decoded = await store.snapshot()
    assert decoded.paused == {"b": Pause("maintenance", fleet.now + timedelta(seconds=1e9))}
    assert decoded.demand[1].oldest_claimable_at == START + timedelta(microseconds=1)
    assert decoded.last_spawn_at == {"default": START}
    await store.pause(None)
    assert not (await store.snapshot()).paused


async def test_ended_workers_are_listed_only_on_request(fleet: Fleet, store: SqlStore) -> None:
    """Newest first; the last intent of a pool is remembered beyond its end."""
    ended = await fleet.agent(State.TERMINATED)
    fleet.wait(1)
    alive = await fleet.agent()
    assert [row["id"] for row in await store.workers()] == [alive.id]
    assert [row["id"] for row in await store.workers(all=True)] == [alive.id, ended.id]
    assert [row["id"] for row in await store.workers(all=True, limit=1)] == [alive.id]
    assert (await store.worker("gpu-none"))["worker"] is None


async def test_asking_for_an_end(fleet: Fleet, store: SqlStore) -> None:
    """Once; a drain may be made a stop; the request is in the worker's history."""
    agent = await fleet.agent()
    assert (await store.request_termination("gpu-none", "r"))["outcome"] == "not_found"
    assert (await store.request_termination(agent.id, "maintenance"))["outcome"] == "requested"
    assert (await store.request_termination(agent.id, "maintenance"))["outcome"] == "already"
    assert (await store.request_termination(agent.id, "now", now_not_drain=True))["outcome"] == "requested"
    assert (await store.request_termination(agent.id, "now", now_not_drain=True))["outcome"] == "already"
    (worker,) = (await store.snapshot()).workers
    assert worker.drain_requested_at is not None
    assert worker.stop_requested_at is not None
    reasons = [event["reason"] for event in (await store.worker(agent.id))["events"]]
    assert reasons[-2:] == ["termination requested: maintenance", "termination requested at once: now"]
    await fleet.end(agent.id, State.ACTIVE)
    await fleet.move(agent.id, State.TERMINATING, State.TERMINATED)
    assert (await store.request_termination(agent.id, "r"))["outcome"] == "already"


async def test_attempts_are_rows_and_open_ones_of_a_dead_orchestrator_are_lost(fleet: Fleet, store: SqlStore) -> None:
    """Attempts are counted per stage and closed once. A second close after a lost reply has no effect."""
    worker_id = await fleet.spawn()
    first = await store.open_attempt(fleet.term, worker_id, Stage.TCP)
    refused = StageAttempt("failed", FailureCode.TCP_REFUSED, "Refused", {"host": "h"})
    await store.note_attempt(fleet.term, first, FailureCode.TCP_TIMEOUT, {"error": "no banner"})
    [row] = (await store.worker(worker_id))["attempts"]
    assert (row["outcome"], row["failure_code"], row["evidence"]) == (None, "TCP_TIMEOUT", {"error": "no banner"})
    await store.close_attempt(fleet.term, first, refused)
    await store.note_attempt(fleet.term, first, None, {"error": "too late"})
    await store.close_attempt(fleet.term, first, StageAttempt("ok"))
    await store.open_attempt(fleet.term, worker_id, Stage.TCP)
    await store.open_attempt(fleet.term, worker_id, Stage.EXEC)
    rows = (await store.worker(worker_id))["attempts"]
    assert [(row["stage"], row["attempt"], row["outcome"]) for row in rows] == [
        ("tcp", 1, "failed"), ("tcp", 2, "lost"), ("exec", 1, None)
    ]  # fmt: skip
    assert (rows[0]["failure_code"], rows[0]["exception_type"], rows[0]["evidence"]) == (
        "TCP_REFUSED", "Refused", {"host": "h"}
    )  # fmt: skip
    with pytest.raises(BadArgument, match="no attempt 999"):
        await store.close_attempt(fleet.term, 999, StageAttempt("ok"))
    with pytest.raises(UnknownWorker):
        await store.open_attempt(fleet.term, "gpu-none", Stage.TCP)


async def test_offers_cool_down_for_longer_with_each_refusal(fleet: Fleet, store: SqlStore) -> None:
    """30 s doubling to 600 s; a success clears it."""
    for expected_s in (30, 60, 120, 240, 480, 600, 600):
        await fleet.fleet("note_offer", p_key="RTX|*|SECURE", p_refused=True, p_code="NO_CAPACITY")
        offer = (await store.snapshot()).offers["RTX|*|SECURE"]
        assert offer.cooldown_until == fleet.now + timedelta(seconds=expected_s)
    assert offer.refusals == 7
    await store.note_offer(fleet.term, "RTX|*|SECURE", refused=False, code=None)
    offer = (await store.snapshot()).offers["RTX|*|SECURE"]
    assert (offer.cooldown_until, offer.refusals) == (None, 0)
    assert offer.last_refusal == START
    assert offer.last_success is not None


async def test_a_decision_is_kept_when_it_differs_from_the_pools_last(fleet: Fleet, store: SqlStore) -> None:
    """Inputs alone make no new row; newest first."""
    decision = {
        "pool": "p",
        "rule": "ceil(1/3)",
        "target": 1,
        "inputs": {"queued": 1},
        "actions": ["spawn"],
        "blocked": [],
    }
    await store.record_decision(fleet.term, decision)
    await store.record_decision(fleet.term, decision | {"inputs": {"queued": 2}})
    await store.record_decision(fleet.term, decision | {"pool": "q"})
    await store.record_decision(fleet.term, decision | {"blocked": ["budget"]})
    rows = await store.decisions()
    assert [(row["pool"], row["blocked"], row["inputs"]) for row in rows] == [
        ("p", ["budget"], {"queued": 1}), ("q", [], {"queued": 1}), ("p", [], {"queued": 1})
    ]  # fmt: skip
    assert len(await store.decisions(1)) == 1


def piece(seq: int, first: int, last: int, sha256: str = "aa", boot_id: str = "boot") -> LogRange:
    """A piece of the handler log of gpu-1."""
    return LogRange("gpu-1", boot_id, "handler", seq, first, last, sha256, f"logs/{boot_id}/{seq}")


async def test_log_pieces_follow_each_other(fleet: Fleet, store: SqlStore) -> None:
    """Without gap or overlap, each begun before it is shipped, repeatable when the reply was lost."""
    await fleet.spawn()
    for _ in range(2):
        await store.log_begin(fleet.term, piece(0, 0, 100))
    for wrong in (piece(0, 0, 50), piece(0, 0, 100, "bb"), piece(1, 50, 150), piece(1, 101, 150), piece(2, 100, 150)):
        with pytest.raises(LostRace):
            await store.log_begin(fleet.term, wrong)
    with pytest.raises(LostRace):
        await store.log_begin(fleet.term, piece(0, 5, 10, boot_id="other"))
    with pytest.raises(LostRace):
        await store.log_shipped(fleet.term, piece(0, 0, 100, "bb"))
    for _ in range(2):
        await store.log_shipped(fleet.term, piece(0, 0, 100))
    await store.log_begin(fleet.term, piece(1, 100, 150))
    with pytest.raises(UnknownWorker):
        await store.log_begin(fleet.term, LogRange("gpu-none", "b", "s", 0, 0, 1, "x", "k"))
    rows = await store.log_pieces("gpu-1")
    assert [(row["seq"], row["first"], row["last"], row["shipped_at"] is not None) for row in rows] == [
        (0, 0, 100, True), (1, 100, 150, False)
    ]  # fmt: skip


async def test_one_of_two_pieces_recorded_at_once_is_refused(fleet: Fleet, store: SqlStore) -> None:
    """Two orchestrators read the same log; the ledger takes one of them."""
    await fleet.spawn()
    answers = await asyncio.gather(
        *(store.log_begin(fleet.term, piece(0, 0, last)) for last in range(1, 9)), return_exceptions=True
    )
    assert sum(isinstance(answer, LostRace) for answer in answers) == 7


@pytest.mark.parametrize(
    ("begun", "last", "expected"),
    [
        (True, 300, [(0, 100, False), (100, 150, True), (150, 300, True)]),
        (True, None, [(0, 100, False), (100, 150, True), (150, None, True)]),
        (True, 150, [(0, 100, False), (100, 150, True)]),
        (False, 300, [(0, 100, False), (100, 300, True)]),
        (False, 100, [(0, 100, False)]),
    ],
)
async def test_bytes_that_went_with_their_host_are_declared(
    fleet: Fleet, store: SqlStore, begun: bool, last: int | None, expected: list[tuple[Any, ...]]
) -> None:
    """From where the shipped ones end; said twice, it stays as it is; nothing comes after."""
    await fleet.spawn()
    await store.log_begin(fleet.term, piece(0, 0, 100))
    await store.log_shipped(fleet.term, piece(0, 0, 100))
    if begun:
        await store.log_begin(fleet.term, piece(1, 100, 150))
    with pytest.raises(LostRace):
        await store.log_lost(fleet.term, "gpu-1", "boot", "handler", 50, last, "r")
    for _ in range(2):
        await store.log_lost(fleet.term, "gpu-1", "boot", "handler", 100, last, "pod lost")
    rows = await store.log_pieces("gpu-1")
    assert [(row["first"], row["last"], row["declared_lost"]) for row in rows] == expected
    if begun:
        with pytest.raises(LostRace):
            await store.log_shipped(fleet.term, piece(1, 100, 150))


async def test_old_rows_are_deleted_and_needed_ones_stay(
    fleet: Fleet, store: SqlStore, hand: AsyncConnection[DictRow]
) -> None:
    """Decisions after 30 days, but the last of each pool; a dead worker's history after 90."""
    decision = {"pool": "p", "rule": "r", "target": 1}
    for target in (1, 2):
        await fleet.fleet("record_decision", p_decision=decision | {"target": target})
    ended = await fleet.agent(State.TERMINATED)
    alive = await fleet.agent()
    fleet.wait(91 * 86_400)
    fleet.term = (await fleet.lead())["term"]
    deleted = [await fleet.fleet("retention") for _ in range(2)]
    assert [{kind: n for kind, n in each.items() if n} for each in deleted] == [
        {"decisions": 1, "worker_events": 4},
        {},
    ]
    assert [row["target"] for row in await store.decisions()] == [2]
    workers = {row["worker_id"] for row in await (await hand.execute("select worker_id from worker_events")).fetchall()}
    assert workers == {alive.id}
    assert {row["id"] for row in await store.workers(all=True)} == {ended.id, alive.id}


async def test_the_ledger_of_a_live_workers_logs_stays(fleet: Fleet, store: SqlStore) -> None:
    """Without it the next piece would begin at the file's first byte again; it goes 90 days after the worker."""
    agents = [await fleet.agent(state) for state in (State.TERMINATED, State.ACTIVE)]
    for agent in agents:
        one = {"p_worker_id": agent.id, "p_boot_id": "b", "p_stream": "s", "p_seq": 0, "p_first": 0, "p_last": 1}
        for step in ("log_begin", "log_shipped"):
            await fleet.fleet(step, **one, p_sha256="x", p_key="k")
    fleet.wait(91 * 86_400)
    fleet.term = (await fleet.lead())["term"]
    await fleet.fleet("retention")
    assert [len(await store.log_ends(agent.id)) for agent in agents] == [0, 1]


async def test_causes_of_an_end_come_back_as_the_cores(fleet: Fleet, store: SqlStore) -> None:
    """Words, decoded."""
    worker_id = await fleet.spawn()
    worker = await store.move(
        fleet.term, worker_id, from_states=[State.SPAWNING], to_state=State.TERMINATING, stage=Stage.DRAINING,
        reason="no pod", fields={"exit_cause": ExitCause.SPAWN_FAILED, "failure_code": FailureCode.NO_RUNTIME},
    )  # fmt: skip
    assert (worker.exit_cause, worker.failure_code) == (ExitCause.SPAWN_FAILED, FailureCode.NO_RUNTIME)


async def test_a_heartbeat_tells_whether_anybody_leads(fleet: Fleet) -> None:
    """Every answer tells the agent if there is no leader that would end its pod."""
    agent = await fleet.agent()
    assert (await agent.beat())["led"] is True
    fleet.wait(3600)
    assert (await agent.beat())["led"] is False
    await fleet.lead("the next one")
    assert (await agent.beat())["led"] is True


async def test_of_a_long_timeline_the_begin_and_the_end_are_shown(
    fleet: Fleet, store: SqlStore, hand: AsyncConnection[DictRow]
) -> None:
    """A worker's end reads its row: that must not take longer with each task that it has done."""
    agent = await fleet.agent()
    flips = """insert into worker_events (worker_id, fleet, from_state, to_state, reason, actor, at)
               select %(id)s, 'default', 'idle', 'active', 'flip ' || n, 'worker', %(at)s + n * interval '1 s'
                 from generate_series(1, 3000) n"""
    tries = """insert into worker_attempts (worker_id, stage, attempt, term, started_at, ended_at, outcome)
               select %(id)s, 'deleting', n, 1, %(at)s, %(at)s, 'failed' from generate_series(1, 3000) n"""
    # Statistics of a time when there was next to nothing here, on pages that are not small.
    for insert in (flips, tries):
        await hand.execute(insert, {"id": agent.id, "at": fleet.now})
    await hand.execute("delete from worker_events where reason like 'flip%'; delete from worker_attempts")
    await hand.execute("analyze worker_events; analyze worker_attempts; analyze workers")
    for insert in (flips, tries):
        await hand.execute(insert, {"id": agent.id, "at": fleet.now})
    told = await store.worker(agent.id)
    reasons = [event["reason"] for event in told["events"]]
    assert len(reasons) == 1000
    assert (reasons[0], reasons[-1]) == ("spawn requested", "flip 3000")
    assert len(told["attempts"]) == 1000
    fleet.wait(8 * 86_400)
    assert (await fleet.fleet("retention"))["worker_events"] == 3000  # within the 8 s that Supabase gives a statement


async def test_an_hour_of_short_tasks_is_booked_in_a_few_rows(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """What it cost stays, to the cent and the second, of each kind."""
    agent = await fleet.agent()
    for _ in range(10):
        await fleet.submit()
        (task,) = await agent.claim()
        fleet.wait(7)
        await agent.complete(task)
        await agent.claim()
        fleet.wait(5)
    fleet.wait(7_200)
    window = {"p_since": START, "p_until": fleet.now}
    costs = "select count(*) as n from costs"
    before, (raw,) = (
        await fleet.call("fleet_cost", p_fleet=FLEET, **window),
        await (await hand.execute(costs)).fetchall(),
    )
    await fleet.fleet("retention")
    after, (kept,) = (
        await fleet.call("fleet_cost", p_fleet=FLEET, **window),
        await (await hand.execute(costs)).fetchall(),
    )
    assert (raw["n"], kept["n"]) == (19, 2)
    assert (after["usd"], after["kinds"]) == (before["usd"], before["kinds"])
    assert (await fleet.snapshot())["spent"]["today_usd"] == pytest.approx(float(before["usd"]))


async def test_reports_do_not_rest_on_statistics(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """On those of a time when a table held next to nothing a report took 40 s; Supabase gives a statement 8 s."""
    fill = """insert into workers (id, created_at, status, exit_cause, terminated_at, billing_since, billing_until)
              select 'w-' || n, t - interval '9 s', 'terminated', 'idle_timeout', t, t - interval '9 s', t
                from generate_series(1, 3000) n, lateral (select %(now)s - n * interval '10 s') x (t);
              insert into costs (worker_id, fleet, kind, from_at, to_at, usd)
              select 'w-' || 1 + n %% 3000, 'default', 'busy', t - interval '1 s', t, 1
                from generate_series(1, 20000) n, lateral (select %(now)s - n * interval '1 s') x (t);
              insert into tasks (task_type, status, pool, max_attempts)
              select 'any', 'Complete', 'default', 3 from generate_series(1, 20000);
              insert into orchestrator.attempts (task_id, attempt, worker_id, nonce, claim_no, started_at, ended_at,
                                                 outcome)
              select id, 1, 'w-' || 1 + row_number() over () %% 3000, 'n', 1, %(now)s - interval '1 h', %(now)s,
                     'complete' from tasks;"""
    tables = ("costs", "orchestrator.attempts", "tasks", "workers")
    await hand.execute("set session_replication_role = replica")  # rows as they are, without what triggers make of them
    async with AsyncClientCursor(hand) as cursor:  # several statements with parameters
        await cursor.execute(fill, {"now": fleet.now})
        for verb in ("delete from", "analyze"):
            for table in tables:
                await cursor.execute(sql.SQL("{} {}").format(sql.SQL(verb), sql.Identifier(*table.split("."))))
        await cursor.execute(fill, {"now": fleet.now})
    window = {"p_fleet": FLEET, "p_since": fleet.now - timedelta(days=1), "p_until": fleet.now}
    assert len((await fleet.call("fleet_cost", **window))["workers"]) == 3000
    assert await fleet.call("fleet_efficiency", **window)
    assert await fleet.call("fleet_report", p_fleet=FLEET)


async def test_a_snapshot_does_not_read_all_ended_workers(direct: PostgresDb, hand: AsyncConnection[DictRow]) -> None:
    """It is taken every two seconds, for years."""
    fleet = Fleet(direct)
    await fleet.lead()
    await fleet.spawn("gpu-1")
    await hand.execute(
        """insert into workers (id, pool, stage, waiting_on, deadline_at, next_attempt_at, created_at)
           select 'w-' || n, 'p' || n % 3, 'intent', 'operator', now(), now(), now() - n * interval '1 h'
             from generate_series(1, 3000) n;
           update workers set status = 'terminating', exit_cause = 'manual' where id like 'w-%';
           update workers set status = 'terminated' where id like 'w-%';
           update workers set bringup_ended_at = created_at where id like 'w-%';
           analyze workers"""
    )
    async with hand.transaction():
        before = await rows_read(hand, "workers")
        (seen,) = await (await hand.execute("select fleet_snapshot('default') as it")).fetchall()
        read = await rows_read(hand, "workers") - before
    assert sorted(seen["it"]["last_spawn_at"]) == ["default", "p0", "p1", "p2"]
    assert read < 300


async def test_of_a_long_log_a_new_leader_reads_the_ends(
    fleet: Fleet, store: SqlStore, hand: AsyncConnection[DictRow]
) -> None:
    """Where the ledger ends, and what has arrived; a piece that is begun is the last one."""
    for name in ("gpu-1", "gpu-2"):
        await fleet.spawn(name)
    await hand.execute(
        """insert into log_objects
               (worker_id, boot_id, stream, seq, first_byte, last_byte, sha256, key, begun_at, shipped_at)
           select w, b, s, n, n * 10, n * 10 + 10, 'sha', n::text, now(), case when n < 998 then now() end
             from unnest(array['gpu-1', 'gpu-2']) w, unnest(array['b1', 'b2']) b, unnest(array['agent', 'handler']) s,
                  generate_series(0, 998) n"""
    )
    await store.log_lost(fleet.term, "gpu-1", "b2", "handler", 9_980, None, "lost with its host")
    found = [(p["boot_id"], p["stream"], p["seq"], p["declared_lost"]) for p in await store.log_ends("gpu-1")]
    both = [
        (boot, stream, seq, False) for boot in ("b1", "b2") for stream in ("agent", "handler") for seq in (997, 998)
    ]
    assert found == [*both[:-1], ("b2", "handler", 999, True)]
    assert await store.log_ends("gpu-3") == []


async def test_a_snapshot_tells_since_when_an_active_worker_holds_nothing(fleet: Fleet) -> None:
    """From its last task's end, not from when it became active: that may be days ago."""
    agent, fresh, idle = await fleet.agent(), await fleet.agent(), await fleet.agent(State.IDLE)
    await fleet.submit(count=2)
    held = await agent.claim(batch=2)
    fleet.wait(50)
    await agent.complete(held[0])
    seen = {worker.id: worker.empty_since for worker in map(worker_of, (await fleet.snapshot())["workers"])}
    assert seen == {agent.id: None, fresh.id: START, idle.id: None}
    await agent.complete(held[1])
    fleet.wait(50)
    seen = {worker.id: worker.empty_since for worker in map(worker_of, (await fleet.snapshot())["workers"])}
    assert seen[agent.id] == START + timedelta(seconds=50)


@pytest.mark.parametrize("own_program", [False, True])
async def test_a_task_that_waits_behind_another_of_its_claim_is_not_stuck(fleet: Fleet, own_program: bool) -> None:
    """An agent runs them one by one, and the first may be long; a program of the user's may run them side by side."""
    agent = await fleet.agent(own_program=own_program)
    await fleet.submit(count=2)
    first, second = await agent.claim(batch=2)
    fleet.wait(1_300)
    await agent.beat({**first, "progress": {"fraction": 0.5}}, second)
    (worker,) = map(worker_of, (await fleet.snapshot())["workers"])
    assert worker.progress_at == (START if own_program else fleet.now)


@pytest.mark.parametrize("amount", ["-5", "NaN", "Infinity", "1e300"])
async def test_an_amount_that_cannot_be_one_changes_no_budget(
    fleet: Fleet, hand: AsyncConnection[DictRow], amount: str
) -> None:
    """Written by hand, a negative price would make the day's spend negative, and no budget would be reached."""
    agent = await fleet.agent()
    columns = ("price_usd_per_hour", "reserved_usd_per_hour", "reserved_usd")
    await hand.execute(b"update workers set price_usd_per_hour = 2, reserved_usd_per_hour = 3, reserved_usd = 1")
    for column in columns:
        update = sql.SQL("update workers set {} = %s::numeric").format(sql.Identifier(column))
        await hand.execute(update, (amount,))
    (row,) = await (await hand.execute("select * from workers where id = %s", (agent.id,))).fetchall()
    assert [row[column] for column in columns] == [2, 3, 1]

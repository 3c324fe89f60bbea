"""A claim that waits: woken within milliseconds, by whatever concerns it, holding nothing while it sleeps."""

import asyncio
import dataclasses
import time
import uuid
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.types import Message

from orchestrator.adapters.cluster_store import ClusterStore
from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.s3 import S3Blobs
from orchestrator.core.cluster_states import ClusterStatus, MemberRole, MemberStatus
from orchestrator.core.states import State
from orchestrator.observability.health import Health
from orchestrator.web import long_poll
from orchestrator.web.wakeups import WakeupHub
from orchestrator.worker_tokens import Claims
from testbed.shared_services import Database
from tests.process.web.builders import ServerUnderTest, serving
from worker import protocol

WAIT_S = long_poll.MAX_WAIT_S
SOON_S = WAIT_S - 5  # a wake-up takes milliseconds; a lost one would take WAIT_S


async def test_a_task_wakes_the_claim_that_waits_for_it(gateway: ServerUnderTest) -> None:
    """Submitted into an empty queue, it is in the worker's hands at once."""
    worker = await gateway.worker()
    waiting = asyncio.create_task(worker.claim(wait_s=WAIT_S))
    await gateway.until(lambda: gateway.signal.waiting == 1)
    began = time.monotonic()
    (task_id,) = await gateway.submit(worker.pool)
    (task,) = (await waiting)["tasks"]
    assert time.monotonic() - began < SOON_S
    assert task["id"] == task_id


async def test_a_wait_without_a_task_ends_in_time(gateway: ServerUnderTest) -> None:
    """The answer is an ordinary empty one."""
    worker = await gateway.worker()
    began = time.monotonic()
    answer = await worker.claim(wait_s=0.3)
    assert answer["tasks"] == []
    assert answer["wanted"] == protocol.RUN
    assert 0.3 <= time.monotonic() - began < 0.3 + SOON_S


@pytest.mark.parametrize("wait_s", [0, -1, None, "nonsense"])
async def test_a_claim_without_a_wait_is_answered_at_once(gateway: ServerUnderTest, wait_s: object) -> None:
    """Zero, or nonsense that the database may judge."""
    worker = await gateway.worker()
    began = time.monotonic()
    await worker.call(protocol.CLAIM, p_claim_no=1, p_batch=1, p_wait_s=wait_s)
    assert time.monotonic() - began < SOON_S


async def test_a_burst_of_tasks_starts_as_many_workers(gateway: ServerUnderTest) -> None:
    """Thirty waiters of one pool, thirty tasks in one insert: each gets one, none twice."""
    workers = [await gateway.worker(pool="burst") for _ in range(30)]
    claims = [asyncio.create_task(worker.claim(wait_s=WAIT_S)) for worker in workers]
    await gateway.until(lambda: gateway.signal.waiting == 30)
    began = time.monotonic()
    submitted = await gateway.submit("burst", 30)
    answers = await asyncio.gather(*claims)
    took_s = time.monotonic() - began
    assert sorted(task["id"] for answer in answers for task in answer["tasks"]) == sorted(submitted)
    assert took_s < SOON_S


async def test_a_task_goes_to_the_worker_whose_last_task_ended_most_recently(gateway: ServerUnderTest) -> None:
    """Whoever waits longest, and after waits that follow each other: so the others can be ended."""
    workers = {(worker := await gateway.worker(pool="latest")).id: worker for _ in range(3)}
    numbers = dict.fromkeys(workers, 0)
    claims: dict[str, asyncio.Task[Mapping[str, Any]]] = {}

    async def wait(worker_id: str, wait_s: float = WAIT_S) -> None:
        numbers[worker_id] += 1
        claim = workers[worker_id].claim(numbers[worker_id], wait_s=wait_s)
        claims[worker_id] = asyncio.create_task(claim)

    for count, worker_id in enumerate(workers, start=1):
        await wait(worker_id, 0.1)
        await claims[worker_id]
        await wait(worker_id)
        await gateway.until(lambda count=count: gateway.signal.waiting == count)  # type: ignore[misc]
    last = [*workers][-1]
    for _ in range(2):  # the second time, it is the last one again, because its task ended last
        await gateway.submit("latest")
        await gateway.until(claims[last].done)
        assert len((await claims[last])["tasks"]) == 1
        await wait(last)
        await gateway.until(lambda: gateway.signal.waiting == 3)
    await gateway.store.request_termination(last, "test", now_not_drain=False)
    await claims[last]
    await gateway.submit("latest", 2)
    assert all([(await claims[worker_id])["tasks"] for worker_id in workers if worker_id != last])


async def test_a_worker_that_may_not_claim_any_more_passes_its_wake_up_on() -> None:
    """It was held back while it waited; the task does not wait for the end of another worker's poll."""
    hub = WakeupHub()
    answers: Mapping[str, list[dict[str, Any]]] = {"held": [{}, {"may": False}], "fit": [{}, {"tasks": ["a task"]}]}

    async def call(claims: Claims, _: str, __: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"pool": "a", "state": "idle", "wanted": "run", "tasks": [], **answers[claims["sub"]].pop(0)}

    polls, request = long_poll.LongPolls(call, hub), Request({"type": "http"}, _never)
    fit = asyncio.create_task(polls.claim(request, _claims("fit"), {"p_wait_s": WAIT_S}))
    await _until(lambda: hub.waiting == 1)
    held = asyncio.create_task(polls.claim(request, _claims("held"), {"p_wait_s": WAIT_S}))
    await _until(lambda: hub.waiting == 2)
    hub.notify("a")
    async with asyncio.timeout(SOON_S):
        assert (await fit)["tasks"] == ["a task"]
    held.cancel()
    await asyncio.gather(held, return_exceptions=True)


async def test_a_worker_whose_task_failed_gets_the_next_one_after_all_others(gateway: ServerUnderTest) -> None:
    """Otherwise it gets each new task, and each next attempt of the failed one, while healthy workers wait."""
    others, failing = [await gateway.worker(pool="bad") for _ in range(2)], await gateway.worker(pool="bad")
    (first,) = await gateway.submit("bad", max_attempts=3)
    (task,) = (await failing.claim(1))["tasks"]
    claims = [asyncio.create_task(worker.claim(1, wait_s=WAIT_S)) for worker in others]
    await gateway.until(lambda: gateway.signal.waiting == 2)
    reply = await failing.call(protocol.FAIL, p_task_id=task["id"], p_attempt=1, p_failure={"code": "HANDLER_ERROR"})
    assert reply.json()["outcome"] == "requeued"
    claims.append(asyncio.create_task(failing.claim(2, wait_s=WAIT_S)))
    await gateway.until(lambda: gateway.signal.waiting == 3)
    for number, healthy in ((2, [True, False]), (1, [True, True])):
        await gateway.submit("bad")
        await gateway.until(lambda number=number: gateway.signal.waiting == number)  # type: ignore[misc]
        await gateway.until(lambda healthy=healthy: sorted(c.done() for c in claims[:2]) == sorted(healthy))  # type: ignore[misc]
        assert not claims[2].done()
    (last,) = await gateway.submit("bad")
    assert [task["id"] for task in (await claims[2])["tasks"]] == [last]
    done = await failing.call(protocol.COMPLETE, p_task_id=last, p_attempt=1, p_output_location=None, p_result_data={})
    assert done.json()["outcome"] == "ok"
    assert first != last


async def test_a_wake_up_is_passed_on_if_the_claim_fails() -> None:
    """The database refuses one worker's claim; the task does not wait for the end of another worker's poll."""
    hub, calls = WakeupHub(), list[str]()

    async def call(claims: Claims, _: str, __: Mapping[str, Any]) -> Mapping[str, Any]:
        calls.append(claims["sub"])
        if calls.count(claims["sub"]) > 1 and claims["sub"] == "refused":
            raise ConnectionError
        tasks = ["a task"] if calls.count(claims["sub"]) > 1 else []
        return {"pool": "a", "state": "idle", "wanted": "run", "tasks": tasks, "may": True}

    polls, request = long_poll.LongPolls(call, hub), Request({"type": "http"}, _never)
    fit = asyncio.create_task(polls.claim(request, _claims("fit"), {"p_wait_s": WAIT_S}))
    await _until(lambda: hub.waiting == 1)
    refused = asyncio.create_task(polls.claim(request, _claims("refused"), {"p_wait_s": WAIT_S}))
    await _until(lambda: hub.waiting == 2)
    hub.notify("a")
    async with asyncio.timeout(SOON_S):
        assert (await fit)["tasks"] == ["a task"]
        with pytest.raises(ConnectionError):
            await refused


async def test_waiting_holds_no_connection(gateway: ServerUnderTest) -> None:
    """Forty sleepers on a pool of four connections leave room for everybody else."""
    workers = [await gateway.worker(pool="sleepers") for _ in range(40)]
    claims = [asyncio.create_task(worker.claim(wait_s=WAIT_S)) for worker in workers]
    await gateway.until(lambda: gateway.signal.waiting == 40)
    other = await gateway.worker()
    began = time.monotonic()
    assert (await other.claim())["tasks"] == []
    assert time.monotonic() - began < SOON_S
    await gateway.submit("sleepers", 40)
    assert all(answer["tasks"] for answer in await asyncio.gather(*claims))


async def test_a_promotion_wakes_the_worker_that_waited_for_it(gateway: ServerUnderTest) -> None:
    """Its tasks were queued before it could claim, and nobody will notify about them again."""
    worker = await gateway.worker(state=State.SPAWNING)
    (task_id,) = await gateway.submit(worker.pool)
    waiting = asyncio.create_task(worker.claim(wait_s=WAIT_S))
    await gateway.until(lambda: gateway.signal.waiting == 1)
    began = time.monotonic()
    await gateway.move(worker, (State.SPAWNING,), State.ACTIVE)
    (task,) = (await waiting)["tasks"]
    assert time.monotonic() - began < SOON_S
    assert task["id"] == task_id


async def test_a_worker_that_may_not_claim_yet_uses_up_no_wake_up(gateway: ServerUnderTest) -> None:
    """However many still start, the one that is ready gets the task at once."""
    bringing_up = [await gateway.worker(state=State.SPAWNING, pool="mixed") for _ in range(5)]
    sleepers = [asyncio.create_task(worker.claim(wait_s=WAIT_S)) for worker in bringing_up]
    await gateway.until(lambda: gateway.signal.waiting == 5)
    ready = await gateway.worker(pool="mixed")
    waiting = asyncio.create_task(ready.claim(wait_s=WAIT_S))
    await gateway.until(lambda: gateway.signal.waiting == 6)
    began = time.monotonic()
    (task_id,) = await gateway.submit("mixed")
    (task,) = (await waiting)["tasks"]
    assert time.monotonic() - began < SOON_S
    assert task["id"] == task_id
    for worker in bringing_up:
        await gateway.store.request_termination(worker.id, "test", now_not_drain=False)
    assert not any(answer["tasks"] for answer in await asyncio.gather(*sleepers))


async def test_members_of_a_cluster_use_up_no_wake_up(gateway: ServerUnderTest, api_db: PostgresDb) -> None:
    """The controller hears when the cluster runs, and of each task, however many other members wait."""
    name = f"c-{uuid.uuid4().hex[:8]}"
    rows, term = ClusterStore(api_db, "default"), gateway.term
    await rows.create(name, name, nodes=6)
    await rows.move(term, name, [ClusterStatus.REQUESTED], ClusterStatus.ALLOCATING, "test")
    *others, controller = [await gateway.worker(pool=name) for _ in range(6)]
    (early,) = await gateway.submit(name)
    claims = [asyncio.create_task(worker.claim(wait_s=WAIT_S)) for worker in (*others, controller)]
    await gateway.until(lambda: gateway.signal.waiting == 6)
    began = time.monotonic()
    assert await rows.join(term, name, controller.id, MemberRole.CONTROLLER) == 0
    for before, after in pairwise((MemberStatus.PENDING, MemberStatus.RECONCILING, MemberStatus.READY)):
        await rows.move_member(term, name, controller.id, [before], after, "test")
    for start, then in pairwise((ClusterStatus.ALLOCATING, ClusterStatus.DEPLOYING, ClusterStatus.RUNNING)):
        await rows.move(term, name, [start], then, "test")
    assert [task["id"] for task in (await claims[-1])["tasks"]] == [early]
    again = asyncio.create_task(controller.claim(2, wait_s=WAIT_S))
    await gateway.until(lambda: gateway.signal.waiting == 6)
    (late,) = await gateway.submit(name)
    assert [task["id"] for task in (await again)["tasks"]] == [late]
    assert time.monotonic() - began < SOON_S
    for worker in others:
        await gateway.store.request_termination(worker.id, "test", now_not_drain=False)
    assert not any(answer["tasks"] for answer in await asyncio.gather(*claims[:-1]))


@pytest.mark.parametrize(("at_once", "wanted"), [(False, protocol.DRAIN), (True, protocol.STOP)])
async def test_a_request_to_end_reaches_a_waiting_worker(gateway: ServerUnderTest, at_once: bool, wanted: str) -> None:
    """It does not sleep on for twenty seconds first."""
    worker = await gateway.worker()
    waiting = asyncio.create_task(worker.claim(wait_s=WAIT_S))
    await gateway.until(lambda: gateway.signal.waiting == 1)
    began = time.monotonic()
    await gateway.store.request_termination(worker.id, "test", now_not_drain=at_once)
    answer = await waiting
    assert time.monotonic() - began < SOON_S
    assert (answer["tasks"], answer["wanted"]) == ([], wanted)


async def test_a_server_that_stops_answers_who_waits(
    gateway: ServerUnderTest, postgres: Database, blobs: S3Blobs
) -> None:
    """Once, with nothing, and without asking the database again and again until the caller's time is up."""
    db, signal = await PostgresDb.open(postgres.url), WakeupHub()
    async with (
        serving(db, blobs, signal, Health(started_at_s=time.monotonic())) as url,
        httpx.AsyncClient(base_url=url, timeout=40) as client,
    ):
        worker = dataclasses.replace(await gateway.worker(), client=client)
        waiting = asyncio.create_task(worker.claim(wait_s=WAIT_S))
        await gateway.until(lambda: signal.waiting == 1)
        began = time.monotonic()
        signal.close()
        assert (await waiting)["tasks"] == []
        assert time.monotonic() - began < SOON_S
    await db.close()


@pytest.mark.parametrize("woken", [False, True])
async def test_a_caller_that_disconnects_claims_no_task(gateway: ServerUnderTest, woken: bool) -> None:
    """Its wait ends with the connection, and the next task goes to somebody who is there; a wake-up changes nothing."""
    gone, here = await gateway.worker(pool="hang-up"), await gateway.worker(pool="hang-up")
    async with httpx.AsyncClient(base_url=gateway.client.base_url) as client:
        body = {"p_worker_id": gone.id, "p_nonce": gone.nonce, "p_claim_no": 1, "p_batch": 1, "p_wait_s": WAIT_S}
        headers = {"Authorization": f"Bearer {gone.token}"}
        path = f"/rest/v1/rpc/{protocol.CLAIM}"
        lost = asyncio.create_task(client.post(path, json=body, headers=headers, timeout=WAIT_S))
        await gateway.until(lambda: gateway.signal.waiting == 1)
        if woken:
            gateway.signal.notify_worker(gone.id)  # it claims once more before it is known to have gone
        lost.cancel()
        await asyncio.gather(lost, return_exceptions=True)
    await gateway.until(lambda: gone.id in gateway.unanswered)
    (task_id,) = await gateway.submit("hang-up")
    (task,) = (await here.claim(wait_s=WAIT_S))["tasks"]
    assert task["id"] == task_id


async def test_a_lost_answer_is_given_again(gateway: ServerUnderTest) -> None:
    """The same claim number after a broken connection gets the same task, not a second one."""
    worker = await gateway.worker()
    await gateway.submit(worker.pool, 2)
    first, again = await worker.claim(1), await worker.claim(1)
    assert first["tasks"] == again["tasks"]
    assert len(first["tasks"]) == 1


async def test_a_claim_after_an_empty_one_continues_to_wait(
    gateway: ServerUnderTest, postgres: Database, blobs: S3Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database is not asked again for what it has just said; two claims that find nothing ask it three times."""
    monkeypatch.setattr(long_poll, "FRESH_S", 60.0)  # however long this process stands still between the two
    db = await Counted.open(postgres.url)
    async with (
        serving(db, blobs, WakeupHub(), Health(started_at_s=time.monotonic())) as url,
        httpx.AsyncClient(base_url=url, timeout=40) as client,
    ):
        worker = dataclasses.replace(await gateway.worker(), client=client)
        for number in (1, 2):
            assert (await worker.claim(number, wait_s=0.1))["tasks"] == []
        assert db.calls == 3
        await worker.claim(4, wait_s=0.1)  # not what that answer led to
        assert db.calls == 5
    await db.close()


@pytest.mark.parametrize("late", [False, True])
async def test_a_task_is_found_by_a_claim_that_went_on_waiting(gateway: ServerUnderTest, late: bool) -> None:
    """Whether it came between the two claims or after the second began."""
    worker = await gateway.worker()
    assert (await worker.claim(1, wait_s=0.05))["tasks"] == []
    before = gateway.signal.mark()
    waiting = asyncio.create_task(worker.claim(2, wait_s=WAIT_S)) if late else None
    if waiting:
        await gateway.until(lambda: gateway.signal.waiting == 1)
    (task_id,) = await gateway.submit(worker.pool)
    await gateway.until(lambda: gateway.signal.mark() > before)
    began = time.monotonic()
    answer = await (waiting or worker.claim(2, wait_s=WAIT_S))
    assert time.monotonic() - began < SOON_S
    assert [task["id"] for task in answer["tasks"]] == [task_id]


async def test_a_waiting_claim_is_woken_by_the_end_of_its_worker(gateway: ServerUnderTest) -> None:
    """An operator's wish between two claims is not slept over."""
    worker = await gateway.worker()
    await worker.claim(1, wait_s=0.05)
    before = gateway.signal.mark()
    await gateway.store.request_termination(worker.id, "test", now_not_drain=False)
    await gateway.until(lambda: gateway.signal.mark() > before)
    began = time.monotonic()
    assert (await worker.claim(2, wait_s=WAIT_S))["wanted"] == protocol.DRAIN
    assert time.monotonic() - began < SOON_S


async def test_a_spent_number_is_not_waited_for(gateway: ServerUnderTest) -> None:
    """An agent that did not hear the empty answer asks again: nothing can come of that number, whatever is queued."""
    worker = await gateway.worker()
    assert not (await worker.claim(1, wait_s=0.05))["spent"]
    await gateway.submit(worker.pool)
    began = time.monotonic()
    again = await worker.claim(1, wait_s=WAIT_S)
    assert time.monotonic() - began < SOON_S
    assert (again["tasks"], again["spent"]) == ([], True)
    assert len((await worker.claim(2, wait_s=WAIT_S))["tasks"]) == 1


class Counted(PostgresDb):
    """Counts what workers ask of it."""

    calls = 0

    async def call_as_worker(self, claims: Mapping[str, Any], function: str, args: Mapping[str, Any]) -> Any:
        self.calls += 1
        return await super().call_as_worker(claims, function, args)


def _claims(worker_id: str) -> Claims:
    return {"sub": worker_id, "jti": "jti"}


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON_S):
        while not condition():
            await asyncio.sleep(0)


async def _never() -> Message:
    await asyncio.Event().wait()
    return {}

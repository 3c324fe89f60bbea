"""Heartbeats that come together: one statement for all, and for each the answer that it would have had alone."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import httpx
import psycopg
import pytest

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.s3 import S3Blobs
from orchestrator.observability.health import Health
from orchestrator.web import heartbeat_batch
from orchestrator.web.wakeups import WakeupHub
from testbed.shared_services import Database
from tests.process.web.builders import DEADLINE_S, Caller, ServerUnderTest, serving
from worker import protocol

BEAT: dict[str, Any] = {"p_tasks": [], "p_health": {"gpus": 1}, "p_logs": {"agent": 7}}
NOWHERE = "postgresql://nobody@127.0.0.1:1/none"  # nothing listens on this port


class Noted(PostgresDb):
    """Notes who was asked about together."""

    together: list[set[str]]

    async def heartbeats(self, beats: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        self.together = [*getattr(self, "together", []), {beat["worker_id"] for beat in beats}]
        return await super().heartbeats(beats)


@pytest.fixture
async def db(postgres: Database) -> AsyncIterator[Noted]:
    """A transport of the test's own."""
    opened = await Noted.open(postgres.url)
    yield opened
    await opened.close()


@pytest.fixture
async def callers(gateway: ServerUnderTest, db: Noted, blobs: S3Blobs) -> AsyncIterator[list[Caller]]:
    """Four workers, and a gateway without other traffic."""
    async with (
        serving(db, blobs, WakeupHub(), Health(started_at_s=time.monotonic())) as url,
        httpx.AsyncClient(base_url=url, timeout=40) as client,
    ):
        yield [replace(await gateway.worker(), client=client) for _ in range(4)]


async def beat(callers: Sequence[Caller], *, company: int = 0, **changed: Any) -> list[httpx.Response]:
    """All at once; `changed` is what the first one says instead, `company` the number of other callers' beats.

    They go together however long the last one takes to arrive: TOGETHER_S alone is too little on a busy machine.
    """
    said = [{**BEAT, **changed}, *[BEAT] * (len(callers) - 1)]
    beats = (c.call(protocol.HEARTBEAT, **one) for c, one in zip(callers, said, strict=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heartbeat_batch, "TOGETHER_S", DEADLINE_S)
        patch.setattr(heartbeat_batch, "MOST", sum(not one["p_tasks"] for one in said) + company)
        return list(await asyncio.gather(*beats))


async def test_all_heartbeats_go_in_one_statement(gateway: ServerUnderTest, db: Noted, callers: list[Caller]) -> None:
    """With what each says of itself, and what is wanted of each."""
    await gateway.store.request_termination(callers[0].id, "test", now_not_drain=False)
    answers = [reply.json() for reply in await beat(callers)]
    assert db.together == [{caller.id for caller in callers}]
    assert [answer["wanted"] for answer in answers] == [protocol.DRAIN, *[protocol.RUN] * 3]
    assert all(answer["outcome"] == protocol.OK and answer["heartbeat_s"] == 20 for answer in answers)
    for caller in callers:
        row = (await gateway.store.worker(caller.id))["worker"]
        assert row["last_heartbeat"] is not None
        assert (row["health"], row["log_bytes"][caller.nonce]) == (BEAT["p_health"], BEAT["p_logs"])


async def test_a_beat_without_company_is_an_ordinary_call(db: Noted, callers: list[Caller]) -> None:
    """So is one that holds a task, in any company: its lease does not wait for others."""
    assert (await callers[0].call(protocol.HEARTBEAT, **BEAT)).json()["outcome"] == protocol.OK
    held = [{"id": "6d1c7ef4-4b6c-4b67-9d0f-0e5ad4bb1c7b", "attempt": 1}]
    first, *_ = await beat(callers, p_tasks=held)
    assert first.json()["fenced"] == [held[0]["id"]]
    assert db.together == [{caller.id for caller in callers[1:]}]


async def test_heartbeats_with_an_unchanged_health_are_combined_and_keep_it(
    gateway: ServerUnderTest, db: Noted, callers: list[Caller]
) -> None:
    """Null leaves the health of the worker as it is."""
    await beat(callers)
    answers = [reply.json() for reply in await beat(callers, p_health=None)]
    assert [answer["outcome"] for answer in answers] == [protocol.OK] * 4
    assert db.together == [{caller.id for caller in callers}] * 2
    assert (await gateway.store.worker(callers[0].id))["worker"]["health"] == BEAT["p_health"]
    assert (await callers[0].call(protocol.HEARTBEAT, **BEAT | {"p_health": None})).json()["outcome"] == protocol.OK
    assert (await gateway.store.worker(callers[0].id))["worker"]["health"] == BEAT["p_health"]


async def test_a_worker_with_a_wrong_identity_gets_the_reason(gateway: ServerUnderTest, callers: list[Caller]) -> None:
    """A former launch, a revoked token and a worker that has gone are refused as ever, the others heard."""
    callers[0] = replace(callers[0], nonce="of an earlier launch")
    callers[1] = replace(callers[1], jti="revoked")
    callers[2] = replace(callers[2], id="gpu-never-was")
    replies = await beat(callers)
    assert [reply.status_code for reply in replies] == [200, 400, 400, 200]
    assert replies[0].json()["outcome"] == protocol.FENCED
    assert [reply.json()["code"] for reply in replies[1:3]] == [protocol.BAD_TOKEN, protocol.UNKNOWN_WORKER]
    assert replies[3].json()["outcome"] == protocol.OK


async def test_each_launch_of_a_worker_gets_its_own_answer(db: Noted, callers: list[Caller]) -> None:
    """A revoked token and an earlier launch in the moment of the live one's beat: each hears what it hears alone."""
    live = callers[0]
    same = [live, replace(live, jti="revoked"), replace(live, nonce="of an earlier launch"), *callers[1:3]]
    ok, revoked, earlier, *others = await beat(same)
    assert ok.json()["outcome"] == protocol.OK
    assert (revoked.status_code, revoked.json()["code"]) == (400, protocol.BAD_TOKEN)
    assert (earlier.json()["outcome"], earlier.json()["wanted"]) == (protocol.FENCED, protocol.STOP)
    assert [reply.json()["outcome"] for reply in others] == [protocol.OK] * 2
    assert db.together == [{caller.id for caller in callers[1:3]}]


async def test_an_invalid_heartbeat_affects_no_other(callers: list[Caller]) -> None:
    """The others are heard although it spoils the statement for all."""
    first, *others = await beat(callers, p_logs={"agent": -1})
    assert (first.status_code, first.json()["code"]) == (400, protocol.BAD_ARGUMENT)
    assert [reply.json()["outcome"] for reply in others] == [protocol.OK] * 3


async def test_a_beat_that_names_no_launch_is_refused(callers: list[Caller]) -> None:
    """As it would be alone: there is no function without that argument."""
    first, *others = callers
    headers = {"Authorization": f"Bearer {first.token}"}
    nameless = first.client.post(
        f"/rest/v1/rpc/{protocol.HEARTBEAT}", json={"p_worker_id": first.id, **BEAT}, headers=headers
    )
    reply, heard = await asyncio.gather(nameless, beat(others, company=1))
    assert (reply.status_code, reply.json()["code"]) == (404, "PGRST202")
    assert [one.json()["outcome"] for one in heard] == [protocol.OK] * 3


async def test_a_locked_row_delays_no_other(callers: list[Caller], postgres: Database) -> None:
    """Somebody forgot a transaction in the SQL editor: only that worker's beat waits for its end."""
    async with await psycopg.AsyncConnection.connect(postgres.url) as editor:
        await editor.execute("select from workers where id = %s for update", (callers[0].id,))
        waiting = asyncio.create_task(callers[0].call(protocol.HEARTBEAT, **BEAT))
        async with asyncio.timeout(DEADLINE_S):
            others = await beat(callers[1:], company=1)
        assert [reply.json()["outcome"] for reply in others] == [protocol.OK] * 3
        assert not waiting.done()
        await editor.rollback()
        assert (await waiting).json()["outcome"] == protocol.OK


async def test_during_an_outage_of_the_database_the_loop_knows_that_all_workers_live(blobs: S3Blobs) -> None:
    """503 for each agent, and each one's id for the loop: nobody is silent."""
    heard: list[str] = []
    db = await PostgresDb.open(NOWHERE, pool_size=1, call_timeout_s=0.3)
    async with (
        serving(db, blobs, WakeupHub(), Health(started_at_s=time.monotonic()), heard.append) as url,
        httpx.AsyncClient(base_url=url) as client,
    ):
        callers = [Caller(f"gpu-{number}", "p", "jti", "nonce", client) for number in range(3)]
        assert [reply.status_code for reply in await beat(callers)] == [503] * 3
    await db.close()
    assert sorted(heard) == [caller.id for caller in callers]

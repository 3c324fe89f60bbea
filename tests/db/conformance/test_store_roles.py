"""A pod's token: it opens the pod's own calls, and nothing else in the database."""

from collections.abc import Mapping
from typing import Any

import psycopg
import pytest

from orchestrator.adapters.functions import FUNCTIONS
from orchestrator.adapters.postgres import PostgresDb
from orchestrator.core.states import State
from orchestrator.ports import BadToken, UnknownWorker
from tests.db.conformance.builders import START, Agent, Fleet

NOBODY = "00000000-0000-0000-0000-000000000000"
# A plausible value for every argument of every function, so that only the permission can be what refuses.
VALUES: Mapping[str, Any] = {
    "p_agent": {},
    "p_all": True,
    "p_attempt": 1,
    "p_batch": 1,
    "p_claim_no": 1,
    "p_decision": {},
    "p_fields": {},
    "p_fleet": "default",
    "p_from": ["active"],
    "p_id": 1,
    "p_items": [],
    "p_key": "k",
    "p_limit": 1,
    "p_logs": {},
    "p_now_not_drain": True,
    "p_refused": False,
    "p_results": [{"task_id": NOBODY, "attempt": 1}],
    "p_task_id": NOBODY,
    "p_tasks": [],
    "p_term": 1,
    "p_ttl_s": 1,
    "p_wait_s": 0,
    "p_worker": {},
}
OWN = [name for name in FUNCTIONS if name.startswith("worker_")]
FOREIGN = [name for name in FUNCTIONS if not name.startswith("worker_")]
FORBIDDEN = [
    "select * from tasks",
    "select * from workers",
    "insert into tasks (task_type) values ('x')",
    "update workers set status = 'active'",
    "delete from worker_events",
    "truncate tasks",
    "select * from fleet_lease",
    "select * from schema_migrations",
    "select internal_refuse('OR001', 'x')",
    "select internal_clock(now())",
    "select internal_caller('gpu-1', true)",
    "create table mine (a int)",
    "create function mine() returns int language sql as 'select 1'",
    "alter role gpu_worker superuser",
    "drop function worker_claim",
]


@pytest.fixture
def db(direct: PostgresDb) -> PostgresDb:
    """The transport that takes the role on, as the gateway does; over PostgREST a token does it."""
    return direct


def claims_of(agent: Agent, **changed: str) -> dict[str, str]:
    """What its token says."""
    return {"sub": agent.id, "jti": f"jti-{agent.id}", "role": "gpu_worker"} | changed


def args_of(function: str, agent: Agent) -> dict[str, Any]:
    """All its arguments."""
    known = {**VALUES, "p_worker_id": agent.id, "p_nonce": agent.nonce}
    return {name: known.get(name) for name in FUNCTIONS[function]}


@pytest.mark.parametrize("function", OWN)
async def test_a_pod_may_make_its_own_calls(fleet: Fleet, db: PostgresDb, function: str) -> None:
    """All of them."""
    agent = await fleet.agent()
    answer = await db.call_as_worker(claims_of(agent), function, args_of(function, agent))
    assert answer["outcome"] in {"ok", "fenced"}


@pytest.mark.parametrize("function", OWN)
@pytest.mark.parametrize(
    "changed", [{"sub": "gpu-other"}, {"jti": "old"}, {"jti": ""}, {"sub": ""}], ids=["sub", "jti", "no-jti", "no-sub"]
)
async def test_another_workers_or_an_old_token_opens_nothing(
    fleet: Fleet, db: PostgresDb, function: str, changed: Mapping[str, str]
) -> None:
    """The signer does not matter."""
    agent = await fleet.agent()
    with pytest.raises(BadToken):
        await db.call_as_worker(claims_of(agent, **changed), function, args_of(function, agent))


@pytest.mark.parametrize("function", OWN)
async def test_without_claims_nothing_opens(fleet: Fleet, db: PostgresDb, function: str) -> None:
    """The role alone is nobody."""
    agent = await fleet.agent()
    with pytest.raises(BadToken):
        await db.call_as_worker({}, function, args_of(function, agent))


NAME_AN_ID = {"fleet_message_close", "fleet_webhook_retry", "task_get_for", "task_act_for"}


@pytest.mark.parametrize("function", FOREIGN)
async def test_a_function_that_is_not_for_pods_is_refused(fleet: Fleet, db: PostgresDb, function: str) -> None:
    """Neither the fleet's nor the submitters' functions."""
    agent = await fleet.agent()
    args = args_of(function, agent)
    if function in {"task_cancel", "task_retry", "task_get"}:
        args = {"p_id": NOBODY}
    elif function in NAME_AN_ID:
        args |= {"p_id": NOBODY}
    with pytest.raises(BadToken, match="permission denied"):
        await db.call_as_worker(claims_of(agent), function, args)


@pytest.mark.parametrize("statement", FORBIDDEN)
async def test_the_role_reaches_no_table_and_no_inner_function(database: str, statement: str) -> None:
    """Not even somebody who could send SQL of their own under it."""
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as connection:
        await connection.execute("set role gpu_worker")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await connection.execute(statement.encode())


async def test_revoking_is_one_update(fleet: Fleet, db: PostgresDb) -> None:
    """From the next call on; a terminated worker's token is dead with it."""
    agent = await fleet.agent()
    beat = args_of("worker_heartbeat", agent)
    await db.call_as_worker(claims_of(agent), "worker_heartbeat", beat)
    await fleet.move(agent.id, State.ACTIVE, token_jti="another")
    with pytest.raises(BadToken, match="revoked"):
        await db.call_as_worker(claims_of(agent), "worker_heartbeat", beat)
    await fleet.end(agent.id, State.ACTIVE)
    await fleet.move(agent.id, State.TERMINATING, State.TERMINATED)
    with pytest.raises(UnknownWorker):
        await db.call_as_worker(claims_of(agent, jti="another"), "worker_heartbeat", beat)


async def test_a_pod_cannot_choose_the_time(fleet: Fleet, db: PostgresDb) -> None:
    """Its p_now is ignored: leases and heartbeats are on the database's clock."""
    agent = await fleet.agent()
    args = args_of("worker_heartbeat", agent) | {"p_now": "2099-01-01T00:00:00+00:00"}
    await db.call_as_worker(claims_of(agent), "worker_heartbeat", args)
    (worker,) = (await fleet.snapshot())["workers"]
    assert worker["last_heartbeat"] < "2099"
    assert worker["last_heartbeat"] != START.isoformat()


async def test_the_role_ends_with_the_call(fleet: Fleet, database: str) -> None:
    """The connection goes back to the pool as what it was, after refusals too."""
    db = await PostgresDb.open(database, pool_size=1)
    agent = await fleet.agent()
    await db.call_as_worker(claims_of(agent), "worker_heartbeat", args_of("worker_heartbeat", agent))
    everywhere = {"p_fleet": "default", "p_for_s": None}
    with pytest.raises(BadToken):
        await db.call_as_worker(claims_of(agent), "fleet_pause", {"p_pool": None, "p_reason": "x", **everywhere})
    assert (await db.call("fleet_pause", p_pool=None, p_reason=None, **everywhere)) == {"paused": {}}
    await db.close()


async def test_one_worker_cannot_touch_anothers_task(fleet: Fleet) -> None:
    """It knows the id and the attempt, and is fenced all the same."""
    (task_id,) = await fleet.submit()
    owner, thief = await fleet.agent(), await fleet.agent()
    (task,) = await owner.claim()
    assert [await thief.complete(task), await thief.fail(task), await thief.release(task)] == ["fenced"] * 3
    assert (await thief.beat(task))["fenced"] == [task_id]
    assert await owner.complete(task) == "ok"


async def test_grants_are_for_its_own_outputs_and_what_its_tasks_depend_on(fleet: Fleet) -> None:
    """Everything else is refused, whatever the key looks like."""
    first, second, foreign = await fleet.submit(
        {"priority": 2}, {"depends_on": ["#0"], "priority": 1}, {"pool": "other"}
    )
    other, agent = await fleet.agent(pool="other"), await fleet.agent()
    (task,) = await other.claim()
    await other.complete(task, p_output_location=f"s3://b/p/outputs/{foreign}/1/x.mp4")
    (task,) = await agent.claim()
    made = f"outputs/{first}/1/a.mp4"
    await agent.complete(task, p_output_location=f"s3://bucket/prefix/{made}")
    (task,) = await agent.claim()
    prefix = task["output_prefix"]
    wanted = [
        ("PUT", f"{prefix}film.mp4", True),
        ("PUT", f"{prefix}deep/er/film.mp4", True),
        ("GET", made, True),
        ("PUT", made, False),  # done: no longer held
        ("PUT", prefix, False),
        ("PUT", f"outputs/{second}/2/film.mp4", False),
        ("PUT", f"{prefix}../../{first}/1/a.mp4", False),
        ("PUT", f"{prefix}./x", False),
        ("PUT", f"{prefix}a//b", False),
        ("PUT", f"{prefix}a\nb", False),
        ("PUT", f"{prefix}{'x' * 1000}", False),
        ("PUT", f"/{prefix}x", False),
        ("PUT", "logs/gpu-1/x", False),
        ("DELETE", f"{prefix}film.mp4", False),
        ("GET", f"{prefix}film.mp4", False),
        ("GET", f"outputs/{first}/1/other.mp4", True),  # next to the output that the dependency named
        ("GET", f"outputs/{first}/2/other.mp4", False),
        ("GET", f"outputs/{first}/1/../2/a.mp4", False),
        ("GET", f"outputs/{foreign}/1/x.mp4", False),
        ("GET", "a.mp4", False),
        ("GET", "1/a.mp4", False),
        ("GET", "", False),
    ]
    answer = await agent.call("grants", p_items=[{"method": method, "key": key} for method, key, _ in wanted])
    assert answer["items"] == [{"method": method, "key": key} for method, key, granted in wanted if granted]
    assert answer["refused"] == [key for _, key, granted in wanted if not granted]


async def test_an_output_named_elsewhere_opens_nothing_there(fleet: Fleet) -> None:
    """A worker may say what it likes about its output; nobody gets an outsider's object signed by that."""
    await fleet.submit({}, {"depends_on": ["#0"]})
    agent = await fleet.agent()
    (task,) = await agent.claim()
    await agent.complete(task, p_output_location="s3://bucket/prefix/logs/gpu-9/secret.log")
    await agent.claim()
    answer = await agent.call("grants", p_items=[{"method": "GET", "key": "logs/gpu-9/secret.log"}])
    assert (answer["items"], answer["refused"]) == ([], ["logs/gpu-9/secret.log"])

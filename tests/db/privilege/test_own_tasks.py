"""docs/examples/supabase_own_tasks.sql with two users, over PostgREST: each sees and changes only what is own."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from orchestrator.migrate import migrate
from testbed.services.postgrest import EmbeddedPostgrest
from testbed.services.supabase_roles import AUTH
from testbed.shared_services import Database, SharedServices
from tests.process.web.builders import SECRET

TEMPLATE = (Path(__file__).resolve().parents[3] / "docs" / "examples" / "supabase_own_tasks.sql").read_text()
COLUMNS = "id,task_type,params,status,progress,result_data,error_message,output_location,tenant"
OWN_FUNCTIONS = {"task_submit_own", "task_cancel_own"}
LIMIT = 20  # open tasks of a user, in the template
DAY = 200  # tasks that a user creates in 24 hours, in the template
FUNCTIONS = """
    select p.proname, p.proargnames[1:p.pronargs] from pg_proc p
     where p.pronamespace = 'public'::regnamespace and p.prorettype <> 'trigger'::regtype order by 1
"""
RELATIONS = """
    select c.relname from pg_class c where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p', 'v', 'm')
"""


@dataclass(frozen=True, slots=True)
class User:
    """A user who has signed in, or nobody."""

    id: str
    client: httpx.AsyncClient

    async def submit(self, **arguments: Any) -> httpx.Response:
        """A call of task_submit_own."""
        return await self.client.post("/rpc/task_submit_own", json={"p_task_type": "travel_segment", **arguments})

    async def submitted(self, **arguments: Any) -> str:
        """The id of a new task."""
        answer = await self.submit(**arguments)
        assert answer.status_code == 200, answer.text
        return str(answer.json())

    async def seen(self, query: str = "") -> list[dict[str, Any]]:
        """The tasks that the user sees."""
        answer = await self.client.get(f"/tasks?select={COLUMNS}{query}")
        assert answer.status_code == 200, answer.text
        return list(answer.json())


@dataclass(frozen=True, slots=True)
class Project:
    """A project with the template, two of its users, and nobody."""

    owner: psycopg.AsyncConnection[tuple[Any, ...]]
    database: Database
    alice: User
    bob: User
    nobody: User


@pytest.fixture(scope="module")
async def project(shared: SharedServices) -> AsyncIterator[Project]:
    """The template is applied twice: that is harmless."""
    database = await shared.database()
    async with await psycopg.AsyncConnection.connect(database.url, autocommit=True) as owner:
        for text in (AUTH, TEMPLATE, TEMPLATE):
            await owner.execute(text.encode())
        async with EmbeddedPostgrest(database.url, SECRET) as rest:
            users = []
            for name in ("alice", "bob", None):
                user = str(uuid.uuid4())
                token = rest.issue("authenticated", user=user) if name else rest.anon_key
                headers = {"apikey": rest.publishable_key, "Authorization": f"Bearer {token}"}
                users.append(User(user, httpx.AsyncClient(base_url=rest.url, headers=headers, timeout=30)))
            yield Project(owner, database, *users)
            await asyncio.gather(*(user.client.aclose() for user in users))


@pytest.fixture
async def theirs(project: Project) -> AsyncIterator[str]:
    """A task of Alice with a result, which nobody has changed in the end."""
    task = await project.alice.submitted(p_params={"secret": "of alice"}, p_labels={"show": "7"})
    look = b"select to_jsonb(t)::text from tasks t where id = %s"
    before = await (await project.owner.execute(look, [task])).fetchone()
    yield task
    assert await (await project.owner.execute(look, [task])).fetchone() == before
    await project.owner.execute(b"delete from tasks")


async def test_each_user_sees_and_cancels_own_tasks(project: Project, theirs: str) -> None:
    """By a list, an id, or a filter; nobody else's are there."""
    mine = await project.bob.submitted(p_params={"n": 1})
    assert [(task["id"], task["tenant"]) for task in await project.bob.seen()] == [(mine, project.bob.id)]
    assert [(task["id"], task["params"]) for task in await project.alice.seen()] == [(theirs, {"secret": "of alice"})]
    for query in (f"&id=eq.{theirs}", f"&tenant=eq.{project.alice.id}", f"&or=(id.eq.{theirs},status.eq.Queued)"):
        assert theirs not in [task["id"] for task in await project.bob.seen(query)]
    answers = [await project.bob.client.post("/rpc/task_cancel_own", json={"p_id": one}) for one in (theirs, mine)]
    assert [answer.json() for answer in answers] == ["not_found", "cancelled"]
    assert (await project.nobody.client.get(f"/tasks?select={COLUMNS}")).status_code == 401


@pytest.mark.parametrize("who", ["bob", "nobody"])
async def test_no_user_writes_a_row(project: Project, theirs: str, who: str) -> None:
    """Neither of somebody else nor an own one: with a foreign tenant, an own tenant, or a changed one."""
    user: User = getattr(project, who)
    for tenant in (project.alice.id, user.id):
        answer = await user.client.post("/tasks", json={"task_type": "travel_segment", "tenant": tenant})
        assert answer.status_code in {401, 403}, answer.text
    for name, value in (("tenant", user.id), ("status", "Cancelled"), ("priority", 9), ("params", {})):
        answer = await user.client.patch(f"/tasks?id=eq.{theirs}", json={name: value})
        assert answer.status_code in {401, 403}, answer.text
    assert (await user.client.delete(f"/tasks?id=eq.{theirs}")).status_code in {401, 403}
    upsert = {"Prefer": "resolution=merge-duplicates"}
    answer = await user.client.post("/tasks", json={"id": theirs, "tenant": user.id}, headers=upsert)
    assert answer.status_code in {401, 403}


@pytest.mark.parametrize("who", ["bob", "nobody"])
async def test_every_other_function_table_and_view_is_closed(project: Project, theirs: str, who: str) -> None:
    """Those of workers, of the orchestrator, of clients, and whatever comes later."""
    user: User = getattr(project, who)
    rows: Any = await (await project.owner.execute(FUNCTIONS.encode())).fetchall()
    functions = {(name, tuple(arguments or ())) for name, arguments in rows if name not in OWN_FUNCTIONS}
    assert len(functions) > 100
    for name, arguments in functions:
        answer = await user.client.post(f"/rpc/{name}", json=dict.fromkeys(arguments))
        assert answer.status_code in {401, 403, 404}, (name, answer.status_code, answer.text)
    tables: Any = await (await project.owner.execute(RELATIONS.encode())).fetchall()
    for (name,) in tables:
        answer = await user.client.get(f"/{name}?limit=1")  # of tasks, not every column is open
        assert answer.status_code in {401, 403}, (name, answer.text)
    if who == "nobody":
        assert (await user.submit()).status_code == 401


async def test_a_submission_reaches_nothing_of_another_user(project: Project, theirs: str) -> None:
    """Not by a dependency, whose results a task gets; not by a key; not by what the function does not take."""
    answer = await project.bob.submit(p_task_type="travel_stitch", p_depends_on=[theirs])
    assert (answer.status_code, answer.json()["message"]) == (404, "a task depends on one that is not yours")
    ours = await project.alice.submitted(p_key="film")
    assert await project.alice.submitted(p_key="film") == ours
    assert await project.bob.submitted(p_key="film") != ours
    for hostile in (f"{project.alice.id} film", "' or true --", "film\n"):
        assert await project.bob.submitted(p_key=hostile) != ours
    for name in ("p_tenant", "p_pool", "p_priority", "p_webhook_url", "p_id"):
        assert (await project.bob.submit(**{name: project.alice.id})).status_code == 404
    nested = await project.bob.submitted(p_params={"tenant": project.alice.id, "id": theirs})
    assert (await project.bob.seen(f"&id=eq.{nested}"))[0]["tenant"] == project.bob.id


async def test_submissions_are_limited_in_kind_size_and_number(project: Project, theirs: str) -> None:
    """The number also holds for submissions at the same time, and for each user alone."""
    assert (await project.bob.submit(p_task_type="admin")).status_code == 403
    assert (await project.bob.submit(p_params={"x": "y" * 70_000})).status_code == 413
    assert (await project.bob.submit(p_key="")).status_code == 400
    assert (await project.bob.submit(p_labels={"x": 1})).status_code == 400
    deep = json.loads("[" * 100 + "]" * 100)
    assert (await project.bob.submit(p_params={"x": deep})).status_code == 400
    known = await project.bob.submitted(p_key="film")
    answers = await asyncio.gather(*(project.bob.submit() for _ in range(LIMIT + 5)))
    assert sorted(answer.status_code for answer in answers) == [200] * (LIMIT - 1) + [429] * 6
    assert await project.bob.submitted(p_key="film") == known  # a repeated submission is no further task
    await project.alice.submitted()
    await project.owner.execute(b"update tasks set status = 'Cancelled' where tenant = %s", [project.bob.id])
    await project.bob.submitted()


async def test_a_user_who_cancels_every_task_creates_a_limited_number(project: Project, theirs: str) -> None:
    """Submitting and cancelling in a loop fills no table; a day later there is room again, and others have theirs."""
    made = """
        insert into tasks (task_type, tenant, status, created_at)
        select 'travel_segment', %s, 'Cancelled', now() - %s::interval from generate_series(1, %s)
    """
    await project.owner.execute(made.encode(), [project.bob.id, "23 hours", DAY - 2])
    known = await project.bob.submitted(p_key="film")
    last = await project.bob.submitted()
    cancelled = await project.bob.client.post("/rpc/task_cancel_own", json={"p_id": last})
    assert cancelled.json() == "cancelled"
    refused = await project.bob.submit()
    assert (refused.status_code, refused.json()["message"]) == (429, "too many tasks in 24 hours")
    assert await project.bob.submitted(p_key="film") == known
    await project.alice.submitted()
    await project.owner.execute(
        b"update tasks set created_at = now() - interval '25 hours' where tenant = %s and status = 'Cancelled'",
        [project.bob.id],
    )
    await project.bob.submitted()


async def test_two_submissions_of_a_user_do_not_pass_the_limit_together(project: Project, theirs: str) -> None:
    """The second one waits for the first, which is not committed yet and takes the last place."""
    for _ in range(LIMIT - 1):
        await project.bob.submitted()
    waits = b"select 1 from pg_locks where locktype = 'advisory' and not granted"
    async with await psycopg.AsyncConnection.connect(project.database.url) as first:
        await first.execute(b"select set_config('request.jwt.claims', %s, true)", [json.dumps({"sub": project.bob.id})])
        await first.execute(b"select task_submit_own('travel_segment')")
        second = asyncio.create_task(project.bob.submit())
        async with asyncio.timeout(20):
            while not second.done() and await (await project.owner.execute(waits)).fetchone() is None:
                await asyncio.sleep(0.01)
    assert (await second).status_code == 429


async def test_a_migration_leaves_the_template_as_it_is(project: Project, theirs: str) -> None:
    """Each text of the migrations is applied again, the rights last, and again."""
    look = """
        select array_agg(r::text order by r::text) from (
            select proname, proacl from pg_proc where pronamespace = 'public'::regnamespace
            union all select relname, relacl from pg_class where relnamespace = 'public'::regnamespace
            union all select polname, null from pg_policy) r
    """
    before = await (await project.owner.execute(look.encode())).fetchone()
    for _ in range(2):
        await project.owner.execute(b"update schema_migrations set checksum = 'changed' where version !~ '^[0-9]+$'")
        await migrate(project.database.url)
        assert await (await project.owner.execute(look.encode())).fetchone() == before
        assert [task["id"] for task in await project.alice.seen()] == [theirs]
        assert await project.bob.submitted()
    assert theirs not in [task["id"] for task in await project.bob.seen()]
    answer = await project.bob.client.post("/rpc/task_submit", json={"p_tasks": []})
    assert answer.status_code == 403, answer.text

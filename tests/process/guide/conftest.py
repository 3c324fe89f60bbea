"""One stack for the guide: Postgres, S3 and the emulator; each test is a fleet of its own, with an empty queue."""

import asyncio
import secrets
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from psycopg import AsyncConnection
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from testbed.services.free_port import free_port
from testbed.services.plain_http import NO_TLS
from testbed.services.postgrest import EmbeddedPostgrest
from testbed.services.processes import Child
from testbed.shared_services import SharedServices
from testbed.stack import ROOT, Stack
from tests.process.cli import forked
from tests.process.cli.builders import Ran

POLL_S = 0.1
SCRIPT_TIMEOUT_S = 120.0
SETTINGS = {
    "WORKER_CODE_DIR": str(ROOT / "tests" / "process" / "e2e" / "handlers"),
    "WORKER_HANDLERS": "work=plain:work",
    "GPU_IDLE_TIMEOUT_SEC": "600",
    "GPU_OVERCAPACITY_IDLE_TIMEOUT_SEC": "600",
    "MAX_ACTIVE_GPUS": "1",
    "HEARTBEAT_TIMEOUT_SEC": "15",
}


@dataclass
class Fleet:
    """An operator's terminal on one fleet of the stack."""

    stack: Stack
    sql: AsyncConnection[dict[str, Any]]
    environment: dict[str, str]
    children: list[Child] = field(default_factory=list)

    async def script(self, *command: str, cwd: Path = ROOT / "scripts", **changes: str | None) -> Ran:
        """`python <command>` as the guide has it; `changes` to the environment, None removes."""
        env = {k: v for k, v in {**self.environment, **changes}.items() if v is not None}
        return Ran(*await forked.run(command, stdin="", cwd=cwd, environment=env, timeout_s=SCRIPT_TIMEOUT_S))

    async def program(self, *command: str, cwd: Path, **changes: str | None) -> Ran:
        """Any program, in the operator's environment."""
        env = {k: v for k, v in {**self.environment, **changes}.items() if v is not None}
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=env, cwd=cwd
        )
        try:
            async with asyncio.timeout(SCRIPT_TIMEOUT_S):
                out, err = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
        return Ran(process.returncode or 0, out.decode(), err.decode())

    async def cli(self, *arguments: str, **changes: str | None) -> Ran:
        """`python -m orchestrator …`."""
        return await self.script("-m", "orchestrator", *arguments, cwd=ROOT, **changes)

    async def orchestrator(self, **changes: str) -> Child:
        """A running one."""
        child = await self.stack.start_orchestrator({**self.environment, **changes})
        self.children.append(child)
        return child

    async def submit(self, *tasks: dict[str, Any]) -> Sequence[str]:
        """Queue these; their ids."""
        asked = await self.sql.execute("select public.task_submit(p_tasks => %s) as made", [Jsonb(list(tasks))])
        [row] = await asked.fetchall()
        return [str(made["id"]) for made in row["made"]["tasks"]]

    async def until(self, query: str, *values: object, timeout_s: float = 60.0) -> Sequence[dict[str, Any]]:
        """Wait until a query returns a row; its rows."""
        deadline = time.monotonic() + timeout_s
        while not (rows := await (await self.sql.execute(query.encode(), values)).fetchall()):
            if time.monotonic() > deadline:
                state = await (await self.sql.execute("select id, status, stage, state_reason from workers")).fetchall()
                raise AssertionError(f"not within {timeout_s:.0f} s: {query}; workers {state}")
            await asyncio.sleep(POLL_S)
        return rows

    async def active(self) -> dict[str, Any]:
        """This fleet's active worker, once there is one."""
        rows = await self.until(
            "select * from workers where fleet = %s and status in ('active', 'idle')", self.environment["FLEET_ID"]
        )
        return rows[0]

    async def pods(self) -> list[dict[str, Any]]:
        """The emulator's pods of this fleet that live."""
        async with httpx.AsyncClient(timeout=60, trust_env=False, verify=NO_TLS) as client:
            headers = {"Authorization": f"Bearer {self.environment['RUNPOD_API_KEY']}"}
            answer = await client.get(f"{self.environment['RUNPOD_API_BASE_URL']}/v2/pods", headers=headers)
            answer.raise_for_status()
        mine = self.environment["FLEET_ID"]
        return [pod for pod in answer.json()["pods"] if pod["env"].get("ORCHESTRATOR_FLEET_ID") == mine]

    async def stray_pod(self) -> str:
        """A pod of this fleet that no row names; its id."""
        name = f"gpu-20260101_000000-{uuid.uuid4().hex[:8]}"
        script = (
            "import asyncio; from orchestrator import wiring; from orchestrator.config.environment import load\n"
            "from orchestrator.core.provider import PodSpec\n"
            "async def main():\n"
            "    s = load(); cloud = wiring.open_cloud(s)\n"
            f"    spec = PodSpec({name!r}, s.fleet_id, s.runpod_worker_image, s.runpod_gpu_type[0], 1, 'SECURE',\n"
            "        None, 50, 8, 2, ('22/tcp',), s.runpod_ssh_public_key, {}, None, '/workspace')\n"
            "    print((await cloud.create_pod(spec)).id)\n"
            "asyncio.run(main())"
        )
        ran = await self.script("-c", script, cwd=ROOT)
        assert ran.code == 0, ran.err
        return ran.out.strip()


GuideCase = Callable[[Fleet, Path], Coroutine[None, None, None]]
CaseTasks = dict[str, asyncio.Task[None]]


@pytest.fixture(scope="session")
async def stack(shared: SharedServices, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """Everything but an orchestrator; its database is a Supabase project's."""
    directory, servers = tmp_path_factory.mktemp("guide") / "stack", await shared.servers("guide")
    async with Stack(directory, boot_s=(0.5, 1), servers=servers, start=forked.start) as it:
        it.environment |= SETTINGS
        yield it


@pytest.fixture
async def guided(stack: Stack) -> AsyncIterator[Fleet]:
    """An empty fleet, and nobody who leads it."""
    async with fleet_of(stack) as fleet:
        yield fleet


@pytest.fixture(scope="module")
async def steady(stack: Stack) -> AsyncIterator[Fleet]:
    """A fleet that has done its work: an orchestrator, an idle worker with logs in S3, and PostgREST."""
    async with EmbeddedPostgrest(stack.database_url, secrets.token_hex(32)) as rest, fleet_of(stack) as fleet:
        fleet.environment |= {"SUPABASE_URL": rest.project_url, "SUPABASE_SERVICE_ROLE_KEY": rest.secret_key}
        await fleet.orchestrator()
        await fleet.submit({"task_type": "work", "params": {"seconds": 0.1}})
        worker = await fleet.active()
        await fleet.until("select 1 from tasks where status = 'Complete'")
        shipped = "select 1 from log_objects where worker_id = %s and shipped_at is not null and stream = 'handler'"
        await fleet.until(shipped, worker["id"])
        await fleet.until("select 1 from workers where id = %s and status = 'idle'", worker["id"])
        yield fleet


@asynccontextmanager
async def fleet_of(stack: Stack) -> AsyncIterator[Fleet]:
    fleet_id = f"guide-{uuid.uuid4().hex[:8]}"
    async with await stack.connect() as sql:
        fleet = Fleet(stack, sql, {**stack.environment, "FLEET_ID": fleet_id})
        yield fleet
        await _cleared(fleet)
        await sql.execute("delete from tasks")


@asynccontextmanager
async def side_by_side(stack: Stack, cases: Iterable[GuideCase], directory: Path) -> AsyncIterator[CaseTasks]:
    """Every case at once, each on a fleet in a database of its own: they mostly wait."""
    async with AsyncExitStack() as exits:
        running: CaseTasks = {}
        for case in cases:
            fleet = await exits.enter_async_context(_apart(stack))
            place = directory / case.__name__
            place.mkdir()
            running[case.__name__] = asyncio.create_task(case(fleet, place))
        yield running
        await asyncio.gather(*running.values(), return_exceptions=True)


@asynccontextmanager
async def _apart(stack: Stack) -> AsyncIterator[Fleet]:
    """A fleet that shares the bucket and RunPod with others, and nothing else."""
    name, port = f"guide-{uuid.uuid4().hex[:8]}", free_port()
    template = stack.database_url.rpartition("/")[2]
    async with await AsyncConnection.connect(stack.postgres.url_of("postgres"), autocommit=True) as server:
        await server.execute(f'create database "{name}" template "{template}"'.encode())
    own = {
        "DATABASE_URL": stack.postgres.url_of(name),
        "FLEET_ID": name,
        "PORT": str(port),
        "WORKER_API_URL": f"http://127.0.0.1:{port}",
    }
    async with await AsyncConnection.connect(own["DATABASE_URL"], autocommit=True, row_factory=dict_row) as sql:
        await sql.execute("update database_identity set led_in = null")  # it is no copy of a fleet that was led
        fleet = Fleet(stack, sql, {**stack.environment, **own})
        yield fleet
        await _cleared(fleet)


async def _cleared(fleet: Fleet) -> None:
    for child in fleet.children:
        await child.kill()
    for pod in await fleet.pods():
        await fleet.stack.control("POST", f"pods/{pod['id']}/kill", {"how": "vanish"})

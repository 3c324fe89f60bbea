"""The API of a real service: killed in the middle of a submission, stopped while callers wait, on a standby too."""

import asyncio
import signal
import uuid
from collections.abc import AsyncIterator

import httpx
import pytest

from testbed.services.free_port import free_port
from testbed.shared_services import SharedServices
from testbed.stack import Stack
from tests.process.cli import forked

ADMIN = uuid.uuid4().hex
DEADLINE_S = 60.0
WATCHED = """select 1 from pg_stat_activity where query like '%"task_states"%' and pid <> pg_backend_pid()"""


@pytest.fixture(scope="module")
async def stack(shared: SharedServices, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """Without pods: nothing here is run."""
    directory, servers = tmp_path_factory.mktemp("api") / "stack", await shared.servers("api")
    async with Stack(directory, boot_s=(0.5, 1), servers=servers, light=True, start=forked.start) as it:
        it.environment |= {"MIN_ACTIVE_GPUS": "0", "MAX_ACTIVE_GPUS": "0", "ADMIN_TOKEN": ADMIN}
        yield it


def client(url: str) -> httpx.AsyncClient:
    """A caller with the token."""
    headers = {"Authorization": f"Bearer {ADMIN}"}
    return httpx.AsyncClient(base_url=f"{url}/api/v1", headers=headers, timeout=30, trust_env=False)


async def test_a_submission_is_done_once_whenever_the_service_is_killed(stack: Stack) -> None:
    """The caller repeats it until it is answered. The next service, and a standby, give the first answer."""
    keys = [uuid.uuid4().hex for _ in range(30)]
    service = await stack.start_orchestrator()
    ids: dict[str, str] = {}

    async def submit(api: httpx.AsyncClient, key: str) -> None:
        body, headers = {"task_type": f"type-{key}"}, {"Idempotency-Key": key}
        async with asyncio.timeout(DEADLINE_S):
            while key not in ids:
                try:
                    answer = await api.post("/tasks", json=body, headers=headers)
                except httpx.TransportError:
                    await asyncio.sleep(0.1)
                    continue
                if answer.status_code in {200, 201}:
                    ids[key] = answer.json()["id"]

    async with client(stack.url) as api:
        submitting = asyncio.gather(*(submit(api, key) for key in keys))
        async with asyncio.timeout(DEADLINE_S):
            while not ids:
                await asyncio.sleep(0.001)
        service.process.kill()
        await service.process.wait()
        service = await stack.start_orchestrator()
        await submitting
    port = free_port()
    standby = await stack.start_orchestrator({"PORT": str(port)})
    async with client(f"http://127.0.0.1:{port}") as api, await stack.connect() as sql:
        for key, task_id in ids.items():
            answer = await api.post("/tasks", json={"task_type": f"type-{key}"}, headers={"Idempotency-Key": key})
            assert (answer.status_code, answer.json()["id"]) == (200, task_id)
        rows = await (await sql.execute("select count(*) as n from tasks")).fetchall()
        assert rows[0]["n"] == len(keys)
        waiting = asyncio.create_task(api.get(f"/tasks/{task_id}/wait"))
        async with asyncio.timeout(DEADLINE_S):
            while not await (await sql.execute(WATCHED)).fetchone():  # it has begun to wait
                await asyncio.sleep(0.05)
        standby.process.send_signal(signal.SIGTERM)
        assert (await waiting).json()["ended"] is False
        assert await standby.process.wait() == 0
    service.process.send_signal(signal.SIGTERM)
    assert await service.process.wait() == 0

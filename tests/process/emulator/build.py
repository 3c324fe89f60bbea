"""What the emulator's tests, and those that run on it, are built from."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import asyncssh
import httpx
import psutil

from testbed.runpod import Emulator
from testbed.services.plain_http import NO_TLS

GPU = "NVIDIA GeForce RTX 4090"
KEY = asyncssh.generate_private_key("ssh-ed25519")
PUBLIC_KEY = KEY.export_public_key().decode().strip()
PATIENCE_S = 60


Result = TypeVar("Result")


async def until(condition: Callable[[], Awaitable[Result]], what: str) -> Result:
    """Wait until the condition answers with something true, and return that."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        answer = await condition()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"not within {PATIENCE_S} s: {what}"
        await asyncio.sleep(0.02)


def request(name: str = "gpu-1", **changes: Any) -> dict[str, Any]:
    """The body of a create call."""
    body = {
        "name": name,
        "image": "runpod/pytorch",
        "cloud": "SECURE",
        "gpu": {"id": GPU, "count": 1},
        "disk": 50,
        "ports": ["22/tcp"],
        "env": {"PUBLIC_KEY": PUBLIC_KEY},
        "startSsh": True,
    }
    return {**body, **changes}


class Api:
    """RunPod's API as curl would use it."""

    def __init__(self, emulator: Emulator) -> None:
        self.emulator = emulator
        self.client = httpx.AsyncClient(
            base_url=emulator.url,
            headers={"Authorization": f"Bearer {emulator.api_key}"},
            timeout=PATIENCE_S,
            verify=NO_TLS,
        )

    async def call(self, method: str, path: str, body: Mapping[str, Any] | None = None, *, status: int = 200) -> Any:
        """Make a call that must end with this status, and return its body."""
        response = await self.client.request(method, path, json=body)
        assert response.status_code == status, response.text
        return response.json() if response.content else None

    async def create(self, name: str = "gpu-1", **changes: Any) -> dict[str, Any]:
        """Create a pod."""
        pod: dict[str, Any] = await self.call("POST", "/v2/pods", request(name, **changes), status=201)
        return pod

    async def pod(self, pod_id: str) -> dict[str, Any]:
        """Read one pod."""
        pod: dict[str, Any] = await self.call("GET", f"/v2/pods/{pod_id}")
        return pod

    async def names(self) -> list[str]:
        """The names of all pods, in the list's order."""
        return [pod["name"] for pod in (await self.call("GET", "/v2/pods"))["pods"]]

    async def status(self, pod_id: str, status: str) -> dict[str, Any]:
        """Wait for a pod's status."""

        async def reached() -> dict[str, Any] | None:
            pod = await self.pod(pod_id)
            return pod if pod["status"] == status else None

        pod = await until(reached, f"{pod_id} is {status}")
        assert pod is not None
        return pod

    async def ssh_port(self, pod_id: str) -> int:
        """Wait until the pod's SSH port is known."""

        async def known() -> int | None:
            direct = (await self.pod(pod_id))["ssh"]["direct"]
            return direct["port"] if direct else None

        port = await until(known, f"{pod_id} shows its SSH port")
        assert port is not None
        return port

    async def reachable(self, name: str = "gpu-1", **changes: Any) -> tuple[dict[str, Any], int]:
        """Create a pod and wait until its SSH server listens; the pod and its port."""
        pod = await self.create(name, **changes)
        port = await self.ssh_port(pod["id"])

        async def listening() -> bool:
            log = self.emulator.core.world.pods[pod["id"]].system_log
            return any(line.startswith("sshd listens") for _, line in log)

        await until(listening, "sshd listens")
        return pod, port


@asynccontextmanager
async def emulated(state_dir: Path, **options: Any) -> AsyncIterator[Api]:
    """An emulator whose pods boot in a tenth of a second, and its API."""
    async with Emulator(state_dir, **{"seed": 1, "boot_s": (0.05, 0.1), **options}) as emulator:
        emulator.core.create_s = 0
        api = Api(emulator)
        async with api.client:
            yield api


def ssh(port: int) -> Any:
    """Connect to a pod as root."""
    return asyncssh.connect(
        "127.0.0.1", port, username="root", client_keys=[KEY], known_hosts=None, config=None, login_timeout=PATIENCE_S
    )


def alive(marker: str) -> list[int]:
    """The processes with this text in their command line."""
    found = []
    for process in psutil.process_iter():
        try:
            if marker in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


async def ended(marker: str) -> None:
    """Wait until no process with this text in its command line is left."""

    async def none_left() -> bool:
        return not await asyncio.to_thread(alive, marker)

    await until(none_left, f"no process {marker} is left")

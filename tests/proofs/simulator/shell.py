"""SSH to simulated pods: a session that understands the commands of this version, and no others."""

import asyncio
import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from orchestrator.pods import agent_commands, host_identity, probe_scripts
from orchestrator.ports import Completed, ConnectionRefused, HostKeyChanged, Session, Unavailable
from testbed.runpod.machine_faults import facts, probe
from tests.proofs.simulator.agents import Agent
from tests.proofs.simulator.clock import SimLoop
from tests.proofs.simulator.provider import SimPod
from worker.protocol import UNANSWERED

if TYPE_CHECKING:
    from tests.proofs.simulator.environment import World
    from tests.proofs.simulator.processes import ProcessLaws

HALVES = re.compile(r"'?\b([0-9a-f]{16})\b'? '?([0-9a-f]{16})\b")
RUN = re.compile(r"run/([A-Za-z0-9_-]+)")
PROC = re.compile(r"/proc/(\d+)/stat")
SECRET = "SECRET"
STOP_S = 2.0  # until a stop has ended the agent


class SimShell:
    """One replica's SSH client."""

    def __init__(self, world: "World", loop: SimLoop, laws: "ProcessLaws") -> None:
        self._world, self._loop, self._laws = world, loop, laws

    async def banner(self, host: str, port: int, *, timeout_s: float) -> str:
        def answer() -> str:
            if self._world.listening(host, port) is None:
                raise ConnectionRefused(f"{host}:{port} refused")
            return "SSH-2.0-OpenSSH_9.6"

        return str(await self._world.carry(self._loop, "ssh", answer, timeout_s=timeout_s))

    async def connect(
        self, host: str, port: int, *, pinned: str | None, timeout_s: float, user: str | None = None
    ) -> Session:
        def answer() -> "SimSession":
            pod = self._world.listening(host, port)
            if pod is None:
                raise Unavailable(f"{host}:{port} is not there")
            if pinned is not None and pinned != pod.host_key:
                raise HostKeyChanged("the host key is another one")
            return SimSession(self._world, self._loop, pod, self._laws)

        session: SimSession = await self._world.carry(self._loop, "ssh", answer, timeout_s=timeout_s)
        self._laws.sessions.append(session)
        return session


class SimSession:
    """One connection. It ends with its pod, often when the pod moves to another address, and sometimes earlier."""

    def __init__(self, world: "World", loop: SimLoop, pod: SimPod, laws: "ProcessLaws") -> None:
        self._world, self._loop, self._pod, self._closed, self._laws = world, loop, pod, False, laws
        self.address, self.worker_id, self.pod_id = pod.address, pod.worker_id, pod.id

    @property
    def host_key(self) -> str:
        return self._pod.host_key

    @property
    def evidence(self) -> Mapping[str, str]:
        return {"peer": f"{self._pod.address[0]}:{self._pod.address[1]}"}

    @property
    def closed(self) -> bool:
        return self._closed

    async def close(self) -> None:
        self._closed = True

    async def run(self, command: str, *, stdin: bytes = b"", timeout_s: float) -> Completed:
        self._world.laws.clean(command, "a command line")
        done: Completed = await self._ask(lambda: self._ran(command, stdin), timeout_s)
        if " stop --run-dir " in command and done.exit_status is not None:
            await asyncio.sleep(STOP_S)
            nonce = RUN.findall(command)[-1]
            return await self._ask(lambda: self._stopped(nonce), timeout_s)  # type: ignore[no-any-return]
        return done

    async def put(self, path: str, content: bytes, *, timeout_s: float) -> None:
        await self._ask(lambda: self._pod.files.__setitem__(path, bytearray(content)), timeout_s)

    async def read(self, path: str, offset: int, limit: int, *, timeout_s: float) -> bytes | None:
        def content() -> bytes | None:
            found = self._pod.files.get(path)
            return None if found is None else bytes(found[offset : offset + limit])

        return await self._ask(content, timeout_s)  # type: ignore[no-any-return]

    async def list(self, path: str, *, timeout_s: float) -> Mapping[str, int] | None:
        def entries() -> Mapping[str, int] | None:
            names: dict[str, int] = {}
            for name, content in self._pod.files.items():
                if name.startswith(f"{path}/"):
                    first, _, rest = name[len(path) + 1 :].partition("/")
                    names[first] = 0 if rest else len(content)
            return names or None

        return await self._ask(entries, timeout_s)  # type: ignore[no-any-return]

    async def _ask(self, answer: Callable[[], Any], timeout_s: float) -> Any:
        self._laws.speaks(self)

        def on_the_pod() -> Any:
            moved = self._pod.address != self.address and not self._pod.keeps_connections
            gone = not self._pod.runs(self._world.kernel.now) or moved
            if self._closed or gone:
                self._closed = True
                raise Unavailable("the connection is gone")
            return answer()

        try:
            return await self._world.carry(self._loop, "ssh", on_the_pod, timeout_s=timeout_s)
        except Unavailable:
            self._closed = True
            raise

    def _ran(self, command: str, stdin: bytes) -> Completed:
        if self._world.faults.happens("ssh_status_unknown", 0.01):
            return Completed(None, b"", b"")
        if stdin.decode() in (probe_scripts.PLATFORM, probe_scripts.GPUS):
            ails = {self._pod.sick: ""} if self._pod.sick else {}
            return _said(probe(stdin.decode(), facts(self._pod.gpu_type, 1, ails)))
        if stdin == host_identity.SCRIPT.encode():
            key = f"ssh-ed25519 own{self._pod.id}" if self._pod.sick == "ssh_relayed" else self._pod.host_key
            return _said(f"host-key {key} {host_identity.proof(self._pod.env[host_identity.VARIABLE], key)}")
        if halves := HALVES.search(command):
            said = "another" if self._pod.sick == "wrong_pod_id" else self._pod.id
            return _said(f"{halves[1]}{halves[2]} {said}")
        if "sha256sum" in command:
            paths = [path for path in self._pod.files if path in command]
            digests = (f"{hashlib.sha256(self._pod.files[path]).hexdigest()}  {path}" for path in paths)
            return _said("\n".join(digests))
        if " start --run-dir " in command:
            return self._start(RUN.findall(command)[-1], json.loads(stdin))
        if " stop --run-dir " in command:
            nonce = RUN.findall(command)[-1]
            self._pod.stopped.add(nonce)
            agent = self._pod.agents.get(nonce)
            if agent is not None:
                agent.end("SIGTERM received")
            return _said("")
        if f"/{UNANSWERED}" in command:
            last = self._pod.files.get(f"{agent_commands.run_dir(RUN.findall(command)[-1])}/{UNANSWERED}", b"")
            return _said(f"{last.decode()}\n{self._world.kernel.now:.0f}\n")
        if pid := PROC.search(command):
            return self._alive(int(pid[1]))
        return _said("=== agent\n\n=== gpus_status\n1\n")  # the last look

    def _start(self, nonce: str, config: dict[str, Any]) -> Completed:
        agent = self._pod.agents.get(nonce)
        if self._pod.sick in ("wrong_pod_id", "ssh_relayed"):
            self._world.laws.broken("I6", f"a token was sent to {self._pod.id}, which had not proven its host key")
        if nonce in self._pod.stopped:
            return Completed(1, b'{"error": "this launch was stopped", "code": "NO_PROCESS"}', b"")
        if agent is None:
            self._world.laws.launched(self._pod, config)
            agent = Agent(self._world, self._pod, nonce, config, pid=100 + len(self._pod.agents))
            self._pod.agents[nonce] = agent
            if self._pod.sick == "agent_cut_off":
                agent.cut_until_s = math.inf
            line = {"pid": agent.pid, "start_time": str(agent.pid * 7), "code_sha256": self._world.bundle.agent_sha}
            agent.line = json.dumps(line | {"python": "3.11"})
            self._pod.files[f"{agent_commands.run_dir(nonce)}/agent.json"] = bytearray(agent.line.encode())
            agent.begin()
        return _said(agent.line)

    def _stopped(self, nonce: str) -> Completed:
        agent = self._pod.agents.get(nonce)
        if agent is not None:
            agent.loop.kill()
        return _said('{"stopped": true}')

    def _alive(self, pid: int) -> Completed:
        for nonce, agent in self._pod.agents.items():
            if agent.pid == pid and agent.lives:
                rest = " ".join(["S", *["0"] * 18, str(pid * 7)])
                return _said(
                    f"{pid} (python3) {rest}\npython3 -I agent.pyz start --run-dir {agent_commands.run_dir(nonce)}"
                )
        return Completed(1, b"", b"")


def _said(text: str) -> Completed:
    return Completed(0, text.encode(), b"")

"""Light pods: the machine and the agent of a pod run inside the emulator, so that a thousand fit on two cores.

The interfaces to the orchestrator are real: the SSH server, SFTP into the pod's home, and the worker's HTTP calls with
its token. The processes are emulated: the probes' tools answer from the same facts as the scripts of fake_tools.py, and
`agent.pyz start` starts a task of this process. A task of such a worker waits for `params.seconds`. A light pod has no
faults of the machine or the agent.
"""

import contextlib
import hashlib
import itertools
import json
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

import asyncssh

from orchestrator.pods import host_identity
from testbed.runpod.in_process_agent import LightAgent
from testbed.runpod.machine_faults import Answer, facts, probe, tool
from testbed.runpod.sshd import PodSshd

UNKNOWN = 127  # a shell's exit status for a command that is not there
ECHO = re.compile(r"printf '%s%s %s' (\w+) (\w+) ")
AGENT = re.compile(r"\.orchestrator/code/agent-([0-9a-f]{64})\.pyz (start|stop) --run-dir (\S+)")
ALIVE = re.compile(r"cat /proc/(\d+)/stat")
DIGESTS = re.compile(r"then sha256sum ([^;]+);")
_pids = itertools.count(1000)


class LightSshd(PodSshd):
    """A pod's SSH server that answers the commands of bring-up, shipping and teardown. Others are not found."""

    def __init__(self, home: Path, environment: Callable[[], Mapping[str, str]]) -> None:
        super().__init__(home, environment)
        self._agents: dict[str, LightAgent] = {}  # by run directory

    def close(self) -> None:
        """Stop for good, the agents too."""
        for agent in self._agents.values():
            agent.kill()
        super().close()

    def freeze(self) -> None:
        """Freeze: it answers nothing, and its agent makes no calls."""
        for agent in self._agents.values():
            agent.kill()
        super().freeze()

    async def run(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        """Answer one exec request."""
        status, said = await self._answer(process.command or "", await process.stdin.read())
        with contextlib.suppress(OSError, asyncssh.Error):  # the client may have gone
            process.stdout.write(said.encode())
        process.exit(status)

    async def _answer(self, command: str, stdin: bytes) -> Answer:
        said: str | None = None
        if found := ECHO.search(command):
            said = f"{found[1]}{found[2]} {self._environment()['RUNPOD_POD_ID']}"
        elif "sh -s -- " in command:
            said = self._prove() if stdin.decode() == host_identity.SCRIPT else probe(stdin.decode(), self._machine())
        elif found := DIGESTS.search(command):
            said = self._digests(shlex.split(found[1]))
        elif found := AGENT.search(command):
            starts = found[2] == "start"
            said = self._start(found[1], found[3], stdin) if starts else await self._stop(found[3])
        elif found := ALIVE.search(command):
            said = self._stat(int(found[1]))
        elif "=== gpus_status" in command:
            said = self._last_look()
        return (UNKNOWN, "a light pod does not know this command\n") if said is None else (0, said)

    def _prove(self) -> str:
        key = self.host_key
        return f"host-key {key} {host_identity.proof(self._environment()[host_identity.VARIABLE], key)}\n"

    def _machine(self) -> Mapping[str, str]:
        env = self._environment()
        return facts(env["RUNPOD_GPU_NAME"], int(env["RUNPOD_GPU_COUNT"]), {})

    def _digests(self, paths: list[str]) -> str:
        found = ((path, self.home / path) for path in paths)
        return "".join(
            f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {path}\n" for path, file in found if file.is_file()
        )

    def _start(self, sha: str, run_dir: str, stdin: bytes) -> str:
        agent = self._agents.get(run_dir)
        if agent is None:
            agent = self._agents[run_dir] = LightAgent(self.home / run_dir, next(_pids), sha, json.loads(stdin))
            agent.start()
        return json.dumps(agent.line) + "\n"

    async def _stop(self, run_dir: str) -> str:
        agent = self._agents.get(run_dir)
        if agent is not None:
            await agent.stop()
        return '{"stopped": true}\n'

    def _stat(self, pid: int) -> str:
        for run_dir, agent in self._agents.items():
            if agent.line["pid"] == pid and agent.alive:
                stat = " ".join([f"{pid} (python3) S", *["0"] * 18, agent.line["start_time"]])
                return f"{stat}\npython3 -I agent.pyz start --run-dir {run_dir}\n"
        return ""

    def _last_look(self) -> str:
        """The sections of orchestrator/pods/final_snapshot.py that a light pod has something to say about."""
        run_dir, agent = next(iter(self._agents.items()), ("", None))
        line = json.dumps(agent.line) if agent else ""
        process = run_dir if agent and agent.alive else ""
        fields = "index,name,uuid,driver_version,pstate,memory.used,memory.total,utilization.gpu,temperature.gpu"
        fields += ",power.draw,ecc.errors.uncorrected.volatile.total"
        gpus = tool(self._machine(), "nvidia-smi", f"--query-gpu={fields}")[1]
        return f"=== agent\n{line}\n=== process\n{process}\n=== gpus\n{gpus}=== gpus_status\n0\n"

"""Light pods: the machine and the agent of a pod played inside the emulator, so that a thousand fit on two cores.

What stands between a pod and the orchestrator stays real: the SSH server, SFTP into a home of its own, and the worker's
HTTP calls with the token it was given. What would be processes is answered here: the probes' tools from the same facts
as smi.py's scripts, `agent.pyz start` by a task of this process. A task of such a worker is a wait of
`params.seconds`. Faults of the machine and of the agent are not played: a light pod is always well.
"""

import contextlib
import hashlib
import itertools
import json
import re
import shlex
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import asyncssh

from orchestrator.pods import host_identity
from testbed.runpod.in_process_agent import LightAgent
from testbed.runpod.machine_faults import facts
from testbed.runpod.sshd import PodSshd

UNKNOWN = 127  # a shell's exit status for a command that is not there
ECHO = re.compile(r"printf '%s%s %s' (\w+) (\w+) ")
TOOL = re.compile(r"^say (\S+) (.+)$", re.MULTILINE)  # a line of orchestrator/pods/probe_scripts.py
AGENT = re.compile(r"\.orchestrator/code/agent-([0-9a-f]{64})\.pyz (start|stop) --run-dir (\S+)")
ALIVE = re.compile(r"cat /proc/(\d+)/stat")
DIGESTS = re.compile(r"then sha256sum ([^;]+);")
Answer = tuple[int, str]
_pids = itertools.count(1000)


class LightSshd(PodSshd):
    """A pod's server that answers what bring-up, shipping and tear-down ask; anything else is a command not found."""

    def __init__(self, home: Path, environment: Callable[[], Mapping[str, str]]) -> None:
        super().__init__(home, environment)
        self._agents: dict[str, LightAgent] = {}  # by run directory

    def close(self) -> None:
        """Stop for good, the agents too."""
        for agent in self._agents.values():
            agent.kill()
        super().close()

    def freeze(self) -> None:
        """Fall silent: nothing is answered and nobody calls any more."""
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
            said = self._prove() if stdin.decode() == host_identity.SCRIPT else self._probe(stdin.decode())
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

    def _probe(self, script: str) -> str:
        """What the tools of a probe say, each as the section that the script would print."""
        parts = []
        for name, line in TOOL.findall(script):
            status, text = self._tool(*shlex.split(line))
            parts.append(f"=== {name} {status}\n{text}\n")
        return "".join(parts)

    def _tool(self, program: str, *arguments: str) -> Answer:
        env = self._environment()
        said = facts(env["RUNPOD_GPU_NAME"], int(env["RUNPOD_GPU_COUNT"]), {})
        first = arguments[0] if arguments else ""
        if program == "date":
            return 0, str(int(time.time()))
        if program == "df":
            return 0, said["inodes" if "i" in first else "blocks"]
        if program != "nvidia-smi":
            return 1, "dmesg: read kernel buffer failed: Operation not permitted"  # as in most containers
        files = {"nvlink": "nvlink", "topo": "topo", "-q": "details"}
        tables = {"--query-compute-apps": "apps", "--query-remapped-rows": "remapped"}
        name, _, fields = first.partition("=")
        if name == "--query-gpu":
            return _query(said["gpus.csv"], fields)
        return 0, said[files.get(name) or tables[name]]

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
        gpus = self._tool("nvidia-smi", f"--query-gpu={fields},power.draw,ecc.errors.uncorrected.volatile.total")[1]
        return f"=== agent\n{line}\n=== process\n{process}\n=== gpus\n{gpus}=== gpus_status\n0\n"


def _query(table: str, fields: str) -> Answer:
    """`nvidia-smi --query-gpu=FIELDS --format=csv,noheader,nounits` over the pod's GPUs."""
    names, _, *gpus = (line.split(",") for line in table.splitlines())
    wanted = fields.split(",")
    if not set(wanted) <= set(names):
        return 2, f"Field {min(set(wanted) - set(names))!r} is not a valid field to query.\n"
    rows: list[dict[str, Any]] = [dict(zip(names, gpu, strict=True)) for gpu in gpus]
    return 0, "".join(", ".join(row[name] for name in wanted) + "\n" for row in rows)

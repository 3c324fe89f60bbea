"""A light pod's agent: the calls of worker/agent.py as a task, with a connection for claims and one for heartbeats."""

import asyncio
import contextlib
import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from worker import protocol

ASK_S, ASK_REST = 2.5, 10.0  # as the real agent has them: worker/heartbeat.py
CALL_S = 10.0  # of one call, without a claim's own wait
RETRY_S = 1.0
OK = 200
FINAL = (protocol.UNKNOWN_WORKER, protocol.BAD_TOKEN)


class _Ended(Exception):
    """The orchestrator no longer knows this worker."""


class _RpcConnection:
    """One kept-alive connection to the gateway. If the server closed it, the call is repeated."""

    def __init__(self, config: dict[str, Any]) -> None:
        address = urlsplit(config["api_url"])
        self._host, self._port = address.hostname or "", address.port or 80
        self._who = {"p_worker_id": config["worker_id"], "p_nonce": config["nonce"]}
        self._head = (
            f"Host: {address.netloc}\r\nAuthorization: Bearer {config['token']}\r\n"
            "Content-Type: application/json\r\nUser-Agent: orchestrator-worker\r\n"
        )
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self, function: str, arguments: dict[str, Any], wait_s: float = 0.0) -> dict[str, Any]:
        """Repeat the call until it is answered. Raises _Ended."""
        while True:
            try:
                async with asyncio.timeout(wait_s + CALL_S):
                    status, answer = await self._post(function, {**self._who, **arguments})
            except (OSError, EOFError, ValueError, TimeoutError):
                self.close()
                await asyncio.sleep(RETRY_S)
                continue
            if status == OK:
                return answer
            if answer.get("code") in FINAL:
                raise _Ended
            await asyncio.sleep(RETRY_S)

    async def _post(self, function: str, arguments: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        body = json.dumps(arguments)
        if self._streams is None or self._streams[0].at_eof():
            self.close()
            self._streams = await asyncio.open_connection(self._host, self._port)
        reader, writer = self._streams
        line = f"POST /rest/v1/rpc/{function} HTTP/1.1\r\n"
        writer.write(f"{line}{self._head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
        return int(head.split(maxsplit=2)[1]), json.loads(await reader.readexactly(length))

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class LightAgent:
    """One launch on one pod."""

    def __init__(self, run_dir: Path, pid: int, sha: str, config: dict[str, Any]) -> None:
        self.line: dict[str, Any] = {"pid": pid, "start_time": str(pid), "code_sha256": sha, "python": "3.12.0"}
        self._run_dir, self._config = run_dir, config
        self._claims, self._beats = _RpcConnection(config), _RpcConnection(config)
        self._held: dict[str, int] = {}  # task -> attempt
        self._wanted = protocol.RUN
        self._living: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        return self._living is not None and not self._living.done()

    def start(self) -> None:
        """Create the launch's directory and start."""
        (self._run_dir / "logs").mkdir(parents=True, exist_ok=True)
        for stream in protocol.STREAMS:
            self._path(stream).touch()
        (self._run_dir / "agent.json").write_text(json.dumps(self.line))
        self._say("agent", "agent_started")
        self._living = asyncio.create_task(self._live())

    def kill(self) -> None:
        """End it at once, without releasing its tasks."""
        if self._living is not None:
            self._living.cancel()

    async def stop(self) -> None:
        """End it and release its tasks."""
        self.kill()
        with contextlib.suppress(_Ended, TimeoutError):
            async with asyncio.timeout(CALL_S):
                for task, attempt in self._held.items():
                    tail = {"p_task_id": task, "p_attempt": attempt, "p_reason": "stopped"}
                    await self._beats.call(protocol.RELEASE, tail)
        self._beats.close()

    async def _live(self) -> None:
        about = {"protocol": protocol.PROTOCOL, "code_sha": self.line["code_sha256"], "pid": self.line["pid"]}
        beating: asyncio.Task[None] | None = None
        try:
            await self._claims.call(protocol.REGISTER, {"p_agent": about})
            beating = asyncio.create_task(self._beat())
            await self._work()
        except _Ended:
            pass
        finally:
            if beating is not None:
                beating.cancel()
            self._claims.close()
            self._say("agent", "agent_ended")

    async def _work(self) -> None:
        claim_no, wait_s = int(time.time() * 1000), self._config["claim_wait_s"]
        while self._wanted == protocol.RUN:
            ask = {"p_claim_no": claim_no, "p_batch": self._config["batch"], "p_wait_s": wait_s}
            answer = await self._claims.call(protocol.CLAIM, ask, wait_s)
            claim_no += 1
            self._wanted = answer["wanted"]
            for task in answer["tasks"]:
                self._held[task["id"]] = task["attempt"]
                await asyncio.sleep(float(task["params"].get("seconds", 1)))
                self._say("handler", f"task {task['id']} done")
                which = {"p_task_id": task["id"], "p_attempt": task["attempt"]}
                result = {"p_output_location": None, "p_result_data": {"light": True}}
                await self._claims.call(protocol.COMPLETE, {**which, **result})
                self._held.pop(task["id"])

    async def _beat(self) -> None:
        every_s, beaten, ask_s = float(self._config["heartbeat_s"]), time.monotonic(), ASK_S
        health: dict[str, Any] | None = {}  # null once it was acknowledged: a light pod is always well
        with contextlib.suppress(_Ended):  # the answer to the next claim says it too
            while True:
                await asyncio.sleep(max(0.0, min(ask_s, beaten + every_s - time.monotonic())))
                if self._held or time.monotonic() - beaten >= every_s:
                    began = time.monotonic()
                    held = [{"id": task, "attempt": attempt} for task, attempt in self._held.items()]
                    logs = {stream: self._path(stream).stat().st_size for stream in protocol.STREAMS}
                    said = {"p_tasks": held, "p_health": health, "p_logs": logs}
                    answer = await self._beats.call(protocol.HEARTBEAT, said)
                    self._wanted, beaten, health = answer["wanted"], time.monotonic(), None
                    ask_s = max(ASK_S, (beaten - began) * ASK_REST)

    def _path(self, stream: str) -> Path:
        return self._run_dir / "logs" / f"{stream}.log"

    def _say(self, stream: str, what: str) -> None:
        with self._path(stream).open("a") as file:
            file.write(f"{time.time():.3f} {what}\n")

"""A model of the agent on a pod by its contract (worker/protocol.py): it registers, claims, runs, and reports.

It is not the program, which has threads and child processes. The model makes the agent's calls at the right times. It
also behaves like the agent without an answer, after it was fenced, and after it was frozen.
"""

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.pods import agent_commands
from orchestrator.ports import BadArgument, BadToken, PortError, Unavailable, UnknownWorker
from tests.proofs.simulator.clock import EPOCH, SimLoop
from worker import protocol

if TYPE_CHECKING:
    from tests.proofs.simulator.environment import World
    from tests.proofs.simulator.provider import SimPod

CALL_S = 10.0
BEAT_S = 5.0  # while a task is held
PAUSE_S = 4.0  # after an empty answer
FAREWELL_S = 4.0
STEP_S = 6.0  # of work, between two looks around


class Ended(Exception):
    """Raised when the agent must end now."""


@dataclass(eq=False)
class Held:
    """One claimed task."""

    id: str
    attempt: int
    params: dict[str, Any]
    task_type: str
    cancelled: bool = False
    fenced: bool = False
    stuck: bool = False
    progress: int = 0


class Agent:
    """One launch."""

    def __init__(self, world: "World", pod: "SimPod", nonce: str, config: dict[str, Any], pid: int) -> None:
        self._world, self.pod, self.nonce, self.pid, self._config = world, pod, nonce, pid, config
        self.worker_id: str = config["worker_id"]
        _, worker_id, jti = config["token"].split(".")
        self._claims = {"sub": worker_id, "jti": jti}
        self.loop = SimLoop(world.kernel, f"agent of {self.worker_id}")  # type: ignore[abstract]
        self.line = ""
        self.held: dict[str, Held] = {}
        self.running: Held | None = None
        self.still_s = 0.0  # for how long it has shown no sign of life
        self.cut_until_s = 0.0  # its network is away until then
        self.heard_s = world.kernel.now  # when it was last answered
        self.beaten_s: float | None = None  # … to a heartbeat
        self.spoke = False  # it has sent one, heard or not
        self.done = False
        self.silent_s: float | None = None  # since when it claims nothing, for no reason that it knows of
        self.claimed_s = world.kernel.now  # when a claim was last answered
        self._ending: str | None = None
        self._wanted = protocol.RUN
        self._claim_no = 1
        self._wake: asyncio.Event | None = None

    @property
    def lives(self) -> bool:
        """Whether its process runs."""
        return not self.loop.dead and not self.done

    @property
    def well(self) -> bool:
        """Whether it runs, is not frozen, and has a network."""
        now = self._world.kernel.now
        return self.lives and not self.loop.frozen and now >= self.cut_until_s and self._ending is None

    def begin(self) -> None:
        """Start the process."""
        self.loop.create_task(self._live())
        for stream in protocol.STREAMS:
            self.log(stream, "started")
        lives_s = self._world.faults.lives_s()
        if lives_s is not None:
            self._world.kernel.after(lives_s, self.loop.kill)

    def end(self, why: str) -> None:
        """End it, after SIGTERM or at the request of the orchestrator."""
        self._ending = self._ending or why
        if self._wake is not None:
            self.loop.call_soon(self._wake.set)

    def log(self, stream: str, text: str) -> None:
        """Write a line to one of its logs."""
        path = f"{agent_commands.run_dir(self.nonce)}/logs/{stream}.log"
        line = f"{self._world.kernel.now:.3f} {self.nonce[:8]} {text}\n"
        self.pod.files.setdefault(path, bytearray()).extend(line.encode())

    async def _live(self) -> None:
        self._wake = asyncio.Event()
        try:
            await self._register()
            beating = asyncio.get_running_loop().create_task(self._beat())
            try:
                await self._work()
                await self._farewell()
            finally:
                beating.cancel()
        except Ended:
            pass
        self.log("agent", f"ended: {self._ending}")
        self.done = True

    async def _register(self) -> None:
        answer = await self._until_answered(protocol.REGISTER, p_agent={"protocol": protocol.PROTOCOL})
        self._obey(answer)

    def _obey(self, answer: dict[str, Any]) -> None:
        self._wanted = answer.get("wanted", self._wanted)
        if self._wanted == protocol.STOP or answer.get("outcome") == protocol.FENCED:
            self.end("told to stop")

    async def _pause(self, seconds: float) -> None:
        assert self._wake is not None
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _work(self) -> None:
        while self._ending is None and self._wanted == protocol.RUN:
            tasks = await self._claim() if self._asks() else []
            if not tasks:
                await self._pause(PAUSE_S)
            while tasks:
                for held in tasks[:-1]:
                    await self._carry(held)
                tasks = await self._carry(tasks[-1], last=True)

    async def _claim(self) -> list[Held]:
        asked = {"p_claim_no": self._claim_no, "p_batch": self._config["batch"], "p_wait_s": 0}
        return self._claimed(await self._until_answered(protocol.CLAIM, **asked))

    def _claimed(self, answer: dict[str, Any]) -> list[Held]:
        self._claim_no += 1
        self.claimed_s = self._world.kernel.now
        self._obey(answer)
        tasks = [Held(t["id"], t["attempt"], t["params"], t["task_type"]) for t in answer.get("tasks", ())]
        tasks = [held for held in tasks if not self._world.faults.happens("agent_forgot", 0.02)]
        self.still_s = 0.0
        for held in tasks:
            self.held[held.id] = held
            self._world.claimed(self, held)
        return tasks

    async def _carry(self, held: Held, *, last: bool = False) -> list[Held]:
        """Run a task and report its end. The report of a claim's last task also claims the next tasks."""
        if self._ending is not None:
            return []
        self.still_s, self.running = 0.0, held
        outcome = await self._run(held)
        self.running = None
        if outcome == "stopped":
            return []
        following: list[Held] = []
        if held.fenced:
            pass
        elif outcome == "ok":
            following = await self._complete(held, claims=last)
        else:
            failure: dict[str, Any] = {"code": outcome.upper(), "message": outcome, "point": "Processing"}
            failure |= {"exit_class": "exception", "retryable": outcome != "fatal"}
            if outcome == "stuck":
                failure |= {"code": "TASK_STUCK", "exit_class": "timeout"}
            await self._report(held, protocol.FAIL, p_task_id=held.id, p_attempt=held.attempt, p_failure=failure)
        self.held.pop(held.id, None)
        return following

    async def _complete(self, held: Held, *, claims: bool) -> list[Held]:
        data = {"by": self.nonce[:8]}
        alone = int(held.id[-1], 16) % 2 == 0  # as one that leaves an output
        claims = claims and not alone and self._ending is None and self._wanted == protocol.RUN
        claims = claims and self._asks()
        if claims:
            ended = {"task_id": held.id, "attempt": held.attempt, "result_data": data}
            asked = {"p_results": [ended], "p_claim_no": self._claim_no, "p_batch": self._config["batch"]}
            try:
                return self._claimed(await self._call(protocol.COMPLETE_AND_CLAIM, **asked))
            except PortError:
                pass  # each is said again by itself
        token = {"p_task_id": held.id, "p_attempt": held.attempt}
        await self._report(held, protocol.COMPLETE, **token, p_output_location=None, p_result_data=data)
        return await self._claim() if claims else []

    async def _run(self, held: Held) -> str:
        if held.task_type not in self._config["handlers"]:
            return "no_handler"
        self.log("handler", f"task {held.id} attempt {held.attempt}")
        if self.pod.fails_tasks or self._world.bad_release_s is not None:
            return "broken"
        kind, left_s = held.params["kind"], float(held.params["work_s"])
        stands = kind in {"stuck", "hung"}
        while left_s > 0 or stands:
            await self._pause(STEP_S if stands else min(STEP_S, left_s))
            left_s -= STEP_S
            if held.fenced:
                return "fenced"
            if self._ending is not None:
                return "stopped"
            if held.cancelled:
                return "cancelled"
            if held.stuck and kind == "hung":  # its process cannot be ended
                await self._farewell(but=held)
            elif held.stuck:
                return "stuck"
            if kind == "quiet":
                self.still_s = 0.0  # it computes, and says nothing
            elif not stands:
                held.progress, self.still_s = held.progress + 1, 0.0
                self.log("handler", f"task {held.id} step {held.progress}")
        if kind == "crash":
            self._world.faults.note("agent_poisoned")
            self.loop.kill()
            await asyncio.sleep(0)
        return "ok" if kind == "quiet" else str(kind)

    async def _report(self, held: Held, function: str, **args: Any) -> None:
        answer = await self._until_answered(function, held, **args)
        self.log("agent", f"task {held.id} {function}: {answer.get('outcome')}")

    async def _beat(self) -> None:
        beaten_s = asked_s = asyncio.get_running_loop().time()
        while not self.done:
            await asyncio.sleep(BEAT_S)
            now_s = asyncio.get_running_loop().time()
            if not self.held and now_s - beaten_s < self._config["heartbeat_s"]:
                continue
            held = list(self.held.values())
            self.still_s += min(now_s - asked_s, BEAT_S)  # more: the pod was frozen, and the task with it
            asked_s = now_s
            named = [
                {"id": h.id, "attempt": h.attempt, "progress": {"step": h.progress}, "still_s": self.still_s}
                for h in held
            ]
            logs = {
                stream: len(self.pod.files.get(f"{agent_commands.run_dir(self.nonce)}/logs/{stream}.log", b""))
                for stream in protocol.STREAMS
            }
            said_s = self.still_s
            try:
                answer = await self._call(protocol.HEARTBEAT, p_tasks=named, p_health=self._health(), p_logs=logs)
            except (BadToken, UnknownWorker):
                self.end("refused")
                return
            except PortError:
                if now_s - self.heard_s > self._config["deadman_s"]:
                    self.end("nobody answers")
                continue
            beaten_s = now_s
            self._obey(answer)
            for one in held:
                one.cancelled |= one.id in answer["cancel"]
                one.fenced |= one.id in answer["fenced"]
                one.stuck = one is self.running and one.id in answer["stuck"] and self.still_s >= said_s

    def _health(self) -> dict[str, Any]:
        health: dict[str, Any] = {}
        if self.pod.full_s is not None:
            since = EPOCH.timestamp() + self.pod.full_s
            health[protocol.DISK] = {"since": since, "why": "0 of 50 MiB are free"}
        if found := self._found():
            health[protocol.FINDINGS] = found
        return health

    def _found(self) -> list[Any]:
        return [*self.pod.findings, *([self._world.alarm] if self._world.alarm else [])]

    def _asks(self) -> bool:
        return self.silent_s is None and self._is_fit()

    def _is_fit(self) -> bool:
        """Whether it may claim: an agent on a faulty machine claims nothing."""
        blocks = any(isinstance(one, dict) and one.get("severity") in ("C", "H") for one in self._found())
        return self.pod.full_s is None and not blocks

    async def _farewell(self, *, but: Held | None = None) -> None:
        for held in list(self.held.values()):
            if held.fenced or held is but:
                continue
            try:
                async with asyncio.timeout(FAREWELL_S):
                    await self._call(
                        protocol.RELEASE, p_task_id=held.id, p_attempt=held.attempt, p_reason=self._ending or "drained"
                    )
                    self.held.pop(held.id, None)
            except (PortError, TimeoutError):
                pass

    async def _until_answered(self, function: str, held: Held | None = None, **args: Any) -> dict[str, Any]:
        pause_s = 0.5
        while True:
            self.still_s = 0.0
            try:
                return await self._call(function, **args)
            except (BadToken, UnknownWorker) as error:
                self.end("refused")
                raise Ended from error
            except BadArgument:
                return {"outcome": "refused"}
            except PortError as error:
                if (held and held.fenced) or self._ending is not None:
                    raise Ended from error
            await self._pause(pause_s)
            pause_s = min(pause_s * 2, 8.0)

    async def _call(self, function: str, **args: Any) -> dict[str, Any]:
        try:
            return await self._answered(function, **args)
        except (BadToken, UnknownWorker, BadArgument):
            raise
        except PortError:
            path = f"{agent_commands.run_dir(self.nonce)}/{protocol.UNANSWERED}"
            self.pod.files[path] = bytearray(f"{self._world.kernel.now:.0f}".encode())
            raise

    async def _answered(self, function: str, **args: Any) -> dict[str, Any]:
        if self._world.kernel.now < max(self.cut_until_s, self._world.path_cut[1]):
            await asyncio.sleep(1)
            raise Unavailable("the network is away")
        self.spoke |= function in (protocol.REGISTER, protocol.HEARTBEAT)
        said = {"p_worker_id": self.worker_id, "p_nonce": self.nonce, **args}
        answer: dict[str, Any] = await self._world.call_as_agent(self, function, said, self._claims, CALL_S)
        if self._world.kernel.now < self._world.path_cut[1]:
            raise Unavailable("the network went away before the answer")
        self.heard_s = self._world.kernel.now
        if function in (protocol.REGISTER, protocol.HEARTBEAT):
            self.beaten_s = self.heard_s
        return answer

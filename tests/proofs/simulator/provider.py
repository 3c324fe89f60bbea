"""A model of RunPod: REST v2 over `requests`, lists that lag, capacity, prices, refusals, wrong and lost replies.

The unmodified SDK and the orchestrator's own adapter call it: it replaces `http_deadline.response`.
"""

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, Any, Self

import requests

from orchestrator.adapters.runpod_replies import DATABASE_VARIABLE, FLEET_VARIABLE, WORKER_VARIABLE
from testbed.runpod.faults import BALANCE_TEXT, CAPACITY_TEXTS, KINDS, QUOTA_TEXT, RATE_LIMIT_TEXT
from tests.proofs.simulator.sql.tables import DATABASE

if TYPE_CHECKING:
    from tests.proofs.simulator.environment import World

FLEET = "default"
FOREIGN_PODS: tuple[
    tuple[str, Mapping[str, str]], ...
] = (  # of another fleet, of this fleet's name in another database, and of no fleet
    ("gpu-20261120_101500-1a2b3c4d", {FLEET_VARIABLE: "other", WORKER_VARIABLE: "gpu-1"}),
    ("gpu-20261120_111500-5e6f7a8b", {FLEET_VARIABLE: FLEET, WORKER_VARIABLE: "gpu-2", DATABASE_VARIABLE: "another"}),
    ("lab", {}),
)
PRICES = {"NVIDIA A40": 0.39, "NVIDIA L4": 0.43}
DEAR, DEARER = 0.1, 1.6  # of the pods cost more than the catalogue says while faults occur, and how many times as much
DEAREST = max(PRICES.values()) * DEARER
PAGE = 5  # pods
WINDOWS = {"minute": (60, 60), "hour": (3_000, 3_600), "day": (50_000, 86_400)}  # calls, seconds
TOO_MANY = 429
KEEPS = 0.5  # of the moves: in these, present connections stay, as with address translation
ADDRESSES = [(f"10.0.0.{number // 3}", 20000 + number % 3) for number in range(45)]
MANGLED = (b"<html>502</html>", b'{"pods": [', b"null", b"[]", b"{}", b'{"pods": null, "pagination": {}}',
           b'{"pods": {}, "pagination": {"hasNextPage": false}}', b'{"pods": [], "pagination": null}',
           b'{"pods": [{"id": "x"}], "pagination": {"nextCursor": null, "hasNextPage": false}}')  # fmt: skip
FALSE_EMPTY = b'{"pods": []}'  # the document allows it; for one read only: for longer, nothing tells it from the truth
SICK = ("zero_gpus", "gpu_busy", "xid", "disk_full", "wrong_pod_id", "ssh_relayed", "agent_cut_off", "ssh_refused",
        "no_runtime", "no_ssh_details", "exits", "boot_error")  # fmt: skip


@dataclass
class SimPod:
    """The true state of one pod."""

    id: str
    name: str
    env: Mapping[str, str]
    gpu_type: str
    center: str
    cloud: str
    rate: float
    machine: str
    created_s: float
    visible_s: float  # the listing shows it from here on
    assigned_s: float  # … and it is billed
    running_s: float
    runtime_s: float
    ssh_s: float
    sshd_s: float
    address: tuple[str, int]
    host_key: str
    sick: str | None = None
    fails_tasks: bool = False  # each task that runs here fails
    full_s: float | None = None  # since when its disk has been full
    findings: tuple[Any, ...] = ()  # what its agent reports of the machine
    dead_s: float | None = None  # it ended by itself: EXITED or ERROR
    gone_s: float | None = None  # when it was deleted
    locked_s: float = 0.0  # its delete is refused until then
    unlisted_s: float = 0.0  # when lists no longer show it
    keeps_connections: bool = False  # connections to an earlier address stay
    lies: int = 0  # deletes that will be answered and have no effect
    files: dict[str, bytearray] = field(default_factory=dict)
    agents: dict[str, Any] = field(default_factory=dict)  # nonce -> Agent
    stopped: set[str] = field(default_factory=set)  # nonces of launches that were stopped, for good

    @property
    def worker_id(self) -> str | None:
        """Return the worker that its environment names."""
        return self.env.get(WORKER_VARIABLE)

    @property
    def ours(self) -> bool:
        """Whether it is of the fleet under test."""
        return self.env.get(FLEET_VARIABLE) == FLEET and self.env.get(DATABASE_VARIABLE, DATABASE) == DATABASE

    def exists(self) -> bool:
        """Whether the provider still has it."""
        return self.gone_s is None

    def runs(self, now: float) -> bool:
        """Whether its container runs."""
        return self.exists() and self.dead_s is None and now >= self.running_s

    def status(self, now: float) -> str:
        """Return the status as the API shows it."""
        if self.dead_s is not None:
            return "ERROR" if self.sick == "boot_error" else "EXITED"
        if now >= self.running_s:
            return "RUNNING"
        return "STARTING" if now >= self.assigned_s else "PROVISIONING"


class Reply:
    """An answer with the interface of `requests`."""

    def __init__(self, status: int, content: bytes) -> None:
        self.status_code, self.content = status, content
        self.headers: dict[str, str] = {}

    def iter_content(self, _chunk_bytes: int) -> Iterator[bytes]:
        """The body."""
        yield self.content

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""


class Provider:
    """The RunPod account."""

    def __init__(self, world: "World") -> None:
        self._world, self._faults = world, world.faults
        self._prices = random.Random(f"prices of {world.seed}")
        self.pods: dict[str, SimPod] = {}
        self.dry: dict[str, float] = {}  # offer -> until when there is nothing
        self.broke = False
        self.down = False
        self._made: dict[str, tuple[float, int]] = {}  # window -> since when, how many calls
        self.mangled: bytes | None = None  # what every list is, for a while
        self.coming = 0  # pods that were asked for, answered with an error, and will be made all the same
        for number, (name, env) in enumerate(FOREIGN_PODS):
            pod = self._new(name, env, "NVIDIA A40", "EU-1", "SECURE", number)
            pod.visible_s = pod.assigned_s = pod.running_s = pod.runtime_s = pod.ssh_s = 0.0

    def own(self) -> Iterator[SimPod]:
        """The fleet's pods that exist."""
        return (pod for pod in self.pods.values() if pod.exists() and pod.ours)

    def request(self, method: str, url: str, _limit_s: float, **said: Any) -> Reply:
        """Answer a request: the replacement of `http_deadline.response`."""
        path = url.partition("/v2/")[2]
        if self.down:
            raise requests.ConnectionError("refused")
        headers, left = self._count()
        reply = _problem(429, RATE_LIMIT_TEXT) if left < 0 else self._answer(method, path, said)
        if reply.status_code == TOO_MANY:
            self._faults.note("rate_limit_reached")
            reply.headers["Retry-After"] = str(self._faults.one_of((1, 5, 20)))
        reply.headers |= headers
        return reply

    def _strikes(self, kind: str, chance: float) -> bool:
        """Whether a fault of the emulator's table occurs this time."""
        assert kind in KINDS, kind
        return self._faults.happens(kind, chance)

    def _count(self) -> tuple[dict[str, str], int]:
        """Count a call of the account. Return the rate-limit headers, and the calls that are left."""
        now, policy, state, least = self._world.kernel.now, [], [], 1
        for name, (quota, length_s) in WINDOWS.items():
            begun, made = self._made.get(name, (now, 0))
            begun, made = (now, 1) if now - begun >= length_s else (begun, made + 1)
            self._made[name] = begun, made
            least = min(least, quota - made)
            policy.append(f'"{name}";q={quota};w={length_s}')
            state.append(f'"{name}";r={max(0, quota - made)};t={ceil(begun + length_s - now)}')
        return {"RateLimit-Policy": ", ".join(policy), "RateLimit": ", ".join(state)}, least

    def _answer(self, method: str, path: str, said: Mapping[str, Any]) -> Reply:
        if self._strikes("rate_limited", 0.01):
            return _problem(429, RATE_LIMIT_TEXT)
        if self._strikes("bad_gateway", 0.01):
            return Reply(self._faults.one_of((500, 502, 503)), b"<html>bad gateway</html>")
        routes: dict[tuple[str, str], Callable[[], Reply]] = {
            ("GET", "pods"): lambda: self._list(said.get("params") or {}),
            ("POST", "pods"): lambda: self._create(said["json"]),
            ("GET", "catalog/gpus"): self._catalog,
        }
        known = routes.get((method, path))
        if known is None and method == "DELETE" and path.startswith("pods/"):
            return self._delete(path.removeprefix("pods/"))
        assert known is not None, (method, path)
        return known()

    def _list(self, params: Mapping[str, Any]) -> Reply:
        now = self._world.kernel.now
        if self.mangled is not None:
            return Reply(200, self.mangled)
        if self._strikes("odd_reply", 0.02):
            return Reply(200, self._faults.one_of((*MANGLED, FALSE_EMPTY)))
        shown = [p for p in self.pods.values() if p.visible_s <= now and (p.exists() or now < p.unlisted_s)]
        shown.sort(key=lambda p: (-p.created_s, p.id))
        own = [p for p in shown if p.ours]
        if own and self._strikes("missing_from_list", 0.004):  # one read without one of them
            shown.remove(self._faults.one_of(own))
        first = int(params.get("cursor") or 0)
        page, more = shown[first : first + PAGE], len(shown) > first + PAGE
        cursor = str(first + PAGE) if more else None
        if more and self._strikes("repeated_cursor", 0.02):
            cursor = str(first)
        body = {"pods": [self._shown(p) for p in page], "pagination": {"nextCursor": cursor, "hasNextPage": more}}
        return Reply(200, json.dumps(body).encode())

    def _shown(self, pod: SimPod) -> dict[str, Any]:
        now = self._world.kernel.now
        status, ssh = pod.status(now), {}
        runtime: dict[str, Any] | None = None
        if status == "RUNNING" and now >= pod.runtime_s and not self._strikes("flicker_runtime", 0.002):
            runtime = {"uptime": int(now - pod.runtime_s), "ports": []}
        if status == "RUNNING" and now >= pod.ssh_s:
            ssh = {"direct": {"host": pod.address[0], "port": pod.address[1], "username": "root"}}
        return {
            "id": pod.id,
            "name": pod.name,
            "status": status,
            "env": dict(pod.env),
            "gpu": {"id": pod.gpu_type, "count": 1},
            "dataCenterId": pod.center if now >= pod.assigned_s else None,
            "machineId": pod.machine if now >= pod.assigned_s else None,
            "ssh": ssh,
            "cost": pod.rate,
            "runtime": runtime,
            "createdAt": None,
        }

    def _create(self, body: Mapping[str, Any]) -> Reply:
        name, gpu = body["name"], body["gpu"]["id"]
        center = (body.get("dataCenterIds") or [None])[0]
        offer = f"{gpu}|{center or '*'}|{body['cloud']}"
        self._world.laws.asked(name, offer)
        self._world.laws.ordered(body)
        self._world.say(f"provider: create {name} on {offer}")
        if self.broke:
            return _problem(402, BALANCE_TEXT)
        if self.dry.get(offer, 0.0) > self._world.kernel.now or self._strikes("no_capacity", 0.03):
            self._faults.note("refused_capacity")
            return _problem(400, self._faults.one_of(CAPACITY_TEXTS[:3]))
        if self._strikes("quota", 0.002):
            return _problem(400, QUOTA_TEXT)
        if self._faults.happens("create_delayed", 0.04):
            self.coming += 1
            self._world.kernel.after(self._faults.between(30, 200), lambda: self._make_late(body, center))
            return Reply(502, b"<html>bad gateway</html>")
        pod = self._make(body, center)
        if self._strikes("commit_then_502", 0.05):
            return Reply(502, b"<html>bad gateway</html>")
        if self._strikes("truncated_json", 0.02):
            return Reply(201, self._faults.one_of((b"", b"null", b'{"id": 7}', b"<html>", b'{"id": "x", "name": "y"}')))
        return Reply(201, json.dumps(self._shown(pod)).encode())

    def _make_late(self, body: Mapping[str, Any], center: str | None) -> None:
        self.coming -= 1
        self._make(body, center)

    def _make(self, body: Mapping[str, Any], center: str | None) -> SimPod:
        pod = self._new(body["name"], body["env"], body["gpu"]["id"], center or "EU-1", body["cloud"], len(self.pods))
        self._world.laws.created(pod)
        self._world.say(f"provider: pod {pod.id} for {pod.name}")
        return pod

    def _new(self, name: str, env: Mapping[str, str], gpu: str, center: str, cloud: str, number: int) -> SimPod:
        now, dice = self._world.kernel.now, self._faults.dice
        assigned = now + dice.uniform(1, 20)
        running = assigned + dice.uniform(2, 30)
        ssh = running + dice.uniform(0.5, 6)
        free = self._free()
        pod = SimPod(
            id=f"pod{number}",
            name=name,
            env=dict(env),
            gpu_type=gpu,
            center=center,
            cloud=cloud,
            rate=PRICES[gpu] * (DEARER if self._prices.random() < DEAR and self._world.faults.active else 1.0),
            machine=f"m{dice.randrange(40)}",
            created_s=now,
            visible_s=now + dice.choice((0.0, 0.5, 2.0, 8.0, 25.0)),
            assigned_s=assigned,
            running_s=running,
            runtime_s=running + dice.uniform(0, 3),
            ssh_s=ssh,
            sshd_s=ssh + dice.uniform(0, 8),
            address=dice.choice(free),
            host_key=f"ssh-ed25519 key{number}",
        )
        if pod.ours and self._faults.happens("sick_pod", 0.08):
            self._sicken(pod, self._faults.one_of(SICK))
        self.pods[pod.id] = pod
        return pod

    def _free(self) -> list[tuple[str, int]]:
        """Return unused addresses, also those of earlier pods."""
        taken = {pod.address for pod in self.pods.values() if pod.exists()}
        return [address for address in ADDRESSES if address not in taken]

    def move(self, pod: SimPod, dice: random.Random) -> None:
        """Give the pod's SSH another address. The machine and its key stay the same."""
        before, pod.address = pod.address, dice.choice(self._free())
        pod.keeps_connections = dice.random() < KEEPS
        self._world.say(f"provider: SSH of {pod.id} moved from {before} to {pod.address}")

    def _sicken(self, pod: SimPod, how: str) -> None:
        assert how in KINDS, how
        never, pod.sick = 1e12, how
        self._faults.note(how)
        if how == "no_runtime":
            pod.runtime_s = pod.ssh_s = pod.sshd_s = never
        elif how == "no_ssh_details":
            pod.ssh_s = never
        elif how == "ssh_refused":
            pod.sshd_s = never
        elif how in ("exits", "boot_error"):
            self._world.kernel.after(pod.running_s + self._faults.between(0, 60) - pod.created_s, lambda: self.die(pod))

    def die(self, pod: SimPod) -> None:
        """End the container. The pod stays, and lists show it as ended."""
        if pod.exists() and pod.dead_s is None:
            pod.dead_s = self._world.kernel.now
            self._stop(pod)
            self._world.say(f"provider: {pod.id} of {pod.name} ended")

    def vanish(self, pod: SimPod, why: str) -> None:
        """Remove the pod. Lists show that soon."""
        if not pod.exists():
            return
        pod.gone_s = self._world.kernel.now
        pod.unlisted_s = pod.gone_s + self._faults.one_of((0.0, 0.0, 1.0, 5.0))
        self._stop(pod)
        self._world.say(f"provider: {pod.id} of {pod.name} is gone: {why}")

    def _stop(self, pod: SimPod) -> None:
        for agent in pod.agents.values():
            agent.loop.kill()

    def _delete(self, pod_id: str) -> Reply:
        pod = self.pods.get(pod_id)
        now = self._world.kernel.now
        self._world.laws.delete_asked(pod_id)
        if pod is not None and (pod.locked_s > now or self._strikes("conflict", 0.02)):
            pod.locked_s = pod.locked_s if pod.locked_s > now else now + self._faults.between(20, 100)
            return _problem(409, "the pod cannot be deleted in its present state")
        if pod is None or not pod.exists() or (pod.visible_s > now and self._strikes("early_404", 0.3)):
            return _problem(404, "pod not found")
        self._world.laws.deleting(pod)
        if pod.lies > 0:
            pod.lies -= 1
            self._faults.note("delete_lies")
            return Reply(204, b"")
        self.vanish(pod, "deleted")
        if self._strikes("commit_then_500", 0.03):
            return Reply(500, b"<html>oops</html>")
        return Reply(204, b"")

    def _catalog(self) -> Reply:
        shown = [{"id": name, "price": {"secure": usd, "community": usd}} for name, usd in PRICES.items()]
        return Reply(200, json.dumps({"gpus": shown}).encode())


def _problem(status: int, detail: str) -> Reply:
    return Reply(status, json.dumps({"title": "problem", "status": status, "detail": detail}).encode())

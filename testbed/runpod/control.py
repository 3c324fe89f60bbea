"""The control API under /__emulator__/: faults, stock, prices, balance, kills, and the ledger."""

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from testbed.runpod import fake_tools
from testbed.runpod.api import Core
from testbed.runpod.catalog import NetworkVolume, RegistryCredentials
from testbed.runpod.machine_faults import MACHINE_FAULTS
from testbed.runpod.sshd import Mode

PREFIX = "/__emulator__"
KILLS = ("vanish", "exit", "freeze")
Control = Callable[[Core, Mapping[str, Any], Mapping[str, str]], Awaitable[Any]]


class ControlRefused(Exception):
    """The control call is invalid. The text has the reason."""


async def ledger(core: Core, body: Mapping[str, Any], path: Mapping[str, str]) -> Any:
    """Return the true state: pods, dollars, calls made, committed create calls."""
    del body, path
    return {**core.world.ledger(), "calls": dict(core.calls), "creates": core.creates}


async def inject(core: Core, body: Mapping[str, Any], path: Mapping[str, str]) -> Any:
    """Inject one fault, or several as a list under `faults`."""
    del path
    try:
        return {"faults": [core.faults.inject(fault).as_json() for fault in body.get("faults", [body])]}
    except (ValueError, TypeError, re.error) as error:
        raise ControlRefused(str(error)) from error


async def list_faults(core: Core, body: Mapping[str, Any], path: Mapping[str, str]) -> Any:
    """Show the injected faults and how often each applied."""
    del body, path
    return {"faults": [fault.as_json() for fault in core.faults.faults]}


async def clear_faults(core: Core, body: Mapping[str, Any], path: Mapping[str, str]) -> Any:
    """Remove all faults."""
    del body, path
    core.faults.clear()
    return {"faults": []}


async def kill_pod(core: Core, body: Mapping[str, Any], path: Mapping[str, str]) -> Any:
    """Kill a pod: {"how": "vanish" | "exit" | "freeze"}. Answers when it is done."""
    pod, how = core.world.pods.get(path["id"]), body.get("how")
    if pod is None or pod.gone:
        message = f"no such pod: {path['id']}"
        raise ControlRefused(message)
    if how not in KILLS:
        message = f"how must be one of {', '.join(KILLS)}"
        raise ControlRefused(message)
    await core.host.kill(pod, how)
    return {"id": pod.id, "status": pod.status}


async def set_ssh(core: Core, body: Mapping[str, Any], path: Mapping[str, str]) -> Any:
    """Change how a running pod's SSH server behaves: {"mode", "seconds"}; "cut": true cuts standing connections."""
    pod = core.world.pods.get(path["id"])
    sshd = core.host.ssh(pod) if pod else None
    if sshd is None:
        message = f"no SSH server: {path['id']}"
        raise ControlRefused(message)
    try:
        mode = Mode(body.get("mode", sshd.mode))
    except ValueError as error:
        raise ControlRefused(str(error)) from error
    sshd.drop_after_s = float(body.get("seconds", sshd.drop_after_s))
    if body.get("cut"):
        sshd.cut()
    await sshd.open(mode)
    return {"id": path["id"], "mode": mode}


async def move_ssh(core: Core, body: Mapping[str, Any], path: Mapping[str, str]) -> Any:
    """Give a running pod's SSH another public port, as a restart does; its processes and its host key stay."""
    del body
    pod = core.world.pods.get(path["id"])
    sshd = core.host.ssh(pod) if pod else None
    if pod is None or sshd is None:
        message = f"no SSH server: {path['id']}"
        raise ControlRefused(message)
    await sshd.move()
    pod.ssh_port = sshd.port
    pod.log(f"sshd listens on port {sshd.port}")
    return {"id": pod.id, "port": sshd.port}


async def set_machine(core: Core, body: Mapping[str, Any], path: Mapping[str, str]) -> Any:
    """Change a running pod's machine: {"faults": {kind: detail}, "gpus": {nvidia-smi's field: value}}.

    The faults are those of machine_faults.py and "oom_kills" (how many); they replace all earlier ones. The values of
    the fields are for all GPUs of the pod.
    """
    pod = core.world.pods.get(path["id"])
    if pod is None or pod.gone:
        message = f"no such pod: {path['id']}"
        raise ControlRefused(message)
    faults, gpus = body.get("faults", {}), body.get("gpus", {})
    if unknown := sorted(set(faults) - set(MACHINE_FAULTS) - {"oom_kills"}):
        message = f"unknown faults of a machine: {', '.join(unknown)}"
        raise ControlRefused(message)
    fake_tools.write_facts(pod.home.parent, pod.gpu_type, pod.gpu_count, faults)
    try:
        fake_tools.change_gpus(pod.home.parent, gpus)
    except ValueError as error:
        raise ControlRefused(str(error)) from error
    return {"id": pod.id, "faults": faults, "gpus": gpus}


async def settings(core: Core, body: Mapping[str, Any], path: Mapping[str, str]) -> Any:
    """Set any of the known settings, and show those that have one value."""
    del path
    world, limits = core.world, core.limits
    known = {"boot_s", "create_s", "clock_s", "balance_usd", "page_size", "per_minute", "per_hour", "offers", "volumes"}
    known |= {"fake_clocks", "registries"}
    if unknown := sorted(set(body) - known):
        message = f"unknown settings: {', '.join(unknown)}; known: {', '.join(sorted(known))}"
        raise ControlRefused(message)
    try:
        low, high = body.get("boot_s", core.host.boot_s)
        core.host.boot_s = (float(low), float(high))
        core.create_s = float(body.get("create_s", core.create_s))
        core.clock_s = float(body.get("clock_s", core.clock_s))
        world.balance_usd = float(body.get("balance_usd", world.balance_usd))
        core.page_size = int(body.get("page_size", core.page_size))
        core.host.fake_clocks = bool(body.get("fake_clocks", core.host.fake_clocks))
        limits.minute.allowed = int(body.get("per_minute", limits.minute.allowed))
        limits.hour.allowed = int(body.get("per_hour", limits.hour.allowed))
        for offer in body.get("offers", []):
            world.set_offer(offer)
        if "volumes" in body:
            world.volumes = [NetworkVolume(**volume) for volume in body["volumes"]]
        if "registries" in body:
            world.registries = [RegistryCredentials(**one) for one in body["registries"]]
    except (TypeError, ValueError, KeyError) as error:
        raise ControlRefused(str(error)) from error
    return {
        "boot_s": core.host.boot_s,
        "create_s": core.create_s,
        "clock_s": core.clock_s,
        "balance_usd": world.balance_usd,
        "page_size": core.page_size,
        "per_minute": limits.minute.allowed,
        "per_hour": limits.hour.allowed,
        "fake_clocks": core.host.fake_clocks,
    }


CONTROLS: tuple[tuple[str, str, Control], ...] = (
    ("GET", "/ledger", ledger),
    ("GET", "/faults", list_faults),
    ("POST", "/faults", inject),
    ("DELETE", "/faults", clear_faults),
    ("POST", "/pods/{id}/kill", kill_pod),
    ("POST", "/pods/{id}/ssh", set_ssh),
    ("POST", "/pods/{id}/ports", move_ssh),
    ("POST", "/pods/{id}/machine", set_machine),
    ("POST", "/settings", settings),
)


def _endpoint(core: Core, control: Control) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        try:
            content = await request.body()
            body = json.loads(content) if content else {}
            return JSONResponse(await control(core, body, request.path_params))
        except (ControlRefused, json.JSONDecodeError) as error:
            return JSONResponse({"error": str(error)}, 400)

    return answer


def routes(core: Core, controls: Iterable[tuple[str, str, Control]]) -> list[Route]:
    """Routes of the control API; it has no key: it listens on loopback only."""
    return [Route(PREFIX + path, _endpoint(core, control), methods=[method]) for method, path, control in controls]

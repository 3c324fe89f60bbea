"""The dead-man's switch asks the provider to stop this pod, so that a pod without an orchestrator costs nothing more.

RunPod puts the pod's id, and a key that can act on this pod only, into the container's environment. An SSH session
finds them only in /etc/rp_environment. Without a key, the pod keeps running, and the log says so.
"""

from __future__ import annotations

import os
import re
import shlex
import time

from .http1 import HttpConnection, Unreachable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .journal import Journal

PROVIDER_URL = "https://api.runpod.io"
NAMES = ("RUNPOD_POD_ID", "RUNPOD_API_KEY", "RUNPOD_API_BASE_URL")
TRIES = 150  # with their pauses half a day: the agent has nothing else to do, and each hour costs money
PAUSE_MAX_S = 300.0
CALL_S = 10.0
ENVIRONMENT_BYTES = 256 << 10  # of /etc/rp_environment


def stop_pod(root: str, journal: Journal) -> bool:
    """Repeat the request until the provider answers, for at most half a day. Return whether it agreed."""
    given = pod_environment(root)
    pod_id, key = given.get("RUNPOD_POD_ID", ""), given.get("RUNPOD_API_KEY", "")
    if not key or not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", pod_id):
        journal.log("pod_not_stopped", why="there is no RUNPOD_POD_ID with a RUNPOD_API_KEY on this pod")
        return False
    provider = HttpConnection((given.get("RUNPOD_API_BASE_URL") or PROVIDER_URL).rstrip("/"))
    headers = (  # without a User-Agent, the provider answers 403 to every key
        f"Authorization: Bearer {key}\r\n"
        "Content-Type: application/json\r\nAccept: application/json\r\nUser-Agent: orchestrator-worker\r\n"
    )
    for tries in range(1, TRIES + 1):
        try:
            status, _ = provider.post(
                f"/v2/pods/{pod_id}/action", headers, b'{"action":"stop"}', time.monotonic() + CALL_S
            )
        except Unreachable as error:
            why, final = str(error), False
        else:
            if 200 <= status < 300:  # noqa: PLR2004 what HTTP calls success
                journal.log("pod_stop_asked", pod=pod_id, tries=tries)
                return True
            why, final = f"HTTP {status}", status < 500 and status != 429  # noqa: PLR2004 a failure of the server, or a rate limit
        journal.log("pod_not_stopped", pod=pod_id, tries=tries, why=why)
        if final:
            return False
        time.sleep(pause_s(tries))
    return False


def pause_s(tries: int) -> float:
    """Return the pause after n failed tries. The cause of the outage may affect the provider too."""
    return min(PAUSE_MAX_S, 0.25 * 2.0 ** min(tries - 1, 20))


def pod_environment(root: str) -> dict[str, str]:
    """Return the provider's variables of this pod: from the environment, or from the file for SSH sessions."""
    found: dict[str, str] = {}
    try:
        with open(os.path.join(root, "etc/rp_environment"), encoding="utf-8", errors="replace") as file:
            lines = file.read(ENVIRONMENT_BYTES).splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.replace("export ", "", 1).partition("=")
        if name in NAMES:
            try:
                found[name] = "".join(shlex.split(value))
            except ValueError:  # an open quote
                continue
    return {**found, **{name: os.environ[name] for name in NAMES if os.environ.get(name)}}

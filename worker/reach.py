"""Whether this pod can write to the object store and read from it, before its first claim (guard U35).

A pod that cannot would work for hours and could not store the result.
"""

from __future__ import annotations

import http.client
import threading
import time
from urllib.parse import urlsplit

from .findings import Found
from .store import OK, QUOTED_CHARS, StoreConnection

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .agent_state import AgentState
    from .config import Config
    from .finding_list import FindingList

TRIES, TRY_S, PAUSE_S = 3, 10.0, 1.0  # before the finding
PART = "store"


def check_store(config: Config, findings: FindingList, state: AgentState) -> None:
    """Send the probe. If it fails, publish a finding, and end it as soon as the probe succeeds."""
    probe = config.store_probe
    if probe is None:  # the orchestrator that started this agent does not have one
        return
    for _ in range(TRIES):
        why = unusable(probe)
        if why is None:
            return
        state.pause(PAUSE_S)
    host = urlsplit(probe["put"]).netloc
    findings.update(PART, [Found("STORE_UNREACHED", time.monotonic(), f"{host}: {why}")])
    again = (probe, config.monitor_s, findings, state)
    threading.Thread(target=_until_usable, args=again, daemon=True).start()


def unusable(probe: dict[str, Any]) -> str | None:
    """Return why an object cannot be written or read back; None if it can."""
    connection, method = StoreConnection(TRY_S), "PUT"
    requests: list[tuple[str, str, dict[str, str], str | None]] = [
        ("PUT", probe["put"], probe["headers"], probe["content"]),
        ("GET", probe["get"], {}, None),
    ]
    try:
        for method, url, headers, body in requests:
            answer = connection.send(method, url, headers, body)
            text = connection.text(answer)
            if answer.status != OK:
                return f"{method}: HTTP {answer.status} {' '.join(text[:QUOTED_CHARS].split())}"
    except (OSError, http.client.HTTPException) as error:
        return f"{method}: {type(error).__name__}: {error}"
    finally:
        connection.close()
    return None


def _until_usable(probe: dict[str, Any], again_s: float, findings: FindingList, state: AgentState) -> None:
    while not state.is_leaving():
        time.sleep(again_s)
        if unusable(probe) is None:
            findings.update(PART, [])
            return

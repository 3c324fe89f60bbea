"""Checks between deployment and the first claim (guards U8, U28, U29). A value that cannot be read causes no finding.

A PyTorch without code for the pod's GPU fails every task, so the agent claims nothing. Packages that differ from the
lock file, and a slow network volume, are warnings. A check without its GPU, lock file or network volume does nothing.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import time

from .cgroup import read_text
from .findings import Found
from .network_volumes import network_volumes
from .readings import has_gpu_device
from .usercode import unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .config import Config
    from .finding_list import FindingList
    from .journal import Journal

ASK_S = 60.0  # seconds for the handlers' interpreter, which may have to import torch
PROBE_S = 5.0  # seconds for the volumes; a network file system may never answer
PROBE_BYTES, SMALLEST_BYTES, SLOW_BYTES_PER_S = 64 << 20, 8 << 20, 200e6
MAX_ENTRIES = 2_000
LOCKS = ("requirements.lock", "requirements-lock.txt")
PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^]]*\])?==([^\s;\\]+)")
SHOWN = 3
ASK = """
import importlib.metadata, importlib.util, json, sys
found = {"packages": {d.metadata["Name"]: d.version for d in importlib.metadata.distributions() if d.metadata["Name"]}}
if "gpu" in sys.argv and importlib.util.find_spec("torch"):
    import torch
    if torch.cuda.is_available():
        found["torch"], found["archs"] = torch.__version__, torch.cuda.get_arch_list()
        found["gpus"] = [list(torch.cuda.get_device_capability(n)) for n in range(torch.cuda.device_count())]
print(json.dumps(found))
"""


def run(config: Config, pyz: str, findings: FindingList, journal: Journal) -> None:
    """Check, and publish the findings."""
    try:
        found = [*_of_packages(config, pyz), *_of_volumes(config.system_root)]
    except Exception as error:  # noqa: BLE001 tasks must run after any error here
        journal.log("preflight_failed", why=f"{type(error).__name__}: {error}")
        return
    findings.update("preflight", found)
    journal.log("preflight_done", findings=[one.code for one in found])


def _of_packages(config: Config, pyz: str) -> list[Found]:
    lock = _lock_in(unpack(os.path.dirname(pyz), config.user_code))
    has_gpu = has_gpu_device(config.system_root)
    asked = _ask(config, has_gpu=has_gpu) if has_gpu or lock else {}
    return [*of_torch(asked), *of_lock(asked, lock)]


def _of_volumes(root: str) -> list[Found]:
    volumes, slow = network_volumes(root), list[Found]()
    if volumes:
        probe = threading.Thread(target=lambda: slow.extend(of_volumes(volumes)), daemon=True)
        probe.start()
        probe.join(PROBE_S)
    return list(slow)


def of_torch(asked: dict[str, Any]) -> list[Found]:
    """U28: PyTorch runs on a GPU if it has code for its architecture, an older minor one, or PTX of an older one."""
    archs = [re.fullmatch(r"(sm|compute)_(\d+)(\d)[a-z]?", str(one)) for one in asked.get("archs") or ()]
    known = [(one[1], int(one[2]), int(one[3])) for one in archs if one]
    for major, minor in asked.get("gpus") or ():
        fits = any(
            (kind == "sm" and of == major and least <= minor) or (kind == "compute" and (of, least) <= (major, minor))
            for kind, of, least in known
        )
        if known and not fits:
            has = " ".join(sorted(asked["archs"]))
            return [_found("TORCH_ARCH", f"torch {asked['torch']} has {has}, the GPU needs sm_{major}{minor}")]
    return []


def of_lock(asked: dict[str, Any], lock: str | None) -> list[Found]:
    """U29: packages whose version is not the one in the lock file."""
    installed = {_normal(name): version for name, version in (asked.get("packages") or {}).items()}
    drift = []
    for line in (lock or "").splitlines() if installed else ():
        pin = PIN.match(line.strip())
        if pin and ";" not in line and installed.get(_normal(pin[1])) != pin[2]:
            drift.append(f"{pin[1]} is {installed.get(_normal(pin[1]), 'absent')}, the lock has {pin[2]}")
    more = f"; {len(drift) - SHOWN} more" if len(drift) > SHOWN else ""
    return [_found("LOCK_DRIFT", "; ".join(drift[:SHOWN]) + more)] if drift else []


def of_volumes(volumes: list[tuple[str, str]]) -> list[Found]:
    """U8: a network volume from which a large file is read slowly."""
    for place, kind in volumes:
        path = _large_file(place)
        rate = _read_rate(path) if path else None
        if rate is not None and rate < SLOW_BYTES_PER_S:
            return [_found("VOLUME_SLOW", f"{place} ({kind}) gave {rate / 1e6:.0f} MB/s: copy data to the pod's disk")]
    return []


def _found(code: str, evidence: str) -> Found:
    return Found(code, time.monotonic(), evidence)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _lock_in(code_dir: str | None) -> str | None:
    texts = (read_text(os.path.join(code_dir, name)) for name in LOCKS) if code_dir else ()
    return next((text for text in texts if text is not None), None)


def _ask(config: Config, *, has_gpu: bool) -> dict[str, Any]:
    """Return the interpreter's data about its packages and GPUs; an empty dict without an answer."""
    try:
        done = subprocess.run(
            [config.python, "-c", ASK, *(["gpu"] if has_gpu else [])], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=ASK_S, check=True,
            env={**os.environ, **config.env},
        )  # fmt: skip
        answer = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _large_file(place: str) -> str | None:
    seen = 0
    for folder, _, names in os.walk(place):
        for name in names:
            seen += 1
            path = os.path.join(folder, name)
            if os.path.isfile(path) and os.path.getsize(path) >= SMALLEST_BYTES:
                return path
        if seen > MAX_ENTRIES:
            break
    return None


def _read_rate(path: str) -> float | None:
    """Return bytes per second of a read that the page cache does not answer."""
    try:
        with open(path, "rb", buffering=0) as file:
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            began, count = time.monotonic(), 0
            while count < PROBE_BYTES and time.monotonic() - began < PROBE_S / 2:
                block = file.read(1 << 20)
                if not block:
                    break
                count += len(block)
    except OSError:
        return None
    return count / max(1e-6, time.monotonic() - began) if count else None

"""A pod's Slurm and munge: wrappers that give them the pod's clock, and what can happen to them.

The daemons are Debian's (testbed/services/debian.py). With libfaketime (`.ci/debian faketime`) they read the time from
the pod's file `clock`, which is there if the emulator's setting `fake_clocks` was on when the pod booted: a write to it
moves their clock, and that of `date`, while they run.
"""

import os
import secrets
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psutil

from testbed.runpod import watchdog
from testbed.runpod.state import PodRecord
from testbed.services import debian

DAEMONS = ("munged", "slurmctld", "slurmd")
KEYS = ".gpu-cluster/*/munge/key"  # below the pod's home
KEY_BYTES = 128
END_TIMEOUT_S = 10.0
START_TIMEOUT_S = 30.0
WRAPPER = """#!/bin/sh
{exports}
if [ -e "$EMULATED_POD/clock" ] && [ -e "{faketime}" ]; then
  export LD_PRELOAD="{faketime}${LD_PRELOAD:+:$LD_PRELOAD}" FAKETIME_TIMESTAMP_FILE="$EMULATED_POD/clock"
  export FAKETIME_CACHE_DURATION=1 FAKETIME_DONT_FAKE_MONOTONIC=1
fi
exec "{program}" "$@"
"""


def write_programs(bin_dir: Path) -> None:
    """Write a wrapper for each daemon that this machine has. Unpacked ones find their plugins next to the wrappers."""
    for name in DAEMONS:
        found = debian.find(name, debian.SLURM)
        if found is None:
            continue
        exports = "".join(f'export {key}="{value}"' for key, value in found.environment.items())
        text = WRAPPER.replace("{exports}", exports or ":").replace("{program}", str(found.path))
        program = bin_dir / name
        program.write_text(text.replace("{faketime}", str(debian.faketime() or "")))
        program.chmod(0o755)
        if found.path.is_relative_to(debian.UNPACKED):
            for plugins in found.path.parents[1].glob("lib/*/slurm-wlm"):
                link = bin_dir.parent / "lib" / plugins.parent.name / plugins.name
                link.parent.mkdir(parents=True, exist_ok=True)
                link.unlink(missing_ok=True)
                link.symlink_to(plugins)


def set_clock(pod: PodRecord, offset_s: int) -> None:
    """Set the clock of the pod's daemons and of its `date` to so many seconds ahead."""
    file = pod.home.parent / "clock"
    fresh = file.with_name("clock.new")
    fresh.write_text(f"{offset_s:+d}\n")
    fresh.replace(file)


def running(pod: PodRecord, names: Sequence[str]) -> list[psutil.Process]:
    """The pod's processes of these programs."""
    return [process for process in watchdog.find(watchdog.one_of([str(pod.home.parent)])) if _program(process) in names]


def _program(process: psutil.Process) -> str | None:
    """The name of the running program, None if it has just ended: psutil's name is the wrapper's until the exec."""
    try:
        return Path(process.exe()).name.removesuffix("-wlm")  # Debian has alternatives
    except (psutil.Error, OSError):
        return None


def kill(pod: PodRecord, names: Sequence[str]) -> int:
    """SIGKILL these daemons of the pod, and say how many there were. Return when they are gone."""
    found = running(pod, names)
    for process in found:
        process.kill()
    psutil.wait_procs(found, END_TIMEOUT_S)
    return len(found)


def change_key(pod: PodRecord) -> int:
    """Give the pod's munged another key and start it again with the same arguments; say how many there were.

    subprocess.TimeoutExpired: one does not come back.
    """
    for key in pod.home.glob(KEYS):
        mode = key.stat().st_mode & 0o777
        key.unlink()
        with os.fdopen(os.open(key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
    found = running(pod, ["munged"])
    again = []
    for process in found:
        command, environment, directory = process.cmdline(), process.environ(), process.cwd()
        process.terminate()  # it removes its socket
        psutil.wait_procs([process], END_TIMEOUT_S)
        nowhere = subprocess.DEVNULL
        again.append(
            subprocess.Popen(
                command, env=environment, cwd=directory, stdin=nowhere, stdout=nowhere, stderr=nowhere,
                start_new_session=True,
            )
        )  # fmt: skip
    for starter in again:
        starter.wait(START_TIMEOUT_S)  # it ends when the daemon in the background is there
    return len(found)

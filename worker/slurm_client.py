"""Slurm's clients, as the handler `slurm` calls them: each call is bounded, since a client hangs without slurmctld."""

from __future__ import annotations

import re
import socket

from .limited import run_limited

CALL_S = 10.0  # for one call
ANSWER_BYTES = 4 << 20  # of one call: a job array of 1,000 elements has 1.5 MB
CONNECT_S = 3.0  # to a node's slurmd
SLURMD_PORT = 6818  # Slurm's default
NO_CONTACT = re.compile(r"contact|connect", re.IGNORECASE)  # in what a client says without slurmctld


def call(words: list[str], timeout_s: float = CALL_S, env: dict[str, str] | None = None) -> tuple[int | None, str]:
    """Run a Slurm client and return (exit status, its output). None: it was not found, or it did not end."""
    answer = run_limited(words, timeout_s, ANSWER_BYTES, env=env)
    return answer.status, answer.text.strip() if answer.status is not None else f"{words[0]}: {answer.problem}"


def nodes() -> list[list[str]] | None:
    """Return [name, features, generic resources] of each node that slurmctld knows; None if it does not answer."""
    status, text = call(["sinfo", "--noheader", "--Node", "--format=%N %f %G"])
    return [[*line.split(), "", "", ""][:3] for line in text.splitlines()] if status == 0 else None


def job_named(name: str) -> str | None:
    """Return the id of the job with this name; "" if there is none, and None if slurmctld does not answer."""
    status, text = call(["squeue", "--noheader", "--states=all", f"--name={name}", "--format=%A"])
    if status != 0:
        return None
    ids = [line.strip() for line in text.splitlines() if line.strip().isdigit()]
    return min(ids, key=int, default="")


def booted_at() -> str | None:
    """Return when slurmctld was started, in its own words; None if it does not answer."""
    status, text = call(["scontrol", "show", "config"])
    found = re.search(r"^BOOT_TIME\s*=\s*(\S+)", text, re.MULTILINE)
    return found[1] if status == 0 and found else None


def cancel_of(directory: str) -> None:
    """Cancel all jobs whose working directory is in this one. Without slurmctld, the next task does it."""
    status, text = call(["squeue", "--noheader", "--format=%i %Z"])
    rows = [line.split(" ", 1) for line in text.splitlines()] if status == 0 else []
    if ids := [row[0] for row in rows if f"{row[-1]}/".startswith(f"{directory.rstrip('/')}/")]:
        call(["scancel", *ids])


def parts(job_id: str) -> tuple[list[dict[str, str]], str]:
    """Return the fields of each part of a job, and the client's words. A plain job has one part, an array several.

    A field's first value counts: later ones may be a part of the user's own texts.
    """
    status, text = call(["scontrol", "--oneliner", "show", "job", job_id])
    lines = text.splitlines() if status == 0 else []
    found = [dict(word.partition("=")[::2] for word in reversed(line.split())) for line in lines]
    return [one for one in found if one.get("JobState")], text


def unreached(names: str) -> str | None:
    """Return the first of these nodes (`gpu-[1-2]`) whose slurmd does not accept a connection.

    None: each accepts one, or slurmctld does not say where the nodes are.
    """
    status, text = call(["scontrol", "--oneliner", "show", "node", names])
    for line in text.splitlines() if status == 0 else ():
        node = dict(word.partition("=")[::2] for word in reversed(line.split()))
        try:
            socket.create_connection((node["NodeAddr"], int(node.get("Port", SLURMD_PORT))), CONNECT_S).close()
        except (OSError, KeyError, ValueError):
            return node.get("NodeName", names)
    return None

"""Submits a job to Slurm. The script that Slurm gets runs the user's script, once.

A slurmctld that is killed may forget that a job has begun, and starts it again when it is back.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import time

from .slurm_client import NO_CONTACT, call, job_named, nodes
from .slurm_output import OUTPUT
from .slurm_params import SlurmFailed
from .texts import end_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SCRIPT, BATCH = "job.sh", "batch.sh"  # the user's script, and the one that Slurm gets
SUBMITS = 3  # tries of a submission to which slurmctld has not answered, although it answers to other calls
RETRY_S = 1.0  # between them
BEGUN, AGAIN = ".begun", ".again"  # made when the script begins, and when it is to begin a second time
TEXT = """\
#!/bin/sh
{options}
if ! mkdir {begun}-"$SLURM_JOB_ID" 2>/dev/null && [ -d {begun}-"$SLURM_JOB_ID" ]; then
    touch {again}
    exit 75
fi
exec {script} "$@"
"""


def _write(text: str) -> str:
    """Write both scripts to the working directory, and return the path of the one for Slurm.

    Slurm reads its options from the script that it gets: those before the first command of the user's.
    """
    with open(SCRIPT, "w", encoding="utf-8") as file:
        file.write(text if text.startswith("#!") else f"#!/bin/sh\n{text}")
    os.chmod(SCRIPT, 0o700)
    head = itertools.takewhile(lambda line: line.startswith("#") or not line.strip(), text.split("\n"))
    options = "\n".join(line for line in head if line.startswith("#SBATCH"))
    begun, again, script = (shlex.quote(os.path.abspath(name)) for name in (BEGUN, AGAIN, SCRIPT))
    with open(BATCH, "w", encoding="utf-8") as file:
        file.write(TEXT.format(options=options, begun=begun, again=again, script=script))
    return BATCH


def _controller(known: list[list[str]]) -> tuple[str | None, int]:
    """Return the controller's node name, and the number of its GPUs."""
    for node, features, gres in known:
        if features == "controller":
            gpus = re.match(r"gpu:(?:[^:(]*:)?([0-9]+)", gres)
            return node, int(gpus[1]) if gpus else 0
    return None, 0


def submit(job: dict[str, Any], name: str) -> str:
    """Submit the job and return its id."""
    os.makedirs("output", exist_ok=True)
    script = _write(job["script"])
    known = nodes() or []  # sbatch says it if slurmctld does not answer
    node, gpus = _controller(known)
    gpus = gpus if job["gpus_per_node"] is None else job["gpus_per_node"]
    words = [
        shutil.which("sbatch") or "sbatch", "--parsable", f"--job-name={name}", f"--nodes={job['nodes']}",
        "--exclusive", "--no-requeue", "--open-mode=append", f"--output={os.path.join(os.getcwd(), OUTPUT)}",
        f"--chdir={os.getcwd()}", "--export=ALL",
    ]  # fmt: skip
    if node:
        words.append(f"--nodelist={node}")
    if node and len(known) > 1:  # with one node, no node has the other feature, and sbatch refuses it
        words += ["--constraint=controller|node", "--batch=controller"]
    if gpus:
        words.append(f"--gpus-per-node={gpus}")
    if job["time_limit_s"] is not None:  # Slurm counts minutes, so it is the second to notice
        words.append(f"--time={job['time_limit_s'] // 60 + 2}")
    return _submitted([*words, script], job["env"], name)


def _submitted(words: list[str], env: dict[str, str], name: str) -> str:
    """Call sbatch, and return the job's id.

    Without a clear answer, slurmctld is asked for the job: sbatch may wait for the end of the job (`#SBATCH --wait`).
    If slurmctld answers, and does not have it after several tries, then the job itself is the cause, such as its env.
    """
    text = ""
    for _ in range(SUBMITS):
        status, text = call(words, env=env)
        last = text.splitlines()[-1] if text else ""
        if last.partition(";")[0].isdigit():  # whatever the status: with --wait it is that of the script
            return last.partition(";")[0]
        if status is not None and not NO_CONTACT.search(text):
            break
        found = job_named(name)
        if found is None:
            raise SlurmFailed("SLURM_UNAVAILABLE", f"slurmctld does not answer: {end_of(text, 300)}", outage=True)
        if found:
            return found
        time.sleep(RETRY_S)
    raise SlurmFailed("SLURM_REFUSED", f"sbatch refused the job: {end_of(text, 1000)}")

"""The handler `slurm`: one task is one Slurm job over several nodes of the cluster whose controller this pod is.

The batch script runs on this pod, in the task's directory; the nodes need not share a file system. `srun` in the script
runs on every node and brings its output back.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import time

from .limited import run_limited
from .output import OUT
from .slurm_params import SlurmFailed, checked
from .transfer_errors import TransferError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .task import Task

CONFIGURATIONS = "~/.gpu-cluster/*/etc/slurm.conf"
PLACES = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"
JOB_NAME = "task-"  # begins the name of each job of an agent
OUTPUT = "slurm.out"  # of the batch script
POLL_S = 1.0
REPORT_S = 5.0  # seconds between two reports of progress
CALL_S = 10.0  # for one call of a Slurm client, which hangs without slurmctld
CANCEL_S = 3.0
SILENT_S = 300.0  # for which slurmctld may not answer; it is started again meanwhile
GROW_S = 1_800.0  # for which a job waits until the cluster has as many nodes as it needs
MAX_OUTPUTS = 10_000
COPY_BYTES = 1 << 20  # of the job's output, for one poll
ANSWER_BYTES = 1 << 20  # of one call
NO_CONTACT = re.compile(r"contact|connect", re.IGNORECASE)  # in what a client says without slurmctld
RUNNING = {
    "PENDING",
    "CONFIGURING",
    "RUNNING",
    "SUSPENDED",
    "COMPLETING",
    "RESIZING",
    "REQUEUED",
    "SIGNALING",
    "STOPPED",
}
# Slurm's end state -> (failure code, whether another attempt can help)
ENDS = {
    "FAILED": ("EXIT_STATUS", True),
    "TIMEOUT": ("SLURM_TIME_LIMIT", True),
    "DEADLINE": ("SLURM_TIME_LIMIT", True),
    "OUT_OF_MEMORY": ("OOM", True),
    "NODE_FAIL": ("SLURM_NODE_FAILED", True),
    "BOOT_FAIL": ("SLURM_NODE_FAILED", True),
    "CANCELLED": ("SLURM_CANCELLED", False),
    "PREEMPTED": ("SLURM_CANCELLED", True),
    "REVOKED": ("SLURM_CANCELLED", True),
}


def run(task: Task) -> dict[str, Any]:
    """Run the task's job to its end. If this call ends early, it also ends the job."""
    name = f"{JOB_NAME}{re.sub('[^A-Za-z0-9_-]', '_', task.id)}-{task.attempt}"
    try:
        job = checked(task.params)
        conf = _configuration()
        os.environ["SLURM_CONF"] = conf
        os.environ["PATH"] = f"{os.environ.get('PATH', '')}:{PLACES}"
        _cancel_earlier()
        try:
            _await_nodes(task, job["nodes"])
            ended = _attend(task, _submit(job, name), job)
        except BaseException:  # cancelled, too: Slurm would run the job on
            _call(["scancel", f"--jobname={name}"], CANCEL_S)
            raise
        _store(task, job)
        return task.ended({"slurm": ended})
    except SlurmFailed as error:
        if os.path.exists(OUTPUT):
            with contextlib.suppress(TransferError):
                task.upload(OUTPUT)
        return {
            "op": "failed", "type": "SlurmFailed", "message": str(error), "code": error.code,
            "retryable": error.retryable, "outage": error.outage,
        }  # fmt: skip


def _configuration() -> str:
    """Return the path of slurm.conf. Raises SlurmFailed while this pod belongs to no cluster."""
    found = os.environ.get("SLURM_CONF")
    if found and os.path.exists(found):
        return found
    paths = glob.glob(os.path.expanduser(CONFIGURATIONS))
    if not paths:
        raise SlurmFailed("SLURM_UNAVAILABLE", "no cluster is configured on this pod", outage=True)
    return max(paths, key=os.path.getmtime)


def _call(words: list[str], timeout_s: float = CALL_S, env: dict[str, str] | None = None) -> tuple[int | None, str]:
    """Run a Slurm client and return (exit status, its output). None: it was not found, or it did not end."""
    answer = run_limited(words, timeout_s, ANSWER_BYTES, env=env)
    return answer.status, answer.text.strip() if answer.status is not None else f"{words[0]}: {answer.problem}"


def _cancel_earlier() -> None:
    """Cancel jobs of an agent that was killed before it could: a controller's agent runs one job at a time."""
    status, text = _call(["squeue", "--noheader", "--format=%i %j"])
    if status != 0:
        raise SlurmFailed("SLURM_UNAVAILABLE", f"slurmctld does not answer: {text[-300:]}", outage=True)
    old = [line.split(" ", 1)[0] for line in text.splitlines() if line.partition(" ")[2].startswith(JOB_NAME)]
    if old:
        _call(["scancel", *old])


def _nodes() -> list[list[str]] | None:
    """Return [name, features, generic resources] of each node that slurmctld knows; None if it does not answer."""
    status, text = _call(["sinfo", "--noheader", "--Node", "--format=%N %f %G"])
    return [[*line.split(), "", "", ""][:3] for line in text.splitlines()] if status == 0 else None


def _await_nodes(task: Task, wanted: int) -> None:
    """Wait for the nodes of a job: sbatch refuses one that is larger than the cluster, which grows for a task.

    Also while a lost node is replaced, the cluster has fewer. Raises SlurmFailed after GROW_S: it does not grow so far.
    """
    began, reported = time.monotonic(), float("-inf")
    while True:
        nodes, now = _nodes(), time.monotonic()
        if nodes is None or len(nodes) >= wanted:  # sbatch says it if slurmctld does not answer
            return
        known = len(nodes)
        if now - began > GROW_S:
            why = f"the cluster has {known} of {wanted} nodes after {GROW_S:.0f} s"
            raise SlurmFailed("SLURM_REFUSED", why, retryable=False)
        if now - reported >= REPORT_S:
            reported = now
            task.progress(message=f"waits for nodes of the cluster: {known} of {wanted}")
        time.sleep(POLL_S)


def _controller(nodes: list[list[str]]) -> tuple[str | None, int]:
    """Return the controller's node name, and the number of its GPUs."""
    for node, features, gres in nodes:
        if features == "controller":
            gpus = re.match(r"gpu:(?:[^:(]*:)?([0-9]+)", gres)
            return node, int(gpus[1]) if gpus else 0
    return None, 0


def _submit(job: dict[str, Any], name: str) -> str:
    """Submit the job and return its id."""
    os.makedirs("output", exist_ok=True)
    text = job["script"]
    with open("job.sh", "w", encoding="utf-8") as file:
        file.write(text if text.startswith("#!") else f"#!/bin/sh\n{text}")
    nodes = _nodes() or []  # sbatch says it if slurmctld does not answer
    node, gpus = _controller(nodes)
    gpus = gpus if job["gpus_per_node"] is None else job["gpus_per_node"]
    words = [
        "sbatch", "--parsable", f"--job-name={name}", f"--nodes={job['nodes']}", "--exclusive", "--no-requeue",
        f"--output={os.path.join(os.getcwd(), OUTPUT)}", f"--chdir={os.getcwd()}", "--export=ALL",
    ]  # fmt: skip
    if node:
        words.append(f"--nodelist={node}")
    if node and len(nodes) > 1:  # with one node, no node has the other feature, and sbatch refuses it
        words += ["--constraint=controller|node", "--batch=controller"]
    if gpus:
        words.append(f"--gpus-per-node={gpus}")
    if job["time_limit_s"] is not None:  # Slurm counts minutes, so it is the second to notice
        words.append(f"--time={job['time_limit_s'] // 60 + 2}")
    status, text = _call([*words, "job.sh"], env=job["env"])
    last = text.splitlines()[-1] if text else ""
    job_id = last.partition(";")[0]
    if status == 0 and job_id.isdigit():
        return job_id
    if status is None or NO_CONTACT.search(text):
        raise SlurmFailed("SLURM_UNAVAILABLE", f"slurmctld does not answer: {text[-300:]}", outage=True)
    raise SlurmFailed("SLURM_REFUSED", f"sbatch refused the job: {text[-1000:]}")


def _attend(task: Task, job_id: str, job: dict[str, Any]) -> dict[str, Any]:
    """Wait for the end of the job, and return facts about it. Raises SlurmFailed unless it succeeded."""
    copied, reported, heard = 0, float("-inf"), time.monotonic()
    while True:
        status, text = _call(["scontrol", "--oneliner", "show", "job", job_id])
        fields = dict(word.partition("=")[::2] for word in text.split()) if status == 0 else {}
        state, now = fields.get("JobState", ""), time.monotonic()
        copied = _copy_output(copied)
        if state:
            heard = now
        elif "Invalid job id" in text:
            raise SlurmFailed("SLURM_JOB_LOST", f"slurmctld does not know job {job_id} any more: it lost its state")
        elif now - heard > SILENT_S:
            raise SlurmFailed("SLURM_JOB_LOST", f"slurmctld did not answer for {SILENT_S:.0f} s: {text[-300:]}")
        ran_s = _seconds(fields.get("RunTime", ""))
        if state and state not in RUNNING:
            _copy_output(copied)
            return _ended(job_id, state, fields, ran_s)
        if job["time_limit_s"] is not None and state == "RUNNING" and ran_s > job["time_limit_s"]:
            raise SlurmFailed("SLURM_TIME_LIMIT", f"job {job_id} ran for more than {job['time_limit_s']} s")
        if state and now - reported >= REPORT_S:
            reported = now
            where = fields.get("NodeList") if state == "RUNNING" else fields.get("Reason")
            task.progress(message=f"Slurm job {job_id}: {state}, {ran_s} s, {where}")
        time.sleep(POLL_S)


def _ended(job_id: str, state: str, fields: dict[str, str], ran_s: int) -> dict[str, Any]:
    facts = {"job": int(job_id), "state": state, "nodes": fields.get("NodeList"), "run_s": ran_s}
    if state == "COMPLETED":
        return facts
    code, retryable = ENDS.get(state, ("SLURM_JOB_LOST", True))
    status, _, number = fields.get("ExitCode", "").partition(":")
    how = f"signal {number}" if number not in {"", "0"} else f"exit status {status}"
    message = f"Slurm job {job_id} on {facts['nodes']} ended with {state}, {how}, after {ran_s} s"
    raise SlurmFailed(code, message, retryable=retryable)


def _seconds(text: str) -> int:
    """Return Slurm's [days-]hours:minutes:seconds as seconds; 0 if it is none."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", text)
    if not found:
        return 0
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _copy_output(offset: int) -> int:
    """Copy what the batch script printed since `offset` into the handler's log, and return the new offset."""
    with contextlib.suppress(OSError), open(OUTPUT, "rb") as file:
        file.seek(offset)
        while block := file.read(COPY_BYTES):
            OUT.write(block)
            offset += len(block)
    return offset


def _store(task: Task, job: dict[str, Any]) -> None:
    """Store the script's output, everything below output/, and the files that `outputs` names. Raises TransferError."""
    if os.path.islink("output"):
        raise TransferError("output is a link that leaves the task's folder: copy the files instead")
    if os.path.exists(OUTPUT):
        task.upload(OUTPUT)
    task.upload_folder("output")
    stored, top = {OUTPUT}, os.path.realpath(".")
    for pattern in job["outputs"]:
        for path in sorted(glob.glob(pattern, recursive=True))[:MAX_OUTPUTS]:
            name = os.path.relpath(os.path.realpath(path), top)
            if name.startswith(("..", "output/")) or not os.path.isfile(path) or name in stored:
                continue
            stored.add(name)
            task.upload(path, name)

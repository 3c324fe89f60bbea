"""The handler `slurm`: one task is one Slurm job over several nodes of the cluster whose controller this pod is.

The batch script runs on this pod, in the task's directory; the nodes need not share a file system. `srun` in the script
runs on every node and brings its output back. A job that the script submits ends with the task.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import time

from .slurm_client import booted_at, call, cancel_of, nodes, parts, unreached
from .slurm_output import COPY_BYTES, OUTPUT, copy, store, store_output
from .slurm_params import SlurmFailed, checked
from .slurm_submit import AGAIN, submit
from .texts import end_of
from .transfer_errors import TransferError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .task import Task

CONFIGURATIONS = "~/.gpu-cluster/*/etc/slurm.conf"
PLACES = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"
JOB_NAME = "task-"  # begins the name of each job of an agent
POLL_S = 1.0
REPORT_S = 5.0  # seconds between two reports of progress
CANCEL_S = 3.0
SILENT_S = 300.0  # for which slurmctld may not answer; it is started again meanwhile
GROW_S = 1_800.0  # for which a job waits until the cluster has as many nodes as it needs
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
    job_id = ""
    try:
        job = checked(task.params)
        conf = _configuration()
        os.environ["SLURM_CONF"] = conf
        os.environ["PATH"] = f"{os.environ.get('PATH', '')}:{PLACES}"
        _clear()
        try:
            _await_nodes(task, job["nodes"])
            booted = booted_at()
            job_id = submit(job, name)
            ended = _attend(task, job_id, job, booted)
        except BaseException:  # cancelled, too: Slurm would run the job on
            call(["scancel", job_id or f"--jobname={name}"], CANCEL_S)
            raise
        finally:
            cancel_of(os.getcwd())
        store(task, job["outputs"])
        return task.ended({"slurm": ended})
    except SlurmFailed as error:
        with contextlib.suppress(TransferError):
            store_output(task)
        return {
            "op": "failed", "type": "SlurmFailed", "message": str(error), "code": error.code,
            "retryable": error.retryable, "outage": error.outage,
        }  # fmt: skip


def _configuration() -> str:
    """Return the path of slurm.conf. Raises SlurmFailed while this pod belongs to no cluster."""
    paths = glob.glob(os.path.expanduser(CONFIGURATIONS))
    if paths:  # an image with a Slurm of its own may have SLURM_CONF
        return max(paths, key=os.path.getmtime)
    found = os.environ.get("SLURM_CONF")
    if found and os.path.exists(found):
        return found
    raise SlurmFailed("SLURM_UNAVAILABLE", "no cluster is configured on this pod", outage=True)


def _clear() -> None:
    """Cancel jobs of an agent that was killed before it could, and undo what an earlier script did to the partition.

    A controller's agent runs one job at a time.
    """
    status, text = call(["squeue", "--noheader", "--format=%i %j"])
    if status != 0:
        raise SlurmFailed("SLURM_UNAVAILABLE", f"slurmctld does not answer: {end_of(text, 300)}", outage=True)
    old = [line.split(" ", 1)[0] for line in text.splitlines() if line.partition(" ")[2].startswith(JOB_NAME)]
    if old:
        call(["scancel", *old])
    cancel_of(os.path.dirname(os.getcwd()))
    call(["scontrol", "update", "PartitionName=all", "State=UP"])


def _await_nodes(task: Task, wanted: int) -> None:
    """Wait for the nodes of a job: sbatch refuses one that is larger than the cluster, which grows for a task.

    Also while a lost node is replaced, the cluster has fewer. Raises SlurmFailed after GROW_S: it does not grow so far.
    """
    began, reported = time.monotonic(), float("-inf")
    while True:
        seen, now = nodes(), time.monotonic()
        if seen is None or len(seen) >= wanted:  # sbatch says it if slurmctld does not answer
            return
        known = len(seen)
        if now - began > GROW_S:
            why = f"the cluster has {known} of {wanted} nodes after {GROW_S:.0f} s"
            raise SlurmFailed("SLURM_REFUSED", why, retryable=False)
        if now - reported >= REPORT_S:
            reported = now
            task.progress(message=f"waits for nodes of the cluster: {known} of {wanted}")
        time.sleep(POLL_S)


def _attend(task: Task, job_id: str, job: dict[str, Any], booted: str | None = None) -> dict[str, Any]:
    """Wait for the end of the job, and return facts about it. Raises SlurmFailed unless it succeeded.

    `booted`: when the slurmctld was started to which the job was submitted.
    """
    copied, reported, heard = 0, float("-inf"), time.monotonic()
    seen: dict[str, dict[str, str]] = {}  # the parts of a job array by their ids: slurmctld forgets those that ended
    while True:
        found, text = parts(job_id)
        seen.update((one.get("JobId", ""), one) for one in found)
        fields, now = _leading(list(seen.values())) if found else {}, time.monotonic()
        state, ran_s = fields.get("JobState", ""), _seconds(fields.get("RunTime", ""))
        copied = copy(copied, COPY_BYTES)
        if state:
            heard = now
        elif "Invalid job id" in text:
            raise SlurmFailed("SLURM_JOB_LOST", f"slurmctld does not know job {job_id} any more: it lost its state")
        elif now - heard > SILENT_S:
            raise SlurmFailed("SLURM_JOB_LOST", f"slurmctld did not answer for {SILENT_S:.0f} s: {end_of(text, 300)}")
        if state and state not in RUNNING:
            copy(copied)
            _check_slurm_did_not_end_it(job_id, state, fields, booted)
            return _ended(job_id, state, fields, ran_s)
        if job["time_limit_s"] is not None and state == "RUNNING" and ran_s > job["time_limit_s"]:
            raise SlurmFailed("SLURM_TIME_LIMIT", f"job {job_id} ran for more than {job['time_limit_s']} s")
        if state and now - reported >= REPORT_S:
            reported = now
            where = fields.get("NodeList") if state == "RUNNING" else fields.get("Reason")
            task.progress(message=f"Slurm job {job_id}: {state}, {ran_s} s, {where}")
        time.sleep(POLL_S)


def _leading(found: list[dict[str, str]]) -> dict[str, str]:
    """Return the part that says how the whole job is: one that runs, or else one that waits, or else a failed one."""

    def rank(part: dict[str, str]) -> tuple[bool, bool, bool]:
        state = part["JobState"]
        return state != "RUNNING", state not in RUNNING, state == "COMPLETED"

    return min(found, key=rank)


def _check_slurm_did_not_end_it(job_id: str, state: str, fields: dict[str, str], booted: str | None) -> None:
    """Raise SlurmFailed if Slurm itself ended the job, which looks as if somebody had cancelled it."""
    where = fields.get("NodeList", "")
    if os.path.exists(AGAIN):
        raise SlurmFailed("SLURM_JOB_LOST", f"slurmctld was started again, and forgot that job {job_id} ran on {where}")
    if state != "CANCELLED":
        return
    if where not in {"", "(null)"} and not os.path.exists(OUTPUT):  # slurmd then calls its node drained
        why = f"slurmd did not start the script of job {job_id} on {where}"
        raise SlurmFailed("SLURM_UNAVAILABLE", why, outage=True)
    if booted is not None and booted_at() not in (None, booted):
        raise SlurmFailed("SLURM_JOB_LOST", f"slurmctld was started again while job {job_id} ran, and cancelled it")


def _ended(job_id: str, state: str, fields: dict[str, str], ran_s: int) -> dict[str, Any]:
    facts = {"job": int(job_id), "state": state, "nodes": fields.get("NodeList"), "run_s": ran_s}
    if state == "COMPLETED":
        return facts
    code, retryable = ENDS.get(state, ("SLURM_JOB_LOST", True))
    status, _, number = fields.get("ExitCode", "").partition(":")
    how = f"signal {number}" if number not in {"", "0"} else f"exit status {status}"
    message = f"Slurm job {job_id} on {facts['nodes']} ended with {state}, {how}, after {ran_s} s"
    if state == "FAILED":  # srun fails at a lost node, and the script with it, before slurmctld calls the node down
        lost = unreached(fields.get("NodeList", ""))
        if lost:
            raise SlurmFailed(ENDS["NODE_FAIL"][0], f"{message}; node {lost} does not answer")
    raise SlurmFailed(code, message, retryable=retryable)


def _seconds(text: str) -> int:
    """Return Slurm's [days-]hours:minutes:seconds as seconds; 0 if it is none."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", text)
    if not found:
        return 0
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds

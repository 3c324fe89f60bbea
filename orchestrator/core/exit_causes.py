"""Why workers end: one row per exit cause. The sets of causes are derived from the rows.

FAILURES are the causes that are failures. A worker with a cause in ABRUPT does not finish its tasks: they are queued
again at once.
"""

from dataclasses import dataclass

from orchestrator.core.meanings import (
    BUDGET,
    LOGS,
    MORE,
    NOBODY,
    OPERATOR,
    ORCHESTRATOR,
    PROVIDER,
    REPLACED,
    RESCUED,
    WORKER,
    Explained,
    Meaning,
)

FAULTY = "its tasks are queued again, and the attempt does not count; the host is avoided for a while"


@dataclass(frozen=True, slots=True)
class ExitRow(Meaning):
    """One exit cause."""

    failed: bool  # False: the end was planned
    drains: bool = False  # the worker finishes its tasks, although it failed


class ExitCause(Explained):
    """`workers.exit_cause`."""

    row: ExitRow

    # fmt: off
    IDLE_TIMEOUT = "idle_timeout", ExitRow(
        "There was nothing to do for it.", NOBODY, "nothing: as planned",
        "none needed; GPU_IDLE_TIMEOUT_SEC says how long an idle worker stays", failed=False)
    SCALE_DOWN = "scale_down", ExitRow(
        "There were more workers than the queue needs.", NOBODY, "nothing: as planned",
        "none needed; GPU_OVERCAPACITY_IDLE_TIMEOUT_SEC and SPAWNING_GRACE_PERIOD_SEC say how soon", failed=False)
    MANUAL = "manual", ExitRow(
        "An operator asked for its end.", NOBODY, "another is started while there is work",
        "python -m orchestrator pause, if no other should start", failed=False)
    SHUTDOWN = "shutdown", ExitRow(
        "An operator ended all workers.", NOBODY, "others are started while there is work",
        "set MAX_ACTIVE_GPUS=0, if no other should start", failed=False)
    BUDGET = "budget", ExitRow(
        "The budget was used up.", BUDGET, "nothing is rented until the budget allows it",
        "raise DAILY_BUDGET_USD or MAX_HOURLY_COST_USD; python -m orchestrator cost --since 24h", failed=False)
    SUPERSEDED = "superseded", ExitRow(
        "A newer release, which has a handler that it lacks, or a newer schema replaces it.", NOBODY,
        "it finishes its tasks; others are started while there is work", "none needed; " + MORE, failed=False)
    SPAWN_FAILED = "spawn_failed", ExitRow(
        "Its bring-up did not succeed.", ORCHESTRATOR, REPLACED, MORE, failed=True)
    HEARTBEAT_LOST = "heartbeat_lost", ExitRow(
        "Its heartbeats stopped.", WORKER, RESCUED, "raise HEARTBEAT_TIMEOUT_SEC if it was only slow; " + LOGS,
        failed=True)
    TASK_STUCK = "task_stuck", ExitRow(
        "Its task was stuck, and its agent could not end it.", OPERATOR,
        "the task is queued again; another worker is started",
        "report progress in the handler, or raise TASK_STUCK_TIMEOUT_SEC", failed=True)
    GPU_FAULT = "gpu_fault", ExitRow(
        "A GPU of its machine failed.", PROVIDER, FAULTY, MORE, failed=True)
    HOST_FAULT = "host_fault", ExitRow(
        "Its machine failed, or is avoided because it failed before.", PROVIDER, FAULTY, MORE, failed=True)
    POD_LOST = "pod_lost", ExitRow(
        "RunPod lost or ended its pod.", PROVIDER, RESCUED,
        "see the account's balance in the RunPod console; " + MORE, failed=True)
    STALE_CODE = "stale_code", ExitRow(
        "The code on its pod was changed after it was sent.", OPERATOR,
        "it finishes its tasks; another is started while there is work",
        "look for what writes to the code's directory: a handler, WORKER_SETUP_COMMAND or a person; " + LOGS,
        failed=True, drains=True)
    WORKER_SICK = "worker_sick", ExitRow(
        "Its tasks failed one after the other, but not those of other workers; or its agent reported for ten "
        "minutes that its machine is not fit for tasks.",
        PROVIDER, "another is started while there is work; tasks that failed on it get one attempt back",
        "raise WORKER_MAX_CONSECUTIVE_FAILURES if that is usual for these tasks; " + LOGS,
        failed=True, drains=True)
    RELEASE_BAD = "release_bad", ExitRow(
        "Tasks fail one after the other on several workers of this release, or none of its workers may begin a task.",
        OPERATOR, "the breaker opens: one canary at a time until one completes a task",
        "correct the handler or the image, and deploy; " + LOGS, failed=True)
    # fmt: on


FAILURES = frozenset(cause for cause in ExitCause if cause.row.failed)
ABRUPT = frozenset(cause for cause in FAILURES if not cause.row.drains)

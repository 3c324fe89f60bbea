"""Why workers end: one row per exit cause. FAILURES, the causes that are failures, is derived from the rows."""

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


@dataclass(frozen=True, slots=True)
class ExitRow(Meaning):
    """One exit cause."""

    failed: bool  # False: the end was planned


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
        "All workers were told to end.", NOBODY, "others are started while there is work",
        "set MAX_ACTIVE_GPUS=0, if no other should start", failed=False)
    MAX_LIFETIME = "max_lifetime", ExitRow(
        "It had reached the age at which workers are renewed.", NOBODY, "another is started while there is work",
        "none needed; " + MORE, failed=False)
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
        "Its task made no progress.", OPERATOR, "the task is queued again; another worker is started",
        "report progress in the handler, or raise TASK_STUCK_TIMEOUT_SEC", failed=True)
    GPU_FAULT = "gpu_fault", ExitRow(
        "Its GPU failed.", PROVIDER, "its tasks are queued again; the host is avoided for a while", MORE, failed=True)
    HOST_FAULT = "host_fault", ExitRow(
        "Its host failed.", PROVIDER, "its tasks are queued again; the host is avoided for a while", MORE, failed=True)
    POD_LOST = "pod_lost", ExitRow(
        "RunPod lost or ended its pod.", PROVIDER, RESCUED,
        "see the account's balance in the RunPod console; " + MORE, failed=True)
    STALE_CODE = "stale_code", ExitRow(
        "It ran other code than it should.", ORCHESTRATOR, REPLACED, MORE, failed=True)
    AGENT_CRASHED = "agent_crashed", ExitRow(
        "Its agent ended by itself.", WORKER, RESCUED, LOGS, failed=True)
    WORKER_SICK = "worker_sick", ExitRow(
        "Its tasks failed one after the other, but not those of other workers; or its disk was full.",
        PROVIDER, "another is started while there is work; its tasks get one attempt back",
        "raise WORKER_MAX_CONSECUTIVE_FAILURES if that is usual for these tasks; " + LOGS, failed=True)
    RELEASE_BAD = "release_bad", ExitRow(
        "Tasks fail one after the other on several workers of this release.",
        OPERATOR, "the breaker opens: one canary at a time until one completes a task",
        "correct the handler or the image, and deploy; " + LOGS, failed=True)
    # fmt: on


FAILURES = frozenset(cause for cause in ExitCause if cause.row.failed)

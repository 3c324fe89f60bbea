"""The failure codes of tasks: what each means, who must act, what happens by itself, and the fix.

The agent and the SQL functions write these codes to `tasks.failure_code` and `task_attempts.failure_code`; a handler
may write codes of its own, which are not listed here. A unit test finds a code in worker/ or migrations/ without a row.
"""

from orchestrator.core.meanings import (
    AGAIN,
    LOGS,
    NOBODY,
    OPERATOR,
    ORCHESTRATOR,
    PROVIDER,
    REQUEUED,
    RETRY,
    Explained,
    Meaning,
)


class TaskFailure(Explained):
    """Why an attempt of a task, or the task itself, ended without success."""

    row: Meaning

    # fmt: off
    HANDLER_ERROR = "HANDLER_ERROR", Meaning(
        "The handler raised an exception.", OPERATOR, AGAIN, LOGS)
    EXIT_STATUS = "EXIT_STATUS", Meaning(
        "The handler's process ended with an error.", OPERATOR, AGAIN, LOGS)
    SIGNAL = "SIGNAL", Meaning(
        "A signal ended the handler's process.", OPERATOR, AGAIN, LOGS)
    LOST = "LOST", Meaning(
        "The handler's process closed its connection to the agent and did not end.", OPERATOR, AGAIN, LOGS)
    OOM = "OOM", Meaning(
        "The pod's memory limit was reached: the kernel ended the handler.",
        OPERATOR, AGAIN, "raise RUNPOD_MIN_MEMORY_GB, or make the task smaller")
    VRAM_OOM = "VRAM_OOM", Meaning(
        "The GPU's memory was too small for the task.",
        OPERATOR, AGAIN, "set RUNPOD_GPU_TYPE to one with more memory, or make the task smaller")
    TIMEOUT = "TIMEOUT", Meaning(
        "The attempt took longer than the task allows.",
        OPERATOR, AGAIN, "python -m orchestrator tasks submit --timeout-s SECONDS, with more of them")
    CANCELLED = "CANCELLED", Meaning(
        "Somebody cancelled the task.", NOBODY, "nothing", RETRY)
    INVALID_CODE = "INVALID_CODE", Meaning(
        "The handler or the agent reported an invalid code; allowed are capital letters, digits and '_'.",
        OPERATOR, AGAIN, LOGS)
    NO_HANDLER = "NO_HANDLER", Meaning(
        "No handler is set for this type of task, on that worker or in the leader's release.",
        OPERATOR, AGAIN, "add it to WORKER_HANDLERS: type=module:function")
    EARLIER_RELEASE = "EARLIER_RELEASE", Meaning(
        "The worker is of an earlier release, without a handler for this type; the present one has it.",
        ORCHESTRATOR, "a worker of the present release is started and runs it; the attempt does not count",
        "none needed; or end the earlier ones now: python -m orchestrator terminate <worker>")
    HANDLER_NOT_STARTED = "HANDLER_NOT_STARTED", Meaning(
        "The handler's process could not be started.",
        OPERATOR, AGAIN, "see WORKER_PYTHON and WORKER_SETUP_COMMAND; " + LOGS)
    RESULT_REFUSED = "RESULT_REFUSED", Meaning(
        "The handler's result was refused: it is too large, or not JSON.",
        OPERATOR, "nothing: another attempt would end the same way",
        "upload it and return its location; then " + RETRY)
    OUTPUT_REFUSED = "OUTPUT_REFUSED", Meaning(
        "It made a file that cannot be stored: its name, its kind, its size, or a link that leaves the task's folder.",
        OPERATOR, "nothing: another attempt would make the same file",
        "rename or copy the file that the task's message names (docs/outputs.md has the rules); then " + RETRY)
    RELEASED = "RELEASED", Meaning(
        "The worker gave the task back: it had to end, or it could not serve the task.",
        NOBODY, "it goes back to the queue, and the attempt does not count; from the third time in a row on it waits",
        "none needed, if it is rare; " + LOGS)
    MACHINE_FAULT = "MACHINE_FAULT", Meaning(
        "The machine of the worker that held it failed.",
        PROVIDER, "it goes back to the queue at once; up to three such attempts of a task do not count",
        "python -m orchestrator explain <worker>")
    WORKER_LOST = "WORKER_LOST", Meaning(
        "The worker that held it is gone.", NOBODY, REQUEUED, "python -m orchestrator explain <worker>")
    LEASE_EXPIRED = "LEASE_EXPIRED", Meaning(
        "The worker that held it stopped renewing its lease.",
        NOBODY, REQUEUED, "python -m orchestrator explain <worker>")
    NO_HOLDER = "NO_HOLDER", Meaning(
        "It was In Progress without a lease, and nobody changed it for TASK_STUCK_TIMEOUT_SEC.",
        OPERATOR, REQUEUED,
        "none needed; programs that take tasks themselves belong in a pool with WORKER_START_COMMAND")
    TASK_STUCK = "TASK_STUCK", Meaning(
        "It showed no sign of life for TASK_STUCK_TIMEOUT_SEC: no report, output, file, processor or GPU time.",
        OPERATOR, AGAIN, "report progress in the handler, or raise TASK_STUCK_TIMEOUT_SEC")
    OUTPUT_MISSING = "OUTPUT_MISSING", Meaning(
        "The task was reported as complete, but its output is not in the bucket.",
        OPERATOR, AGAIN, "let the handler upload through task.upload(); see S3_BUCKET")
    OUTPUT_EXISTS = "OUTPUT_EXISTS", Meaning(
        "It stored two different files under one name; an output is written once.",
        OPERATOR, AGAIN, "let the handler give each file its own name in task.upload(); " + LOGS)
    OUTPUT_REPLACED = "OUTPUT_REPLACED", Meaning(
        "The bucket holds another object than the one with which a dependency was completed.",
        OPERATOR, "nothing: it gets no bytes that its dependency did not store",
        "find out who writes to S3_BUCKET; submit the dependency again, and this task with it")
    INPUTS_TOO_LARGE = "INPUTS_TOO_LARGE", Meaning(
        "Its params and its dependencies' results are more than the 32 MiB or 500,000 JSON values of a claim.",
        OPERATOR, "nothing: no worker can receive it", "store large data with task.upload() in the handlers; " + RETRY)
    INPUTS_UNREADABLE = "INPUTS_UNREADABLE", Meaning(
        "Its params or its dependencies' results are nested too deeply, or a number is too long.",
        OPERATOR, "nothing: no worker could read it",
        "at most 64 levels and 4000 digits: change its params; then " + RETRY)
    DEPENDENCY_FAILED = "DEPENDENCY_FAILED", Meaning(
        "A task that it depends on failed or was cancelled.",
        OPERATOR, "nothing until that one is retried: then this one is queued again too",
        "python -m orchestrator tasks retry <task>, with the id of the dependency")
    DEPENDENCY_DELETED = "DEPENDENCY_DELETED", Meaning(
        "A task that it depends on was deleted before it was complete, or was never inserted.",
        OPERATOR, "nothing: a task that does not exist is never complete",
        "submit it again without that dependency, or insert the dependency; then " + RETRY)
    DEPENDENCY_CYCLE = "DEPENDENCY_CYCLE", Meaning(
        "It waits for tasks that wait for each other.",
        OPERATOR, "nothing: none of them could ever run", "correct depends_on of one of them; then " + RETRY)
    SLURM_PARAMS = "SLURM_PARAMS", Meaning(
        "The task's params do not describe a Slurm job.",
        OPERATOR, "nothing: another attempt would end the same way",
        "see the params in docs/clusters.md; python -m orchestrator cluster submit makes them from options")
    SLURM_TOO_LARGE = "SLURM_TOO_LARGE", Meaning(
        "The task asks for more nodes than the cluster of its pool may have.",
        OPERATOR, "nothing: it would wait without end",
        "python -m orchestrator cluster scale CLUSTER --max-nodes N, then " + RETRY + "; or submit it with fewer nodes")
    SLURM_REFUSED = "SLURM_REFUSED", Meaning(
        "Slurm refused the job: for example, it asks for more GPUs than a node has.",
        OPERATOR, AGAIN, "the task's message has sbatch's own words: change params; then " + RETRY)
    SLURM_TIME_LIMIT = "SLURM_TIME_LIMIT", Meaning(
        "The Slurm job ran for longer than params.time_limit_s.",
        OPERATOR, AGAIN, "raise params.time_limit_s (python -m orchestrator cluster submit --time-limit)")
    SLURM_CANCELLED = "SLURM_CANCELLED", Meaning(
        "The Slurm job was cancelled on the cluster, not through the task.",
        OPERATOR, "nothing: somebody wanted it to end", "find out who called scancel; then " + RETRY)
    SLURM_NODE_FAILED = "SLURM_NODE_FAILED", Meaning(
        "A node of the Slurm job failed while the job ran.",
        PROVIDER, AGAIN, "none needed: the node is replaced; python -m orchestrator cluster list")
    SLURM_JOB_LOST = "SLURM_JOB_LOST", Meaning(
        "The cluster's slurmctld lost the job: it was replaced or killed, or it did not answer for minutes.",
        ORCHESTRATOR, AGAIN, "none needed, if it is rare; python -m orchestrator cluster list")
    SLURM_UNAVAILABLE = "SLURM_UNAVAILABLE", Meaning(
        "The worker that claimed the task has no cluster that can start a job now.",
        ORCHESTRATOR, "it goes back to the queue, and the attempt does not count",
        "none needed, if it is rare; python -m orchestrator cluster list")
    # fmt: on

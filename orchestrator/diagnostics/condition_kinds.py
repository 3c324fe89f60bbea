"""The table of conditions: one row for each kind of thing that can be wrong with a fleet.

`rules.py` finds conditions in the facts. `health`, `diagnose`, `list`, the gauge `orchestrator_condition`, the alerts
and docs/health.md show them; none of them has checks or texts of its own. The order of the kinds is the order in which
they are shown: a cause comes before its effects.

The fleet is UNHEALTHY if ready tasks wait because of a condition, if a running task is lost by it, or if money is
spent without control. Otherwise the condition is a warning.
"""

from dataclasses import dataclass
from enum import Flag, auto

from orchestrator.core.blocked import ROOM
from orchestrator.core.meanings import (
    AGAIN,
    BUDGET,
    CAPACITY,
    NOBODY,
    OPERATOR,
    ORCHESTRATOR,
    PROVIDER,
    REPLACED,
    REQUEUED,
    RESCUED,
    Explained,
)

HIGH, MEDIUM, LOW = "HIGH", "MEDIUM", "LOW"
MIGRATE = "python -m orchestrator migrate"
START = "Start it: python -m orchestrator run (on Railway: restart the service)"
ONCE_CORRECTED = "the tasks wait until that is corrected"
AT_DEADLINE = "at the deadline of its stage a worker is ended, and another is started while there is work"
SILENT_ENDS = "if its heartbeats stop for DEADMAN_TIMEOUT_SEC, it ends (heartbeat_lost); its tasks are queued again"
HAVE_FAILED = "nothing: they have failed; a retry queues them again"
GOES_ON = "nothing: the worker goes on"
OVER = "nothing: it is over"
RESOLVED = "none needed; python -m orchestrator list --all shows which workers it was"


class Impact(Flag):
    """What a condition does to work and money."""

    NONE = 0
    WAIT = auto()  # ready tasks wait because of it
    LOSS = auto()  # a running task is lost by it
    MONEY = auto()  # money is spent without control


@dataclass(frozen=True, slots=True)
class ConditionRow:
    """One kind of condition. `text` and `fix` name facts of a condition's `detail` in braces."""

    category: str  # in the report
    text: str
    fix: str
    unhealthy: Impact = Impact.NONE  # the fleet is UNHEALTHY if a condition of this kind does one of these
    level: str = MEDIUM  # of a condition that does none of them: MEDIUM, a warning; LOW, a remark
    who: str = OPERATOR  # must act, unless `detail` names the party
    then: str = ONCE_CORRECTED  # what happens by itself, unless `detail` says it; the default is for WAIT only
    alert: str | None = None  # its rule in ops/alerts.yml
    waits_s: float = 0.0  # seconds since its `since`, after which the alert rule and the message count it
    after_s: float = 60.0  # seconds for which it must last until the rule fires, or its message is sent


class ConditionKind(Explained):
    """What can be wrong. The values are labels of the metric, and anchors in docs/health.md."""

    row: ConditionRow

    # fmt: off
    SETTINGS_MISSING = "settings_missing", ConditionRow(
        "Environment", "Missing critical environment variables",
        "Add missing environment variables to Railway deployment", Impact.WAIT)
    SETTING_UNUSABLE = "setting_unusable", ConditionRow("Environment", "{what}", "{fix}", Impact.WAIT)
    SSH_KEYS_UNUSABLE = "ssh_keys_unusable", ConditionRow("SSH", "{what}", "{fix}", Impact.WAIT)
    SCHEMA_MISMATCH = "schema_mismatch", ConditionRow(
        "Database", "The database's schema is not this version's", MIGRATE, Impact.WAIT | Impact.LOSS)
    DATABASE_DOWN = "database_down", ConditionRow(
        "Database", "The database {what}", "{fix}", Impact.WAIT | Impact.LOSS,
        alert="OrchestratorDependencyDown", after_s=300)
    SCHEMA_CHANGED = "schema_changed", ConditionRow(
        "Database", "The database was changed: {what}", "{fix}", Impact.WAIT | Impact.LOSS)
    FUNCTIONS_MISSING = "functions_missing", ConditionRow(
        "Database", "The database lacks functions of this version", MIGRATE, Impact.WAIT | Impact.LOSS)
    CLAIMING_BROKEN = "claiming_broken", ConditionRow(
        "Tasks", "Tasks cannot be claimed: worker_claim does not work", MIGRATE, Impact.WAIT | Impact.LOSS)
    DATABASE_SLOW = "database_slow", ConditionRow(
        "Database", "The database is slow: an answer took {seconds:.1f} s",
        "see its load and size; python -m orchestrator doctor database", alert="OrchestratorDatabaseSlow", after_s=300,
        then="work goes on, more slowly")
    NO_LEADER = "no_leader", ConditionRow(
        "Orchestrator", "The orchestrator process is not running", START, Impact.WAIT | Impact.MONEY,
        who=ORCHESTRATOR, then="workers continue; none is started or ended", alert="OrchestratorNobodyLeads")
    TICKS_FAIL = "ticks_fail", ConditionRow(
        "Orchestrator", "The orchestrator leads, but its ticks fail: nothing is started or ended",
        "read its log: tick_aborted; python -m orchestrator migrate, if the database refuses a call",
        Impact.WAIT | Impact.MONEY, who=ORCHESTRATOR, then="it tries again at each tick",
        alert="OrchestratorTicksAborted", after_s=120)
    LEADER_SILENT = "leader_silent", ConditionRow(
        "Orchestrator", "The orchestrator does not renew its lease: {what}", "see whether its process hangs",
        level=LOW, alert="OrchestratorLoopStands",
        then="another orchestrator leads once the lease has expired, if one runs")
    STORE_DOWN = "store_down", ConditionRow(
        "S3", "S3 cannot be used: no worker claims a task, and results wait",
        "python -m orchestrator doctor s3 clock", Impact.WAIT | Impact.MONEY, who=PROVIDER,
        then="workers claim again once it takes objects", alert="OrchestratorStoreDown", after_s=120)
    STORE_SLOW = "store_slow", ConditionRow(
        "S3", "S3 is slow: one request took {seconds:.1f} s", "python -m orchestrator doctor s3",
        alert="OrchestratorStoreSlow", after_s=300,
        then="work goes on, more slowly")
    STORE_UNREACHED = "store_unreached", ConditionRow(
        "S3", "Worker {worker} cannot store its result in S3, for {lasts} now",
        "python -m orchestrator explain {worker}; python -m orchestrator terminate {worker}, if S3 works for others",
        Impact.MONEY,
        alert="OrchestratorStoreUnreached",
        then="the worker tries again to store it")
    STORE_UNSEEN = "store_unseen", ConditionRow(
        "S3", "S3 refuses or does not answer this process; the orchestrator reports no outage",
        "python -m orchestrator doctor s3",
        then="the fleet goes on; this process cannot read what is in S3")
    BUCKET_FAR = "bucket_far", ConditionRow(
        "S3", "{count:worker runs|workers run} in {place}, on another continent than the bucket ({bucket})",
        "put data centres near the bucket first in RUNPOD_DATA_CENTERS, or use a bucket near the pods",
        then="work goes on; transfers take longer")
    API_KEY_REFUSED = "api_key_refused", ConditionRow(
        "RunPod", "Authentication failed: RunPod refuses the API key",
        "Set RUNPOD_API_KEY to a key that may manage pods", Impact.WAIT | Impact.MONEY,
        alert="OrchestratorRunPodRefuses", after_s=300)
    PROVIDER_DOWN = "provider_down", ConditionRow(
        "RunPod", "RunPod does not answer", "See its status page; nothing is decided", Impact.WAIT | Impact.MONEY,
        who=PROVIDER, then="workers are started again once it answers",
        alert="OrchestratorDependencyDown", after_s=300)
    PROVIDER_UNSEEN = "provider_unseen", ConditionRow(
        "RunPod", "RunPod refuses or does not answer this process, but works for the orchestrator",
        "python -m orchestrator doctor runpod; is RUNPOD_API_KEY here the orchestrator's?",
        then="the fleet goes on; this process cannot look at RunPod")
    HALTED = "halted", ConditionRow(
        "RunPod", "RunPod refuses to rent for pool {pool} ({code}): {means}", "{fix}", Impact.WAIT,
        alert="OrchestratorHalted", after_s=120)
    NO_MONEY = "no_money", ConditionRow(
        "RunPod", "The RunPod account has no money: {balance_usd:usd}",
        "add funds in the RunPod console; at $0 RunPod deletes every pod", Impact.WAIT | Impact.LOSS,
        alert="OrchestratorNoMoney", after_s=120)
    BUDGET_SPENT = "budget_spent", ConditionRow(
        "Cost", "The budget does not allow another worker of pool {pool}",
        "raise DAILY_BUDGET_USD or MAX_HOURLY_COST_USD; python -m orchestrator cost --since 24h", Impact.WAIT,
        who=BUDGET, then=ROOM, alert="OrchestratorBudgetSpent", after_s=300)
    DEAR_PODS = "dear_pods", ConditionRow(
        "Cost", "Pods of pool {pool} cost more than RunPod's catalogue says, and more than the budget allows",
        "raise DAILY_BUDGET_USD or MAX_HOURLY_COST_USD, or name other types in RUNPOD_GPU_TYPE; "
        "python -m orchestrator explain scaling", Impact.WAIT, after_s=120)
    PRICE_UNKNOWN = "price_unknown", ConditionRow(
        "RunPod", "RunPod shows no price for a GPU of pool {pool}, so no budget can allow it",
        "see python -m orchestrator gpus; name other types in RUNPOD_GPU_TYPE, or remove the budgets", Impact.WAIT,
        who=BUDGET, then=ROOM, after_s=300)
    SOLD_OUT = "sold_out", ConditionRow(
        "RunPod", "Every offer of pool {pool} is sold out",
        "add to RUNPOD_GPU_TYPE or RUNPOD_DATA_CENTERS; python -m orchestrator explain scaling", Impact.WAIT,
        who=CAPACITY, then="RunPod is asked again with one call, then with more",
        alert="OrchestratorSoldOut", after_s=600)
    OFFERS_UNUSABLE = "offers_unusable", ConditionRow(
        "Scaling", "Pool {pool} has no offer that can be used: {means}", "{fix}", Impact.WAIT,
        alert="OrchestratorOffersUnusable", after_s=300)
    POOL_OFF = "pool_off", ConditionRow(
        "Scaling", "Pool {pool} may have no workers: MAX_ACTIVE_GPUS=0", "{fix}", Impact.WAIT, after_s=600)
    POOL_UNKNOWN = "pool_unknown", ConditionRow(
        "Tasks", "{count:task waits|tasks wait} in pool {pool}, which is not configured",
        "correct POOLS_FILE, or submit with another --pool", Impact.WAIT,
        alert="OrchestratorTasksNobodyServes", after_s=120)
    CLUSTER_FAILED = "cluster_failed", ConditionRow(
        "Clusters", "Cluster {cluster} of pool {pool} has failed: {what}", "{fix}", Impact.WAIT,
        alert="OrchestratorClusterFailed")
    NO_CLUSTER = "no_cluster", ConditionRow(
        "Clusters", "{count:task waits|tasks wait} in pool {pool}, which has no cluster",
        "python -m orchestrator cluster create NAME --pool {pool} --nodes N", Impact.WAIT,
        alert="OrchestratorNoCluster", after_s=300)
    CLUSTER_DEGRADED = "cluster_degraded", ConditionRow(
        "Clusters", "Cluster {cluster} of pool {pool} is {state}: {what}", "{fix}", Impact.WAIT,
        who=ORCHESTRATOR, alert="OrchestratorClusterDegraded", after_s=600,
        then="the orchestrator repairs it, or replaces its nodes")
    NO_HANDLER = "no_handler", ConditionRow(
        "Tasks", "{count:task|tasks} of type {task_type} cannot run: WORKER_HANDLERS has no handler for it",
        "add it to WORKER_HANDLERS: type=module:function", Impact.WAIT,
        alert="OrchestratorNoHandler", after_s=120,
        then="each task goes back to the queue, after a pause, until its attempts are used up; then it is Failed")
    TASKS_UNPUBLISHED = "tasks_unpublished", ConditionRow(
        "Tasks", "The table tasks shows an earlier status of {count:task|tasks} of pool {pool}: "
        "a trigger, constraint or lock of yours keeps it",
        "change that trigger or constraint, or end the transaction that locks the row; "
        "python -m orchestrator explain {task}", alert="OrchestratorTasksUnpublished", after_s=120,
        then="nothing is lost; the orchestrator writes the rows again after a pause")
    BRINGUPS_FAIL = "bringups_fail", ConditionRow(
        "Workers", "{what} in pool {pool}: the last {count:bring-up|bring-ups} failed ({code}): {means}", "{fix}",
        Impact.WAIT, alert="OrchestratorBringUpsFail", after_s=300)
    BREAKER_OPEN = "breaker_open", ConditionRow(
        "Scaling", "The breaker of pool {pool} is open: one canary at a time is started",
        "python -m orchestrator explain scaling; after a correction: python -m orchestrator spawn", Impact.WAIT,
        who=ORCHESTRATOR, then="one worker at a time is tried, until one succeeds",
        alert="OrchestratorBreakerOpen", after_s=300)
    AUTH_FAILS = "auth_fails", ConditionRow("SSH", "SSH authentication fails: {means}", "{fix}", Impact.WAIT)
    WORKERS_STUCK = "workers_stuck", ConditionRow(
        "Workers", "{count:worker|workers} stuck in {state}, stage {stage}: waiting on {who}: {what}", "{fix}",
        Impact.WAIT | Impact.MONEY, alert="OrchestratorWorkersStuck", after_s=300,
        then=AT_DEADLINE)
    BRINGUP_SLOW = "bringup_slow", ConditionRow(
        "Workers", "{count:worker|workers} in bring-up at stage {stage}, waiting on {who}: {what}",
        "python -m orchestrator explain {worker}", level=LOW,
        then=AT_DEADLINE)
    DELETES_FAIL = "deletes_fail", ConditionRow(
        "RunPod", "RunPod has not deleted the pod of worker {worker} after {count} requests",
        "delete it in the RunPod console; python -m orchestrator explain {worker}", Impact.MONEY,
        alert="OrchestratorDeletesFail", after_s=300,
        then="RunPod is asked again")
    DELETE_LATE = "delete_late", ConditionRow(
        "RunPod", "RunPod has not deleted the pod of worker {worker} yet, and still lists it",
        "none needed; python -m orchestrator explain {worker}", level=LOW, who=PROVIDER,
        then="RunPod is asked again")
    POISON_TASK = "poison_task", ConditionRow(
        "Tasks", "Task {task} ({task_type}) has ended {count} workers ({code})",
        "python -m orchestrator explain {task}; python -m orchestrator tasks cancel {task}", Impact.LOSS,
        alert="OrchestratorPoisonTask",
        then=AGAIN)
    TASKS_LOST = "tasks_lost", ConditionRow(
        "Tasks", "{count:running task was lost with its|running tasks were lost with their} worker ({code}): {means}",
        "{fix}", Impact.LOSS, alert="OrchestratorTasksLost",
        then=REQUEUED)
    WORKERS_FAILED = "workers_failed", ConditionRow(
        "Workers", "{count:worker|workers} in service failed ({code}): {means}", "{fix}",
        alert="OrchestratorWorkersFail", after_s=900,
        then=RESCUED)
    PROCESS_ENDED = "process_ended", ConditionRow(
        "Workers", "Worker {worker}: SSH works, but its process is not running ({agent})",
        "python -m orchestrator terminate {worker}", Impact.LOSS | Impact.MONEY,
        then=SILENT_ENDS)
    GATEWAY_UNREACHED = "gateway_unreached", ConditionRow(
        "Orchestrator", "{count:worker is|workers are} silent and may be well; waiting for {what}",
        "see that pods reach WORKER_API_URL: its DNS name, its certificate, the platform's proxy",
        Impact.WAIT | Impact.LOSS | Impact.MONEY, alert="OrchestratorGatewayUnreached",
        then="they go on as soon as their calls arrive again")
    WORKER_SILENT = "worker_silent", ConditionRow(
        "Workers", "Worker {worker} has sent no heartbeat for {silent}", "python -m orchestrator explain {worker}",
        Impact.LOSS | Impact.MONEY, alert="OrchestratorWorkerSilent",
        then=SILENT_ENDS)
    POD_UNSEEN = "pod_unseen", ConditionRow(
        "RunPod", "Worker {worker} works, but RunPod's list differs: {what}", "python -m orchestrator explain {worker}",
        then="nothing: the worker goes on while its heartbeats arrive")
    MACHINE_FAULT = "machine_fault", ConditionRow(
        "Workers", "Worker {worker} is on a faulty machine: {means} ({code})", "{fix}", Impact.WAIT | Impact.LOSS,
        alert="OrchestratorMachineFault", after_s=120,
        then=REPLACED)
    MACHINE_BLOCKED = "machine_blocked", ConditionRow(
        "Workers", "Worker {worker} claims no tasks: {means} ({code})", "{fix}", Impact.WAIT,
        alert="OrchestratorMachineBlocked", after_s=600,
        then="it claims again once this is over; other workers take the tasks meanwhile")
    NOT_CLAIMING = "not_claiming", ConditionRow(
        "Tasks", "Worker {worker} is {state} but does not claim tasks", "python -m orchestrator logs {worker}",
        Impact.WAIT, alert="OrchestratorNotClaiming", after_s=300,
        then="the tasks wait until this or another worker claims them")
    WORKER_UNFIT = "worker_unfit", ConditionRow(
        "Workers", "Worker {worker} claims no more: {why}", "python -m orchestrator logs {worker}", Impact.WAIT,
        alert="OrchestratorWorkerUnfit", after_s=600,
        then="it claims again once it is fit; other workers take the tasks meanwhile")
    PODS_WITHOUT_ROWS = "pods_without_rows", ConditionRow(
        "RunPod", "{count:orphaned pod costs|orphaned pods cost} {cost} and no worker names them",
        "python -m orchestrator sync terminate_orphaned", Impact.MONEY,
        alert="OrchestratorPodsWithoutRows", after_s=300,
        then="the orchestrator deletes pods that no worker names")
    ROWS_WITHOUT_PODS = "rows_without_pods", ConditionRow(
        "Database", "{count:stale worker row: its pod is|stale worker rows: their pods are} gone",
        "python -m orchestrator sync update_database", Impact.LOSS,
        then="the orchestrator ends the rows; their tasks are queued again")
    NO_HOLDER = "no_holder", ConditionRow(
        "Tasks", "No worker holds {count:task that is|tasks that are} In Progress",
        "They are queued again by the next tick: python -m orchestrator once", Impact.LOSS,
        alert="OrchestratorTasksWithoutHolder", after_s=300,
        then="the next tick queues them again")
    PAUSED = "paused", ConditionRow(
        "Orchestrator", "Spawning is paused in {where}", "{fix}", Impact.WAIT,
        then="no worker is started until it is resumed", after_s=600)
    SCALE_LIMITED = "scale_limited", ConditionRow(
        "Scaling", "An operator allows fewer workers in pool {pool} than its queue needs", "{fix}", Impact.WAIT,
        then="more workers are started once the limit ends", after_s=600)
    BACKLOG = "backlog", ConditionRow(
        "Scaling", "Backlog in pool {pool}: {count:task waits|tasks wait}, the oldest for {oldest}", "{fix}",
        Impact.WAIT, alert="OrchestratorTasksWait", waits_s=1_800, after_s=300,
        then="workers claim the tasks, the oldest first")
    TASKS_BLOCKED = "tasks_blocked", ConditionRow(
        "Tasks", "All {count} queued tasks are blocked",
        "python -m orchestrator tasks list --status Queued; python -m orchestrator explain ID",
        then="they wait until what blocks them ends")
    SEGMENTS_MISSING = "segments_missing", ConditionRow(
        "Tasks", "{count:task|tasks} of type {task_type} failed: {message}",
        "Submit stitch tasks with depends_on: the claim hands over their outputs; "
        "python -m orchestrator explain {task}",
        then=HAVE_FAILED)
    TASKS_FAILED = "tasks_failed", ConditionRow(
        "Tasks", "{count:task|tasks} of type {task_type} failed within {within}: {code}",
        "python -m orchestrator explain {task}", alert="OrchestratorTasksFail", after_s=900,
        then=HAVE_FAILED)
    WEBHOOKS_UNDELIVERABLE = "webhooks_undeliverable", ConditionRow(
        "Tasks", "{count:webhook message was|webhook messages were} given up within a day, the last one to {host}",
        "python -m orchestrator webhooks list --state undeliverable; correct the receiver, then "
        "python -m orchestrator webhooks retry",
        after_s=300,
        then="nothing: they are not sent again")
    WEBHOOKS_LATE = "webhooks_late", ConditionRow(
        "Tasks", "{count:webhook message has|webhook messages have} been due for more than 5 minutes",
        "set WEBHOOK_SECRET, if it is not set; python -m orchestrator webhooks list --state waiting", after_s=300,
        then="each is sent again for a day")
    SCHEDULE_FAILS = "schedule_fails", ConditionRow(
        "Tasks", "Schedule {name} submits no task",
        "python -m orchestrator schedules list; correct it: python -m orchestrator schedules add {name}",
        alert="OrchestratorScheduleFails", after_s=300,
        then="it is tried again at its next time")
    MACHINE_WARNING = "machine_warning", ConditionRow("Workers", "Worker {worker}: {means} ({code})", "{fix}",
        then=GOES_ON)
    FOREIGN_PODS = "foreign_pods", ConditionRow("RunPod", "{what}", "{fix}",
        then="nothing: they are left as they are")
    SSH_UNREACHABLE = "ssh_unreachable", ConditionRow(
        "SSH", "{count:worker works|workers work}, but cannot be reached over SSH: the logs wait on the pods",
        "python -m orchestrator explain {worker}",
        then="the workers go on; their logs wait on the pods")
    LOGS_LATE = "logs_late", ConditionRow(
        "Workers", "The logs of worker {worker} do not reach S3: {why}", "python -m orchestrator explain {worker}",
        alert="OrchestratorLogsLag", after_s=600,
        then="the worker sends them again")
    SSH_FAILED = "ssh_failed", ConditionRow(
        "SSH", "SSH connections failed within a day: {codes}", "python -m orchestrator explain {code}",
        then="no task waits for it; this ends a day after the last failure")
    WORKERS_UNKNOWN = "workers_unknown", ConditionRow(
        "Workers", "No facts are available about {count:worker|workers}", "python -m orchestrator status {worker}",
        then="the workers go on")
    DEAR_DAY = "dear_day", ConditionRow(
        "Cost", "Cost anomaly: ${usd:.2f} in the last 24 hours, usually ${usual_usd:.2f} a day",
        "python -m orchestrator cost --since 24h --by worker",
        then="nothing: only budgets, if they are set, stop new workers")
    IDLE_MONEY = "idle_money", ConditionRow(
        "Cost", "Cost anomaly: worker {worker} cost ${usd:.2f} and worked for {share:.0%} of it",
        "python -m orchestrator explain {worker}",
        then="it ends after its pool's idle timeout, unless it is kept warm")
    RETRIES_WAIT = "retries_wait", ConditionRow(
        "Tasks", "{count:queued task waits for its|queued tasks wait for their} time: "
        "a retry's pause, or submitted for later",
        "python -m orchestrator tasks list --status Queued; python -m orchestrator explain ID", level=LOW, who=NOBODY,
        then="a worker can claim each at its time")
    AUTH_RESOLVED = "auth_resolved", ConditionRow(
        "SSH", "SSH authentication failed within a day, and works again", RESOLVED, level=LOW, who=NOBODY,
        then=OVER)
    SSH_RESOLVED = "ssh_resolved", ConditionRow(
        "SSH", "SSH connections failed within a day, and work again: {codes}", RESOLVED, level=LOW, who=NOBODY,
        then=OVER)
    PLACE_UNREACHABLE = "place_unreachable", ConditionRow(
        "Network", "{place} cannot be reached from here", "curl -i {url}", level=LOW,
        then="the fleet goes on; only this process cannot reach it")
    MACHINE_NOTE = "machine_note", ConditionRow("Workers", "Worker {worker}: {means} ({code})", "{fix}", level=LOW,
        then=GOES_ON)
    OTHER_CODE = "other_code", ConditionRow(
        "Deployment", "{count:worker runs|workers run} other code than this",
        "They finish with it; new workers get this one", level=LOW, who=NOBODY,
        then="they finish with it; new workers get this one")
    # fmt: on

    @property
    def rank(self) -> int:
        """Return the place of the kind in the table."""
        return RANKS[self]

    @property
    def anchor(self) -> str:
        """Return the place in the docs that describes the kind."""
        return f"docs/health.md#{self}"


RANKS = {kind: number for number, kind in enumerate(ConditionKind)}

"""The contract between the agent on a pod, the orchestrator and the database functions `worker_*`.

Transport: `POST {api_url}/rest/v1/rpc/<function>` with `Authorization: Bearer <token>` and one JSON object of named
arguments. The answer is one JSON object, as PostgREST returns it. A refusal is a non-2xx answer with
`{"code", "message", "details", "hint"}`, where `code` is one of the SQLSTATEs below.

Old agents keep running after a deployment, so names are only added. Raise PROTOCOL if the meaning of a name changes.
"""

PROTOCOL = 1

# Functions. Every call names every argument; `p_worker_id text` and `p_nonce text` (the launch) are in all of them.
REGISTER = "worker_register"  # p_agent jsonb -> {outcome: ok, wanted, heartbeat_s, lease_s}
# p_claim_no bigint, p_batch int, p_wait_s numeric -> {outcome: ok, wanted, tasks: [CLAIMED]}. An answer without a task
# to a call with p_wait_s = 0 uses up the claim number. The gateway holds a claim open and passes the rest of the wait.
CLAIM = "worker_claim"
# p_tasks jsonb [{id, attempt, progress, still_s}], p_health jsonb (null: unchanged), p_logs jsonb -> {outcome, wanted,
# cancel, stuck, fenced, led}; still_s: seconds without a sign of life; stuck: attempts that the agent must end; led:
# there is a leader
HEARTBEAT = "worker_heartbeat"
# p_task_id, p_attempt, p_output_location, p_result_data -> {outcome: ok|already|fenced|unverified|pending, why};
# unverified: the store does not have the output, and nothing was completed; why: what refuses the result
COMPLETE = "worker_complete"
# COMPLETE with p_output jsonb {upload: {started_s, ended_s}}: when the agent uploaded the task's outputs, in seconds
# since it got the task. If an older gateway does not know the function, the agent repeats the report with COMPLETE.
COMPLETE_OUTPUT = "worker_complete_output"
COMPLETIONS = frozenset({COMPLETE, COMPLETE_OUTPUT})  # of one task
# p_results jsonb [{task_id, attempt, result_data}], 1 to 100, no outputs -> {outcomes: [ok|already|fenced]}, in the
# same order. The agent repeats other results one by one with COMPLETE, which an older gateway knows too.
COMPLETE_MANY = "worker_complete_many"
# p_results, p_claim_no, p_batch -> {outcomes, wanted, tasks}: COMPLETE_MANY, then CLAIM without a wait, in one
# transaction. If it is not answered, the agent repeats each result alone, and the claim under the same number.
COMPLETE_AND_CLAIM = "worker_complete_and_claim"
FAIL = "worker_fail"  # p_task_id, p_attempt, p_failure -> {outcome: requeued|failed|cancelled|already|fenced}
# p_task_id, p_attempt, p_reason -> {outcome: ok|already|fenced}; the attempt does not count
RELEASE = "worker_release"
# p_items jsonb [{method, key}] -> {outcome: ok|pending, items: [{method, key, url, location}], refused: [key]}.
# More keys of a PUT: once, bytes, sha256 (a conditional write with a signed checksum; the answer has headers, head);
# verify (check {url, headers}: a HEAD); multipart: true (create {url, headers}); upload_id, parts [{n, bytes, sha256}]
# (parts [{url, headers}] in the same order, complete, abort). A release leaves out of its answer what it does not know.
GRANTS = "worker_grants"
# -> {outcome: ok|pending|fenced, sealed: [text]}: the next token, after half of a token's lifetime (worker/renewal.py)
RENEW = "worker_renew"
# p_id bigint, p_ok boolean, p_error text -> {outcome: ok|already|fenced}: the end of an entry of `node_tasks`
# [{id, kind, payload}], which the answer to a heartbeat of a cluster's worker may have; they repeat it until then.
NODE_TASK_DONE = "worker_node_task_done"
AUTHORIZED_KEY = "allocation.reconcile_managed_authorized_key"  # their kind; payload {key: "type base64"}
MANAGED_KEY = "gpu-orchestrator-managed"  # the last word of the orchestrator's own line in authorized_keys

# The keys of one claimed task (CLAIMED). `attempt` is the fencing token of every later call about the task.
CLAIMED = (
    "id", "task_type", "params", "attempt", "max_attempts", "timeout_s", "dependencies", "output_prefix", "traceparent",
)  # fmt: skip
# The keys of one entry of `dependencies`: the outputs of an earlier task.
DEPENDENCY = ("id", "task_type", "output_location", "result_data")

# `wanted` in the answers to register, claim and heartbeat.
RUN = "run"  # continue
DRAIN = "drain"  # finish the held tasks, claim no more
STOP = "stop"  # release the held tasks now and exit

# Outcomes.
OK, ALREADY, FENCED = "ok", "already", "fenced"
REQUEUED, FAILED, CANCELLED = "requeued", "failed", "cancelled"
# With HTTP 202: the agent repeats the call. Either the leader must answer first (only over PostgREST), or the database
# refuses a result. An older agent takes the status for a busy server and repeats the call too.
PENDING = "pending"
UNVERIFIED = "unverified"  # an older agent takes it for an acknowledgement, its lease expires, and the attempt is lost

# SQLSTATEs of refusals (PostgREST puts them in `code`).
NOT_LEADER = "OR001"
LOST_RACE = "OR002"
OVER_BUDGET = "OR003"
UNKNOWN_WORKER = "OR005"  # no such worker, or it has terminated: stop
BAD_TOKEN = "OR006"  # the token is not this worker's, or was revoked: stop
BAD_ARGUMENT = "OR007"
UNKNOWN_FUNCTION = "PGRST202"  # PostgREST's code: the release does not have this function

# Where an attempt failed (`failed_at_point`) and how its process ended (`exit_class`): keys of p_failure are
# {code, message, point, exit_class, retryable, detail}.
POINTS = ("Claiming", "Processing", "Completion")
EXIT_CLASSES = ("exception", "oom", "vram_oom", "signal", "timeout", "cancelled", "lost")

# Failure codes that the agent and the gateway share.
MAX_UPLOAD_BYTES = 5 << 30  # of one write: the limit of S3; a larger file is uploaded in parts
MAX_OBJECT_BYTES = 5 << 40  # of one file
OUTPUT_MISSING = "OUTPUT_MISSING"  # point Completion: the store does not have the reported output
OUTPUT_EXISTS = "OUTPUT_EXISTS"  # an output is written once, and the store has other content under its key
OUTPUT_REPLACED = "OUTPUT_REPLACED"  # the store has another object than the one with which the dependency was completed

# In p_health while the agent claims no task because its disk is full: {since: seconds of Unix time, why}.
DISK = "disk"

# In p_health: the complete list of findings [{u, code, severity, since, evidence}], worst first (worker/findings.py has
# the codes), and {signal: reason} of the signals that cannot be read. Either is absent if it is empty.
FINDINGS, UNKNOWN = "findings", "unknown"

# With HTTP 503, from the gateway: the store does not answer, so the output's existence is unknown. Repeat the call.
OUTPUT_UNKNOWN = "OUTPUT_UNKNOWN"

# Log streams of one launch, append-only files in <run dir>/logs/<stream>.log; heartbeats report {stream: bytes}.
STREAMS = ("agent", "handler", "system")

# Directory of all files on the pod, relative to the login directory. It contains
# code/agent-<sha256>.pyz, code/user-<sha256>.zip, run/<nonce>/{config.json,agent.pid,logs,tasks,stopped,unanswered}.
BASE_DIR = ".orchestrator"
SLURM_HANDLER = "slurm"  # in WORKER_HANDLERS: one task is one Slurm job (slurm_job.py)
UNANSWERED = "unanswered"  # in run/<nonce>: when a call last got no answer, in seconds of the pod's clock

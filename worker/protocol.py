"""The contract between the agent on a pod, the orchestrator and the database functions `worker_*`.

Transport: `POST {api_url}/rest/v1/rpc/<function>` with `Authorization: Bearer <token>` and one JSON object of named
arguments; the answer is one JSON object (PostgREST's dialect). A refusal is a non-2xx answer with
`{"code", "message", "details", "hint"}`, where `code` is one of the SQLSTATEs below.

Old pods outlive deploys: names here are only ever added. Raise PROTOCOL when the meaning of an existing name changes.
"""

PROTOCOL = 1

# Functions. Every call names every argument; `p_worker_id text` and `p_nonce text` (the launch) are in all of them.
REGISTER = "worker_register"  # p_agent jsonb -> {outcome: ok, wanted, heartbeat_s, lease_s}
# p_claim_no bigint, p_batch int, p_wait_s numeric -> {outcome: ok, wanted, tasks: [CLAIMED]}; once answered without one
# and with p_wait_s at 0, its number is spent: the gateway, which holds a claim open, says for how long it still will
CLAIM = "worker_claim"
# p_tasks jsonb, p_health jsonb, p_logs jsonb -> {outcome, wanted, cancel, fenced, led}; led: whether anybody leads us
HEARTBEAT = "worker_heartbeat"
# p_task_id, p_attempt, p_output_location, p_result_data -> {outcome: ok|already|fenced|unverified|pending}; unverified:
# somebody has looked for the output and it is not there, nothing was completed
COMPLETE = "worker_complete"
# p_results jsonb [{task_id, attempt, result_data}], 1 to 100, no outputs -> {outcomes: [ok|already|fenced]}, in the
# same order; what is not answered so is said again of each with COMPLETE, which an older gateway knows too
COMPLETE_MANY = "worker_complete_many"
# p_results, p_claim_no, p_batch -> {outcomes, wanted, tasks}: COMPLETE_MANY, then CLAIM without a wait, in one
# transaction; unanswered, each is said again by itself, the claim under the same number
COMPLETE_AND_CLAIM = "worker_complete_and_claim"
FAIL = "worker_fail"  # p_task_id, p_attempt, p_failure -> {outcome: requeued|failed|cancelled|already|fenced}
RELEASE = "worker_release"  # p_task_id, p_attempt, p_reason -> {outcome: ok|already|fenced}: unstarted, uncounted
# p_items jsonb [{method, key}] -> {outcome: ok|pending, items: [{method, key, url, location}], refused: [key]}
GRANTS = "worker_grants"
# -> {outcome: ok|pending|fenced, sealed: [text]}: the next token, from half of a token's life on (worker/renewal.py)
RENEW = "worker_renew"

# What one claimed task looks like (CLAIMED); `attempt` is the fencing token of everything said about it later.
CLAIMED = ("id", "task_type", "params", "attempt", "max_attempts", "timeout_s", "dependencies", "output_prefix")
# One entry of `dependencies`: what an earlier task left behind.
DEPENDENCY = ("id", "task_type", "output_location", "result_data")

# `wanted` in the answers to register, claim and heartbeat.
RUN = "run"  # carry on
DRAIN = "drain"  # finish what you hold, claim nothing
STOP = "stop"  # give up what you hold now and exit

# Outcomes.
OK, ALREADY, FENCED = "ok", "already", "fenced"
REQUEUED, FAILED, CANCELLED = "requeued", "failed", "cancelled"
# With HTTP 202, from PostgREST alone: nothing is done yet, the leader has been asked; ask again. An older agent takes
# the status for a server that is busy, and does so too.
PENDING = "pending"
UNVERIFIED = "unverified"  # an older agent takes it for heard, and loses the lease: the attempt counts as lost

# SQLSTATEs of refusals (PostgREST puts them in `code`).
NOT_LEADER = "OR001"
LOST_RACE = "OR002"
OVER_BUDGET = "OR003"
UNKNOWN_WORKER = "OR005"  # no such worker, or it has terminated: stop
BAD_TOKEN = "OR006"  # the token is not this worker's, or was revoked: stop
BAD_ARGUMENT = "OR007"

# Where an attempt failed (`failed_at_point`) and how its process ended (`exit_class`): keys of p_failure are
# {code, message, point, exit_class, retryable, detail}.
POINTS = ("Claiming", "Processing", "Completion")
EXIT_CLASSES = ("exception", "oom", "vram_oom", "signal", "timeout", "cancelled", "lost")

# Failure codes that both sides of a completion know.
MAX_UPLOAD_BYTES = 5 << 30  # of one file: S3 takes no larger object in one write
OUTPUT_MISSING = "OUTPUT_MISSING"  # point Completion: the store does not have what was reported
OUTPUT_EXISTS = "OUTPUT_EXISTS"  # an output is written once, and the store has another one under its key
OUTPUT_REPLACED = "OUTPUT_REPLACED"  # the store has another object than the one that the dependency was completed with

# In p_health while the agent claims nothing because its disk is full: {since: seconds of Unix time, why}.
DISK = "disk"

# With HTTP 503, from the gateway: the store does not answer, so nobody knows whether the output is there. Ask again.
OUTPUT_UNKNOWN = "OUTPUT_UNKNOWN"

# Log streams of one launch, append-only files in <run dir>/logs/<stream>.log; heartbeats report {stream: bytes}.
STREAMS = ("agent", "handler", "system")

# Where things lie on the pod, relative to the login directory.
# There: code/agent-<sha256>.pyz, code/user-<sha256>.zip, run/<nonce>/{config.json,agent.pid,logs,tasks,stopped}.
BASE_DIR = ".orchestrator"

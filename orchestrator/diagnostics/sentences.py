"""The sentences of causes.py: code -> (what it means, who must act, what happens by itself, what to paste)."""

from collections.abc import Mapping
from types import MappingProxyType

Sentence = tuple[str, str, str, str]

ORCHESTRATOR, PROVIDER, WORKER, OPERATOR = "orchestrator", "provider", "worker", "operator"
CAPACITY, BUDGET, NOBODY = "capacity", "budget", "nobody"

REPLACED = "terminate, respawn: another pod is rented while there is work"
AVOIDED = "terminate, respawn elsewhere: the host is remembered and avoided for a while"
MORE = "python -m orchestrator timeline <worker>"
LOGS = "python -m orchestrator logs <worker>"
RETRY = "python -m orchestrator tasks retry <task>"
RESCUED = "its tasks are queued again; another is started"
MEND_KEY = 'set RUNPOD_SSH_PUBLIC_KEY="$(ssh-keygen -y -f ~/.ssh/id_ed25519)"'
IMAGE = "set RUNPOD_WORKER_IMAGE to an image that "
AGAIN = "it goes back to the queue, after a pause, until its attempts are used up"
REQUEUED = "it goes back to the queue, the attempt counted: at once when the first is lost, then after a pause"

# fmt: off
BRING_UP: Mapping[str, Sentence] = MappingProxyType({
    "INTENT_STALE": ("The worker was recorded, but nobody asked the provider for its pod in time.",
                     ORCHESTRATOR, REPLACED, "python -m orchestrator run"),
    "NO_CAPACITY": ("The provider has no such GPU to rent now.",
                    CAPACITY, "the next offer is asked, and this one again after its cool-down",
                    "add to RUNPOD_GPU_TYPE or RUNPOD_DATA_CENTERS; python -m orchestrator explain scaling"),
    "QUOTA": ("The account may not rent more: RunPod refused because of a quota or a spending limit.",
              OPERATOR, "nothing is rented until it is raised; the refused offer is probed now and then",
              "raise it in the RunPod console, or lower MAX_ACTIVE_GPUS"),
    "BALANCE": ("The RunPod account has too little money to rent a pod.",
                OPERATOR, "nothing is rented until there is money; at $0 RunPod deletes every pod",
                "add funds in the RunPod console, or set MAX_ACTIVE_GPUS=0"),
    "API_AUTH": ("RunPod refuses our API key.",
                 OPERATOR, "nothing is rented and nothing is deleted until the key is right",
                 "set RUNPOD_API_KEY to a key that may read and write pods"),
    "BAD_SPEC": ("RunPod rejected the request itself: an image, GPU type, data centre or volume that it does not know.",
                 OPERATOR, "the same request would be refused again; it is probed now and then",
                 "compare RUNPOD_WORKER_IMAGE, RUNPOD_GPU_TYPE, RUNPOD_DATA_CENTERS and RUNPOD_STORAGE_NAME"),
    "CREATE_UNKNOWN": ("The create call got no clear answer, and no pod of that name appeared.",
                       PROVIDER, "terminate, respawn; a pod that appears late is found by its name and deleted", MORE),
    "NO_RUNTIME": ("The pod never came to life: no runtime although its time was up.",
                   PROVIDER, AVOIDED, "raise SPAWNING_TIMEOUT_SEC if the image is large; else none needed"),
    "IMAGE_PULL_SLOW": ("The pod is still pulling its image.",
                        PROVIDER, "the deadline is extended once, then: terminate, respawn",
                        IMAGE + "is smaller or cached at RunPod"),
    "POD_EXITED": ("The pod's container ended: a bad image, or the host threw it out.",
                   OPERATOR, REPLACED, IMAGE + "stays up and starts sshd"),
    "POD_ERROR": ("RunPod shows the pod in the state ERROR.",
                  PROVIDER, AVOIDED, MORE),
    "POD_MISSING": ("The pod is gone: two complete lists of RunPod do not show it, and we did not delete it.",
                    PROVIDER, "its tasks are queued again; terminate, respawn",
                    "see who else uses RUNPOD_API_KEY, and the account's balance"),
    "SSH_DETAILS_MISSING": ("RunPod gave the running pod no public address for SSH.",
                            PROVIDER, AVOIDED, "set RUNPOD_CLOUD or RUNPOD_DATA_CENTERS to one with public addresses"),
    "TCP_REFUSED": ("Nothing listens at the pod's SSH port: its sshd did not start.",
                    OPERATOR, REPLACED, IMAGE + "starts sshd by itself, as RunPod's own do"),
    "TCP_TIMEOUT": ("The pod's SSH port does not answer, or accepts and says nothing.",
                    PROVIDER, AVOIDED, MORE),
    "NOT_SSH": ("Something answers at the pod's SSH port, but it is no SSH server.",
                OPERATOR, REPLACED, IMAGE + "has sshd at port 22"),
    "HOST_KEY_CHANGED": ("The machine at the pod's address shows another host key than before: it is another machine.",
                         PROVIDER, "nothing more is sent to it; its tasks are queued again; terminate, respawn", MORE),
    "AUTH_FAILED": ("The pod refuses our SSH key.",
                    OPERATOR, REPLACED, MEND_KEY),
    "EXEC_FAILED": ("Commands do not run properly on the pod, although SSH logs in.",
                    WORKER, REPLACED, "set WORKER_PYTHON to a Python 3.9 or newer on the image; " + LOGS),
    "POD_MISMATCH": ("The machine that answers is not the pod that we rented.",
                     PROVIDER, "it is never promoted: terminate, respawn", MORE),
    "STALE_CODE": ("The code on the pod is not the code that was sent.",
                   ORCHESTRATOR, "it is sent again, and after that: terminate, respawn", MORE),
    "SETUP_FAILED": ("WORKER_SETUP_COMMAND ended with an error on the pod.",
                     OPERATOR, "terminate, respawn: every worker will fail like this one until it is mended",
                     "run WORKER_SETUP_COMMAND in the image by hand; its output is in the proof"),
    "NO_PROCESS": ("The worker's process is not there: it ended at once.",
                   OPERATOR, REPLACED, "read its last lines in the proof, or: " + LOGS),
    "NO_HEARTBEAT": ("SSH works, but the worker's first heartbeat does not reach the database.",
                     OPERATOR, REPLACED,
                     "see that pods reach WORKER_API_URL, and that all replicas have the same WORKER_JWT_SECRET"),
    "TASKS_FAIL_HERE": ("Its tasks failed one after the other, and other workers completed tasks of the same types.",
                        PROVIDER, "it is replaced; its host is avoided for an hour; its tasks get one attempt back",
                        MORE),
    "TASKS_FAIL_EVERYWHERE": ("Tasks fail one after the other on several workers of this release.",
                              OPERATOR, "the breaker opens: one canary at a time until one completes a task",
                              "correct the handler or the image, and deploy; " + LOGS),
    "TASKS_FAIL_UNJUDGED": ("Its tasks failed one after the other, and no other worker ran such a task in time.",
                            OPERATOR, "it is replaced; its tasks get one attempt back", LOGS),
    "DISK_FULL": ("The pod has too little free disk space to begin a task.",
                  OPERATOR, REPLACED, "raise RUNPOD_CONTAINER_DISK_GB, or let the handlers delete what they leave"),
    "HOST_AVOIDED": ("The pod landed on a machine that is being avoided, after it failed before.",
                     PROVIDER, "terminate, respawn: with luck on another machine", MORE),
    "CONNECTION_LOST": ("The SSH connection broke again and again in the middle of a stage.",
                        PROVIDER, "the climb begins again until the stage's deadline, then: terminate, respawn", MORE),
})

GPU: Mapping[str, Sentence] = MappingProxyType({
    "DISK": ("The pod's disk has too little room.",
             OPERATOR, REPLACED, "raise RUNPOD_CONTAINER_DISK_GB"),
    "INODES": ("The pod's file system has hardly any inodes left.",
               OPERATOR, REPLACED, "raise RUNPOD_CONTAINER_DISK_GB, or clean the volume RUNPOD_STORAGE_NAME"),
    "CLOCK_SKEW": ("The pod's clock is more than 30 s off, so that tokens and signed URLs would fail.",
                   PROVIDER, AVOIDED, MORE),
    "GPU_NOT_ATTACHED": ("The pod has no GPU, or no driver for it.",
                         PROVIDER, AVOIDED, MORE),
    "GPU_COUNT": ("The pod has another number of GPUs than was rented.",
                  PROVIDER, AVOIDED, MORE),
    "GPU_TYPE": ("The pod's GPU is of another type than was rented.",
                 PROVIDER, AVOIDED, MORE),
    "GPU_MEMORY": ("A GPU has less memory than its type should have.",
                   PROVIDER, AVOIDED, MORE),
    "ECC": ("A GPU has uncorrected memory errors, or a repair that waits for a reset.",
            PROVIDER, AVOIDED, MORE),
    "GPU_BUSY": ("A GPU's memory is taken by something that is not ours.",
                 PROVIDER, AVOIDED, MORE),
    "DRIVER_TOO_OLD": ("The host's driver is older than the image's CUDA needs.",
                       PROVIDER, AVOIDED, IMAGE + "needs an older CUDA, if it happens often"),
    "NVLINK_INACTIVE": ("NVLinks between the pod's GPUs are down.",
                        PROVIDER, AVOIDED, MORE),
    "NVLINK_DEGRADED": ("The pod's GPUs have fewer or slower NVLinks than their type should have.",
                        PROVIDER, AVOIDED, MORE),
})

TASKS: Mapping[str, Sentence] = MappingProxyType({
    "HANDLER_ERROR": ("The handler raised an exception.", OPERATOR, AGAIN, LOGS),
    "EXIT_STATUS": ("The handler's process ended with an error.", OPERATOR, AGAIN, LOGS),
    "SIGNAL": ("A signal ended the handler's process.", OPERATOR, AGAIN, LOGS),
    "LOST": ("The handler's process let go of the agent without ending.", OPERATOR, AGAIN, LOGS),
    "OOM": ("The pod's memory limit was reached: the kernel ended the handler.",
            OPERATOR, AGAIN, "raise RUNPOD_MIN_MEMORY_GB, or make the task smaller"),
    "VRAM_OOM": ("The GPU's memory was too small for the task.",
                 OPERATOR, AGAIN, "set RUNPOD_GPU_TYPE to one with more memory, or make the task smaller"),
    "TIMEOUT": ("The attempt took longer than the task allows.",
                OPERATOR, AGAIN, "python -m orchestrator tasks submit --timeout-s SECONDS, with more of them"),
    "CANCELLED": ("Somebody cancelled the task.", NOBODY, "nothing", RETRY),
    "NO_HANDLER": ("No handler is set for this type of task, on that worker or in the release that leads.",
                   OPERATOR, AGAIN, "add it to WORKER_HANDLERS: type=module:function"),
    "EARLIER_RELEASE": ("The worker is of an earlier release, without a handler for this type; the present one has it.",
                        ORCHESTRATOR, "one of the present release is started and does it; the attempt does not count",
                        "none needed; or end the earlier ones now: python -m orchestrator terminate <worker>"),
    "HANDLER_NOT_STARTED": ("The handler's process could not be started.",
                            OPERATOR, AGAIN, "see WORKER_PYTHON and WORKER_SETUP_COMMAND; " + LOGS),
    "RESULT_REFUSED": ("The handler's result was refused: too large, or not JSON.",
                       OPERATOR, "nothing: another attempt would end the same way",
                       "upload it and return its location; then " + RETRY),
    "RELEASED": ("The worker gave the task back before it began: it was told to go.",
                 NOBODY, "it goes back to the queue at once, and the attempt does not count", "none needed; " + LOGS),
    "WORKER_LOST": ("The worker that held it is gone.",
                    NOBODY, REQUEUED,
                    "python -m orchestrator explain <worker>"),
    "LEASE_EXPIRED": ("The worker that held it stopped renewing its lease.",
                      NOBODY, REQUEUED,
                      "python -m orchestrator explain <worker>"),
    "TASK_STUCK": ("It made no progress for TASK_STUCK_TIMEOUT_SEC, although its worker lives.",
                   OPERATOR, REQUEUED, "report progress in the handler, or raise TASK_STUCK_TIMEOUT_SEC"),
    "OUTPUT_MISSING": ("The task says that it is complete, but its output is not in the bucket.",
                       OPERATOR, AGAIN, "let the handler upload through task.upload(); see S3_BUCKET"),
    "INPUTS_TOO_LARGE": ("Its params and the results of the tasks that it depends on are more than a claim can carry.",
                         OPERATOR, "nothing: no worker could ever be given it",
                         "let the handlers task.upload() what is large; " + RETRY),
    "INPUTS_UNREADABLE": ("Its params or its dependencies' results are nested too deeply, or a number is too long.",
                          OPERATOR, "nothing: no worker could read it",
                          "at most 64 levels and 4000 digits: change its params; then " + RETRY),
    "TASK_UNCLAIMABLE": ("The database refused to hand it to a worker; the task's message has the database's words.",
                         OPERATOR, "nothing: the next claim would end the same way",
                         "correct the row, or the trigger or constraint of yours that refuses it; then " + RETRY),
    "DEPENDENCY_FAILED": ("A task that it depends on failed or was cancelled.",
                          OPERATOR, "nothing until that one is retried: then this one is queued again too",
                          "python -m orchestrator tasks retry <task>, with the id of the dependency"),
    "DEPENDENCY_DELETED": ("A task that it depends on was deleted before it was complete, or was never inserted.",
                           OPERATOR, "nothing: what does not exist is never complete",
                           "submit it again without that dependency, or insert the dependency; then " + RETRY),
    "DEPENDENCY_CYCLE": ("It waits for tasks that wait for each other.",
                         OPERATOR, "nothing: none of them could ever run",
                         "correct depends_on of one of them; then " + RETRY),
})

ENDINGS: Mapping[str, Sentence] = MappingProxyType({
    "idle_timeout": ("There was nothing to do for it.", NOBODY, "nothing: as planned",
                     "none needed; GPU_IDLE_TIMEOUT_SEC says how long an idle worker stays"),
    "scale_down": ("There were more workers than the queue needs.", NOBODY, "nothing: as planned",
                   "none needed; GPU_OVERCAPACITY_IDLE_TIMEOUT_SEC and SPAWNING_GRACE_PERIOD_SEC say how soon"),
    "manual": ("An operator asked for its end.", NOBODY, "another is started while there is work",
               "python -m orchestrator pause, if no other should start"),
    "shutdown": ("All workers were told to end.", NOBODY, "others are started while there is work",
                 "set MAX_ACTIVE_GPUS=0, if no other should start"),
    "max_lifetime": ("It had reached the age at which workers are renewed.", NOBODY,
                     "another is started while there is work", "none needed; " + MORE),
    "budget": ("The budget was used up.", BUDGET, "nothing is rented until the budget allows it",
               "raise DAILY_BUDGET_USD or MAX_HOURLY_COST_USD; python -m orchestrator cost --since 24h"),
    "superseded": ("A newer release takes its place, which has a handler that it lacks, or a newer schema did.", NOBODY,
                   "it finishes what it holds; others are started while there is work",
                   "none needed; " + MORE),
    "spawn_failed": ("Its bring-up did not succeed.", ORCHESTRATOR, REPLACED, MORE),
    "heartbeat_lost": ("Its heartbeats stopped.", WORKER, RESCUED,
                       "raise HEARTBEAT_TIMEOUT_SEC if it was only slow; " + LOGS),
    "task_stuck": ("Its task made no progress.", OPERATOR, "the task is queued again; another worker is started",
                   "report progress in the handler, or raise TASK_STUCK_TIMEOUT_SEC"),
    "gpu_fault": ("Its GPU failed.", PROVIDER, "its tasks are queued again; the host is avoided for a while", MORE),
    "host_fault": ("Its host failed.", PROVIDER, "its tasks are queued again; the host is avoided for a while", MORE),
    "pod_lost": ("RunPod lost or ended its pod.", PROVIDER, RESCUED,
                 "see the account's balance in the RunPod console; " + MORE),
    "stale_code": ("It ran other code than it should.", ORCHESTRATOR, REPLACED, MORE),
    "worker_sick": ("Its tasks failed one after the other, which other workers' tasks did not, or its disk was full.",
                    PROVIDER, "another is started while there is work; its tasks get one attempt back",
                    "raise WORKER_MAX_CONSECUTIVE_FAILURES if that is usual for these tasks; " + LOGS),
    "release_bad": ("Tasks fail one after the other on several workers of this release.",
                    OPERATOR, "the breaker opens: one canary at a time until one completes a task",
                    "correct the handler or the image, and deploy; " + LOGS),
    "agent_crashed": ("Its agent ended by itself.", WORKER, RESCUED, LOGS),
})

# NO_HEARTBEAT of a worker that had been promoted, by what the last look at its pod showed; "": it did not tell.
SILENCES: Mapping[str, Sentence] = MappingProxyType({
    "": ("It had worked, and nothing more was heard of it; what became of its agent has not been seen.",
         WORKER, RESCUED, "raise HEARTBEAT_TIMEOUT_SEC if it was only slow; " + LOGS),
    "KILLED": ("Its agent was killed: the process is gone without a last word, as after signal 9.",
               OPERATOR, RESCUED, "raise RUNPOD_MIN_MEMORY_GB if the pod's memory ran out; " + LOGS),
    "ENDED": ("Its agent ended by itself, or was asked to: its last word is in the proof.", WORKER, RESCUED, LOGS),
    "RUNNING": ("Its agent's process still runs, and was not heard: stopped, hanging, or cut off from WORKER_API_URL.",
                OPERATOR, RESCUED, "see that pods reach WORKER_API_URL; " + LOGS),
    "UNREACHED": ("Its pod did not answer over SSH either: it stands still, is cut off, or has gone.",
                  PROVIDER, RESCUED, MORE),
})

WAITS: Mapping[str, Sentence] = MappingProxyType({
    ORCHESTRATOR: ("It is the orchestrator's turn.", ORCHESTRATOR, "the next tick acts",
                   "python -m orchestrator run, if none leads"),
    PROVIDER: ("It is RunPod's turn.", PROVIDER, "it is looked at again every few seconds, until the deadline",
               "python -m orchestrator status <worker>"),
    WORKER: ("It is the worker's turn.", WORKER, "its heartbeats tell", LOGS),
    OPERATOR: ("A person must mend something.", OPERATOR, "it is tried again until the deadline, then given up", MORE),
    CAPACITY: ("Every offer was refused lately.", CAPACITY, "the first one whose cool-down ends is asked again",
               "add to RUNPOD_GPU_TYPE or RUNPOD_DATA_CENTERS; python -m orchestrator explain scaling"),
    BUDGET: ("The budget does not allow another worker now.", BUDGET, "it is started when the budget allows it",
             "raise DAILY_BUDGET_USD or MAX_HOURLY_COST_USD; python -m orchestrator cost"),
})

# (code, sub-cause) -> a sharper sentence and fix.
SUBCAUSES: Mapping[tuple[str, str], tuple[str, str]] = MappingProxyType({
    ("AUTH_FAILED", "REFUSED"): ("The pod refuses our key: it was given the public half of another.", MEND_KEY),
    ("AUTH_FAILED", "PAIR_MISMATCH"):
        ("RUNPOD_SSH_PRIVATE_KEY does not match the public key on the pod.", MEND_KEY),
    ("AUTH_FAILED", "NO_PRIVATE_KEY"):
        ("No SSH private key is set.", 'set RUNPOD_SSH_PRIVATE_KEY="$(cat ~/.ssh/id_ed25519)"'),
    ("AUTH_FAILED", "BAD_PRIVATE_KEY"):
        ("RUNPOD_SSH_PRIVATE_KEY cannot be read as a private key: mangled, or with a passphrase.",
         'set RUNPOD_SSH_PRIVATE_KEY="$(cat ~/.ssh/id_ed25519)"'),
    ("AUTH_FAILED", "BAD_PUBLIC_KEY"):
        ("RUNPOD_SSH_PUBLIC_KEY is not a line of authorized_keys: mangled, or something else.", MEND_KEY),
    ("AUTH_FAILED", "KEY_TYPE_MIX"):
        ("RUNPOD_SSH_PRIVATE_KEY and RUNPOD_SSH_PUBLIC_KEY are of different types (RSA, Ed25519).", MEND_KEY),
})
# fmt: on

"""The failure catalogue: one row per failure code of a worker. Every set of codes is derived from these rows.

A row says what the code means, who must act, what happens by itself, the fix, whom the failure blames, how the breaker
treats it, what it says about the pod, and the phrase that the log line contains. To add a code, add a row here.
`core/task_failures.py` has the failure codes of tasks, `core/exit_causes.py` the reasons for which workers end.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Self

from orchestrator.core.meanings import (
    AVOIDED,
    CAPACITY,
    IMAGE,
    LOGS,
    MORE,
    OPERATOR,
    ORCHESTRATOR,
    PRIVATE_KEY,
    PROVIDER,
    PUBLIC_KEY,
    REPLACED,
    RESCUED,
    START_LEADER,
    WORKER,
    Explained,
    Meaning,
)
from orchestrator.core.xids import XidClass, xid_class, xid_meaning

LASTING = "the worker claims no tasks; after ten minutes it finishes its tasks and is replaced"
AUTHENTICATION_FAILED, SSH_FAILED = "Authentication failed", "SSH connection failed"  # operators grep for these


class Blames(StrEnum):
    """What a failure counts against (core/host_strikes.py)."""

    NOTHING = "nothing"
    FAULT = "fault"  # the machine is broken, or differs from the rented type
    SUSPICION = "suspicion"  # the machine, the image or the network
    PLACE = "place"  # the data centre's machines of one GPU type, but not this machine again


class Breaker(StrEnum):
    """How core/breaker.py treats a failure. All but COUNTS say nothing about image, code or hosts."""

    COUNTS = "counts"  # a failed bring-up
    ACCOUNT = "account"  # refused for the whole account: no pool spawns until a person acts
    SPEC = "spec"  # the request was refused: its pool does not spawn until a person acts
    OFFER = "offer"  # no pod from this offer: the offer's own cool-down delays the next try
    HOST = "host"  # the pod was given back because of its machine: the next spawn is delayed


class PodExistence(StrEnum):
    """Whether the worker's pod may exist after a failure."""

    MAY_EXIST = "may exist"
    NEVER_CREATED = "never created"  # the provider refused, or no call was made: there is no pod
    NOT_OURS = "not ours"  # another machine answers: it has no data of this worker
    GONE = "gone"  # the pod no longer runs


@dataclass(frozen=True, slots=True)
class FailureRow(Meaning):
    """One failure code: `Meaning`, and what the planner derives from it."""

    blames: Blames
    breaker: Breaker = Breaker.COUNTS
    pod: PodExistence = PodExistence.MAY_EXIST
    phrase: str | None = None  # the log line's message contains it
    # sub-cause -> (means, fix) that are more precise than the row's
    subcauses: Mapping[str, tuple[str, str]] = field(default_factory=lambda: MappingProxyType({}))


class FailureCode(Explained):
    """`workers.failure_code` and `worker_attempts.failure_code`: the failure, in one word.

    Besides the names below there is one code per NVIDIA Xid number: `FailureCode("XID_79")`.
    """

    row: FailureRow

    # fmt: off
    INTENT_STALE = "INTENT_STALE", FailureRow(
        "The worker was recorded, but its pod was not requested in time.",
        ORCHESTRATOR, REPLACED, START_LEADER,
        Blames.NOTHING, Breaker.OFFER, PodExistence.NEVER_CREATED)
    NO_CAPACITY = "NO_CAPACITY", FailureRow(
        "The provider has no such GPU to rent now.",
        CAPACITY, "the next offer is tried, and this one again after its cool-down",
        "add to RUNPOD_GPU_TYPE or RUNPOD_DATA_CENTERS; python -m orchestrator explain scaling",
        Blames.NOTHING, Breaker.OFFER, PodExistence.NEVER_CREATED)
    QUOTA = "QUOTA", FailureRow(
        "The account may not rent more, because of a quota or a spending limit.",
        OPERATOR, "nothing is rented until it is raised; the refused offer is tried again at intervals",
        "raise it in the RunPod console, or lower MAX_ACTIVE_GPUS",
        Blames.NOTHING, Breaker.ACCOUNT, PodExistence.NEVER_CREATED)
    BALANCE = "BALANCE", FailureRow(
        "The balance of the RunPod account is too low to rent a pod.",
        OPERATOR, "nothing is rented until there is money; at $0 RunPod deletes every pod",
        "add funds in the RunPod console, or set MAX_ACTIVE_GPUS=0",
        Blames.NOTHING, Breaker.ACCOUNT, PodExistence.NEVER_CREATED)
    API_AUTH = "API_AUTH", FailureRow(
        "RunPod refuses our API key.",
        OPERATOR, "nothing is rented and nothing is deleted until the key is right",
        "set RUNPOD_API_KEY to a key that may read and write pods",
        Blames.NOTHING, Breaker.ACCOUNT, PodExistence.NEVER_CREATED, AUTHENTICATION_FAILED)
    BAD_SPEC = "BAD_SPEC", FailureRow(
        "RunPod rejected the request itself: an image, GPU type, data centre or volume that it does not know.",
        OPERATOR, "the same request would be refused; it is tried again at intervals",
        "compare RUNPOD_WORKER_IMAGE, RUNPOD_GPU_TYPE, RUNPOD_DATA_CENTERS, RUNPOD_STORAGE_NAME, RUNPOD_REGISTRY_AUTH",
        Blames.NOTHING, Breaker.SPEC, PodExistence.NEVER_CREATED)
    CREATE_UNKNOWN = "CREATE_UNKNOWN", FailureRow(
        "The create call got no clear answer, and no pod of that name appeared.",
        PROVIDER, "terminate, respawn; a pod that appears late is found by its name and deleted", MORE,
        Blames.NOTHING)
    NO_RUNTIME = "NO_RUNTIME", FailureRow(
        "The pod did not start: it had no runtime at the deadline.",
        PROVIDER, AVOIDED,  # the deadline of the stage is the shorter one
        "set BRINGUP_DEADLINES=pod_running=1200 and SPAWNING_TIMEOUT_SEC=1500 if the image is large; "
        "set RUNPOD_REGISTRY_AUTH if it is private; else none needed",
        Blames.SUSPICION)
    IMAGE_PULL_SLOW = "IMAGE_PULL_SLOW", FailureRow(  # the pod's log shows that the image is still being pulled
        "The pod is still pulling its image.",
        PROVIDER, "the deadline is extended once, then: terminate, respawn", IMAGE + "is smaller or cached at RunPod",
        Blames.NOTHING)
    POD_EXITED = "POD_EXITED", FailureRow(
        "The pod's container ended: because of the image, or because the host ended it.",
        OPERATOR, REPLACED, IMAGE + "stays up and starts sshd",
        Blames.NOTHING, pod=PodExistence.GONE)
    POD_ERROR = "POD_ERROR", FailureRow(
        "RunPod shows the pod in the state ERROR.",
        PROVIDER, AVOIDED, MORE,
        Blames.SUSPICION, pod=PodExistence.GONE)
    POD_MISSING = "POD_MISSING", FailureRow(
        "The pod is gone: RunPod lists it no more, and we did not delete it.",
        PROVIDER, "its tasks are queued again; terminate, respawn",
        "see who else uses RUNPOD_API_KEY, and the account's balance",
        Blames.NOTHING, pod=PodExistence.GONE)
    SSH_DETAILS_MISSING = "SSH_DETAILS_MISSING", FailureRow(
        "RunPod gave the running pod no public address for SSH.",
        PROVIDER, AVOIDED, "set RUNPOD_CLOUD or RUNPOD_DATA_CENTERS to one with public addresses",
        Blames.SUSPICION)
    TCP_REFUSED = "TCP_REFUSED", FailureRow(
        "Nothing listens at the pod's SSH port: its sshd did not start.",
        OPERATOR, REPLACED, IMAGE + "starts sshd by itself, as RunPod's own images do",
        Blames.NOTHING, phrase=SSH_FAILED)
    TCP_TIMEOUT = "TCP_TIMEOUT", FailureRow(
        "The pod's SSH port does not answer, or accepts the connection and sends nothing.",
        PROVIDER, AVOIDED, MORE,
        Blames.SUSPICION, phrase=SSH_FAILED)
    NOT_SSH = "NOT_SSH", FailureRow(
        "Something answers at the pod's SSH port, but it is not an SSH server.",
        OPERATOR, REPLACED, IMAGE + "has sshd at port 22",
        Blames.NOTHING, phrase=SSH_FAILED)
    HOST_KEY_CHANGED = "HOST_KEY_CHANGED", FailureRow(
        "The machine at the pod's address shows another host key than before: it is another machine.",
        PROVIDER, "nothing more is sent to it; its tasks are queued again; terminate, respawn", MORE,
        Blames.NOTHING, phrase=SSH_FAILED)
    HOST_KEY_UNPROVEN = "HOST_KEY_UNPROVEN", FailureRow(
        "The machine at the pod's address cannot prove that its host key is the pod's.",
        OPERATOR, "nothing is sent to it: terminate, respawn",
        IMAGE + "has OpenSSH's sshd, with its host keys, and sha256sum; if it has, " + MORE,
        Blames.NOTHING, pod=PodExistence.NOT_OURS, phrase=SSH_FAILED)
    HOST_KEY_RELAYED = "HOST_KEY_RELAYED", FailureRow(
        "Another machine between us and the pod shows a host key of its own.",
        PROVIDER, "nothing is sent to it: terminate, respawn", MORE,
        Blames.NOTHING, pod=PodExistence.NOT_OURS, phrase=SSH_FAILED)
    AUTH_FAILED = "AUTH_FAILED", FailureRow(
        "The pod refuses our SSH key.",
        OPERATOR, REPLACED, PUBLIC_KEY,
        Blames.NOTHING, phrase=AUTHENTICATION_FAILED,
        subcauses=MappingProxyType({
            "REFUSED": ("The pod refuses our key: it was given the public half of another.", PUBLIC_KEY),
            "PAIR_MISMATCH": ("RUNPOD_SSH_PRIVATE_KEY does not match the public key on the pod.", PUBLIC_KEY),
            "NO_PRIVATE_KEY": ("No SSH private key is set.", PRIVATE_KEY),
            "BAD_PRIVATE_KEY":
                ("RUNPOD_SSH_PRIVATE_KEY cannot be read as a private key: mangled, or with a passphrase.", PRIVATE_KEY),
            "BAD_PUBLIC_KEY":
                ("RUNPOD_SSH_PUBLIC_KEY is not a line of authorized_keys: mangled, or something else.", PUBLIC_KEY),
            "KEY_TYPE_MIX":
                ("RUNPOD_SSH_PRIVATE_KEY and RUNPOD_SSH_PUBLIC_KEY are of different types (RSA, Ed25519).", PUBLIC_KEY),
        }))
    EXEC_FAILED = "EXEC_FAILED", FailureRow(
        "Commands do not run properly on the pod, although SSH logs in.",
        WORKER, REPLACED, "set WORKER_PYTHON to a Python 3.9 or newer on the image; " + LOGS,
        Blames.NOTHING)
    POD_MISMATCH = "POD_MISMATCH", FailureRow(
        "The machine that answers is not the pod that we rented.",
        PROVIDER, "it is never promoted: terminate, respawn", MORE,
        Blames.NOTHING, pod=PodExistence.NOT_OURS)
    DISK = "DISK", FailureRow(
        "The agent's disk has too little free space.",
        OPERATOR, REPLACED, "raise RUNPOD_CONTAINER_DISK_GB",
        Blames.FAULT)
    INODES = "INODES", FailureRow(
        "The pod's file system has hardly any inodes left.",
        OPERATOR, REPLACED, "raise RUNPOD_CONTAINER_DISK_GB, or clean the volume RUNPOD_STORAGE_NAME",
        Blames.FAULT)
    CLOCK_SKEW = "CLOCK_SKEW", FailureRow(
        "The pod's clock is more than 30 s off, so that tokens and signed URLs would fail.",
        PROVIDER, AVOIDED, MORE,
        Blames.FAULT)
    GPU_NOT_ATTACHED = "GPU_NOT_ATTACHED", FailureRow(  # nvidia-smi is absent, fails, hangs, or shows none
        "The pod has no GPU, or no driver for it.",
        PROVIDER, AVOIDED, MORE,
        Blames.FAULT)
    GPU_COUNT = "GPU_COUNT", FailureRow(
        "The pod has another number of GPUs than was rented.",
        PROVIDER, AVOIDED, MORE,
        Blames.FAULT)
    GPU_TYPE = "GPU_TYPE", FailureRow(
        "The pod's GPU is of another type than was rented.",
        PROVIDER, AVOIDED, MORE,
        Blames.FAULT)
    GPU_MEMORY = "GPU_MEMORY", FailureRow(
        "A GPU has less memory than its type should have.",
        PROVIDER, AVOIDED, MORE,
        Blames.FAULT)
    ECC = "ECC", FailureRow(
        "A GPU has uncorrected memory errors, or a repair that waits for a reset.",
        PROVIDER, AVOIDED, MORE,
        Blames.FAULT)
    GPU_BUSY = "GPU_BUSY", FailureRow(
        "A GPU's memory is in use by something that is not ours.",
        PROVIDER, AVOIDED, MORE,
        Blames.FAULT)
    DRIVER_TOO_OLD = "DRIVER_TOO_OLD", FailureRow(
        "The host's driver is older than the image's CUDA needs.",
        PROVIDER, AVOIDED, IMAGE + "needs an older CUDA, if it happens often",
        Blames.FAULT)
    NVLINK_INACTIVE = "NVLINK_INACTIVE", FailureRow(
        "NVLinks between the pod's GPUs are down.",
        PROVIDER, AVOIDED, MORE,
        Blames.FAULT)
    NVLINK_DEGRADED = "NVLINK_DEGRADED", FailureRow(
        "The pod's GPUs have fewer or slower NVLinks than their type should have.",
        PROVIDER, AVOIDED, MORE,
        Blames.FAULT)
    STALE_CODE = "STALE_CODE", FailureRow(
        "The code on the pod is not the code that was sent.",
        ORCHESTRATOR, "it is sent again, and after that: terminate, respawn", MORE,
        Blames.NOTHING)
    SETUP_FAILED = "SETUP_FAILED", FailureRow(
        "WORKER_SETUP_COMMAND ended with an error on the pod.",
        OPERATOR, "terminate, respawn: every worker fails like this one until the command is corrected",
        "run WORKER_SETUP_COMMAND in the image by hand; its output is in the evidence",
        Blames.NOTHING)
    NO_PROCESS = "NO_PROCESS", FailureRow(
        "The worker's process does not run: it ended at once.",
        OPERATOR, REPLACED, "read its last lines in the evidence, or: " + LOGS,
        Blames.NOTHING)
    NO_HEARTBEAT = "NO_HEARTBEAT", FailureRow(
        "SSH works, but the worker's first heartbeat does not reach the database.",
        OPERATOR, REPLACED, "see that pods reach WORKER_API_URL, and that all replicas have the same WORKER_JWT_SECRET",
        Blames.NOTHING)
    GATEWAY_UNREACHED = "GATEWAY_UNREACHED", FailureRow(
        "The worker's agent called and got no answer for DEADMAN_TIMEOUT_SEC, like those of most workers.",
        OPERATOR, "its tasks are queued again; up to three such attempts of a task do not count; terminate, respawn",
        "see that pods reach WORKER_API_URL: its DNS name, its certificate, the platform's proxy",
        Blames.NOTHING)
    HOST_AVOIDED = "HOST_AVOIDED", FailureRow(
        "The pod is on a machine that is avoided because it failed before.",
        PROVIDER, "terminate, respawn: possibly on another machine", MORE,
        Blames.PLACE, Breaker.HOST)
    TASKS_FAIL_HERE = "TASKS_FAIL_HERE", FailureRow(
        "Its tasks failed one after the other, and other workers completed the same tasks.",
        PROVIDER, "it is replaced; its host is avoided for an hour; its tasks get one attempt back", MORE,
        Blames.SUSPICION)
    TASKS_FAIL_EVERYWHERE = "TASKS_FAIL_EVERYWHERE", FailureRow(
        "The same tasks fail on all workers of this release, which has completed no such task.",
        OPERATOR, "one worker stays and tries tasks now and then; no other one is started before one succeeds",
        "correct the handler or the image, and deploy; " + LOGS,
        Blames.NOTHING)
    TASKS_FAIL_UNJUDGED = "TASKS_FAIL_UNJUDGED", FailureRow(
        "Its tasks failed one after the other, and no other worker could try them.",
        OPERATOR, "it is replaced; its tasks get one attempt back", LOGS,
        Blames.NOTHING)
    NOT_CLAIMING = "NOT_CLAIMING", FailureRow(
        "Its agent sends heartbeats, but asks for no task, although tasks wait.",
        ORCHESTRATOR, "it is replaced, one worker of a pool at a time", LOGS,
        Blames.NOTHING)
    DISK_FULL = "DISK_FULL", FailureRow(  # reported by the agent of a promoted worker; DISK is found by bring-up
        "The pod has too little free disk space to begin a task, or hardly any inodes.",
        OPERATOR, "it claims no tasks; an idle worker is replaced after half a minute, a busy one after ten minutes",
        "raise RUNPOD_CONTAINER_DISK_GB, or let the handlers delete their files",
        Blames.NOTHING)
    INODES_FULL = "INODES_FULL", FailureRow(
        "The file system on which tasks run has hardly any inodes left.",
        OPERATOR, "it claims no tasks; an idle worker is replaced after half a minute (as DISK_FULL), a busy one after "
        "ten minutes",
        "raise RUNPOD_CONTAINER_DISK_GB, or let the handlers delete their files",
        Blames.NOTHING)
    OOM_KILLED = "OOM_KILLED", FailureRow(
        "The kernel ended a process of the pod because the pod's memory limit was reached.",
        OPERATOR, LASTING, "raise RUNPOD_MIN_MEMORY_GB, or let the handler use less memory",
        Blames.NOTHING)
    VRAM_LOW = "VRAM_LOW", FailureRow(
        "The GPU has less free memory than a task that ran out of memory needed.",
        OPERATOR, LASTING, "choose a GPU type with more memory in RUNPOD_GPU_TYPE, or a smaller batch in the handler",
        Blames.NOTHING)
    GPU_MEMORY_HELD = "GPU_MEMORY_HELD", FailureRow(
        "GPU memory is in use, but no process of this pod uses it.",
        PROVIDER, LASTING, MORE,
        Blames.SUSPICION)
    GPU_OVERHEATED = "GPU_OVERHEATED", FailureRow(
        "A GPU has been so hot for minutes that its clock is lowered.",
        PROVIDER, LASTING, MORE,
        Blames.FAULT)
    TORCH_ARCH = "TORCH_ARCH", FailureRow(
        "The image's PyTorch has no code for the pod's GPU.",
        OPERATOR, LASTING, IMAGE + "has a PyTorch for this GPU, or RUNPOD_GPU_TYPE to one that it supports",
        Blames.NOTHING)
    STORE_UNREACHED = "STORE_UNREACHED", FailureRow(
        "The pod cannot write to the object store and read from it.",
        OPERATOR, LASTING, "make S3_ENDPOINT_URL an address that pods can reach; python -m orchestrator doctor s3",
        Blames.NOTHING)
    CODE_CHANGED = "CODE_CHANGED", FailureRow(
        "The code on the pod was changed after it was sent.",
        OPERATOR, LASTING, "look for what writes to the code's directory; " + LOGS,
        Blames.NOTHING)
    GPU_LOST = "GPU_LOST", FailureRow(
        "The driver can no longer reach a GPU of the running worker.",
        PROVIDER, AVOIDED, MORE,
        Blames.FAULT)
    GPU_COUNT_DROPPED = "GPU_COUNT_DROPPED", FailureRow(
        "The running worker has fewer GPUs than at its start.",
        PROVIDER, AVOIDED, MORE,
        Blames.FAULT)
    GPU_HUNG = "GPU_HUNG", FailureRow(
        "The driver of the running worker gives no answer any more, not even to checks without a task.",
        PROVIDER, AVOIDED, MORE,
        Blames.FAULT)
    GPU_RECOVERY = "GPU_RECOVERY", FailureRow(
        "The driver wants a GPU to be reset, or the machine to be rebooted.",
        PROVIDER, AVOIDED, MORE,
        Blames.FAULT)
    ECC_UNCORRECTED = "ECC_UNCORRECTED", FailureRow(
        "A GPU had uncorrected memory errors while the worker ran.",
        PROVIDER, AVOIDED, MORE,
        Blames.FAULT)
    MEMBER_LOST = "MEMBER_LOST", FailureRow(
        "A node of a Slurm cluster was lost: its worker ended, or it was not reached; its reason says which.",
        PROVIDER, REPLACED, MORE,
        Blames.NOTHING)
    MEMBER_UNUSABLE = "MEMBER_UNUSABLE", FailureRow(
        "A node of a Slurm cluster could not be configured, or left its cluster because the cluster failed.",
        OPERATOR, REPLACED, MORE,
        Blames.NOTHING)
    SLURM_MISSING = "SLURM_MISSING", FailureRow(
        "The image of a cluster pool has no Slurm, and the pool does not allow its installation.",
        OPERATOR, "the cluster fails, and its workers end",
        IMAGE + "has slurmctld, slurmd and munged, or set install_slurm = true for the pool",
        Blames.NOTHING)
    ALLOCATION_TIMEOUT = "ALLOCATION_TIMEOUT", FailureRow(
        "Not every node of a cluster was promoted before its deadline.",
        CAPACITY, "the cluster fails, and all its workers end: it gets all of its nodes or none",
        "python -m orchestrator explain scaling; create it again with fewer nodes, or with more GPU types in its pool",
        Blames.NOTHING)
    DEPLOY_TIMEOUT = "DEPLOY_TIMEOUT", FailureRow(
        "Slurm did not run on every node of a cluster before the deadline.",
        OPERATOR, "the cluster fails, and all its workers end",
        "correct what python -m orchestrator cluster explain names: the pool in POOLS_FILE, or RUNPOD_WORKER_IMAGE",
        Blames.NOTHING)
    POOL_REMOVED = "POOL_REMOVED", FailureRow(
        "The pool of a cluster is no longer a cluster pool in POOLS_FILE.",
        OPERATOR, "the cluster fails, and its workers end",
        "put the pool back into POOLS_FILE, and create a cluster with another name",
        Blames.NOTHING)
    CONNECTION_LOST = "CONNECTION_LOST", FailureRow(
        "The SSH connection broke again and again in the middle of a stage.",
        PROVIDER, "bring-up begins again until the stage's deadline, then: terminate, respawn", MORE,
        Blames.NOTHING, phrase=SSH_FAILED)
    # fmt: on

    @classmethod
    def xid(cls, number: int) -> Self:
        """The code of an Xid, as the NVIDIA driver numbers its errors."""
        return cls(f"XID_{number}")

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        found = XID_CODE.fullmatch(value) if isinstance(value, str) else None
        if found is None:
            return None
        code = str.__new__(cls, found[0])
        code._name_ = code._value_ = found[0]
        code.row = _xid_row(int(found[1]))
        return code


XID_CODE = re.compile(r"XID_([1-9][0-9]{0,3})")
MACHINE_XIDS = frozenset({XidClass.FATAL, XidClass.REPEATABLE, XidClass.RECOVERY})


def _xid_row(number: int) -> FailureRow:
    meaning = xid_meaning(number)
    blames = Blames.FAULT if xid_class(number) in MACHINE_XIDS else Blames.NOTHING
    return FailureRow(meaning.means, meaning.who, meaning.then, meaning.fix, blames)


def codes_where(**wanted: object) -> frozenset[FailureCode]:
    """Return the codes whose row has these values, without the Xids."""
    return frozenset(c for c in FailureCode if all(getattr(c.row, name) == value for name, value in wanted.items()))


UNTRIED = frozenset(FailureCode) - codes_where(breaker=Breaker.COUNTS)  # say nothing about image, code or hosts
NEVER_CREATED = codes_where(pod=PodExistence.NEVER_CREATED)
NOT_OUR_POD = codes_where(pod=PodExistence.NOT_OURS)
POD_GONE = codes_where(pod=PodExistence.GONE)

# The sub-causes of NO_HEARTBEAT of a promoted worker, from the final snapshot of its pod; "": not known.
SILENCES: Mapping[str, Meaning] = MappingProxyType(
    {
        "": Meaning(
            "Its heartbeats stopped; what became of its agent is not known.",
            WORKER, RESCUED, "raise HEARTBEAT_TIMEOUT_SEC if it was only slow; " + LOGS),
        "KILLED": Meaning(
            "Its agent was killed: the process is gone and left no last record, as after signal 9.",
            OPERATOR, RESCUED, "raise RUNPOD_MIN_MEMORY_GB if the pod's memory ran out; " + LOGS),
        "ENDED": Meaning(
            "Its agent ended by itself, or was asked to: its last record is in the evidence.", WORKER, RESCUED, LOGS),
        "RUNNING": Meaning(
            "Its agent's process runs, but sends no heartbeat: stopped, hanging, or cut off from WORKER_API_URL.",
            OPERATOR, RESCUED, "see that pods reach WORKER_API_URL; " + LOGS),
        "UNREACHED": Meaning(
            "Its pod did not answer over SSH either: it hangs, is cut off, or is gone.",
            PROVIDER, RESCUED, MORE),
    }
)  # fmt: skip

"""Which machine or place a failure is remembered against, and for how long it is avoided.

A machine that failed is avoided for a day: its next tenant would be ours again, billed for the same climb. One that is
only suspected (its pod never came to life) is avoided for an hour. A place (a data centre's machines with one GPU type)
is avoided for half an hour, once two of its machines failed within an hour: one says nothing about its neighbours.
"""

from dataclasses import dataclass

from orchestrator.core.gpus import FATAL_XIDS, RECOVERY_XID, REPEATABLE_XIDS
from orchestrator.core.model import Worker
from orchestrator.core.states import FailureCode

MACHINE_AVOID_S = 24 * 3_600.0
SUSPECT_AVOID_S = 3_600.0
PLACE_AVOID_S = 30 * 60.0
PLACE_STRIKES = 2
PLACE_MEMORY_S = 3_600.0  # strikes further apart than this are not added up

# What a machine showed that it is not as rented, or not well.
FAULTS = frozenset(
    {
        FailureCode.DISK,
        FailureCode.INODES,
        FailureCode.CLOCK_SKEW,
        FailureCode.GPU_NOT_ATTACHED,
        FailureCode.GPU_COUNT,
        FailureCode.GPU_TYPE,
        FailureCode.GPU_MEMORY,
        FailureCode.ECC,
        FailureCode.GPU_BUSY,
        FailureCode.DRIVER_TOO_OLD,
        FailureCode.NVLINK_INACTIVE,
        FailureCode.NVLINK_DEGRADED,
        *map(FailureCode.xid, FATAL_XIDS | REPEATABLE_XIDS | {RECOVERY_XID}),
    }
)
# What may be the machine's doing, or the image's, or the network's.
SUSPICIONS = frozenset(
    {
        FailureCode.NO_RUNTIME,
        FailureCode.POD_ERROR,
        FailureCode.SSH_DETAILS_MISSING,
        FailureCode.TCP_TIMEOUT,
        FailureCode.TASKS_FAIL_HERE,
    }
)


@dataclass(frozen=True, slots=True)
class Strike:
    """One thing to hold against one key of the table `hosts`."""

    key: str
    avoid_s: float
    after: int  # strikes, this one included, from which on the key is avoided
    memory_s: float  # a strike before that is forgotten


def machine_key(machine_id: str) -> str:
    """The key of one machine."""
    return f"machine:{machine_id}"


def place_key(data_center: str, gpu_type: str) -> str:
    """The key of the machines with one GPU type in one data centre."""
    return f"place:{data_center}|{gpu_type}"


def strikes(worker: Worker, code: FailureCode | None) -> tuple[Strike, ...]:
    """What a worker's end says about where it ran; nothing, unless the code blames the machine."""
    found = []
    if worker.machine_id and code in FAULTS | SUSPICIONS:
        avoid_s = MACHINE_AVOID_S if code in FAULTS else SUSPECT_AVOID_S
        found.append(Strike(machine_key(worker.machine_id), avoid_s, 1, MACHINE_AVOID_S))
    # A machine that is met again is no new failure of the machine; that it is met again tells of the place.
    if worker.data_center and worker.gpu_type and (code in FAULTS or code is FailureCode.HOST_AVOIDED):
        place = place_key(worker.data_center, worker.gpu_type)
        found.append(Strike(place, PLACE_AVOID_S, PLACE_STRIKES, PLACE_MEMORY_S))
    return tuple(found)

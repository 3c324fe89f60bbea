"""Which machine or place a failure is remembered against, and for how long it is avoided.

A machine that failed is avoided for a day: its next tenant would be ours again, billed for the same climb. A place (a
data centre's machines with one GPU type) is avoided for half an hour, once two of its machines failed within an hour:
one bad machine says nothing about its neighbours.
"""

from dataclasses import dataclass

from orchestrator.core.model import Worker
from orchestrator.core.states import FailureCode, blames_host

MACHINE_AVOID_S = 24 * 3_600.0
PLACE_AVOID_S = 30 * 60.0
PLACE_STRIKES = 2
PLACE_MEMORY_S = 3_600.0  # strikes further apart than this are not added up


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
    if not blames_host(code):
        return ()
    found = []
    if worker.machine_id and code is not FailureCode.HOST_AVOIDED:  # being met again is no new failure of the machine
        found.append(Strike(machine_key(worker.machine_id), MACHINE_AVOID_S, 1, MACHINE_AVOID_S))
    if worker.data_center and worker.gpu_type:
        found.append(
            Strike(place_key(worker.data_center, worker.gpu_type), PLACE_AVOID_S, PLACE_STRIKES, PLACE_MEMORY_S)
        )
    return tuple(found)

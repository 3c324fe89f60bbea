"""Strikes: which machine or place a failure counts against, and for how long it is avoided.

A machine that failed is avoided for a day, because the next pod there would be billed for the same failed bring-up. A
machine that is only suspected (its pod did not start) is avoided for an hour. A place (a data centre's machines with
one GPU type) is avoided for half an hour after two of its machines failed within an hour: a single failure is no
evidence about the other machines.
"""

from dataclasses import dataclass

from orchestrator.core.failures import Blames, FailureCode
from orchestrator.core.model import Worker

MACHINE_AVOID_S = 24 * 3_600.0
SUSPECT_AVOID_S = 3_600.0
PLACE_AVOID_S = 30 * 60.0
PLACE_STRIKES = 2
PLACE_MEMORY_S = 3_600.0  # two strikes further apart than this do not add up


@dataclass(frozen=True, slots=True)
class Strike:
    """One failure that counts against a key of the table `hosts`."""

    key: str
    avoid_s: float
    after: int  # strikes, including this one, from which on the key is avoided
    memory_s: float  # older strikes do not count


def machine_key(machine_id: str) -> str:
    """Return the key of one machine."""
    return f"machine:{machine_id}"


def place_key(data_center: str, gpu_type: str) -> str:
    """Return the key of the machines with one GPU type in one data centre."""
    return f"place:{data_center}|{gpu_type}"


def strikes(worker: Worker, code: FailureCode | None) -> tuple[Strike, ...]:
    """Return the strikes for a worker's end: none, unless the code blames the machine or the place."""
    found = []
    blames = code.row.blames if code else Blames.NOTHING
    if worker.machine_id and blames in (Blames.FAULT, Blames.SUSPICION):
        avoid_s = MACHINE_AVOID_S if blames is Blames.FAULT else SUSPECT_AVOID_S
        found.append(Strike(machine_key(worker.machine_id), avoid_s, 1, MACHINE_AVOID_S))
    # A second pod on an avoided machine is not a second failure of the machine, but it is one of the place.
    if worker.data_center and worker.gpu_type and blames in (Blames.FAULT, Blames.PLACE):
        place = place_key(worker.data_center, worker.gpu_type)
        found.append(Strike(place, PLACE_AVOID_S, PLACE_STRIKES, PLACE_MEMORY_S))
    return tuple(found)

"""Pods of a fleet of this name in another database: they cost money, and only who knows that database may end them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from orchestrator.core.model import Pod

NAMED = 5  # pods, in a sentence


@dataclass(frozen=True, slots=True)
class ForeignPods:
    """Those of one other database."""

    database_id: str
    fleet_id: str
    pods: tuple[str, ...]
    usd_per_hour: float

    @property
    def what(self) -> str:
        """How many, and what they cost."""
        cost = f"${self.usd_per_hour:.2f}/h"
        return f"{len(self.pods)} pod(s) of fleet {self.fleet_id} belong to another database ({cost})"

    @property
    def why(self) -> str:
        """What makes them somebody else's."""
        named = ", ".join(self.pods[:NAMED]) + (", …" if len(self.pods) > NAMED else "")
        return f"{named}: made for database {self.database_id} with this FLEET_ID; they are left alone"

    @property
    def fix(self) -> str:
        """What parts the two, and what ends pods that nobody will miss."""
        end = f"python -m orchestrator sync terminate_orphaned --database {self.database_id}"
        return f"give each environment a FLEET_ID of its own; if that database is gone: {end}"


def strangers(pods: Iterable[Pod], fleet_id: str, database_id: str | None) -> tuple[ForeignPods, ...]:
    """What a complete list has of them, by their database."""

    def found() -> Iterator[ForeignPods]:
        theirs = [pod for pod in pods if pod.is_strange(fleet_id, database_id)]
        for other in sorted({pod.database_id or "" for pod in theirs}):
            of_it = [pod for pod in theirs if pod.database_id == other]
            price = round(sum(pod.price_usd_per_hour or 0 for pod in of_it), 4)
            yield ForeignPods(other, fleet_id, tuple(sorted(pod.id for pod in of_it)), price)

    return tuple(found())

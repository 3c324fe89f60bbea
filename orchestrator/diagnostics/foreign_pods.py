"""Pods of a fleet with the same name in another database. They cost money; only its owner may end them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from orchestrator.core.plurals import at_least, counted, dollars
from orchestrator.core.provider import Pod

NAMED = 5  # pods that a sentence names


@dataclass(frozen=True, slots=True)
class ForeignPods:
    """The pods of one other database."""

    database_id: str
    fleet_id: str
    pods: tuple[str, ...]
    usd_per_hour: float  # of those whose price is known
    unpriced: int = 0  # the others

    @property
    def what(self) -> str:
        """Return how many there are and what they cost."""
        cost = at_least(f"{dollars(self.usd_per_hour)}/h", self.unpriced)
        of = f"of fleet {self.fleet_id}"
        return f"{counted(len(self.pods), f'pod {of} belongs', f'pods {of} belong')} to another database ({cost})"

    @property
    def why(self) -> str:
        """Return how they were recognised."""
        named = ", ".join(self.pods[:NAMED]) + (", …" if len(self.pods) > NAMED else "")
        return f"{named}: made for database {self.database_id} with this FLEET_ID; they are left alone"

    @property
    def fix(self) -> str:
        """Return how to separate the two fleets, and how to end pods that are no longer needed."""
        end = f"python -m orchestrator sync terminate_orphaned --database {self.database_id}"
        return f"give each environment a FLEET_ID of its own; if that database is gone: {end}"


def of_other_databases(pods: Iterable[Pod], fleet_id: str, database_id: str | None) -> tuple[ForeignPods, ...]:
    """Return the foreign pods of a complete list, by database."""

    def found() -> Iterator[ForeignPods]:
        theirs = [pod for pod in pods if pod.is_foreign(fleet_id, database_id)]
        for other in sorted({pod.database_id or "" for pod in theirs}):
            of_it = [pod for pod in theirs if pod.database_id == other]
            price = round(sum(pod.price_usd_per_hour or 0 for pod in of_it), 4)
            unpriced = sum(pod.price_usd_per_hour is None for pod in of_it)
            yield ForeignPods(other, fleet_id, tuple(sorted(pod.id for pod in of_it)), price, unpriced)

    return tuple(found())

"""The leader's reviews of the rules of scaling in one sentence each: for `doctor` and the dashboard's page of costs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from orchestrator.core import moments
from orchestrator.core.economics.policies import ReviewCandidate
from orchestrator.core.plurals import counted
from orchestrator.diagnostics.amounts import span, usd

WEEK = timedelta(days=6, hours=12)  # a span that is longer is called a week
NAMES = {one.value: one.value.replace("_", " ") for one in ReviewCandidate}


@dataclass(frozen=True, slots=True)
class ToldReview:
    """What a review says."""

    pool: str
    at: datetime
    sentence: str
    basis: str  # what it is based on
    is_better: bool  # the other rule costs less and its tasks wait less


def told(rows: Sequence[Mapping[str, Any]]) -> list[ToldReview]:
    """Return what the reviews say. One of another version's form is left out."""
    found = []
    for row in rows:
        try:
            found.append(_told(row, is_only=len(rows) == 1))
        except (KeyError, TypeError, ValueError):
            continue
    return found


def _told(row: Mapping[str, Any], *, is_only: bool) -> ToldReview:
    review = row["review"]
    in_force = review["in_force"]
    other = "fixed" if in_force == "learned" else "learned"
    mine, theirs = review["candidates"][in_force], review["candidates"][other]
    length = moments.parsed(review["until"]) - moments.parsed(review["since"])
    time = "week" if length >= WEEK else counted(max(1, round(length / timedelta(days=1))), "day").removeprefix("1 ")
    place = "" if is_only else f" in pool {row['pool']}"
    if review["usd_per_hour"]:
        bill = f"cost {usd(theirs['usd'])} instead of {usd(mine['usd'])}"
    else:  # nothing of the pool was paid
        bill = f"started {counted(theirs['boots'], 'worker')} instead of {mine['boots']}"
    sentence = (
        f"In the last {time}, {other} would have {bill}{place}, "
        f"p95 wait {span(theirs['wait_p95_s'])} instead of {span(mine['wait_p95_s'])}; "
        f"the replay of your settings {_differs(review['error_share'])}."
    )
    basis = (
        f"{counted(review['tasks'], 'task')}; with one second of waiting worth {review['wait_price']:g} s of one GPU, "
        f"{NAMES[review['tomorrow']]} was the cheapest of {', '.join(NAMES.values())}"
    )
    is_better = theirs["usd"] < mine["usd"] and (theirs["wait_p95_s"] or 0) <= (mine["wait_p95_s"] or 0)
    return ToldReview(str(row["pool"]), moments.parsed(row["at"]), sentence, basis, is_better)


def _differs(share: float | None) -> str:
    if share is None:
        return "cannot be compared with the records"
    return f"differs from the records by {abs(share) * 100:.0f} %"

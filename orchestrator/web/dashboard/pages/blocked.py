"""`/decisions/blocked`: why nothing happened in a time, by the decisions that were in force."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from orchestrator.core.decision_text import row_sentence
from orchestrator.core.model import ID_PATTERN
from orchestrator.diagnostics import blocked_times
from orchestrator.errors import BAD_ARGUMENT
from orchestrator.web.api.lists import EARLIEST, HOUR, MAX_DECISIONS
from orchestrator.web.api.problems import Problem
from orchestrator.web.dashboard.views import Facts, Page, Reads, View

NAMES = {"since": "from", "until": "to"}  # as the API and the command line call the two ends
FIELD = "%Y-%m-%dT%H:%M"  # of <input type="datetime-local">, in UTC


async def facts(reads: Reads, view: View) -> Facts:
    """What was blocked between two moments; without them, in the hour before the minute that has begun."""
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    query = {NAMES.get(name, name): value for name, value in view.query.items()}
    until = min(max(moment(query, "to") or now, EARLIEST), now)
    since = moment(query, "from") or until - HOUR
    if since >= until:
        raise Problem(400, BAD_ARGUMENT, "the time begins after its end, or in the future", fix="correct its two ends")
    pool = view.query.get("pool")
    if pool is not None and not ID_PATTERN.fullmatch(pool):
        raise Problem(400, BAD_ARGUMENT, "this is no name of a pool")
    found = await reads.seen(
        "decisions_between", since.isoformat(), until.isoformat(), limit=MAX_DECISIONS, pool=pool
    )  # fmt: skip
    pools = blocked_times.explained(found["decisions"], since, until)
    return {
        "title": "Why did nothing happen?",
        "pools": [{"time": one, "sentence": row_sentence(one.last)} for one in pools],
        "blocked": sum(bool(one.blocked) for one in pools),
        "pool": pool,
        "since": since,
        "until": until,
        "lasted_s": (until - since).total_seconds(),
        "is_open": "to" not in query,
        "fields": {name: query.get(name, "") for name in ("from", "to")},
        "is_cut": found["more"],
        "most": MAX_DECISIONS,
    }


def moment(query: Mapping[str, Any], name: str) -> datetime | None:
    """One end of the time, in UTC. Raises Problem."""
    text = query.get(name)
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        why = f"`{name}` is no time such as {datetime.now(UTC).strftime(FIELD)}"
        raise Problem(400, BAD_ARGUMENT, why) from None


PAGE = Page(
    "/decisions/blocked", "", "blocked.html", facts, lambda _: "orchestrator explain scaling", look_s=5.0,
    parent="/decisions",
)  # fmt: skip

"""`/decisions`: what the scaling decided, with its arithmetic, and what it did not get."""

import asyncio
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from orchestrator.core.blocked import from_json
from orchestrator.core.decision_text import row_sentence
from orchestrator.diagnostics import decision_lines, scaling
from orchestrator.errors import BAD_ARGUMENT
from orchestrator.web.api.problems import Problem
from orchestrator.web.dashboard.views import Facts, Page, Reads, View

DECISIONS = 100  # on a page
MOST_NOW = 8  # pools whose last decision stands above the list, those that are held back first
ROW_ID = re.compile(r"[1-9][0-9]{0,17}")
Row = Mapping[str, Any]


async def facts(reads: Reads, view: View) -> Facts:
    """A page of decisions, equal ones folded, and the last one of each pool."""
    before, pool = before_of(view), view.query.get("pool")
    found, rows = await asyncio.gather(
        reads.get("scaling"), reads.seen("decisions", before=before, limit=DECISIONS, pool=pool)
    )
    last = {name: row for name, row in sorted(found["decisions"].items()) if row and view.holder.sees(name)}
    kept = {"pool": pool} if pool else {}
    now_of = [{"pool": name, "text": row_sentence(row), "reasons": reasons(row)}
              for name, row in last.items() if pool in (None, name)]  # fmt: skip
    return {
        "title": f"Decisions of {pool}" if pool else "Decisions",
        "now_of": sorted(now_of, key=lambda one: not one["reasons"]),
        "most_now": MOST_NOW,
        "pools": list(last),
        "pool": pool,
        "before": before,
        "folded": decision_lines.folded(rows),
        "newest": f"/decisions?{urlencode(kept)}" if kept else "/decisions",
        "earlier": f"/decisions?{urlencode({**kept, 'before': rows[-1]['id']})}" if len(rows) == DECISIONS else None,
    }  # fmt: skip


def before_of(view: View) -> int | None:
    """The row before which a page begins. Raises Problem."""
    text = view.query.get("before")
    if text is not None and not ROW_ID.fullmatch(text):
        raise Problem(400, BAD_ARGUMENT, "`before` is no number of a row", fix="use the link on the page before")
    return None if text is None else int(text)


def reasons(row: Row) -> list[scaling.Reason]:
    """What a decision wanted and did not get, why, and until when."""
    return [scaling.explained_reason(from_json(one)) for one in row["blocked"] or ()]


PAGE = Page("/decisions", "Decisions", "decisions.html", facts, lambda _: "orchestrator explain scaling")

"""`/audit`: who did what, by any way."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from orchestrator.core.api_tokens import TokenScope
from orchestrator.diagnostics.amounts import MOMENT, clock, span
from orchestrator.web.dashboard.pages.decisions import before_of
from orchestrator.web.dashboard.views import Facts, Page, Reads, View

ENTRIES = 100  # on a page
ACTIONS = 20  # on the page of a task or worker
MAX_SUBJECT_CHARS = 300
Row = Mapping[str, Any]
COMMAND = 'curl -H "Authorization: Bearer $API_TOKEN" "$WORKER_API_URL/api/v1/audit"'


async def facts(reads: Reads, view: View) -> Facts:
    """A page of the audit log."""
    before, subject = before_of(view), view.query.get("subject", "").strip()[:MAX_SUBJECT_CHARS]
    entries = await reads.get("audit", before=before, limit=ENTRIES, subject=subject or None)
    return {
        "title": "Audit log",
        "subject": subject,
        "entries": shown(entries),
        "before": before,
        "next": entries[-1]["id"] if len(entries) == ENTRIES else None,
    }


async def done_with(reads: Reads, view: View, subject: str) -> Row | None:
    """The last actions on a task or worker, and the address of the log for those who may open it: {acts, log}.

    None for a token that sees a part of the fleet.
    """
    if view.holder.pools is not None or view.holder.tenant is not None:
        return None
    entries = await reads.get("audit", before=None, limit=ACTIONS, subject=subject)
    return {"acts": shown(entries), "log": f"/audit?subject={quote(subject)}" if view.holder.may(PAGE.scopes) else None}


def shown(entries: Sequence[Row]) -> list[Row]:
    """Entries with their details as names and values."""
    return [{**one, "facts": _facts(one["detail"])} for one in entries]


def _facts(detail: object) -> list[tuple[str, object]]:
    """The detail of an entry as names and values."""
    if isinstance(detail, dict):
        return [_fact(str(name), value) for name, value in detail.items() if value is not None]
    return [] if detail is None else [("detail", detail)]


def _fact(name: str, value: object) -> tuple[str, object]:
    """A fact as people read it: a span, a moment, the parts of a list."""
    if name == "for_s" and isinstance(value, int | float):
        return "for", span(value)
    if isinstance(value, list):
        return name, ", ".join(map(str, value))
    if name.endswith("_at") and isinstance(value, str) and MOMENT.fullmatch(value):
        return name.removesuffix("_at"), clock(value)
    return name, value


PAGE = Page(
    "/audit", "Audit", "audit.html", facts, lambda _: COMMAND,
    scopes=frozenset({TokenScope.ADMIN}), is_fleets=True,
)  # fmt: skip

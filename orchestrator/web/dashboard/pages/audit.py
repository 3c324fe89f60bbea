"""`/audit`: who did what, by any way."""

from orchestrator.core.api_tokens import TokenScope
from orchestrator.web.dashboard.pages.decisions import before_of
from orchestrator.web.dashboard.views import Facts, Page, Reads, View

ENTRIES = 100  # on a page
COMMAND = 'curl -H "Authorization: Bearer $API_TOKEN" "$WORKER_API_URL/api/v1/audit"'


async def facts(reads: Reads, view: View) -> Facts:
    """A page of the audit log."""
    before = before_of(view)
    entries = await reads.get("audit", before=before, limit=ENTRIES)
    return {
        "title": "Audit log",
        "entries": [{**one, "facts": _facts(one["detail"])} for one in entries],
        "before": before,
        "next": entries[-1]["id"] if len(entries) == ENTRIES else None,
    }


def _facts(detail: object) -> list[tuple[str, object]]:
    """The detail of an entry as names and values."""
    if isinstance(detail, dict):
        return [(str(name), value) for name, value in detail.items() if value is not None]
    return [] if detail is None else [("detail", detail)]


PAGE = Page(
    "/audit", "Audit", "audit.html", facts, lambda _: COMMAND,
    scopes=frozenset({TokenScope.ADMIN}), is_fleets=True,
)  # fmt: skip

"""The table of pages, in the order of the navigation."""

from orchestrator.web.dashboard.pages import audit, cost, decisions, overview, pools, workers
from orchestrator.web.dashboard.views import Page

PAGES: tuple[Page, ...] = (
    overview.PAGE,
    workers.PAGE,
    decisions.PAGE,
    cost.PAGE,
    pools.PAGE,
    audit.PAGE,
)

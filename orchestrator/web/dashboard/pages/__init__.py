"""The table of pages, in the order of the navigation."""

from orchestrator.web.dashboard.pages import blocked, lists, overview, workers
from orchestrator.web.dashboard.views import Page

PAGES: tuple[Page, ...] = (
    overview.PAGE,
    workers.PAGE,
    blocked.PAGE,
    lists.SCHEDULES,
    lists.WEBHOOKS,
    lists.LIMITS,
    lists.TOKENS,
)

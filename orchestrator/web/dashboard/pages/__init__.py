"""The table of pages, in the order of the navigation."""

from orchestrator.web.dashboard.pages import audit, cost, decisions, overview, pools, task, tasks, worker, workers
from orchestrator.web.dashboard.views import Page

PAGES: tuple[Page, ...] = (
    overview.PAGE,
    workers.PAGE,
    worker.PAGE,
    tasks.PAGE,
    task.PAGE,
    decisions.PAGE,
    cost.PAGE,
    pools.PAGE,
    audit.PAGE,
)

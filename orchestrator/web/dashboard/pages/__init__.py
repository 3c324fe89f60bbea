"""The table of pages, in the order of the navigation."""

from orchestrator.web.dashboard.pages import (
    audit,
    blocked,
    cost,
    decisions,
    lists,
    overview,
    pools,
    task,
    task_changes,
    tasks,
    worker,
    workers,
)
from orchestrator.web.dashboard.views import Page

PAGES: tuple[Page, ...] = (
    overview.PAGE,
    workers.PAGE,
    worker.PAGE,
    tasks.PAGE,
    task_changes.LIST,  # before the page of a task, whose address it would be
    task_changes.ONE,
    task.PAGE,
    decisions.PAGE,
    blocked.PAGE,
    cost.PAGE,
    pools.PAGE,
    lists.SCHEDULES,
    lists.WEBHOOKS,
    lists.LIMITS,
    lists.TOKENS,
    audit.PAGE,
)

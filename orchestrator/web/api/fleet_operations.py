"""The operations on the fleet: its workers, pools, money, and what people set up. See routes.py."""

from orchestrator.core.api_tokens import TokenScope
from orchestrator.web.api import (
    explanations,
    failures,
    fleet,
    fleet_events,
    fleet_models,
    history,
    list_models,
    lists,
    scale_limits,
    scaling_reviews,
)
from orchestrator.web.api.operations import Operation

READ = frozenset({TokenScope.READ})
OPERATE = frozenset({TokenScope.OPERATE})
ADMIN = frozenset({TokenScope.ADMIN})
JSON, STREAM = ("application/json",), ("text/event-stream",)

FLEET_OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "GET", "/workers", "listWorkers", "List workers, newest first", READ, fleet.workers, fleet_models.WorkersShown,
        query=fleet_models.WorkerQuery,
    ),
    Operation(
        "GET", "/workers/{worker_id}", "getWorker", "Read a worker", READ, fleet.worker, fleet_models.WorkerShown,
        problems=(404,),
    ),
    Operation(
        "GET", "/workers/{worker_id}/explanation", "explainWorker", "Explain where a worker is, and why", READ,
        explanations.worker, fleet_models.ExplanationShown, problems=(404,),
    ),
    Operation(
        "GET", "/scaling/explanation", "explainScaling", "Explain the size of the pools", READ, explanations.scaling,
        fleet_models.ScalingExplained,
    ),
    Operation(
        "POST", "/workers/{worker_id}/terminate", "terminateWorker", "Ask for a worker's end", OPERATE, fleet.terminate,
        fleet_models.WorkerAsked, body=fleet_models.TerminateInput, status=202, problems=(404, 422),
    ),
    Operation(
        "GET", "/decisions", "listDecisions", "List scaling decisions, newest first", READ, lists.decisions,
        fleet_models.DecisionsShown, query=list_models.DecisionQuery,
    ),
    Operation(
        "GET", "/failures", "listFailures", "List the newest attempts that failed", READ, failures.listed,
        failures.FailuresShown, query=failures.FailureQuery,
    ),
    Operation(
        "GET", "/scaling/blocked", "explainBlocked", "Explain what was blocked in a time", READ, lists.blocked,
        list_models.BlockedTimes, query=list_models.BlockedQuery, problems=(422,),
    ),
    Operation(
        "GET", "/events", "listEvents", "Read or follow what happens to the workers", READ, fleet_events.read,
        fleet_models.EventsShown, query=fleet_models.EventQuery, media_types=(*JSON, *STREAM),
    ),
    Operation(
        "GET", "/health", "getHealth", "Read what is wrong with the fleet", READ, fleet.health,
        fleet_models.HealthShown,
    ),
    Operation("GET", "/pools", "listPools", "List pools and offers", READ, fleet.pools, fleet_models.PoolsShown),
    Operation(
        "GET", "/hosts", "listAvoidedHosts", "List machines and places that are avoided", READ, lists.hosts,
        list_models.HostsShown,
    ),
    Operation("GET", "/pauses", "listPauses", "List pauses", READ, fleet.pauses, fleet_models.PausesShown),
    Operation(
        "POST", "/pauses", "pause", "Stop spawning", OPERATE, fleet.pause, fleet_models.PausesShown,
        body=fleet_models.PauseInput, problems=(404, 422),
    ),
    Operation(
        "DELETE", "/pauses", "resume", "Spawn again", OPERATE, fleet.resume, fleet_models.PausesShown,
        query=fleet_models.PoolQuery,
    ),
    Operation(
        "GET", "/scale-limits", "listScaleLimits", "List limits of workers", READ, scale_limits.listed,
        scale_limits.ScaleLimitsShown,
    ),
    Operation(
        "POST", "/scale-limits", "limitWorkers", "Allow at most so many workers for a time", OPERATE,
        scale_limits.limit, scale_limits.ScaleLimitsShown, body=scale_limits.ScaleLimitInput, problems=(404, 422),
    ),
    Operation(
        "DELETE", "/scale-limits", "unlimitWorkers", "End limits of workers", OPERATE, scale_limits.unlimit,
        scale_limits.ScaleLimitsShown, query=fleet_models.PoolQuery,
    ),
    Operation(
        "GET", "/costs", "getCosts", "Read what the fleet cost", READ, fleet.costs, fleet_models.CostShown,
        query=fleet_models.CostQuery, problems=(422,),
    ),
    Operation(
        "GET", "/usage", "getUsage", "Read what was done and spent in each hour or day", READ, history.usage,
        history.UsageShown, query=history.UsageQuery, problems=(422,),
    ),
    Operation(
        "GET", "/scaling/reviews", "listScalingReviews", "Read what other rules of scaling would have cost", READ,
        scaling_reviews.listed, scaling_reviews.ScalingReviewsShown,
    ),
    Operation(
        "GET", "/history", "getHistory", "Read the pools minute by minute", READ, history.fleet, history.HistoryShown,
        query=history.HistoryQuery, problems=(422,),
    ),
    Operation(
        "GET", "/workers/{worker_id}/history", "getWorkerHistory", "Read a worker minute by minute", READ,
        history.worker, history.WorkerHistoryShown, problems=(404,),
    ),
    Operation(
        "GET", "/audit", "listAudit", "Read the audit log, newest first", ADMIN, fleet.audit, fleet_models.AuditPage,
        query=fleet_models.AuditQuery,
    ),
    Operation(
        "GET", "/schedules", "listSchedules", "List recurring tasks", READ, lists.schedules, list_models.SchedulesShown,
    ),
    Operation(
        "GET", "/webhooks", "listWebhooks", "List webhooks, and the newest messages with their answers", READ,
        lists.webhooks, list_models.WebhooksShown, query=list_models.WebhookQuery,
    ),
    Operation(
        "POST", "/webhooks/resend", "resendMessages", "Send unsent messages again, for another day", OPERATE,
        lists.resend, list_models.Resent, body=list_models.ResendInput, problems=(404, 422),
    ),
    Operation(
        "GET", "/limits", "listLimits", "List limits of concurrency keys and types", READ, lists.limits,
        list_models.LimitsShown,
    ),
    Operation("GET", "/tenants", "listTenants", "List tenants", READ, lists.tenants, list_models.TenantsShown),
    Operation("GET", "/tokens", "listTokens", "List tokens", ADMIN, lists.tokens, list_models.TokensShown),
)  # fmt: skip

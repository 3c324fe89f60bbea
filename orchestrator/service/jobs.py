"""Builds the jobs of a leader from the settings: those that it has always, and those that a setting switches on."""

from collections.abc import Sequence
from functools import partial
from zoneinfo import ZoneInfo

import structlog

from orchestrator import __version__
from orchestrator.adapters.alert_sender import AlertSender
from orchestrator.adapters.economics_store import EconomicsStore
from orchestrator.adapters.otlp import OtlpExporter
from orchestrator.adapters.schedule_store import ScheduleStore
from orchestrator.adapters.store import SqlStore
from orchestrator.adapters.task_change_store import TaskChangeStore
from orchestrator.adapters.webhook_sender import WebhookSender
from orchestrator.adapters.webhook_store import WebhookStore
from orchestrator.config.errors import SettingsError
from orchestrator.config.settings import Settings
from orchestrator.config.validation import require
from orchestrator.core.places import bucket_place
from orchestrator.core.policy import Policy
from orchestrator.core.replay_settings import queue_pools
from orchestrator.diagnostics.account import account, money
from orchestrator.diagnostics.alerts import AlertPolicy, QuietHours
from orchestrator.leader_jobs import (
    alerts,
    bill,
    bulk_changes,
    conditions,
    pod_requests,
    scaling_reviews,
    schedules,
    traces,
)
from orchestrator.leader_jobs.alerts import Alerts
from orchestrator.leader_jobs.bill import BillRecord
from orchestrator.leader_jobs.bulk_changes import BulkChanges
from orchestrator.leader_jobs.conditions import LeaderConditions, Sources
from orchestrator.leader_jobs.outbox import Outbox
from orchestrator.leader_jobs.pod_requests import PodRequests
from orchestrator.leader_jobs.scaling_reviews import ScalingReviews
from orchestrator.leader_jobs.schedules import Schedules
from orchestrator.leader_jobs.traces import Traces
from orchestrator.loop.jobs import LeaderJob
from orchestrator.loop.store_watch import StoreWatch
from orchestrator.observability.metrics import Metrics
from orchestrator.ports import ASKS_CHANNEL, Db
from orchestrator.service.adapters import Adapters
from orchestrator.service.tokens import sealed_token_for
from orchestrator.wiring import sending_rules

MESSAGES_EVERY_S = 2.0  # while none about tasks is due
HISTORY_EVERY_S = 10.0  # how often it is checked whether a minute has begun
PROGRESS_S = 10.0  # between two messages about the progress of a task
log = structlog.get_logger()


def jobs_of(
    settings: Settings, policy: Policy, adapters: Adapters, metrics: Metrics, watch: StoreWatch
) -> tuple[LeaderConditions, Sequence[LeaderJob]]:
    """Return the conditions of the fleet, which the ticks keep up to date, and the jobs of a leader."""
    db, store = adapters.background_db, adapters.background_store
    messages = WebhookStore(db, settings.fleet_id)
    alerting = _alerts(store, messages, settings)
    place = bucket_place(settings.s3_endpoint_url, settings.aws_region)
    sources = Sources(store, policy.handled, partial(_balance, settings), lambda: watch.took_s, place)
    known = LeaderConditions(sources, metrics, alerting.note_conditions if alerting else None)
    due = Schedules(ScheduleStore(db, settings.fleet_id))
    changes = BulkChanges(TaskChangeStore(db, settings.fleet_id))
    reviews = ScalingReviews(EconomicsStore(db, settings.fleet_id), partial(queue_pools, policy))
    jobs = [
        LeaderJob("conditions", conditions.EVERY_S, lambda _term: known.ask()),
        LeaderJob("condition_record", conditions.RECORD_EVERY_S, known.record.step),
        LeaderJob("schedules", schedules.EVERY_S, due.step),
        LeaderJob("bulk_changes", bulk_changes.EVERY_S, changes.step),
        LeaderJob("history", HISTORY_EVERY_S, store.record),
        LeaderJob("bill", bill.EVERY_S, BillRecord(store, adapters.cloud).step),
        LeaderJob("scaling_reviews", scaling_reviews.EVERY_S, reviews.step),
    ]
    if rules := sending_rules(settings):
        sender = WebhookSender(rules)
        outbox = Outbox(messages, lambda one: sender.send(one["id"], one["url"] or "", one["body"]))
        jobs += [
            LeaderJob("webhooks", MESSAGES_EVERY_S, outbox.step),
            LeaderJob("webhooks_progress", PROGRESS_S, lambda term: messages.write_progress(term, PROGRESS_S)),
        ]
    if tracing := _traces(db, settings, metrics):
        jobs.append(LeaderJob("traces", traces.EVERY_S, tracing.step))
    if alerting:
        jobs.append(LeaderJob("alerts", alerts.EVERY_S, alerting.step))
    if settings.pods_use_supabase:
        requests = PodRequests(store, adapters.blobs, sealed_token_for(settings))
        jobs.append(LeaderJob("pod_requests", pod_requests.EVERY_S, requests.step, ASKS_CHANNEL))
    return known, jobs


def _alerts(store: SqlStore, messages: WebhookStore, settings: Settings) -> Alerts | None:
    if settings.alert_webhook_url is None:
        return None
    quiet = None
    if times := settings.alert_quiet_hours:
        quiet = QuietHours(times[0], times[1], ZoneInfo(times[2]))
    policy = AlertPolicy(settings.fleet_id, settings.alert_max_per_hour, quiet)
    sender = AlertSender(settings.alert_webhook_url.get_secret_value())
    return Alerts(store, Outbox(messages, lambda one: sender.send(one["id"], one["body"]), of_fleet=True), policy)


def _traces(db: Db, settings: Settings, metrics: Metrics) -> Traces | None:
    """None without a collector, or without the SDK."""
    if settings.otel_exporter_otlp_endpoint is None:
        return None

    def count(result: str, spans: int) -> None:
        metrics.spans.labels(result).inc(spans)

    try:
        sink = OtlpExporter(settings.otel_exporter_otlp_endpoint, settings.fleet_id, __version__, count)
    except ModuleNotFoundError as error:
        words = f"no traces are sent: {error.name} is not installed; fix: pip install 'gpu-orchestrator[tracing]'"
        log.warning("tracing_off", message=words)
        return None
    except SettingsError as error:
        log.warning("tracing_off", message=f"no traces are sent: {error}")
        return None
    return Traces(db, settings.fleet_id, sink)


async def _balance(settings: Settings) -> float:
    key = require(settings, "cloud").runpod_api_key
    assert key is not None  # noqa: S101
    async with account(settings.runpod_api_base_url, key.get_secret_value()) as client:
        balance_usd, _ = await money(client)
    return balance_usd

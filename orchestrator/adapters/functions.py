"""The database functions that this version calls, and the port's error for each SQLSTATE of a refusal."""

from collections.abc import Mapping
from types import MappingProxyType

from orchestrator.ports import (
    BadArgument,
    BadToken,
    DatabaseAuth,
    LostRace,
    NotLeader,
    OverBudget,
    PortError,
    SchemaMismatch,
    Unavailable,
    UnknownWorker,
)

# SQLSTATE (or PostgREST's `code`) of a refusal -> the port's error. The longest matching prefix applies. Any other code
# counts as no clear answer.
REFUSALS: Mapping[str, type[PortError]] = MappingProxyType(
    {
        "OR001": NotLeader,
        "OR002": LostRace,
        "OR003": OverBudget,
        "OR005": UnknownWorker,
        "OR006": BadToken,
        "OR007": BadArgument,
        "42501": DatabaseAuth,  # insufficient_privilege: this role may not call this
        "42883": SchemaMismatch,  # undefined_function
        "42P01": SchemaMismatch,  # undefined_table
        "42703": SchemaMismatch,  # undefined_column
        "PGRST202": SchemaMismatch,  # PostgREST: no function with these arguments
        "PGRST205": SchemaMismatch,  # … no table with this name
        "22": BadArgument,  # data exceptions: an argument has an invalid value
        "23": BadArgument,  # integrity constraints
    }
)

# The functions that this version calls -> their arguments without `p_now`. Compared with fleet_describe() at start.
FUNCTIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "task_submit": ("p_tasks",),
        "task_cancel": ("p_id",),
        "task_retry": ("p_id",),
        "task_get": ("p_id",),
        "task_list": ("p_status", "p_task_type", "p_limit"),
        "task_find": ("p_filter", "p_limit", "p_full"),
        "task_match": ("p_prefix", "p_limit"),
        "task_submit_for": ("p_fleet", "p_actor", "p_scope", "p_key", "p_sha256", "p_tasks"),
        "task_act_for": ("p_fleet", "p_actor", "p_scope", "p_id", "p_action", "p_version"),
        "task_get_for": ("p_scope", "p_id"),
        "task_states": ("p_ids",),
        "task_page": ("p_scope", "p_filter", "p_cursor", "p_limit"),
        "task_limits": (),
        "task_limit_set": ("p_kind", "p_name", "p_most"),
        "task_tenants": (),
        "task_tenant_set": ("p_tenant", "p_weight"),
        "task_schedule": ("p_schedule",),
        "task_schedules": (),
        "task_schedule_pause": ("p_name", "p_paused"),
        "task_schedule_remove": ("p_name",),
        "worker_register": ("p_worker_id", "p_nonce", "p_agent"),
        "worker_claim": ("p_worker_id", "p_nonce", "p_claim_no", "p_batch", "p_wait_s"),
        "worker_heartbeat": ("p_worker_id", "p_nonce", "p_tasks", "p_health", "p_logs"),
        "worker_complete": ("p_worker_id", "p_nonce", "p_task_id", "p_attempt", "p_output_location", "p_result_data"),
        "worker_complete_output": (
            "p_worker_id",
            "p_nonce",
            "p_task_id",
            "p_attempt",
            "p_output_location",
            "p_result_data",
            "p_output",
        ),
        "worker_complete_many": ("p_worker_id", "p_nonce", "p_results"),
        "worker_complete_and_claim": ("p_worker_id", "p_nonce", "p_results", "p_claim_no", "p_batch"),
        "worker_fail": ("p_worker_id", "p_nonce", "p_task_id", "p_attempt", "p_failure"),
        "worker_release": ("p_worker_id", "p_nonce", "p_task_id", "p_attempt", "p_reason"),
        "worker_grants": ("p_worker_id", "p_nonce", "p_items"),
        "worker_renew": ("p_worker_id", "p_nonce"),
        "fleet_heartbeats": ("p_beats",),
        "fleet_lead": ("p_fleet", "p_holder", "p_ttl_s"),
        "fleet_resign": ("p_fleet", "p_holder", "p_term"),
        "fleet_snapshot": ("p_fleet",),
        "fleet_task_troubles": ("p_fleet", "p_handled"),
        "fleet_spawn": ("p_fleet", "p_term", "p_worker"),
        "fleet_move": ("p_fleet", "p_term", "p_worker_id", "p_from", "p_to", "p_stage", "p_reason", "p_fields"),
        "fleet_keep_tasks": ("p_fleet", "p_term", "p_worker_id"),
        "fleet_rescue": ("p_fleet", "p_term", "p_worker_id"),
        "fleet_rescue_overdue": ("p_fleet", "p_term", "p_over_s"),
        "fleet_attempt_open": ("p_fleet", "p_term", "p_worker_id", "p_stage"),
        "fleet_attempt_close": (
            "p_fleet",
            "p_term",
            "p_id",
            "p_outcome",
            "p_failure_code",
            "p_exception_type",
            "p_evidence",
        ),
        "fleet_attempt_note": ("p_fleet", "p_term", "p_id", "p_failure_code", "p_evidence"),
        "fleet_note_offer": ("p_fleet", "p_term", "p_key", "p_refused", "p_code"),
        "fleet_strike": (
            "p_fleet",
            "p_term",
            "p_key",
            "p_code",
            "p_evidence",
            "p_avoid_s",
            "p_after",
            "p_memory_s",
        ),
        "fleet_hosts": ("p_fleet", "p_avoided"),
        "fleet_record_decision": ("p_fleet", "p_term", "p_decision"),
        "fleet_log_begin": (
            "p_fleet",
            "p_term",
            "p_worker_id",
            "p_boot_id",
            "p_stream",
            "p_seq",
            "p_first",
            "p_last",
            "p_sha256",
            "p_key",
        ),
        "fleet_log_shipped": (
            "p_fleet",
            "p_term",
            "p_worker_id",
            "p_boot_id",
            "p_stream",
            "p_seq",
            "p_first",
            "p_last",
            "p_sha256",
            "p_key",
        ),
        "fleet_log_pieces": ("p_fleet", "p_worker_id"),
        "fleet_log_ends": ("p_fleet", "p_worker_id"),
        "fleet_log_lost": (
            "p_fleet",
            "p_term",
            "p_worker_id",
            "p_boot_id",
            "p_stream",
            "p_first",
            "p_last",
            "p_reason",
        ),
        "fleet_asks": ("p_fleet", "p_limit"),
        "fleet_answer": ("p_fleet", "p_term", "p_answers"),
        "fleet_alerts": ("p_fleet",),
        "fleet_note_alerts": ("p_fleet", "p_term", "p_alerts", "p_messages"),
        "fleet_token_create": ("p_fleet", "p_token", "p_actor"),
        "fleet_token_use": ("p_fleet", "p_hash"),
        "fleet_token_revoke": ("p_fleet", "p_name", "p_actor"),
        "fleet_tokens": ("p_fleet",),
        "fleet_workers_page": ("p_fleet", "p_pools", "p_ended", "p_cursor", "p_limit"),
        "fleet_decisions_page": ("p_fleet", "p_pools", "p_before", "p_limit"),
        "fleet_events": ("p_fleet", "p_pools", "p_after", "p_limit"),
        "fleet_act": ("p_fleet", "p_actor", "p_action", "p_subject", "p_args"),
        "fleet_pauses": ("p_fleet",),
        "fleet_audit": ("p_fleet", "p_before", "p_limit"),
        "fleet_schedules_due": ("p_fleet", "p_limit"),
        "fleet_schedule_run": ("p_fleet", "p_term", "p_name", "p_seen", "p_missed", "p_due_at", "p_next_at"),
        "fleet_schedule_problem": ("p_fleet", "p_term", "p_name", "p_problem"),
        "fleet_webhooks_progress": ("p_fleet", "p_term", "p_every_s"),
        "fleet_messages_take": (
            "p_fleet",
            "p_term",
            "p_of_fleet",
            "p_busy",
            "p_per_host",
            "p_limit",
            "p_lease_s",
            "p_after",
        ),
        "fleet_message_close": ("p_fleet", "p_term", "p_id", "p_error", "p_retry_s"),
        "fleet_webhook_put": ("p_fleet", "p_actor", "p_webhook"),
        "fleet_webhook_remove": ("p_fleet", "p_actor", "p_name"),
        "fleet_webhook_retry": ("p_fleet", "p_actor", "p_id"),
        "fleet_webhooks": ("p_fleet", "p_state", "p_task_id", "p_limit"),
        "fleet_ended_attempts": ("p_fleet", "p_term", "p_cursor", "p_lag_s", "p_limit"),
        "fleet_retain": ("p_fleet", "p_term", "p_every_s"),
        "fleet_retention": ("p_fleet", "p_term"),  # within fleet_retain; earlier versions call it themselves
        "fleet_workers": ("p_fleet", "p_all", "p_limit"),
        "fleet_worker": ("p_fleet", "p_worker_id"),
        "fleet_find_workers": ("p_fleet", "p_filter", "p_limit"),
        "fleet_match_workers": ("p_fleet", "p_text", "p_limit"),
        "fleet_names": ("p_fleet",),
        # within fleet_act; earlier versions call these two themselves
        "fleet_request_termination": ("p_fleet", "p_worker_id", "p_reason", "p_now_not_drain"),
        "fleet_pause": ("p_fleet", "p_pool", "p_reason", "p_for_s"),
        "fleet_decisions": ("p_fleet", "p_limit"),
        "fleet_declare_pools": ("p_fleet", "p_term", "p_pools"),
        "fleet_declare_programs": ("p_fleet", "p_term", "p_pools", "p_stuck_s"),
        "fleet_declare_release": ("p_fleet", "p_term", "p_releases", "p_task_types"),
        "fleet_note_tick": ("p_fleet", "p_term", "p_error", "p_for_s"),
        "fleet_store_away": ("p_fleet", "p_term", "p_reason", "p_since", "p_for_s"),
        "fleet_explain": ("p_fleet", "p_worker_id"),
        "fleet_explain_workers": ("p_fleet",),
        "fleet_task_explain": ("p_fleet", "p_task_id"),
        "fleet_scaling_explain": ("p_fleet",),
        "fleet_usual": ("p_fleet", "p_gpu_type"),
        "fleet_cost": ("p_fleet", "p_since", "p_until"),
        "fleet_cost_by": ("p_fleet", "p_since", "p_until", "p_by", "p_limit"),
        "fleet_report": ("p_fleet",),
        "fleet_efficiency": ("p_fleet", "p_since", "p_until"),
        "fleet_metrics": ("p_fleet", "p_since"),
        "fleet_leadership": ("p_fleet",),
        "fleet_describe": (),
        "fleet_schema_problems": (),
        "fleet_changes": ("p_digest",),
    }
)


def refusal(code: str | None, what: str, why: str | None = None, fix: str | None = None) -> PortError:
    """Return the port's error for a SQLSTATE; Unavailable for an unknown one."""
    ours = (code or "").startswith("OR")  # the server's own hints are about SQL and do not help here
    text = what + (f": {why}" if why else "") + (f"; fix: {fix}" if fix and ours else "")
    for length in range(len(code or ""), 1, -1):
        kind = REFUSALS.get((code or "")[:length])
        if kind is not None:
            return kind(text)
    return Unavailable(f"{code}: {text}" if code else text)

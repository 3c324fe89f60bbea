"""The database's functions as this version calls them, and what their refusals mean to the ports."""

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

# How a refusal is named by the database (SQLSTATE; PostgREST's `code`) and by the ports. The longest prefix that fits
# holds; what is not here gave no clear answer.
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
        "PGRST205": SchemaMismatch,  # … no table of this name
        "22": BadArgument,  # data exceptions: a value that cannot be what its argument is
        "23": BadArgument,  # integrity constraints
    }
)

# What this version calls: function -> its arguments without `p_now`. Compared with fleet_describe() at start.
FUNCTIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "task_submit": ("p_tasks",),
        "task_cancel": ("p_id",),
        "task_retry": ("p_id",),
        "task_get": ("p_id",),
        "task_list": ("p_status", "p_task_type", "p_limit"),
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
        "fleet_spawn": ("p_fleet", "p_term", "p_worker"),
        "fleet_move": ("p_fleet", "p_term", "p_worker_id", "p_from", "p_to", "p_stage", "p_reason", "p_fields"),
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
        "fleet_retain": ("p_fleet", "p_term", "p_every_s"),
        "fleet_retention": ("p_fleet", "p_term"),  # within fleet_retain; earlier versions call it themselves
        "fleet_workers": ("p_fleet", "p_all", "p_limit"),
        "fleet_worker": ("p_fleet", "p_worker_id"),
        "fleet_request_termination": ("p_fleet", "p_worker_id", "p_reason", "p_now_not_drain"),
        "fleet_decisions": ("p_fleet", "p_limit"),
        "fleet_declare_pools": ("p_fleet", "p_term", "p_pools"),
        "fleet_declare_programs": ("p_fleet", "p_term", "p_pools", "p_stuck_s"),
        "fleet_declare_release": ("p_fleet", "p_term", "p_releases", "p_task_types"),
        "fleet_pause": ("p_fleet", "p_pool", "p_reason", "p_for_s"),
        "fleet_store_away": ("p_fleet", "p_term", "p_reason", "p_since", "p_for_s"),
        "fleet_explain": ("p_fleet", "p_worker_id"),
        "fleet_task_explain": ("p_fleet", "p_task_id"),
        "fleet_scaling_explain": ("p_fleet",),
        "fleet_usual": ("p_fleet", "p_gpu_type"),
        "fleet_cost": ("p_fleet", "p_since", "p_until"),
        "fleet_report": ("p_fleet",),
        "fleet_efficiency": ("p_fleet", "p_since", "p_until"),
        "fleet_metrics": ("p_fleet", "p_since"),
        "fleet_leadership": ("p_fleet",),
        "fleet_describe": (),
        "fleet_changes": ("p_digest",),
    }
)


def refusal(code: str | None, what: str, why: str | None = None, fix: str | None = None) -> PortError:
    """The port error that a SQLSTATE stands for; Unavailable where it stands for none."""
    ours = (code or "").startswith("OR")  # the server's own hints are about SQL, and mend nothing here
    text = what + (f": {why}" if why else "") + (f"; fix: {fix}" if fix and ours else "")
    for length in range(len(code or ""), 1, -1):
        kind = REFUSALS.get((code or "")[:length])
        if kind is not None:
            return kind(text)
    return Unavailable(f"{code}: {text}" if code else text)

"""The parts of the real SQL that the model lacks, each with the reason. The drift test fails for any other part.

The random calls compare what both have. This is the other direction: a function, an argument, a column, a code, a
transition or a key of an answer that is added to the migrations has to be modelled, or named here.
"""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from orchestrator.adapters.functions import FUNCTIONS
from tests.proofs.simulator.sql.records import Records
from tests.proofs.simulator.sql.tables import LEGAL, Tables
from worker.protocol import CLAIMED

SHOWN = "for people: no decision of the loop or of an agent reads it"
ALERTS = "messages about conditions; nothing that a tick decides depends on them"
API = "the API's tokens and its audit log; nobody submits through it here"
WEBHOOKS = "messages about tasks; nothing that a tick or an agent decides depends on them"
TRACES = "spans of tasks that have ended; nothing depends on them"
CLUSTERS = "Slurm on the workers of a pool; no simulation has a pool of that kind"
SHARES = "limits and turns of tenants: the property walk in tests/db tests them on PostgreSQL"
PENDING = "what a lock or a user's trigger kept from being done; nobody has either here"
SCHEDULES = "recurring tasks: to the fleet they are tasks that somebody submits"
REVIEWS = "what other rules of scaling would have cost: for people"
BULK = "to the fleet, a change of many tasks is that of each one"
CARRIED = "the model's claim hands it over by its name, so that a new column of a task needs no line here"
NO_GATEWAY = "agents here speak to the database itself, or to a gateway without long polls and signed URLs"
FUNCTIONS_ONLY_REAL = {
    "task_limit_set": SHARES,
    "task_tenant_set": SHARES,
    "task_limits": SHARES,
    "task_tenants": SHARES,
    "task_list": SHOWN,
    "task_find": SHOWN,
    "task_match": SHOWN,
    "fleet_hosts": SHOWN,
    "fleet_names": SHOWN,
    "fleet_workers": SHOWN,
    "fleet_find_workers": SHOWN,
    "fleet_match_workers": SHOWN,
    "fleet_decisions": SHOWN,
    "fleet_explain": SHOWN,
    "fleet_explain_workers": SHOWN,
    "fleet_task_explain": SHOWN,
    "fleet_scaling_explain": SHOWN,
    "fleet_usual": SHOWN,
    "fleet_cost": SHOWN,
    "fleet_cost_by": SHOWN,
    "fleet_report": SHOWN,
    "fleet_efficiency": SHOWN,
    "fleet_history": SHOWN,
    "fleet_failures": SHOWN,
    "fleet_note_bill": SHOWN,
    "fleet_bill": SHOWN,
    "fleet_decisions_between": SHOWN,
    "fleet_worker_history": SHOWN,
    "fleet_usage": SHOWN,
    "fleet_record": "the history of charts, totals and roll-ups: for people",
    "fleet_task_history": SHOWN,
    "fleet_pool_costs": SHOWN,
    "fleet_record_review": REVIEWS,
    "fleet_scaling_reviews": REVIEWS,
    "fleet_leadership": SHOWN,
    "fleet_schema_problems": SHOWN,
    "fleet_try_triggers": SHOWN,
    "worker_grants": NO_GATEWAY,
    "worker_complete_output": NO_GATEWAY,
    "worker_renew": NO_GATEWAY,
    "fleet_asks": NO_GATEWAY,
    "fleet_answer": NO_GATEWAY,
    "fleet_heartbeats": "the gateway's batch of worker_heartbeat calls; agents here call that one",
    "fleet_alerts": ALERTS,
    "fleet_task_troubles": ALERTS,
    "fleet_note_alerts": ALERTS,
    "fleet_note_conditions": ALERTS,
    "fleet_token_create": API,
    "fleet_token_use": API,
    "fleet_token_revoke": API,
    "fleet_tokens": API,
    "fleet_session": API,
    "fleet_session_open": API,
    "fleet_session_follow": API,
    "fleet_session_end": API,
    "fleet_audit": API,
    "fleet_workers_page": API,
    "fleet_decisions_page": API,
    "fleet_events": API,
    "fleet_act": "an action of a person with its note; the functions that it calls are modelled",
    "fleet_pauses": API,
    "fleet_scale_limits": API,
    "fleet_scaling_policies": API,
    "task_submit_for": API,
    "task_act_for": API,
    "task_get_for": API,
    "task_states": API,
    "task_page": API,
    **dict.fromkeys(
        ("task_changes_preview", "task_changes_start", "task_changes", "task_changes_stop", "fleet_change_tasks"), BULK
    ),
    **dict.fromkeys(
        (
            "task_schedule",
            "task_schedules",
            "task_schedule_pause",
            "task_schedule_remove",
            "fleet_schedules_due",
            "fleet_schedule_run",
            "fleet_schedule_problem",
        ),
        SCHEDULES,
    ),
    **dict.fromkeys(
        (
            "fleet_webhooks_progress",
            "fleet_messages_take",
            "fleet_message_close",
            "fleet_webhook_put",
            "fleet_webhook_remove",
            "fleet_webhook_retry",
            "fleet_webhooks",
        ),
        WEBHOOKS,
    ),
    **dict.fromkeys(
        (
            "worker_node_task_done",
            "fleet_cluster_report",
            "fleet_clusters",
            "fleet_cluster_move",
            "fleet_cluster_wait",
            "fleet_cluster_join",
            "fleet_cluster_member_move",
            "fleet_cluster_operate",
            "fleet_cluster_operation_move",
            "fleet_node_task",
            "fleet_node_task_take",
            "fleet_node_task_move",
            "fleet_cluster_sweep",
        ),
        CLUSTERS,
    ),
    "fleet_ended_attempts": TRACES,
    "fleet_describe": "read once at the start, to compare schemas",
    "fleet_changes": "takes the place of LISTEN, which the world has",
    "fleet_retention": "called by fleet_retain alone; no simulation lasts the seven days after which rows go",
}
ONLY_REAL = {  # keys of answers: "function.key", [] for each entry of a list
    "task_get.task.output_object": NO_GATEWAY,
    "task_get.task.webhook_progress": WEBHOOKS,
    "task_get.task.webhook_url": WEBHOOKS,
    "fleet_maintain.rechecked": PENDING,
    "fleet_maintain.published": PENDING,
    "fleet_maintain.audited": PENDING,
    "fleet_worker.now": SHOWN,
    "fleet_worker.left_out": SHOWN,
    "fleet_worker.worker.cost_by_kind": SHOWN,
    "fleet_worker.worker.cost_usd": SHOWN,
    "fleet_worker.worker.tasks_done": SHOWN,
    "fleet_worker.worker.tasks_failed": SHOWN,
    "fleet_worker.worker.trouble": SHOWN,
    "task_get.attempts[].upload_started_at": TRACES,
    "task_get.attempts[].upload_ended_at": TRACES,
    "fleet_worker.tasks[].upload_started_at": TRACES,
    "fleet_worker.tasks[].upload_ended_at": TRACES,
} | {f"task_get.task.{name}": CARRIED for name in CLAIMED}
INDEX = "makes a query quick; what it answers is the same without it"
TABLES_ONLY_REAL = {
    "database_identity": "a constant of the world",
    "schema_migrations": "of migrate",
    "concurrency_limits": SHARES,
    "tenants": SHARES,
    "task_results": "keeps results of tasks that were deleted; nobody deletes a task here",
    "alerts": ALERTS,
    "api_tokens": API,
    "api_submissions": API,
    "audit_log": API,
    "worker_asks": NO_GATEWAY,
    "schedules": SCHEDULES,
    "schedule_runs": SCHEDULES,
    "webhooks": WEBHOOKS,
    "webhook_messages": WEBHOOKS,
    **dict.fromkeys(
        ("cluster_apps", "cluster_members", "member_operations", "node_tasks", "cluster_events", "cluster_transitions"),
        CLUSTERS,
    ),
}
COLUMNS_ONLY_REAL = {
    "tasks.uncounted": INDEX,
    "tasks.output_object": NO_GATEWAY,
    "task_attempts.upload_started_at": TRACES,
    "task_attempts.upload_ended_at": TRACES,
    "tasks.webhook_url": WEBHOOKS,
    "tasks.webhook_progress": WEBHOOKS,
    "fleet_settings.set_at": SHOWN,
    "task_types.declared_at": SHOWN,
} | {f"tasks.{name}": CARRIED for name in CLAIMED}
CODES_ONLY_REAL = {
    "UTF8": "the name of an encoding",
    "SSH_DETAILS_MISSING": SHOWN,
    "NOT_SSH": SHOWN,
    "TCP_TIMEOUT": SHOWN,
    "TCP_REFUSED": SHOWN,
    "AUTH_FAILED": SHOWN,
    "EXEC_FAILED": SHOWN,
    "CONNECTION_LOST": SHOWN,
    "HOST_KEY_CHANGED": SHOWN,
    "API_AUTH": SHOWN,
    "OUTPUT_MISSING": NO_GATEWAY,
    "SLURM_TOO_LARGE": "the simulator of clusters has nodes, and no tasks that ask for more",
    "INPUTS_TOO_LARGE": "no task here has inputs near the limit",
    "UNKNOWN": "the code of a failure that names none; agents here name one",
    "INPUTS_UNREADABLE": "nobody here writes a task past task_submit, which refuses such inputs",
    "DEPENDENCY_CYCLE": "nobody here changes what a task depends on after it was submitted",
    "DEPENDENCY_DELETED": "nobody deletes a task here",
    "NO_HOLDER": "nobody here writes `In Progress` past a claim",
    "INVALID_CODE": "agents here name codes that are well formed",
    "WORKER_START_COMMAND": "a word in a record of fleet_settings, not a code",
    "HEAD": NO_GATEWAY,
    "RENEW": NO_GATEWAY,
    "ORBSY": NO_GATEWAY,
    "OR008": "takes back a statement within one function; no caller sees it",
    "OR010": "ends a trial of users' triggers within one function; no caller sees it",
}
CODE = re.compile(r"'([A-Z][A-Z0-9_]{3,})'")
TRIGGER_WORDS = {"INSERT", "UPDATE", "DELETE", "TRUNCATE"}
MODEL = Path(__file__).parent / "sql"


def functions_missing() -> Iterator[str]:
    """Return the functions and arguments that the model lacks."""
    for name, arguments in FUNCTIONS.items():
        method = getattr(Records, name, None)
        if method is None:
            if name not in FUNCTIONS_ONLY_REAL:
                yield name
            continue
        parameters = inspect.signature(method).parameters
        if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
            continue  # all of them, in one mapping
        yield from (f"{name}({argument})" for argument in arguments if argument not in parameters)


async def tables_missing(connection: psycopg.AsyncConnection[Any]) -> list[str]:
    """Return the tables and columns that do not occur in the model's code."""
    words = set(re.findall(r"\w+", _model_text())) | set(vars(Tables()))
    rows = await connection.execute(
        "select c.table_name, c.column_name from information_schema.columns c join information_schema.tables t"
        " using (table_schema, table_name) where c.table_schema = 'public' and t.table_type = 'BASE TABLE'"
    )
    columns = [(str(table), str(column)) for table, column in await rows.fetchall()]
    return [
        f"{table}.{column}"
        for table, column in columns
        if table not in TABLES_ONLY_REAL and column not in words and f"{table}.{column}" not in COLUMNS_ONLY_REAL
    ]


async def codes_missing(connection: psycopg.AsyncConnection[Any]) -> list[str]:
    """Return the codes that a function of the migrations writes, and the model never does."""
    rows = await connection.execute("select prosrc from pg_proc where pronamespace = 'public'::regnamespace")
    real = {code for (text,) in await rows.fetchall() for code in CODE.findall(text)} - TRIGGER_WORDS
    model = set(re.findall(r'"([A-Z][A-Z0-9_]{3,})"', _model_text()))
    return sorted(real - model - CODES_ONLY_REAL.keys())


async def transitions_missing(connection: psycopg.AsyncConnection[Any]) -> list[str]:
    """Return the transitions of workers that one side allows and the other refuses."""
    rows = await connection.execute("select from_state, to_state from public.worker_transitions")
    real = {(str(before), str(after)) for before, after in await rows.fetchall()}
    return sorted(f"{before} > {after}" for before, after in real ^ LEGAL)


def _model_text() -> str:
    return "\n".join(file.read_text() for file in sorted(MODEL.glob("*.py")))

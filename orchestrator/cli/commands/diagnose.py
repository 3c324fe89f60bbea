"""`diagnose`: the whole report. On a terminal, a summary comes first, then the actions, then the evidence."""

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from orchestrator.cli import tables, worker_report
from orchestrator.cli.fixes import whole
from orchestrator.cli.output import SCHEMA_VERSION, Output, json_option, numbers, one_line
from orchestrator.cli.program import as_typed
from orchestrator.cli.progress import leave
from orchestrator.cli.report_builder import gathered
from orchestrator.cli.session import runs, utcnow
from orchestrator.cli.tables import facts, table
from orchestrator.core.plurals import at_least, counted
from orchestrator.diagnostics.amounts import aged, clock, relative, usd
from orchestrator.diagnostics.change import changes
from orchestrator.diagnostics.environment import NEVER
from orchestrator.errors import BAD_ARGUMENT, Failure
from orchestrator.observability.redaction import PRIVATE_KEYS, Redactor, plain, redact

SAVED = "diagnostic_report_*.json"
LAST = "last"
INDENT = 3  # columns
ALIKE = 3  # actions of one kind that are shown
STYLES = {"HIGH": "bold red", "MEDIUM": "yellow", "LOW": "dim"}


@click.command()
@click.argument("worker", required=False)
@click.option(
    "--save-report", is_flag=True, help="Save it here as diagnostic_report_YYYYMMDD_HHMMSS.json, readable only by you."
)
@click.option(
    "--include-sensitive", is_flag=True, help="Also write secrets to the saved report, but never a private key."
)
@click.option("--since", help="Show the changes since an earlier report: `last`, or its file.")
@json_option
@click.pass_obj
@runs
async def diagnose(
    output: Output, worker: str | None, *, save_report: bool, include_sensitive: bool, since: str | None
) -> int:
    """Print the whole report on the fleet, or on WORKER: settings, database, RunPod, workers, network, deployment.

    With WORKER, it shows the conditions that concern this worker, its explanation, pod, SSH, logs and last changes.
    The command changes nothing. Exit 1 if something is urgent; 3 if there is no such worker.
    """
    before = _earlier(since) if since else None
    report = await gathered(output, only=worker, sensitive=include_sensitive)
    if before is not None:
        report["changes"] = changes(before, report)
    saved = _save(report, sensitive=include_sensitive) if save_report else None
    if output.json:
        output.document(**report)
    else:
        name = next(iter(report["workers"]), None) if worker else None
        output.show(*(_of_worker(report, name, output) if name else shown(report, narrow=output.narrow)))
    if saved:
        output.say(f"saved: {saved}")
    return leave(output, 0 if report["healthy"] else 1)


def _of_worker(report: Mapping[str, Any], name: str, output: Output) -> Iterator[RenderableType]:
    yield headline(report)
    yield from advised(report)
    yield from worker_report.shown(report, name, output.out.width)


def shown(report: Mapping[str, Any], *, narrow: bool) -> Iterator[RenderableType]:
    """The report for a person."""
    now = datetime.fromisoformat(report["timestamp"])
    yield headline(report)
    yield from advised(report)
    if "changes" in report:
        since = report["changes"]["since"]
        yield Text(f"\nSince the report of {clock(since)} ({relative(since, now)})", style="bold")
        yield facts(dict(_changed(report["changes"])) or {"": "nothing has changed"})
    yield Text("\nEvidence", style="bold")
    yield facts(dict(_evidence(report)))
    if narrow:
        rows = table("worker\nstate, stage, logs in S3", "SSH\nwaiting on / note")
    else:
        rows = table("worker", "state", "stage", "SSH", "logs in S3", "waiting on / note")
    for name, one in sorted(report["workers"].items()):
        if "error" in one:
            cells = (name, plain(one["error"])) if narrow else (name, "–", "–", "–", "–", plain(one["error"]))
            rows.add_row(*cells)
            continue
        row, ssh, explained = one["database_record"], one["ssh_analysis"], one["explanation"]
        logs = "yes" if one["log_analysis"].get("s3_logs_available") else "no"
        waits = aged(f"{explained['who']}: {explained['what']}", now)
        reached, waits = one_line(ssh["connection_status"], 60), one_line(waits, 120)
        if narrow:
            rows.add_row(f"{name}\n{row['status']}, {row['stage']}, {logs}", f"{reached}\n{waits}")
        else:
            rows.add_row(name, tables.state(row["status"]), row["stage"], reached, logs, waits)
    if rows.row_count:
        yield rows


def headline(report: Mapping[str, Any]) -> Text:
    """Return one line with the state of the fleet."""
    urgent = sum(advice["priority"] == "HIGH" for advice in report["recommendations"])
    rest = len(report["recommendations"]) - urgent
    also = f", {counted(rest, 'warning')}" if rest else ""
    if report["healthy"]:
        return Text(f"✅ HEALTHY{also}", style="bold green")
    return Text(f"❌ UNHEALTHY: {counted(urgent, 'urgent problem')}{also}", style="bold red")


def advised(report: Mapping[str, Any]) -> Iterator[RenderableType]:
    """List the actions, the urgent ones first. Of many similar ones, the first are shown and the others counted."""
    now = datetime.fromisoformat(report["timestamp"])
    alike: Counter[tuple[str, str, str]] = Counter()
    left = Counter(map(_likeness, report["recommendations"]))
    for number, advice in enumerate(report["recommendations"], 1):
        which = _likeness(advice)
        alike[which] += 1
        if alike[which] > ALIKE:
            if alike[which] == left[which]:
                more = f"{left[which] - ALIKE} more of this kind"
                yield Text(f"\n   … and {more}; --json has all", style=STYLES[advice["priority"]])
            continue
        yield Text()
        head = f"[{advice['priority']}] {advice['category']}: {aged(one_line(advice['issue'], 300), now)}"
        numbered = Table.grid(padding=(0, 1, 0, 0))  # further lines begin where the text begins
        numbered.add_row(f"{number}.", Text(as_typed(head)), style=STYLES[advice["priority"]])
        yield numbered
        if advice["detail"]:
            yield Padding(Text(as_typed(aged(one_line(advice["detail"], 300), now)), style="dim"), (0, 0, 0, INDENT))
        yield whole(f"{' ' * INDENT}fix: {one_line(advice['action'], 1_000)}")


def _likeness(advice: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return what is equal of two actions that differ only in whom they are about: kind, priority and fix."""
    return advice["kind"], advice["priority"], advice["action"].replace(advice["subject"], "")


def _changed(changes: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """List the changes, a line for each kind."""
    for name in ("new_issues", "solved_issues", "workers_come", "workers_gone"):
        if changes[name]:
            yield name.replace("_", " "), "\n".join(plain(one_line(one)) for one in changes[name])
    moved = [f"{name}: {before} → {after}" for name, (before, after) in changes["workers_moved"].items()]
    if moved:
        yield "workers moved", "\n".join(moved)
    if changes["tasks"]:
        yield "tasks", ", ".join(f"{status} {count:+d}" for status, count in changes["tasks"].items())
    if changes["usd_per_hour"]:
        yield "cost", f"{changes['usd_per_hour']:+.2f} $/h"


def _evidence(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    given, database, runpod = report["environment"], report["database_state"], report["runpod_state"]
    missing = given["missing_critical"]
    yield "environment", f"missing: {', '.join(missing)}" if missing else "every critical variable is set"
    yield (
        "SSH keys",
        given["ssh_keys"].get("error") or f"{given['ssh_keys']['type']} {given['ssh_keys']['fingerprint']}",
    )
    if "error" in database:
        yield "database", plain(one_line(database["error"]))
    else:
        leader = database["leader"]["holder"] if database["leader"] else "nobody"
        yield "leads", leader
        beyond = database.get("counts_beyond", ())
        yield "workers", numbers(database["workers_by_status"], beyond) or "none ever"
        yield "tasks", numbers(database["task_counts"], beyond) or "none"
        broken = [name for name, test in database["rpc_function_tests"].items() if test["status"] != "ok"]
        yield (
            "functions",
            f"broken: {', '.join(broken)}" if broken else f"all {len(database['rpc_function_tests'])} answer",
        )
        yield "spent", f"{usd(float(database['spent']['last_day_usd']))} in 24 h"
    if "error" in runpod:
        yield "RunPod", plain(one_line(runpod["error"]))
    else:
        cost, pods = hourly_cost(runpod), counted(runpod["total_pods"], "pod")
        yield (
            "RunPod",
            f"{pods} of this fleet, {cost}/h ({numbers(runpod['pods_by_status']) or '–'})",
        )
    for name, answer in report["network_tests"].items():
        took = (
            f"{answer['status_code']} in {answer['response_time_ms']:.0f} ms" if answer["accessible"] else "no answer"
        )
        yield f"network {name}", took
    deployment = report["deployment_verification"]
    if isinstance(git := deployment.get("git_status"), dict):
        yield "code", f"{git['commit'][:12]} on {git['branch']}, {counted(git['changed_files'], 'file')} changed"


def hourly_cost(runpod: Mapping[str, Any]) -> str:
    """Return what the listed pods cost per hour."""
    return at_least(usd(runpod["total_hourly_cost"]), runpod["unpriced_pods"])


def _save(report: Mapping[str, Any], *, sensitive: bool) -> Path:
    """A file of our own, for its owner alone; a private key is in none."""
    from orchestrator.config.environment import as_given

    path = Path.cwd() / f"diagnostic_report_{utcnow():%Y%m%d_%H%M%S}.json"
    keys = Redactor((as_given().get(name, "") for name in NEVER), PRIVATE_KEYS)
    cleaned = keys.redact(report) if sensitive else redact(report)
    text = json.dumps({"schema_version": SCHEMA_VERSION, **cleaned}, default=str, ensure_ascii=False, indent=2)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(text + "\n")
    return path


def _earlier(since: str) -> Mapping[str, Any]:
    """An earlier report. Raises Failure."""
    found = sorted(Path.cwd().glob(SAVED)) if since == LAST else [Path(since)]
    if not found:
        raise Failure(
            BAD_ARGUMENT,
            what="there is no earlier report",
            why=f"no {SAVED} in {Path.cwd()}",
            fix="python -m orchestrator diagnose --save-report",
        )
    try:
        report = json.loads(found[-1].read_text(encoding="utf-8"))
        _ = report["recommendations"], report["timestamp"], report["workers"], report["runpod_state"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Failure(BAD_ARGUMENT, what="the earlier report cannot be read", why=f"{found[-1]}: {error}") from None
    earlier: Mapping[str, Any] = report
    return earlier

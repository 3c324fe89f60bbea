"""`list` and `status`: the workers as the database knows them, and the provider's word on one of them."""

import asyncio
import dataclasses
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
from rich.console import Group, RenderableType
from rich.text import Text

from orchestrator.cli import tables
from orchestrator.cli.output import Output, ago, clock, gpu_name, json_option, one_line, relative, span, usd
from orchestrator.cli.session import find_worker, opened_store, runs, settings_for, utcnow
from orchestrator.cli.worker_rows import busy_share, flags, is_live, leaderless, public, totals
from orchestrator.core.states import READY, Stage
from orchestrator.ports import PortError, Unavailable

if TYPE_CHECKING:
    from orchestrator.adapters.store import SqlStore
    from orchestrator.diagnostics import workers

NOBODY = "No active workers found."
WATCH_EVERY_S = 2.0
PROVIDER_TIMEOUT_S = 8.0  # status shows the rest without it
ROWS = 200  # terminated workers shown by --all; live ones are always all shown
SHORT_S = 10.0  # a stage is timed to a tenth of a second up to here
FAILED = ("failed", "timeout", "lost")


@click.command("list")
@click.option("--all", "everyone", is_flag=True, help=f"The newest {ROWS}, terminated ones included.")
@click.option("--watch", is_flag=True, help=f"Show it again every {WATCH_EVERY_S:.0f} s, until Ctrl-C.")
@json_option
@click.pass_obj
@runs
async def list_workers(output: Output, everyone: bool, watch: bool) -> None:
    """The workers: state, GPU, pod, ages, cost, and whom each waits for."""
    async with opened_store() as store:
        if watch:
            await _watch(store, output, everyone)
        rows, leads = await asyncio.gather(store.workers(all=everyone, limit=ROWS), store.leadership())
        now = utcnow()
    if output.json:
        _document(output, rows, leads, now)
        return
    output.show(_listing(rows, output, now))
    if missing := leaderless(leads):
        output.say(missing, "bold yellow")


@click.command()
@click.argument("worker")
@json_option
@click.pass_obj
@runs
async def status(output: Output, worker: str) -> None:
    """Everything known about one worker, named by its id, the end of its id, or its pod's id. Exit 3 if unknown."""
    async with opened_store() as store:
        found, leads = await find_worker(store, worker), await store.leadership()
        from orchestrator.diagnostics import workers

        told = workers.explained(await store.explain(found["worker"]["id"]), settings_for("database").policy())
    row, now = found["worker"], utcnow()
    provider = await _provider(row.get("pod_id"))
    if output.json:
        history = {name: found.get(name, []) for name in ("events", "attempts", "tasks")}
        stages = [{"stage": name, "seconds": seconds, "tries": tries} for name, seconds, tries in _stages(found, now)]
        rest = {**history, "leader": leads["leader"], "explanation": dataclasses.asdict(told)}
        output.document(worker=public(row, now), provider=provider, stages=stages, **rest)
        return
    output.show(tables.facts(_facts(row, provider, found, now) | _why(told)))
    if is_live(row) and (missing := leaderless(leads)):
        output.say(missing, "bold yellow")
    brought_up = tables.table("stage", "took", "tries")
    for name, seconds, tries in _stages(found, now):
        took = f"{seconds:.1f}s" if seconds < SHORT_S else span(seconds)
        brought_up.add_row(name, took, str(tries or "–"))
    if brought_up.row_count:
        output.show("", brought_up)


async def _watch(store: "SqlStore", output: Output, everyone: bool) -> None:
    """Show the list again and again, saying how old it is when the database does not answer; ends by Ctrl-C only."""
    from rich.live import Live

    with Live(console=output.out, auto_refresh=False, transient=False) as live:
        shown: RenderableType = Text("asking the database…", style="dim")
        seen_at: datetime | None = None
        while True:
            try:
                rows, leads = await asyncio.gather(store.workers(all=everyone, limit=ROWS), store.leadership())
                seen_at = now = utcnow()
                line = Text(f"at {clock(now)}", style="dim")
                if missing := leaderless(leads):
                    line = Text(missing, style="bold yellow")
                shown = _listing(rows, output, now)
            except Unavailable as error:
                age = "never seen" if seen_at is None else f"seen {span(ago(seen_at, utcnow()))} ago"
                line = Text(f"{age}: the database does not answer ({one_line(str(error), 80)})", style="bold red")
                rows, now = [], utcnow()
            if not output.json:
                live.update(Group(shown, line), refresh=True)
                if not output.out.is_terminal:
                    output.show(Group(shown, line))
            elif seen_at == now:
                _document(output, rows, leads, now)
            await asyncio.sleep(WATCH_EVERY_S)


def _document(output: Output, rows: Sequence[Mapping[str, Any]], leads: Mapping[str, Any], now: datetime) -> None:
    shown = [public(row, now) for row in rows]
    output.document(at=now, workers=shown, totals=totals(rows), leader=leads["leader"])


def _listing(rows: Sequence[Mapping[str, Any]], output: Output, now: datetime) -> RenderableType:
    return tables.workers(rows, output, now) if rows else Text(NOBODY)


async def _provider(pod_id: str | None) -> dict[str, Any]:
    """What RunPod says of a pod: {status, why}; status None when it was not asked or did not answer."""
    if pod_id is None:
        return {"status": None, "why": "no pod was created yet"}
    settings = settings_for("database")
    if settings.runpod_api_key is None:
        return {"status": None, "why": "not asked: RUNPOD_API_KEY is not set"}
    from orchestrator import wiring

    cloud = wiring.open_cloud(settings)
    try:
        async with asyncio.timeout(PROVIDER_TIMEOUT_S):
            pods = await cloud.list_pods()
    except TimeoutError:
        return {"status": None, "why": f"RunPod did not answer within {PROVIDER_TIMEOUT_S:.0f} s"}
    except PortError as error:
        return {"status": None, "why": f"{type(error).__name__}: {one_line(str(error))}"}
    finally:
        await cloud.close()
    found = next((pod for pod in pods if pod.id == pod_id), None)
    if found is None:
        return {"status": "ABSENT", "why": "not in RunPod's list"}
    return {"status": found.status.value, "why": None}


def _facts(
    row: Mapping[str, Any], provider: Mapping[str, Any], found: Mapping[str, Any], now: datetime
) -> dict[str, Any]:
    lived = "for" if is_live(row) else "since"
    since = span(ago(row.get("state_since"), now)) if is_live(row) else clock(row.get("state_since"))
    reason = f"  ({one_line(row['state_reason'])})" if row.get("state_reason") else ""
    price = f"{usd(row.get('price_usd_per_hour'))}/h" if row.get("price_usd_per_hour") else "price unknown"
    shown: dict[str, Any] = {"worker": row["id"]}
    shown["state"] = Text.assemble(tables.state(row["status"]), f" {lived} {since}{reason}")
    shown["stage"] = f"{row.get('stage') or '–'}  {span(ago(row.get('stage_since'), now))}"
    if is_live(row):
        waited = ": ".join(str(row[name]) for name in ("waiting_on", "waiting_for") if row.get(name))
        deadline = "" if row["status"] in READY else f"  deadline {relative(row.get('deadline_at'), now)}"
        shown["waiting on"] = f"{waited or '–'}{deadline}"
    if found_flags := flags(row, now):
        shown["look at"] = Text("; ".join(found_flags), style="bold red")
    where = f" in {row['data_center']}" if row.get("data_center") else ""
    shown["GPU"] = f"{gpu_name(row.get('gpu_type') or row.get('instance_type'), row.get('gpu_count'))}{where}, {price}"
    shown["pod"] = f"{row.get('pod_id') or '–'}  RunPod: {provider['status'] or provider['why']}"
    shown["ip"] = row.get("ssh_host") or "–"
    shown["ssh"] = f"SSH: {row['ssh_host']}:{row['ssh_port']}" if row.get("ssh_host") else "SSH: no details yet"
    shown["created"] = f"{clock(row['created_at'])}  ({relative(row['created_at'], now)})"
    beat = row.get("last_heartbeat")
    shown["heartbeat"] = f"{clock(beat)}  ({relative(beat, now)})" if beat else "none yet"
    done, failed, running = (row.get(f"tasks_{word}") or 0 for word in ("done", "failed", "running"))
    shown["tasks"] = f"{done} done, {failed} failed, {running} running"
    shown["cost"] = _cost(row)
    shown["last failure"] = _last_failure(row, found)
    return shown


def _why(told: "workers.Explanation") -> dict[str, str]:
    """What `explain` says of it, in short: the cause, what happens by itself, and what to do."""
    from orchestrator.diagnostics import workers  # not for `list`: it knows how agents are sent

    code = f" ({workers.named(told.code, told.subcause)})" if told.code else ""
    why = "; ".join(sentence.rstrip(".") for sentence in told.ended) or f"waiting on {told.who}: {told.what}{code}"
    return {"why": one_line(why, 400), "then": told.then, "fix": told.fix}


def _cost(row: Mapping[str, Any]) -> str:
    by_kind = {kind: float(amount) for kind, amount in (row.get("cost_by_kind") or {}).items() if float(amount)}
    parts = ", ".join(f"{kind} {usd(amount)}" for kind, amount in sorted(by_kind.items()))
    share = busy_share(row)
    return usd(row.get("cost_usd") or 0) + (f"  busy share {share:.0%}  ({parts})" if share is not None else "")


def _last_failure(row: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Of the worker, of its climb, or of a task it ran: the newest of each that there is."""
    said = []
    if row.get("failure_code"):
        said.append(f"{row['failure_code']} ({row.get('exit_cause') or 'live'})")
    bringups = [a for a in found.get("attempts", ()) if a.get("outcome") in FAILED]
    if bringups:
        last = max(bringups, key=lambda a: str(a["started_at"]))
        facts = [last.get("failure_code"), last.get("exception_type")]
        said.append(
            f"stage {last['stage']}: {' '.join(f for f in facts if f)} {one_line(last.get('evidence') or '', 120)}"
        )
    broken = [t for t in found.get("tasks", ()) if t.get("failure_code")]
    if broken:
        last = max(broken, key=lambda t: str(t["started_at"]))
        said.append(f"task {last.get('task_id')}: {last['failure_code']} {one_line(last.get('message') or '', 120)}")
    return "; ".join(said) or "none"


def _stages(found: Mapping[str, Any], now: datetime) -> list[tuple[str, float, int]]:
    """Seconds and attempts per stage, in the order of the climb; the stage it is in counts up to now."""
    row, order = found["worker"], {stage.value: position for position, stage in enumerate(Stage)}
    seconds: dict[str, float] = defaultdict(float)
    stage, since = Stage.INTENT.value, ago(row["created_at"], now) or 0.0
    for event in found.get("events", ()):
        at = ago(event["at"], now) or 0.0
        seconds[stage] += max(0.0, since - at)
        stage, since = event.get("to_stage") or stage, at
    if is_live(row):
        seconds[stage] += since
    tries = Counter(attempt["stage"] for attempt in found.get("attempts", ()))
    return [
        (name, seconds[name], tries[name]) for name in sorted(seconds, key=lambda name: order.get(name, len(order)))
    ]

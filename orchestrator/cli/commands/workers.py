"""`list` and `status`: the workers in the database, and RunPod's status of one of them."""

import asyncio
import dataclasses
import functools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
from rich.console import Group, RenderableType
from rich.text import Text

from orchestrator.cli import options, tables
from orchestrator.cli.known_names import require_known
from orchestrator.cli.output import Output, json_option, one_line
from orchestrator.cli.session import find_worker, opened_store, runs, settings_for, utcnow
from orchestrator.cli.watching import EVERY_S, WatchedView, watch
from orchestrator.cli.worker_rows import (
    busy_share,
    by_pool,
    flags,
    is_live,
    leaderless,
    public,
    totals,
    unpriced,
    warning,
)
from orchestrator.core.states import READY, Stage, State
from orchestrator.diagnostics import causes, first_cause
from orchestrator.diagnostics.amounts import ago, clock, gpu_name, relative, span, usd
from orchestrator.ports import PortError

if TYPE_CHECKING:
    from orchestrator.adapters.store import SqlStore
    from orchestrator.diagnostics import workers

NOBODY = "No active workers found."
NO_MATCH = "No worker matches the filter."
PROVIDER_TIMEOUT_S = 8.0  # status shows the rest without it
ROWS = 200  # terminated workers shown by --all; live ones are always all shown
SHORT_S = 10.0  # a stage is timed to a tenth of a second up to here
FAILED = ("failed", "timeout", "lost")


@click.command("list")
@click.option("--all", "everyone", is_flag=True, help=f"Also terminated workers, at most the newest {ROWS}.")
@click.option("--since", help="Also workers that ended since then: a span (90m, 24h, 7d), or a time (ISO 8601).")
@click.option("--pool", help="Only this pool.")
@click.option(
    "--state",
    "states",
    type=options.Choice([state.value for state in State]),
    multiple=True,
    help="Only this state; may be repeated.",
)
@click.option("--gpu", help="Only GPU types with this in their name.")
@click.option("--watch", "watched", is_flag=True, help=f"Refresh every {EVERY_S:.0f} s, until Ctrl-C.")
@json_option
@click.pass_obj
@runs
async def list_workers(output: Output, *, watched: bool, **wanted: Any) -> None:
    """List the workers: state, GPU, pod, ages, cost, and what each waits for, or when and why it ended."""
    async with opened_store() as store:
        await require_known(store, pool=wanted["pool"])
        ask = functools.partial(_ask, store, output, _filter(**wanted))
        if watched:
            await watch(output, ask)
        seen = await ask()
    if output.json:
        output.document(**seen.document)
        return
    output.show(seen.body)
    if seen.warning:
        output.say(seen.warning, "bold yellow")


def _filter(
    *, everyone: bool, since: str | None, pool: str | None, states: Sequence[str], gpu: str | None
) -> Mapping[str, Any]:
    wanted: dict[str, Any] = {"ended": bool(everyone or since or State.TERMINATED in states)}
    if since:
        wanted["since"] = options.since(since, utcnow()).isoformat()
    if states:
        wanted["status"] = list(states)
    return wanted | {name: value for name, value in (("pool", pool), ("gpu", gpu)) if value}


async def _ask(store: "SqlStore", output: Output, wanted: Mapping[str, Any]) -> WatchedView:
    found, leads = await asyncio.gather(store.find.workers(wanted, ROWS), store.leadership())
    rows, now, pools = found["workers"], utcnow(), [wanted["pool"]] if "pool" in wanted else None
    shown, sums = [public(row, now) for row in rows], totals(rows)
    document = {
        "at": now,
        "workers": shown,
        "counts": found["counts"],
        "counts_beyond": found.get("beyond", False),
        "totals": sums,
        "leader": leads["leader"],
        "first_cause": (cause := first_cause.of_standing(leads, pools)) and dataclasses.asdict(cause),
    }
    body: RenderableType = Text(NOBODY if wanted.keys() == {"ended"} else NO_MATCH)
    if rows:
        body = Group(tables.workers(rows, output, now), *map(Text, [*unpriced(sums), *by_pool(found["counts"])]))
    ended = sum(one["workers"] for one in found["counts"] if one["status"] == State.TERMINATED)
    more = "more than " if found.get("beyond") else ""
    if ended > ROWS:
        body = Group(
            body, Text(f"only the newest {ROWS} of {more}{ended:,} ended workers are shown; --since shows fewer")
        )
    return WatchedView(body, document, warning(leads, pools))


@click.command()
@click.argument("worker")
@json_option
@click.pass_obj
@runs
async def status(output: Output, worker: str) -> None:
    """Show everything about WORKER: its id, the end of its id, or its pod's id. Exit 3 if there is no such worker."""
    async with opened_store() as store:
        found, leads = await find_worker(store, worker), await store.leadership()
        from orchestrator.diagnostics import workers

        explanation = workers.explained(await store.explain(found["worker"]["id"]), settings_for("database").policy())
    row, now = found["worker"], utcnow()
    provider = await _provider(row.get("pod_id"))
    if output.json:
        history = {name: found.get(name, []) for name in ("events", "attempts", "tasks")}
        stages = [{"stage": name, "seconds": seconds, "tries": tries} for name, seconds, tries in _stages(found, now)]
        rest = {**history, "leader": leads["leader"], "explanation": dataclasses.asdict(explanation)}
        output.document(worker=public(row, now), provider=provider, stages=stages, **rest)
        return
    output.show(tables.facts(_facts(row, provider, found, now) | _why(explanation)))
    if is_live(row) and (missing := leaderless(leads)):
        output.say(missing, "bold yellow")
    brought_up = tables.table("stage", "took", "tries")
    for name, seconds, tries in _stages(found, now):
        took = f"{seconds:.1f}s" if seconds < SHORT_S else span(seconds)
        brought_up.add_row(name, took, str(tries or "–"))
    if brought_up.row_count:
        output.show("", brought_up)


async def _provider(pod_id: str | None) -> dict[str, Any]:
    """Return RunPod's status of a pod: {status, why}. The status is None if RunPod was not asked or did not answer."""
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
        busy = row["status"] in READY and row.get("tasks_running")  # then `waiting_for` is older: it waited for tasks
        names = ("waiting_on",) if busy else ("waiting_on", "waiting_for")
        waited = ": ".join(str(row[name]) for name in names if row.get(name))
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


def _why(explanation: "workers.WorkerExplanation") -> dict[str, str]:
    """Return the explanation in short: the cause, what happens next, and the fix."""
    code = f" ({causes.named(explanation.code, explanation.subcause)})" if explanation.code else ""
    why = (
        "; ".join(sentence.rstrip(".") for sentence in explanation.ended)
        or f"waiting on {explanation.who}: {explanation.what}{code}"
    )
    return {"why": one_line(why, 400), "then": explanation.then, "fix": explanation.fix}


def _cost(row: Mapping[str, Any]) -> str:
    by_kind = {kind: float(amount) for kind, amount in (row.get("cost_by_kind") or {}).items() if float(amount)}
    parts = ", ".join(f"{kind} {usd(amount)}" for kind, amount in sorted(by_kind.items()))
    share = busy_share(row)
    return usd(row.get("cost_usd") or 0) + (f"  busy share {share:.0%}  ({parts})" if share is not None else "")


def _last_failure(row: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Return the last failure of the worker, of its bring-up, and of its tasks, if there is one."""
    troubles = []
    if row.get("failure_code"):
        troubles.append(f"{row['failure_code']} ({row.get('exit_cause') or 'live'})")
    bringups = [a for a in found.get("attempts", ()) if a.get("outcome") in FAILED]
    if bringups:
        last = max(bringups, key=lambda a: str(a["started_at"]))
        facts = [last.get("failure_code"), last.get("exception_type")]
        troubles.append(
            f"stage {last['stage']}: {' '.join(f for f in facts if f)} {one_line(last.get('evidence') or '', 120)}"
        )
    broken = [t for t in found.get("tasks", ()) if t.get("failure_code")]
    if broken:
        last = max(broken, key=lambda t: str(t["started_at"]))
        troubles.append(
            f"task {last.get('task_id')}: {last['failure_code']} {one_line(last.get('message') or '', 120)}"
        )
    return "; ".join(troubles) or "none"


def _stages(found: Mapping[str, Any], now: datetime) -> list[tuple[str, float, int]]:
    """Return seconds and attempts per stage, in order. The present stage counts until now."""
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

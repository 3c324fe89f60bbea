"""The checks at the end, by rows, by the provider's ledger and by bytes; the figures; the table."""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table

from orchestrator.core.liveness import RETRY_S
from orchestrator.ports import Blobs, NotFound
from testbed.audit import CONCURRENT_READS, count, faults
from tests.proofs.chaos.environment import BUDGET_USD, ChaosEnvironment, LostWorker
from tests.proofs.chaos.faults import BOTH_KILLED, GRACEFUL
from tests.proofs.fault_matrix.invariants import REASONLESS, STALE, UNOWNED_S, WORKERS, unowned_s

FAIL_OVER_S, AGAIN_S = 20.0, 90.0  # the limits of the specification
QUOTED = 5
LEASE_TAKEN = b'"lease_taken"'
REFUSED = (b"Traceback (most recent call last)", b'"action_crashed"')
ATTEMPTS = (
    "select task_id::text as task, attempt, outcome, extract(epoch from started_at)::float as at from task_attempts"
)
FILES = """
    select id::text as task, output_location as location from tasks
     where status = 'Complete' and (params ->> 'leaves_file')::boolean
"""


@dataclass(slots=True)
class InjectedFault:
    """One fault as it was injected."""

    name: str
    began_s: float  # of the run
    ended_s: float = 0.0
    done: bool = True
    what: str = ""


async def assess(chaos: ChaosEnvironment, ids: Sequence[str], injections: Sequence[InjectedFault]) -> dict[str, Any]:
    """Return the summary, with `ok` and what was `wrong` or `late`."""
    ledger = await chaos.stack.control("GET", "ledger")
    async with await chaos.stack.connect() as sql:
        summary = await count(sql, ledger, chaos.stack.blobs(), len(ids))
    rows = chaos.env.rows
    wrong = [f"{name}: {summary[name]}" for name in faults(summary)] + chaos.wrong
    unowned, names = unowned_s(ledger["pods"], await rows(WORKERS)), Counter(pod["name"] for pod in ledger["pods"])
    files = await _wrong_files(chaos.stack.blobs(), await rows(FILES))
    for what, bad in {
        f"{unowned:.0f} s of a pod without a live row": unowned > UNOWNED_S,
        f"a worker asked for twice: {names.most_common(1)}": max(names.values(), default=0) > 1,
        f"{(await rows(REASONLESS))[0]['n']} event(s) without a reason": (await rows(REASONLESS))[0]["n"],
        f"{(await rows(STALE))[0]['n']} write(s) of a term that was over": (await rows(STALE))[0]["n"],
        f"{files} file(s) of complete tasks missing or wrong": files,
        f"{ledger['usd_total']:.2f} of {BUDGET_USD:g} dollars spent": ledger["usd_total"] > BUDGET_USD,
    }.items():
        if bad:
            wrong.append(what)
    wrong += sorted(chaos.env.observer.waits) + _said(chaos)
    figures, late = _figures(chaos, injections, await rows(ATTEMPTS))
    by_kind = Counter(injected.name for injected in injections if injected.done)
    return {
        "ok": not wrong and not late,
        "wrong": wrong,
        "late": late,  # what a busy machine may exceed
        **summary,
        **figures,
        "killed": dict(chaos.killed),
        "faults": dict(sorted(by_kind.items())),
        "unowned_pod_s": round(unowned, 1),
        **{
            name: [asdict(one) for one in of]
            for name, of in (("injections", injections), ("lost_workers", chaos.lost_workers))
        },
    }


async def _wrong_files(blobs: Blobs, tasks: Sequence[Mapping[str, Any]]) -> int:
    """Return how many complete tasks did not leave their file."""
    gate = asyncio.Semaphore(CONCURRENT_READS)

    async def right(task: Mapping[str, Any]) -> bool:
        async with gate:
            try:
                key = str(task["location"] or "").partition("://")[2].split("/", 2)
                return await blobs.get(key[-1]) == f"{task['task']}\n".encode()
            except NotFound:
                return False

    return (await asyncio.gather(*map(right, tasks))).count(False)


def _said(chaos: ChaosEnvironment) -> list[str]:
    """Return the lines of the orchestrators' log that must not be there."""
    said = (chaos.stack.directory / "orchestrator.log").read_bytes().splitlines()
    return [line.decode(errors="replace")[:1000] for line in said if any(word in line for word in REFUSED)][:QUOTED]


def _again(
    lost_workers: Sequence[LostWorker],
    attempts: Sequence[Mapping[str, Any]],
    leads: Sequence[float],
    unreachable: Sequence[tuple[float, float]],
) -> list[tuple[float, float, str]]:
    """Return for each lost worker's task the seconds until it ran again: in all, and those that count.

    Only the time counts in which a leader could have received the agent's heartbeat. It begins with the lease of the
    leader, and stops while agents cannot reach it. A task that had ended before its worker was lost is left out.
    """
    known = {(row["task"], row["attempt"]): row for row in attempts}
    found = []
    for lost in lost_workers:
        again = known.get((lost.task, lost.attempt + 1))
        if again is not None and known[lost.task, lost.attempt]["outcome"] == "lost":
            at = again["at"]
            heard_from = max([lost.at, *(led for led in leads if led < at)])
            found.append((at - lost.at, _outside(heard_from, at, unreachable), lost.how))
    return found


def _outside(since: float, to: float, gaps: Sequence[tuple[float, float]]) -> float:
    """Return the seconds from `since` to `to` that are in none of these gaps."""
    outside, reached = 0.0, since
    for began, ended in sorted(gaps):
        outside += max(0.0, min(began, to) - reached)
        reached = max(reached, min(ended + min(ended - began, RETRY_S), to))
    return outside + max(0.0, to - reached)


def _leads(chaos: ChaosEnvironment) -> list[float]:
    """Return when each lease was taken, in epoch seconds."""
    said = (chaos.stack.directory / "orchestrator.log").read_bytes().splitlines()
    taken = (json.loads(line) for line in said if LEASE_TAKEN in line and line.endswith(b"}"))
    return [datetime.fromisoformat(line["timestamp"]).timestamp() for line in taken]


def _figures(
    chaos: ChaosEnvironment, injections: Sequence[InjectedFault], attempts: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, Any], list[str]]:
    """Return how fast faults were repaired, and which repairs were too slow."""
    away = [injected for injected in injections if injected.done and injected.name.startswith("postgres")]
    away += [
        injected
        for injected in injections
        if injected.name.startswith("proxy") and injected.what.startswith("postgres")
    ]
    clear = [
        (to - since, after)
        for since, to, after in chaos.fail_overs
        if not any(
            injected.began_s < to and injected.ended_s > since for injected in away
        )  # without a database, no process can lead
    ]
    fail_overs = sorted(took for took, after in clear if after not in {GRACEFUL, BOTH_KILLED})
    hand_overs = sorted(took for took, after in clear if after == GRACEFUL)
    gaps = [(injected.began_s, injected.ended_s) for injected in away]
    gaps += [(b.began_s, b.ended_s) for b in injections if b.name.startswith("proxy") and b.what.startswith("pods")]
    again = _again(
        chaos.lost_workers, attempts, _leads(chaos), [(chaos.began_at + a, chaos.began_at + b) for a, b in gaps]
    )
    late = [f"a lost worker's task ran again after {took:.0f} s ({how})" for _, took, how in again if took > AGAIN_S]
    if _quantile(fail_overs) > FAIL_OVER_S:
        late.append(f"fail-over took {_quantile(fail_overs):.1f} s")
    return {
        "fail_overs": len(fail_overs),
        "fail_over_p50_s": _quantile(fail_overs, 0.5),
        "fail_over_p99_s": _quantile(fail_overs),
        "fail_overs_s": [round(took, 2) for took in fail_overs],
        "fail_overs_without_a_database_too": len(chaos.fail_overs) - len(clear),
        "fail_over_longest_s": round(max((to - since for since, to, _ in chaos.fail_overs), default=0.0), 2),
        "hand_overs": len(hand_overs),
        "hand_over_max_s": _quantile(hand_overs, 1),
        "tasks_run_again": len(again),
        "run_again_max_s": _quantile(sorted(took for took, _, _ in again), 1),
        "run_again_heard_p50_s": _quantile(sorted(took for _, took, _ in again), 0.5),
        "run_again_heard_max_s": _quantile(sorted(took for _, took, _ in again), 1),
    }, late


def _quantile(values: Sequence[float], share: float = 0.99) -> float:
    """Return a quantile of sorted values; 0 without values."""
    return round(values[min(len(values) - 1, int(len(values) * share))], 2) if values else 0.0


def show(summary: Mapping[str, Any], stream: TextIO) -> None:
    """Print the table for people, and what is wrong below it."""
    console = Console(file=stream, highlight=False)
    table = Table(title=f"chaos, seed {summary['seed']}", title_justify="left", show_header=False, box=None)
    injected = ", ".join(f"{number} {name}" for name, number in summary["faults"].items())
    killed = ", ".join(f"{number} of {who}" for who, number in summary["killed"].items())
    lines = {
        "tasks": "{tasks_done} of {tasks_submitted} done, {tasks_failed} failed, {tasks_lost} lost, "
        "{tasks_doubled} doubled; {tasks_requeued} attempts without a result",
        "pods": "{pods_created} rented, {pods_leaked} leaked; without a live row for at most {unowned_pod_s} s",
        "log bytes": "{log_bytes_produced:,} written, {log_bytes_shipped:,} in S3, "
        "{log_bytes_declared_lost:,} declared lost, {log_bytes_missing} missing",
        "dollars": "{dollars} billed, {dollars_booked} booked",
        "fail-over": "{fail_overs}: p50 {fail_over_p50_s} s, p99 {fail_over_p99_s} s; "
        "{fail_overs_without_a_database_too} without a database too, {fail_over_longest_s} s at most; "
        "hand-over {hand_over_max_s} s at most",
        "run again": "{tasks_run_again}: within {run_again_max_s} s; of time in which a leader could have heard: "
        "p50 {run_again_heard_p50_s} s, {run_again_heard_max_s} s at most",
        "rest": "{rest_s} s after the last fault",
    }
    if "restart" in summary:
        lines["restart"] = "reconciled {restart[pods]} pods {restart[restart_s]} s after its start, or "
        lines["restart"] += "{restart[from_lease_s]} s after it got a killed one's lease"
    for name, text in {"faults": injected, "SIGKILLs and restarts": killed, **lines}.items():
        table.add_row(name, text.format(**summary))
    console.print(table)
    for wrong in (*summary["wrong"], *summary["late"]):
        console.print(wrong, style="red", markup=False)
    console.print("[green]as it should be[/green]" if summary["ok"] else "[red]wrong[/red]")

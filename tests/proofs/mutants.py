"""Planted bugs: each a small change of the product, applied to a copy of it, that the simulation must catch.

A mutant is a file, a function in it, a text that stands there once, what takes its place, and the law that this breaks.
It is caught when a seed ends with a violation; one that survives its seeds is a fault that the world lacks, or a rule that
nothing needs. Without a text the whole body of the function is replaced; without a function the text stands once in the
file. What is not found (any more) is an error: the mutant has to follow the code. Those of the SQL functions are laid
on the model of them, which the drift test holds equal to the migrations.
"""

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SEEDS = 100  # after so many without a violation a mutant has survived
TIMEOUT_S = 600.0


DOC = """# Planted bugs

`./run mutants --write` writes this page. Each planted bug changes the product in one place, or changes the simulator's
model of a SQL function. The simulator then runs seeds until it finds a violation of a law that the bug names. A
violation of another law does not count. [simulator](simulator.md) describes the laws.

"""


@dataclass(frozen=True)
class Mutant:
    """One planted bug."""

    name: str
    law: str  # what it breaks: one, or several with a space between; a violation of another one is no catch
    path: str
    old: str
    new: str
    function: str = ""  # Class.method or function: where the text stands

    def planted(self, text: str) -> str:
        """The file's text with the bug in it. Raises ValueError where its place is not found, or found twice."""
        first, last = _lines_of(text, self.function) if self.function else (0, len(text.splitlines()))
        lines = text.splitlines(keepends=True)
        body = "".join(lines[first:last])
        if not self.old and self.function:
            return "".join(lines[:first]) + self.new + "".join(lines[last:])
        if body.count(self.old) != 1:
            where = f"{self.path}, {self.function}" if self.function else self.path
            raise ValueError(f"{self.name!r}: its text stands {body.count(self.old)} times in {where}")
        return "".join(lines[:first]) + body.replace(self.old, self.new) + "".join(lines[last:])


def _lines_of(text: str, function: str) -> tuple[int, int]:
    """The lines of a function's body: from the first after its docstring, up to but without the last one's successor."""
    scope: list[ast.stmt] = ast.parse(text).body
    *outer, name = function.split(".")
    for one in outer:
        scope = next((node.body for node in scope if isinstance(node, ast.ClassDef) and node.name == one), [])
    found = [n for n in scope if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) and n.name == name]
    if len(found) != 1:
        raise ValueError(f"there are {len(found)} functions {function}")
    body = found[0].body[1:] if ast.get_docstring(found[0]) is not None else found[0].body
    return body[0].lineno - 1, body[-1].end_lineno or body[-1].lineno


EXEC, RENT, TEAR = "orchestrator/loop/execute.py", "orchestrator/pods/create.py", "orchestrator/pods/teardown.py"
END, EVIDENCE = "orchestrator/core/termination.py", "orchestrator/core/pod_evidence.py"
LIFE, SHIP, OBS = (
    "orchestrator/core/lifecycle.py",
    "orchestrator/worker_logs/shipper.py",
    "orchestrator/loop/observe.py",
)
CAP, SCALE, SQL = "orchestrator/core/offers.py", "orchestrator/core/scaling.py", "tests/proofs/simulator/sql"
MUTANTS = (
    Mutant("a worker that is held back claims on", "sick", f"{SQL}/queue.py",
           ' or worker["held_back"] is not None', ""),
    Mutant("the tasks of a sick worker get no attempt back", "sick", f"{SQL}/tables.py",
           "            self.give_attempts_back(row)\n", "            pass\n"),
    Mutant("a worker on a faulty machine is kept", "guard", LIFE,
           "guards.end(worker, snapshot, policy) or ", ""),
    Mutant("a false alarm ends every worker", "guard", "orchestrator/core/guards.py",
           "if alarm is None:", "if True:", "end"),
    Mutant("a finding of an unknown severity counts", "guard", "orchestrator/core/findings.py",
           'guard.severity != record.get("severity")', "False", "_finding_of"),
    Mutant("a worker that claims nothing is replaced at once", "guard", "orchestrator/core/guards.py",
           "since >= timedelta(seconds=LASTS_S)", "since >= timedelta(0)", "_lasts"),
    Mutant("an attempt on a machine that failed counts", "guard", f"{SQL}/queue.py",
           ">= FAULTS", ">= 0"),
    Mutant("an unfit worker is kept", "sick", LIFE,
           " or fitness.end(worker, snapshot, policy)", ""),
    Mutant("a worker that asks for no task is kept", "claims", "orchestrator/core/fitness.py",
           "", "    return None\n", "_end_of_unclaiming"),
    Mutant("all workers of a pool that ask for no task are replaced at once", "claims", "orchestrator/core/fitness.py",
           "changing or ", "", "_end_of_unclaiming"),
    Mutant("what was done before the failures is a second opinion", "sick", f"{SQL}/fitness.py",
           'attempt["started_at"] >= after', 'attempt["ended_at"] is not None'),
    Mutant("a bad release leaves the breaker closed", "sick", "orchestrator/core/breaker.py",
           "if ended.exit_cause is ExitCause.RELEASE_BAD and ended.release == release:", "if False:"),
    Mutant("no intent row before the create call", "I1", EXEC,
           "        written = await asyncio.gather(",
           "        for one in actions:\n            if isinstance(one, act.Spawn):\n"
           "                spec = self._pods.creator._spec(one.worker_id, self._pools[one.pool], one.offer)\n"
           "                await self._cloud.create_pod(await spec)\n        written = await asyncio.gather("),
    Mutant("the create call comes before its record", "I1", RENT,
           "left_s = await self._asking(term, worker_id, pool, offer, usd_per_hour)",
           "left_s = 0"),
    Mutant("a lost create reply counts as a refusal", "I1", RENT,
           'outcome = "lost" if isinstance(error, Unavailable) and not isinstance(error, NotSent) else "failed"',
           'outcome = "failed"'),
    Mutant("POST is tried again after a 5xx", "I1", "orchestrator/adapters/runpod.py",
           "    return isinstance(meant, Unavailable) and not only_rate_limit",
           "    return isinstance(meant, Unavailable)"),
    Mutant("adopt by the prefix of the name", "I1", LIFE,
           "named.get(worker.id)",
           "next((p for p in pods.values() if p.name.startswith('gpu-')), None)"),
    Mutant("ownership is a prefix of the name", "I1", "orchestrator/adapters/runpod_replies.py",
           "        fleet_id=text(env, FLEET_VARIABLE),",
           '        fleet_id="default" if str(fields["name"]).startswith("gpu-") else None,'),
    Mutant("another database's pods of this fleet's name are ours", "I1", "orchestrator/core/model.py",
           "self.fleet_id == fleet_id and self.database_id in (None, database_id)", "self.fleet_id == fleet_id"),
    Mutant("a pod carries no identity of its database", "I1", "orchestrator/adapters/runpod.py",
           "        ownership[DATABASE_VARIABLE] = spec.database_id", "        pass"),
    Mutant("no orphan is ever deleted", "I1", "orchestrator/core/orphans.py",
           "    return deletes", "    return []"),
    Mutant("an unreadable list is an empty one", "I8 I1", "orchestrator/adapters/runpod_replies.py",
           '        raise Malformed(f"{collection} is not a list")\n    if "pagination"',
           '        return [], None, True\n    if "pagination"'),
    Mutant("no list of pods is an empty one", "list I8 I1", OBS,
           "error=type(error).__name__)\n            return False",
           "error=type(error).__name__)\n            self._pods = ()\n            return True"),
    Mutant("one page is the whole list", "I8 I1", "orchestrator/adapters/runpod_replies.py",
           "return records, _cursor(pagination) if more else None, True",
           "return records, None, True"),
    Mutant("one list proves absence", "I8 I1", EVIDENCE,
           "return gone.lists > 1 and seen_s >= age_s", "return True"),
    Mutant("a pod that was never listed is absent at once", "I8 I1", "orchestrator/core/pod_tracking.py",
           "        if missing and (counts or now - born > timedelta(seconds=LISTING_LAG_S)):",
           "        if missing:"),
    Mutant("marked terminated as soon as the delete was sent", "I1", END,
           '    return MarkTerminated(worker.id, "RunPod confirms that the pod is gone") if gone else None',
           '    return MarkTerminated(worker.id, "sent")'),
    Mutant("a delete is believed", "I1", END,
           "    if pod is not None:\n        if sent and snapshot.now < worker.next_attempt_at:",
           "    if pod is not None and sent:\n        return MarkTerminated(worker.id, 'deleted')\n"
           "    if pod is not None:\n        if sent and snapshot.now < worker.next_attempt_at:"),
    Mutant("a delete is never repeated", "I2", END,
           "        if sent and snapshot.now < worker.next_attempt_at:",
           "        if sent:"),
    Mutant("delete before flush", "I5", END,
           "    if worker.stage is Stage.DELETING:\n        return _deleting(worker, pod, snapshot, policy)",
           "    if worker.pod_id and pod:\n        return Delete(worker.id, worker.pod_id, 'now')\n"
           "    if worker.stage is Stage.DELETING:\n        return _deleting(worker, pod, snapshot, policy)"),
    Mutant("logs are not finished before the delete", "I5", TEAR,
           "            beyond_budget = await self._finish_logs(term, worker, action.reachable)\n",
           "            beyond_budget = 0\n"),
    Mutant("bytes that were lost with a host are not declared", "I5", SHIP,
           "                    await one.declare_lost()\n",
           "                    pass\n"),
    Mutant("a piece is uploaded before its ledger row", "I5", "orchestrator/worker_logs/pieces.py",
           "        await self._store.log_begin(term, piece)\n",
           "        await self._blobs.put(piece.key, packed, content_type=CONTENT_TYPE)\n"
           "        await self._store.log_begin(term, piece)\n        return\n"),
    Mutant("a begun piece is not finished first", "I5", SHIP,
           "        if end.begun is not None:\n            shipped +=",
           "        if False:\n            shipped +=", "_ShippingRound._ship_file"),
    Mutant("promote before the heartbeat", "I8", "orchestrator/pods/bringup_stages.py",
           "            (Stage.HEARTBEAT, self.heartbeat, True),",
           "            (Stage.HEARTBEAT, self.heartbeat, False),"),
    Mutant("the bring-up forgets the pod's identity", "I1", LIFE,
           "    if pod and worker.pod_id is None:",
           "    pod = pod or next((p for p in snapshot.pods or () if p.fleet_id), None)\n"
           "    if pod and worker.pod_id is None:"),
    Mutant("the first SSH address is kept for ever", "I5", LIFE,
           "_address_update(worker, pod) or action", "action"),
    Mutant("a drain has no grace", "I2", END,
           "        if worker.tasks_running and not failed and here_s < policy.drain_grace_s:\n            return None",
           "        pass"),
    Mutant("silence counts during an outage of the orchestrator", "I8", LIFE,
           "    last_contact = max(beat, snapshot.unanswered_at.get(worker.id, beat))",
           "    last_contact = worker.state_since"),
    Mutant("silence is counted from zero after each outage", "I2", OBS,
           "            self._gaps.append((self._answered_s, now_s))",
           "            self._began_s = now_s"),
    Mutant("silent workers are kept", "I2", LIFE,
           "    if observed_since and last_contact < observed_since:",
           "    if False:"),
    Mutant("a task that stands still is left", "I2", LIFE,
           "    if observed_since is None or worker.progress_at > observed_since:", "    if True:"),
    Mutant("a stuck task ends its worker at once", "alive", LIFE,
           "policy.task_stuck_s + policy.heartbeat_timeout_s", "policy.task_stuck_s - 10"),
    Mutant("only a change of progress is a sign of life", "alive", "tests/proofs/simulator/sql/queue.py",
           "        if still_s is not None:", "        if False:"),
    Mutant("the limit is forgotten", "I4", SCALE,
           "    target = max(0, min(wanted, pool.max_active - unfit))", "    target = max(0, wanted + 1)"),
    Mutant("spawning workers do not count", "I4", SCALE,
           "return len(self.ready) + len(self.spawning)", "return len(self.ready)"),
    Mutant("the cool-down is forgotten", "market", CAP,
           "    if known.cooldown_until and known.cooldown_until > self._now:".replace("    if", "        if"),
           "        if False:"),
    Mutant("the probe budget is forgotten", "market", CAP,
           "        budget = known.probe_budget if probing else None", "        budget = None"),
    Mutant("an intent reserves no money", "I4", "orchestrator/core/budget.py",
           "    rate = usd_per_hour or 0.0\n", "    rate = 0.0\n"),
    Mutant("idle workers stay", "I2", SCALE,
           "        if idle_s >= pool.idle_timeout_s:", "        if False:"),
    Mutant("the stage watchdog sleeps", "I7", LIFE,
           "    elif snapshot.now >= worker.deadline_at + timedelta(seconds=WATCHDOG_SLACK_S):",
           "    elif False:"),
    Mutant("the leader takes its lease for expired", "I2", "orchestrator/loop/leadership.py",
           "        return time.monotonic() - self._answered_at_s > LEASE_TTL_S", "        return True"),
    Mutant("a failed lease call waits for the regular interval", "lead", "orchestrator/loop/leadership.py",
           "            self.ask_again_s = LEAD_RETRY_S[min(self._unanswered, len(LEAD_RETRY_S) - 1)]\n",
           "            self.ask_again_s = None\n"),
    Mutant("the token is part of a command", "I6", "orchestrator/pods/agent_control.py",
           "    done = await run(session, agent_commands.start_command(python, agent_sha, nonce), stdin=config,"
           " timeout_s=timeout_s)",
           "    command = agent_commands.start_command(python, agent_sha, nonce) + ' # ' + config.decode()\n"
           "    done = await run(session, command, stdin=config, timeout_s=timeout_s)"),
    Mutant("the pause before a canary has no bound", "I2", "orchestrator/core/breaker.py",
           "timedelta(seconds=min(max(PACE_S, CANARY_SHARE * vain_s), CANARY_MAX_S))",
           "timedelta(seconds=max(PACE_S, 60 * vain_s))"),
    Mutant("SQL: a stale term may write", "fence", f"{SQL}/fleet.py",
           "        if term is None or known != term:", "        if term is None:"),
    Mutant("SQL: a stale attempt may complete", "I3", f"{SQL}/queue.py",
           '        if task is not None and task["attempts"] == attempt:',
           '        if self.tasks[task_id]["status"] in ("Queued", "In Progress", "Complete"):'),
    Mutant("SQL: a claim takes a task that another worker completed", "I3", f"{SQL}/queue.py",
           '            and t["status"] == "Queued"\n            and not t["blocked"]',
           '            and t["status"] in ("Queued", "Complete")\n            and not t["blocked"]'),
    Mutant("SQL: a move checks no state", "I7", f"{SQL}/fleet.py",
           '        if row["status"] not in [str(state) for state in p_from]:', "        if False:"),
    Mutant("SQL: a heartbeat renews no lease", "I8", f"{SQL}/queue.py",
           '{"lease_expires_at": lease, "progress_at": self._alive_at(task, named)}',
           '{"progress_at": self._alive_at(task, named)}'),
    Mutant("SQL: an earlier release's attempt counts", "I2", f"{SQL}/queue.py",
           "told, counted=False, backoff=False)", "told, counted=True, backoff=True)"),
    Mutant("SQL: a tenant's first task gets its turn after all others", "fair", f"{SQL}/turns.py",
           ' for t in shared if t["tenant"] == task["tenant"]', " for t in shared", "Turns.next_turn"),
    Mutant("SQL: all tasks of a tenant get one turn", "fair", f"{SQL}/turns.py",
           "last + STEP", "last", "Turns.next_turn"),
    Mutant("SQL: tasks without a tenant get no turns", "fair", f"{SQL}/turns.py",
           "        if turns:", "        if False:", "Turns.deal_turns"),
    Mutant("SQL: a claim ignores turns", "fair", f"{SQL}/queue.py",
           't["queue_turn"], ', "", "Queue._take"),
    Mutant("SQL: a claim takes a task that waits for its limit", "limit", f"{SQL}/limits.py",
           'task["blocked"] = task["queue_gate"] > 0', 'task["blocked"] = False', "Limits.gate_of_new"),
    Mutant("SQL: a completion passes no place on", "limit", f"{SQL}/limits.py",
           'free_keys[old["concurrency_key"]] += 1', "pass", "Limits.gates_changed"),
    Mutant("SQL: a dependant of a failed task waits", "I2", f"{SQL}/tables.py",
           "        if ended and not settling:\n            self.settle_dependants(ended)",
           "        if False:\n            self.settle_dependants(ended)"),
)  # fmt: skip


@dataclass(frozen=True)
class MutantResult:
    """What became of a mutant."""

    mutant: Mutant
    seeds: int | None  # it took; None if it survived
    how: str  # the violation


def tried(mutant: Mutant, seeds: int) -> MutantResult:
    """Live through seeds with a mutated copy of the product, until a law that it is said to break is broken."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as directory:
        copy = Path(directory)
        for name in ("orchestrator", "worker", "testbed", "tests/proofs/simulator"):
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        file = copy / mutant.path
        file.write_text(mutant.planted(file.read_text()))
        command = [
            sys.executable,
            "-m",
            "tests.proofs.simulator",
            "--seeds",
            str(seeds),
            "--processes",
            "0",
            "--laws",
            mutant.law,
        ]
        done = subprocess.run(
            command, cwd=copy, env=os.environ | {"PYTHONPATH": str(copy)}, capture_output=True, text=True,
            timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
        if done.returncode not in (0, 1) or (done.returncode and "seed " not in done.stdout):
            raise ValueError(f"{mutant.name!r}: {done.stdout[-500:]} {done.stderr[-1500:]}")
        for line in done.stdout.splitlines():
            number, _, violation = line.removeprefix("seed ").partition(": ")
            if number.isdigit() and violation.partition(":")[0] in mutant.law.split():
                return MutantResult(mutant, int(number) + 1, violation)
        return MutantResult(
            mutant, None, next((line for line in done.stdout.splitlines() if line.startswith("seed ")), "")
        )


def report(outcomes: Sequence[MutantResult], took_s: float) -> str:
    """The table, and what the same seeds say of the code as it is."""
    lines = ["| planted bug | where | breaks | caught after | by |", "|---|---|---|---|---|"]
    for outcome in outcomes:
        one = outcome.mutant
        after = "**survived**" if outcome.seeds is None else f"{outcome.seeds} seed{'s' if outcome.seeds > 1 else ''}"
        laws = ", ".join(one.law.split())
        lines.append(f"| {one.name} | `{one.path}` | {laws} | {after} | {_cell(outcome.how)} |")
    survived = sum(outcome.seeds is None for outcome in outcomes)
    lines += ["", f"{len(outcomes)} planted bugs, {survived} survived, in {took_s:.0f} s."]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").partition(" (at ")[0][:120]


def unmutated(seeds: int, processes: int) -> str | None:
    """What the code as it is breaks in as many seeds; None if nothing."""
    command = [sys.executable, "-m", "tests.proofs.simulator", "--seeds", str(seeds), "--processes", str(processes)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    return done.stdout[-500:] + done.stderr[-500:] if done.returncode else None


def main() -> int:
    """The table; 1 if one survived, or if the code as it is fails as well."""
    parser = argparse.ArgumentParser(prog="./run mutants", description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", help="only those whose name contains one of these")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="write the table into docs/mutants.md")
    options = parser.parse_args()
    chosen = [m for m in MUTANTS if not options.names or any(name in m.name for name in options.names)]
    began, outcomes = time.monotonic(), list[MutantResult]()
    with ThreadPoolExecutor(options.processes) as pool:
        for done in as_completed([pool.submit(tried, mutant, options.seeds) for mutant in chosen]):
            outcomes.append(outcome := done.result())
            after = (
                "SURVIVED" if outcome.seeds is None else f"{outcome.seeds:3d} seed{'s' if outcome.seeds > 1 else ' '}"
            )
            sys.stdout.write(f"{outcome.mutant.name:52s} {outcome.mutant.law:7s} {after}  {outcome.how[:110]}\n")
            sys.stdout.flush()
    most = max((outcome.seeds or 0 for outcome in outcomes), default=0)
    wrong = unmutated(most, options.processes)
    outcomes.sort(key=lambda outcome: chosen.index(outcome.mutant))
    took_s, survived = time.monotonic() - began, sum(outcome.seeds is None for outcome in outcomes)
    if options.write:
        (ROOT / "docs" / "mutants.md").write_text(
            f"{DOC}{report(outcomes, took_s)}\nNot mutated, {most} seeds break nothing.\n"
        )
    sys.stdout.write(f"{len(chosen)} mutants, {survived} survived, in {took_s:.0f} s\n")
    sys.stdout.write(wrong or f"not mutated, {most} seeds break nothing\n")
    return 1 if survived or wrong else 0


if __name__ == "__main__":
    sys.exit(main())

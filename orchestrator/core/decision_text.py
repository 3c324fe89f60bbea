"""A pool's decision as a plain sentence: `5 tasks ready, 2 per GPU → 3 workers; 1 is ready, starting 2`.

It is composed from the facts that the decision row stores, only for display. The formula is `PoolDecision.rule`.
"""

from collections.abc import Collection, Mapping
from math import ceil
from typing import Any

from orchestrator.core.blocked import BlockedReason, from_json
from orchestrator.core.economics.policies import ReviewCandidate, ScalingPolicy
from orchestrator.core.plurals import counted, queued


def sentence(inputs: Mapping[str, Any], target: int) -> str:
    """Return the work of a pool, the rule that decides, and the number of workers that follows.

    `inputs` are those of a `PoolDecision`. Facts that an earlier release did not store are left out.
    """
    wanted = max(target, _number(inputs, "wanted"))
    text = f"{_why(inputs, wanted)} → {counted(wanted, 'worker')}"
    if target < wanted:
        text += f", but at most {target} {'is' if target == 1 else 'are'} allowed"
    if awaited := inputs.get("awaited"):
        text += f"; 1 more, because {awaited}"
    if inputs.get("policy_by"):
        text += f"; an operator chose the rule {inputs.get('policy')}"
    return text + reviewed(inputs.get("reviewed"))


def reviewed(candidate: object) -> str:
    """Return what the last review changes, after a semicolon; empty if it changes nothing."""
    match candidate:
        case ReviewCandidate.FIXED:
            return "; by the fixed settings today, which would have been cheaper than learned in the last week"
        case ReviewCandidate.COLD_START:
            return "; idle workers stay for one cold start today, which would have been cheaper in the last week"
        case _:
            return ""


def workers(inputs: Mapping[str, Any]) -> str:
    """Return the present workers of a pool: `2 ready (1 busy), 1 starting`."""
    ready, busy = _number(inputs, "ready"), _number(inputs, "busy")
    text = [f"{ready} ready" + (f" ({busy} busy)" if busy else "")] if ready else []
    text += [f"{count} {verb}" for name, verb in (("spawning", "starting"), ("terminating", "ending"))
             if (count := _number(inputs, name))]  # fmt: skip
    return ", ".join(text) or "none"


def changes(spawns: int, terminations: int, kinds: Collection[object]) -> str:
    """Return what a tick does about it, after a semicolon. `kinds` are the decision's blocked reasons."""
    text = ""
    if spawns:
        is_canary = BlockedReason.NEW_RELEASE in kinds
        text += f"; starting {spawns}" + (" first, because this release is new" if is_canary else "")
    if terminations:
        text += f"; ending {terminations}"
    return text


def row_sentence(row: Mapping[str, Any]) -> str:
    """Return the sentence of a decision row, with its changes; its formula if it has no inputs."""
    inputs, actions = row.get("inputs") or {}, list(map(str, row.get("actions") or ()))
    if "claimable" not in inputs:
        return str(row["rule"])
    spawns = sum(action.startswith("spawn") for action in actions)
    kinds = {from_json(reason).kind for reason in row.get("blocked") or ()}
    return sentence(inputs, row["target"]) + changes(spawns, len(actions) - spawns, kinds)


def _why(inputs: Mapping[str, Any], wanted: int) -> str:
    claimable, running, busy = (_number(inputs, name) for name in ("claimable", "running", "busy"))
    blocked = inputs.get("blocked")
    paused = _number(blocked, "paused") if isinstance(blocked, Mapping) else 0  # ready for the workers that are there
    demand = f"{counted(queued(claimable + paused), 'task') if claimable + paused else 'no tasks'} ready"
    demand += f" and {running} running" if running else ""
    demand += ", but spawning is paused" if paused else ""
    if "cluster" in inputs:
        return f"{demand}, cluster {inputs['cluster']}" if inputs["cluster"] else f"{demand}, no cluster"
    if inputs.get("policy") == ScalingPolicy.LEARNED:
        return f"{demand}; {inputs['why']}" if inputs.get("why") else demand
    per_gpu, keep_idle, least = (_number(inputs, name) for name in ("tasks_per_gpu", "keep_idle", "min_active"))
    if not per_gpu or not wanted or ceil((claimable + running) / per_gpu) >= wanted:
        return demand + (f", {per_gpu} per GPU" if per_gpu and (claimable or running) else "")
    if least >= wanted:
        return f"{demand}, always at least {counted(least, 'worker')}"
    return f"{demand}, {counted(busy, 'worker')} busy and {keep_idle} kept idle"


def _number(inputs: Mapping[str, Any], name: str) -> int:
    """Return a number; 0 if another program wrote something else."""
    value = inputs.get(name)
    return int(value) if isinstance(value, int | float) else 0

"""What a probe changes in a member's row: its addresses, and the details that people see."""

import json
from datetime import datetime
from typing import Any

from orchestrator.core.clusters.actions import UpdateMember
from orchestrator.core.clusters.facts import ClusterFacts
from orchestrator.core.clusters.readings import DaemonState, Reading
from orchestrator.core.clusters.rows import MemberRow

CODES = 5  # of the agent's log, the newest last
STEP_S = 10  # of a shown difference of clocks
SPELL_S = 60.0  # for which a member is ready between two troubles that are one
MANY = 5  # troubles in a row: one that lasts
VALUE_CHARS, PEERS_CHARS = 400, 6_000  # of one detail as JSON, and of a list of 64 names
OWN = frozenset({
    "phase", "failure_code", "cpus", "memory_mb", "gpu_files", "slurmd_state", "slurm_installed", "version", "munge_ok",
    "munge_matches", "conf_sha", "clock_skew_s", "cut_peers", "api_reachable", "api_url", "api_error", "agent_codes",
    "slurmctld_state", "slurmctld_pid", "slurmctld_started_at", "trouble_since", "relapses",
})  # fmt: skip


def addresses(member: MemberRow, reading: Reading) -> dict[str, Any]:
    """Return the fields of a member's row that have its addresses. A name of the pod is shown only."""
    fields: dict[str, Any] = {}
    if reading.fabric_addr is not None:
        fields["fabric_addr"] = reading.fabric_addr.ip
    if reading.hostname is not None:
        fields["hostname"] = reading.hostname
    if member.worker is not None and member.worker.ssh_host is not None:
        fields |= {"ssh_host": member.worker.ssh_host, "ssh_port": member.worker.ssh_port}
    return fields


def moved_address(member: MemberRow, reading: Reading) -> UpdateMember | None:
    """Return the update of an address that has changed, as after the restart of a pod."""
    known = {"fabric_addr": member.fabric_addr, "ssh_host": member.ssh_host, "ssh_port": member.ssh_port}
    found = {name: value for name, value in addresses(member, reading).items() if name in known}
    if all(known[name] == value for name, value in found.items()):
        return None
    return UpdateMember(member.worker_id, member.status, "its address has changed", found)


def not_ready_since(member: MemberRow) -> datetime:
    """Return since when a member has not been ready; the spells between its troubles do not count if it has many."""
    since, relapses = _relapses(member)
    return min(since, member.status_since) if relapses >= MANY else member.status_since


def relapse(member: MemberRow, facts: ClusterFacts) -> dict[str, Any]:
    """Return the details of a new trouble of a ready member: it continues the last one if that was a moment ago."""
    since, relapses = _relapses(member)
    if (facts.now - member.status_since).total_seconds() >= SPELL_S:
        since, relapses = facts.now, 0
    return {"trouble_since": since.isoformat(), "relapses": relapses + 1}


def _relapses(member: MemberRow) -> tuple[datetime, int]:
    """Return when the first trouble of the row began, and how many there were. A user may have written anything."""
    try:
        since = datetime.fromisoformat(member.adapter_detail["trouble_since"])
        return min(since, member.status_since), int(member.adapter_detail["relapses"])
    except (KeyError, TypeError, ValueError, OverflowError):
        return member.status_since, 0


def own_detail(member: MemberRow) -> dict[str, Any]:
    """Return the details that the leader wrote before, without the error.

    What a user wrote is left out: with it, a row could become too large for every change of the member.
    """
    return {
        name: value
        for name, value in member.adapter_detail.items()
        if name in OWN and len(json.dumps(value)) <= (PEERS_CHARS if name == "cut_peers" else VALUE_CHARS)
    }


def detail_of(member: MemberRow, reading: Reading, facts: ClusterFacts) -> dict[str, Any]:
    """Return what people see of a member, and what its diagnoses follow from. An unknown answer changes nothing.

    The machine's numbers stay as they were first: the configuration is made from them.
    """
    state = facts.state_of(member)
    cut = None if reading.peers is None else sorted(name for name, reached in reading.peers.items() if not reached)
    seen: dict[str, Any] = {
        "slurmd_state": reading.slurmd_state if reading.slurmd_state is DaemonState.DOWN or state is None else state,
        "slurm_installed": reading.slurm_installed,
        "version": reading.version,
        "munge_ok": reading.munge_ok,
        "munge_matches": reading.munge_matches,
        "conf_sha": reading.conf_sha,
        "clock_skew_s": _rounded(reading.clock_skew_s),
        "cut_peers": cut,
        "api_reachable": reading.api_reachable,
        "api_url": reading.api_url,
        "api_error": reading.api_error,
        "agent_codes": None if reading.agent_log_tail is None else list(reading.agent_log_tail[-CODES:]),
    }
    known = {name: value for name, value in seen.items() if value is not None}
    of_controller = _of_controller(member, reading) if member is facts.controller else {}
    return {**own_detail(member), **known, **of_controller, "error": reading.error}


def _of_controller(member: MemberRow, reading: Reading) -> dict[str, Any]:
    """Return the details of slurmctld. Its start is computed from its age, so it stays while the process does."""
    if reading.slurmctld_state is None:
        return {}
    before, started = own_detail(member), reading.slurmctld_started_at
    started_at = started.isoformat() if started else None
    if reading.slurmctld_pid is not None and reading.slurmctld_pid == before.get("slurmctld_pid"):
        started_at = before.get("slurmctld_started_at", started_at)
    return {
        "slurmctld_state": reading.slurmctld_state,
        "slurmctld_pid": reading.slurmctld_pid,
        "slurmctld_started_at": started_at,
    }


def _rounded(skew_s: float | None) -> int | None:
    """Return a difference of clocks in steps that do not change with each probe."""
    return None if skew_s is None else STEP_S * round(skew_s / STEP_S)


def detail_update(member: MemberRow, reading: Reading, facts: ClusterFacts) -> UpdateMember | None:
    """Return the update of a member's details, if they have changed."""
    detail = detail_of(member, reading, facts)
    if detail == dict(member.adapter_detail):
        return None
    why = member.reason or "its probe shows a change"
    return UpdateMember(member.worker_id, member.status, why, {"adapter_detail": detail})


def unreached(member: MemberRow, facts: ClusterFacts) -> UpdateMember | None:
    """Return the remark that two probes in a row did not reach a member by SSH.

    Slurm may hear it, so nothing else follows at once. The next probe that reaches it takes the remark away.
    """
    seen = facts.view.observed.get(member.worker_id)
    if seen is None or seen.unreached_since is None or not facts.unreached_s(member.worker_id):
        return None
    why = f"SSH has not reached it since {seen.unreached_since:%H:%M:%S}"
    if member.adapter_detail.get("error") == why:
        return None
    detail = {**own_detail(member), "error": why, "unreached_since": seen.unreached_since.isoformat()}
    return UpdateMember(member.worker_id, member.status, member.reason or why, {"adapter_detail": detail})

"""What a probe changes in a member's row: its addresses, and the details that people see."""

from collections.abc import Mapping
from typing import Any

from orchestrator.core.cluster_actions import UpdateMember
from orchestrator.core.cluster_facts import Facts
from orchestrator.core.cluster_readings import Daemon, Reading
from orchestrator.core.cluster_rows import MemberRow
from orchestrator.core.cluster_states import MemberStatus


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


def detail_of(member: MemberRow, reading: Reading, facts: Facts) -> dict[str, Any]:
    """Return what people see of a member. The machine's numbers stay: the configuration is made from them."""
    state = facts.state_of(member)
    seen: Mapping[str, Any] = {
        "slurmd_state": reading.slurmd_state if reading.slurmd_state is Daemon.DOWN or state is None else state,
        "munge_ok": reading.munge_ok,
        "conf_sha": reading.conf_sha,
        "version": reading.version,
        "error": None,
    }
    if member is facts.controller:
        started = reading.slurmctld_started_at
        seen = {
            **seen,
            "slurmctld_state": reading.slurmctld_state,
            "slurmctld_pid": reading.slurmctld_pid,
            "slurmctld_started_at": started.isoformat() if started else None,
        }
    known = {name: value for name, value in seen.items() if value is not None or name == "error"}
    return {**member.adapter_detail, **known}


def detail_update(member: MemberRow, reading: Reading, facts: Facts) -> UpdateMember | None:
    """Return the update of a ready member's details, if they have changed."""
    detail = detail_of(member, reading, facts)
    if member.status is not MemberStatus.READY or detail == dict(member.adapter_detail):
        return None
    return UpdateMember(member.worker_id, member.status, "its probe shows a change", {"adapter_detail": detail})

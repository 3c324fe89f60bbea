"""Each diagnosis follows from one observation in the rows, and names its cause and a fix."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from orchestrator.core.cluster_states import ClusterStatus, MemberRole, NodeTaskKind, NodeTaskStatus, NodeTaskVia
from orchestrator.core.clusters.addresses import FabricAddress, NodeName, Transport
from orchestrator.core.clusters.diagnoses import Diagnosis, diagnose
from orchestrator.core.clusters.rows import ClusterRow, NodeTask
from tests.unit.core.clusters import rows
from tests.unit.core.clusters.world import World, tasks


@pytest.fixture(scope="module")
def healthy() -> ClusterRow:
    world = World(2)
    world.change(demand=tasks(2))
    world.until(ClusterStatus.RUNNING)
    world.run(30)
    return world.view().row


def with_detail(row: ClusterRow, changes: Mapping[str, Any], number: int = 0) -> ClusterRow:
    members = list(row.members)
    members[number] = replace(members[number], adapter_detail={**members[number].adapter_detail, **changes})
    return replace(row, members=tuple(members))


def codes(row: ClusterRow) -> list[Diagnosis]:
    return [one.code for one in diagnose(row, row.status_since + timedelta(hours=1))]


def test_a_healthy_cluster_has_no_diagnosis(healthy: ClusterRow) -> None:
    assert codes(healthy) == []


@pytest.mark.parametrize(
    ("detail", "code"),
    [
        ({"slurmctld_pid": None, "slurmctld_started_at": None}, Diagnosis.NO_APP_CONTROLLER),
        ({"slurmctld_state": "down"}, Diagnosis.CONTROLLER_DOWN),
        ({"slurmd_state": "down"}, Diagnosis.NODE_DOWN),
        ({"slurmd_state": "idle*"}, Diagnosis.NODE_DOWN),
        ({"api_reachable": False}, Diagnosis.AGENT_API_UNREACHABLE),
        ({"agent_codes": ["other", "token_expired"]}, Diagnosis.AGENT_CRED_EXPIRED),
        ({"agent_codes": ["token_invalid"]}, Diagnosis.TOKEN_INVALID),
        ({"munge_matches": False}, Diagnosis.MUNGE_KEY_MISMATCH),
        ({"clock_skew_s": -310}, Diagnosis.CLOCK_SKEW),
        ({"cut_peers": ["gpu-2"]}, Diagnosis.FABRIC_CUT),
        ({"unreached_since": "2026-11-21T12:00:00+00:00"}, Diagnosis.MEMBER_UNREACHED),
        ({"slurm_installed": False}, Diagnosis.SLURM_MISSING),
    ],
)
def test_one_observation_gives_one_diagnosis(healthy: ClusterRow, detail: Mapping[str, Any], code: Diagnosis) -> None:
    controller = next(n for n, one in enumerate(healthy.members) if one.role == "controller")
    row = with_detail(healthy, detail, controller)
    (found,) = diagnose(row, row.status_since)
    assert found.code is code
    assert found.evidence
    assert found.cause.endswith(".")
    assert "<cluster>" not in found.fix
    assert "<worker>" not in found.fix


def test_an_api_that_is_not_reached_is_named(healthy: ClusterRow) -> None:
    """The URL that was tested, and why. An agent keeps its URL, so the fix names its end."""
    url = {"api_url": "https://old.example", "api_error": "Name or service not known"}
    (found,) = diagnose(row := with_detail(healthy, {"api_reachable": False, **url}, 0), row.status_since)
    assert "https://old.example from the pod: Name or service not known" in found.evidence
    assert f"terminate {healthy.members[0].worker_id}" in found.fix


def test_a_node_whose_slurmd_is_down_is_not_cut_off(healthy: ClusterRow) -> None:
    """Nobody can connect to its port."""
    down = with_detail(healthy, {"slurmd_state": "down"}, 0)
    row = with_detail(down, {"cut_peers": [healthy.members[0].node_name]}, 1)
    assert codes(row) == [Diagnosis.NODE_DOWN]


@pytest.mark.parametrize("detail", [{"agent_codes": ["token_expired", "token_renewed"]}, {"clock_skew_s": 20}, {}])
def test_what_is_over_or_small_or_unknown_is_no_diagnosis(healthy: ClusterRow, detail: Mapping[str, Any]) -> None:
    assert codes(with_detail(healthy, detail)) == []


def test_an_imported_row_whose_address_is_a_hostname_is_named(healthy: ClusterRow) -> None:
    first = replace(healthy.members[0], ssh_host="j27u15", hostname="j27u15")
    assert codes(replace(healthy, members=(first, *healthy.members[1:]))) == [Diagnosis.TRANSPORT_HOSTNAME]


def test_a_node_task_starves_only_while_heartbeats_fail(healthy: ClusterRow) -> None:
    name, at = healthy.members[0].worker_id, healthy.status_since
    task = NodeTask(
        7, "train", name, None, NodeTaskKind.AUTHORIZED_KEY, {}, NodeTaskVia.AGENT, NodeTaskStatus.QUEUED, None, at, at,
        at + timedelta(hours=1),
    )  # fmt: skip
    row = replace(healthy, node_tasks=(task,))
    worker = healthy.members[0].worker
    assert worker is not None
    silent = replace(healthy.members[0], worker=replace(worker, last_heartbeat=at))
    later = at + timedelta(minutes=2)
    (found,) = diagnose(replace(row, members=(silent, *row.members[1:])), later)
    assert found.code is Diagnosis.NODE_TASK_STARVED
    assert found.evidence == "node task 7 waits for 120 s; last heartbeat 120 s ago"
    heard = replace(silent, worker=replace(worker, last_heartbeat=later))
    assert not diagnose(replace(row, members=(heard, *row.members[1:])), later)


def test_missing_nodes_and_a_task_that_is_too_large_are_named(healthy: ClusterRow) -> None:
    few = replace(healthy, status=ClusterStatus.DEGRADED, nodes=5, max_nodes=5, demand=tasks(9))
    assert codes(few) == [Diagnosis.NODES_MISSING, Diagnosis.TASK_TOO_LARGE]


def test_a_released_cluster_has_nothing_to_diagnose(healthy: ClusterRow) -> None:
    assert codes(replace(healthy, status=ClusterStatus.REQUESTED, members=(), nodes=0)) == []


@pytest.mark.parametrize("text", ["c0ffee", "pod.runpod.internal", "", "10.0.0.1:22", "fe80::1%eth0", "::"])
def test_a_fabric_address_is_an_ip_literal_of_one_machine(text: str) -> None:
    assert FabricAddress.of(text) is None
    assert FabricAddress.of("10.0.0.7") == FabricAddress("10.0.0.7")


@pytest.mark.parametrize(("host", "port"), [(None, 22), ("203.0.113.9", None), ("-oProxyCommand=x", 22), ("h", 0)])
def test_a_transport_is_not_made_of_half_an_address_or_of_an_option(host: str | None, port: int | None) -> None:
    assert Transport.of(host, port) is None


def test_a_node_name_is_the_workers_id_as_slurm_can_read_it() -> None:
    assert NodeName.of_worker("gpu-20261125_101112-0a1b2c3d").text == "gpu-20261125-101112-0a1b2c3d"
    for text in ("a b", "gpu[1-9]", "", "-x", "a" * 64, "GPU"):
        assert NodeName.of(text) is None


@pytest.mark.parametrize("name", ["agent_codes", "cut_peers", "clock_skew_s", "slurmd_state", "slurmctld_pid"])
@pytest.mark.parametrize("value", [7, True, 10**400, float("nan"), "x", {"a": 1}, [[1]], None])
def test_a_detail_of_another_type_breaks_no_page(name: str, value: object) -> None:
    """A user may have written it; a page shows the other clusters too."""
    row = rows.cluster(members=(rows.member(1, role=MemberRole.CONTROLLER, adapter_detail={name: value}),))
    diagnose(row, rows.NOW)

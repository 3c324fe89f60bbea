"""`cluster`: created, shown with what it waits for and its members, given work and requests, deleted."""

import uuid
from pathlib import Path

import pytest

from orchestrator.adapters.cluster_store import ClusterStore
from orchestrator.core.cluster_states import ClusterStatus, MemberRole, MemberStatus, OperationStatus
from orchestrator.core.states import State
from tests.process.cli.builders import Cli, Fleet

POOL = "train"
POOLS = """
[pools.train]
kind = "cluster"
task_types = ["train"]
gpu_types = ["NVIDIA H100 80GB HBM3"]
data_centers = ["US-KS-2"]
cloud = "SECURE"
max_active_gpus = 8
"""
SCRIPT = "#!/bin/sh\nsrun hostname\n"
DETAIL = {"phase": "slurm_ready", "slurmctld_state": "up", "slurmctld_pid": 417, "slurmd_state": "idle"}


@pytest.fixture
def trainer(cli: Cli, tmp_path: Path) -> Cli:
    """The command line with a cluster pool."""
    (tmp_path / "pools.toml").write_text(POOLS)
    (tmp_path / "train.sh").write_text(SCRIPT)
    (tmp_path / "latin.sh").write_bytes(b"echo \xe9\n")
    own = {"POOLS_FILE": str(tmp_path / "pools.toml"), "WORKER_HANDLERS": "train=slurm"}
    return Cli({**cli.environment, **own}, cwd=tmp_path)


@pytest.fixture
def name() -> str:
    """A cluster of this test's own: names are unique in a database."""
    return f"c-{uuid.uuid4().hex[:8]}"


async def run_on(fleet: Fleet, rows: ClusterStore, name: str, nodes: int) -> list[str]:
    """Bring a cluster up as the leader does; its workers, the controller first."""
    term, workers = fleet.term, []
    assert await rows.move(term, name, [ClusterStatus.REQUESTED], ClusterStatus.ALLOCATING, "test", deadline_s=600)
    for number in range(nodes):
        worker = await fleet.worker(upto=State.ACTIVE, cluster=name)
        role = MemberRole.WORKER if number else MemberRole.CONTROLLER
        assert await rows.join(term, name, worker, role, node_name=worker.replace("_", "-")) == number
        where = {"ssh_host": "213.173.110.7", "ssh_port": 12086, "fabric_addr": f"10.65.0.{number + 3}"}
        steps = (MemberStatus.PENDING, MemberStatus.RECONCILING), (MemberStatus.RECONCILING, MemberStatus.READY)
        for before, after in steps:
            await rows.move_member(term, name, worker, [before], after, "test", adapter_detail=DETAIL, **where)
        workers.append(worker)
    assert await rows.move(term, name, [ClusterStatus.ALLOCATING], ClusterStatus.DEPLOYING, "test", deadline_s=600)
    assert await rows.move(term, name, [ClusterStatus.DEPLOYING], ClusterStatus.RUNNING, "test")
    return workers


async def test_a_cluster_from_its_creation_to_its_end(trainer: Cli, fleet: Fleet, fleet_id: str, name: str) -> None:
    """Each command shows what it did, and the rows after it; --json has the same."""
    rows = ClusterStore(fleet.db, fleet_id)
    created = await trainer("cluster", "create", name, "--pool", POOL, "--nodes", "2", "--max-nodes", "4")
    assert (created.code, created.out) == (
        0, f"created {name}: 2 nodes of pool train, rented now, and then 2 to 4, as the tasks need them\n",
    ), created.err  # fmt: skip
    assert (await trainer("cluster", "status", name)).lines_with("WAITING ON orchestrator: the leader")
    none = await trainer("cluster", "reconcile", name)
    assert (none.code, "no live member" in none.err) == (1, True), none.err
    controller, other = await run_on(fleet, rows, name, 2)
    (listed,) = (await trainer("cluster", "list")).lines_with(name)
    assert listed.split()[1:6] == ["running", listed.split()[2], "train", "2/2", "$0.88"]
    status = await trainer("cluster", "status", name)
    assert status.lines_with(f"{name}  running")
    (line,) = status.lines_with(controller.replace("_", "-"))
    assert line.split()[1:3] == ["controller", "ready"]
    assert "ctld up, idle" in line
    asked = await trainer("cluster", "reconcile", name, "--worker", other[-8:])
    assert f"reconcile of {other} is accepted" in asked.out
    assert (await trainer("cluster", "bootstrap-ssh", name, "--json")).json()["outcome"] == "accepted"
    found = (await trainer("cluster", "operations", name, "--json")).json()["operations"]
    assert sorted(one["kind"] for one in found) == ["bootstrap_ssh", "bootstrap_ssh", "reconcile"]
    failed, error = next(one["id"] for one in found if one["kind"] == "reconcile"), "slurmd: munge: Invalid credential"
    await rows.move_operation(fleet.term, failed, [OperationStatus.ACCEPTED], OperationStatus.FAILED, error=error)
    assert (await trainer("cluster", "operations", name)).lines_with(error)
    assert "drain of" in (await trainer("cluster", "drain", name, other)).out
    assert (await trainer("cluster", "scale", name, "3")).out == f"{name}: 3 nodes (at least 2, at most 4)\n"
    cut_off = {"adapter_detail": {**DETAIL, "api_reachable": False}}
    assert await rows.move_member(fleet.term, name, other, [MemberStatus.READY], None, "test", **cut_off)
    said = await trainer("cluster", "explain", name, "--history")
    assert said.lines_with("AGENT_API_UNREACHABLE")[0].split()[1] == f"{other.replace('_', '-')}:"
    assert said.lines_with("fix: make the URL of the evidence reachable from pods")
    assert said.lines_with("deploying")
    limit = await trainer("cluster", "scale", name, "--max-nodes", "6")
    assert limit.out == f"{name}: 3 nodes (at least 2, at most 6)\n"
    explained = (await trainer("cluster", "explain", name, "--json")).json()
    assert [one["code"] for one in explained["diagnoses"]] == ["AGENT_API_UNREACHABLE"]
    assert {"cluster", "member"} <= {one["subject"] for one in explained["events"]}
    members = (await trainer("cluster", "members", name, "--json")).json()["members"]
    assert [one["adapter_detail"]["host"] for one in members] == ["213.173.110.7"] * 2
    assert "boot-1" not in str(members), "the launch of an agent is shown to nobody"
    for command in (("list", "--all"), *((one, name) for one in ("status", "operations", "explain"))):
        assert (await trainer("cluster", *command, "--json")).code == 0, command
    for more in (("reconcile", name), ("scale", name, "2")):
        assert (await trainer("cluster", *more, "--json")).code == 0, more
    refused = await trainer("cluster", "drain", name, controller)
    assert (refused.code, f"terminate {controller}" in refused.err) == (1, True), refused.err
    assert "has no member ''" in (await trainer("cluster", "reconcile", name, "--worker", "")).err
    assert (await trainer("cluster", "delete", name)).code == 2, "without a terminal it needs --force"
    assert (await trainer("cluster", "delete", name, "--force")).out == f"{name}: its end is requested\n"
    assert "has ended already" in (await trainer("cluster", "delete", name, "--force")).out
    late = await trainer("cluster", "submit", name, "--script", "train.sh")
    assert f"cluster {name} is deleting" in late.err
    assert (await trainer("cluster", "delete", name, "--force", "--json")).json()["outcome"] == "already"
    assert (await trainer("cluster", "list")).lines_with("the end of 2 nodes")


async def test_a_task_of_a_cluster_is_a_script_and_its_nodes(trainer: Cli, fleet: Fleet, name: str) -> None:
    """In the pool of the cluster, with the type whose handler is slurm."""
    created = await trainer("cluster", "create", name, "--pool", POOL, "--nodes", "2", "--min-nodes", "0")
    assert "rented with the first task, and then 0 to 2" in created.out
    options = ("--nodes", "2", "--time-limit", "12h", "--gpus-per-node", "1", "--env", "A=b", "--output", "results/*")
    made = await trainer("cluster", "submit", name, "--script", "train.sh", *options, "--max-attempts", "2")
    assert made.code == 0, made.err
    task = (await fleet.store.task(made.out.strip()))["task"]
    assert (task["task_type"], task["pool"], task["max_attempts"]) == ("train", POOL, 2)
    assert task["timeout_s"] == 43_200 + 3_600
    assert task["params"] == {
        "script": SCRIPT, "nodes": 2, "time_limit_s": 43_200, "gpus_per_node": 1, "env": {"A": "b"},
        "outputs": ["results/*"],
    }  # fmt: skip
    piped = await trainer("cluster", "submit", name, "--script", "-", "--json", stdin=SCRIPT)
    assert piped.json()["tasks"][0]["created"]
    assert (await trainer("cluster", "status", name)).lines_with("tasks: 2, for 3 nodes (the largest: 2)")


@pytest.mark.parametrize(
    ("arguments", "why", "code"),
    [
        (("create", "x", "--pool", "default", "--nodes", "2"), "it is not a cluster pool", 2),
        (("create", "x", "--pool", "trian", "--nodes", "2"), 'Did you mean "train"?', 2),
        (("create", "No Name", "--pool", POOL, "--nodes", "2"), "lower-case letters", 2),
        (("create", "x", "--pool", POOL, "--nodes", "65"), "not in the range", 2),
        (("create", "x", "--pool", POOL, "--nodes", "64"), "not every node could be rented", 2),
        (("create", "x", "--pool", POOL, "--nodes", "2", "--max-nodes", "1"), "not in this order", 2),
        (("status", "unknown"), "no cluster 'unknown'", 3),
        (("delete", "unknown", "--force"), "no cluster 'unknown'", 3),
        (("submit", "NAME", "--script", "train.sh", "--nodes", "5"), "at most 2 nodes", 2),
        (("submit", "NAME", "--script", "missing.sh"), "No such file", 2),
        (("submit", "NAME", "--script", "/dev/null"), "is empty", 2),
        (("submit", "NAME", "--script", "train.sh", "--time-limit", "5w"), "30 days", 2),
        (("submit", "NAME", "--script", "train.sh", "--type", "other"), "Slurm of pool train runs train", 2),
        (("drain", "NAME", "gpu-x"), "has no member 'gpu-x'", 3),
        (("scale", "NAME", "5"), "at most 2", 2),
        (("submit", "NAME", "--script", "/dev/zero"), "is longer than 256 KiB", 2),
        (("submit", "NAME", "--script", "latin.sh"), "can't decode byte", 2),
        (("create", "x", "--pool", POOL, "--nodes", "2", "--max-nodes", "64"), "not every node could be rented", 2),
        (("scale", "NAME", "64"), "of 64 nodes, not every node could be rented", 2),
        (("scale", "NAME", "--max-nodes", "64"), "not every node could be rented", 2),
        (("scale", "NAME"), "give NODES", 2),
    ],
)
async def test_what_cannot_be_is_refused(
    trainer: Cli, name: str, arguments: tuple[str, ...], why: str, code: int
) -> None:
    """With what, why and a fix."""
    if "NAME" in arguments:
        await trainer("cluster", "create", name, "--pool", POOL, "--nodes", "2", "--min-nodes", "0")
    ran = await trainer("cluster", *(name if word == "NAME" else word for word in arguments))
    assert (ran.code, why in ran.err) == (code, True), ran.err
    assert [line.partition(":")[0].partition("[")[0] for line in ran.err.splitlines()] == ["error", "why", "fix"]


async def test_without_a_handler_there_is_no_task_type(trainer: Cli, name: str) -> None:
    """The fix names both settings."""
    await trainer("cluster", "create", name, "--pool", POOL, "--nodes", "2")
    ran = await trainer("cluster", "submit", name, "--script", "train.sh", WORKER_HANDLERS="")
    assert ran.code == 2
    assert "WORKER_HANDLERS=train=slurm" in ran.err

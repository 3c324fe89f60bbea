"""The life of a cluster, in a world whose pods, probes and leaders fail."""

from dataclasses import replace
from datetime import timedelta

import pytest

from orchestrator.core.cluster_states import ClusterStatus, MemberStatus, OperationKind, OperationStatus
from orchestrator.core.clusters import actions as act
from orchestrator.core.clusters.addresses import FabricAddress
from orchestrator.core.clusters.readings import Reading
from orchestrator.core.clusters.rows import MemberOperation
from orchestrator.core.states import State
from tests.unit.core.clusters.world import NONE, World, tasks

RUNNING, DEGRADED, REQUESTED = ClusterStatus.RUNNING, ClusterStatus.DEGRADED, ClusterStatus.REQUESTED


def running(nodes: int, **changes: int) -> World:
    world = World(nodes, **changes)
    world.change(demand=tasks(nodes))
    world.until(RUNNING)
    return world


def test_a_cluster_lives_from_requested_to_deleted_and_leaves_nothing() -> None:
    world = running(4)
    assert world.statuses == [REQUESTED, ClusterStatus.ALLOCATING, ClusterStatus.DEPLOYING, RUNNING]
    assert len(world.of(MemberStatus.READY)) == 4
    assert world.controller == min(world.members)
    assert sum(isinstance(one, act.Smoke) for one in world.told) == 1
    detail = world.members[world.controller].adapter_detail
    assert (detail["phase"], detail["slurmctld_state"], detail["slurmd_state"]) == ("slurm_ready", "up", "idle")
    world.change(delete_requested_at=world.now)
    world.until(ClusterStatus.DELETED)
    assert not world.live_workers
    assert world.counts() == {"removed": 4}


def test_a_steady_cluster_gets_no_action() -> None:
    world = running(4)
    world.run(60)
    world.told.clear()
    world.run(600)
    assert not world.told
    assert len(world.workers) == 4


def test_a_running_job_may_end_before_its_node_is_deleted() -> None:
    world = running(3)
    busy = world.of(MemberStatus.READY)[1]
    world.pods[busy].busy = True
    world.change(delete_requested_at=world.now)
    world.run(300)
    assert world.members[busy].status is MemberStatus.DRAINING
    assert world.members[world.controller].status is MemberStatus.DRAINING  # it serves the job until the end
    world.pods[busy].busy = False
    world.until(ClusterStatus.DELETED)


def test_a_node_that_drains_is_drained_again_by_a_controller_without_the_old_state() -> None:
    world = running(3, min_nodes=0)
    node = next(name for name in world.of(MemberStatus.READY) if name != world.controller)
    world.pods[node].busy = True
    operation = MemberOperation(
        1, "train", node, OperationKind.DRAIN, OperationStatus.ACCEPTED, "ann", None, None, world.now, world.now,
        world.now + timedelta(days=1),
    )  # fmt: skip
    world.ask(operation)
    world.run(60)
    assert world.members[node].status is MemberStatus.DRAINING
    world.kill(world.controller)
    world.until(DEGRADED, within_s=120)
    world.pods[node].busy = False
    world.run(900)
    assert world.members[node].status is MemberStatus.REMOVED


def test_a_delete_before_the_first_reading_waits_for_it_and_drains() -> None:
    world = running(3)
    world.another_leader()  # it has read nothing yet
    world.change(delete_requested_at=world.now)
    world.slow_s = 10
    world.until(ClusterStatus.DELETED, within_s=300)  # idle nodes do not wait for the bound of running jobs


def test_a_delete_without_any_reading_ends_too() -> None:
    world = running(3)
    world.reads = lambda _: Reading()
    world.another_leader()
    world.change(delete_requested_at=world.now)
    world.until(ClusterStatus.DELETED, within_s=1_700)


def test_without_every_node_at_the_deadline_the_cluster_fails_and_all_is_released() -> None:
    world = World(4)
    world.capacity = 2
    world.change(demand=tasks(4))
    world.until(ClusterStatus.FAILED, within_s=1_900)
    assert world.row.failure_code == "ALLOCATION_TIMEOUT"
    assert world.row.reason == "2 of 4 nodes were promoted in time"
    world.run(120)
    assert not world.live_workers


def test_a_cluster_that_cannot_be_deployed_fails_at_its_deadline() -> None:
    world = World(2, min_nodes=2)
    world.reads = lambda reading: replace(reading, munge_ok=False) if reading.reached else reading
    world.until(ClusterStatus.FAILED, within_s=1_200)
    assert (world.row.failure_code, world.row.reason) == ("DEPLOY_TIMEOUT", "only 0 of 2 nodes are ready")
    world.run(120)
    assert not world.live_workers


def test_an_image_without_slurm_fails_the_cluster_at_once() -> None:
    world = World(2, min_nodes=2)
    world.installed = False
    world.until(ClusterStatus.FAILED, within_s=300)
    assert world.row.failure_code == "SLURM_MISSING"
    world.run(120)
    assert not world.live_workers


def test_slurm_is_installed_if_the_pool_allows_it() -> None:
    world = World(2, min_nodes=2, install_slurm=True)
    world.installed = False
    world.until(RUNNING)
    assert all(one.install for one in world.told if isinstance(one, act.Configure))


def test_a_lost_controller_is_replaced_by_another_member() -> None:
    world = running(4)
    first = world.controller
    world.kill(first)
    world.until(DEGRADED, within_s=120)
    world.until(RUNNING, within_s=900)
    assert world.controller != first
    assert world.pods[world.controller].slurmctld
    assert sum(isinstance(one, act.Smoke) for one in world.told) == 2  # another controller, another smoke job
    assert len(world.of(MemberStatus.READY)) == 4
    world.run(60)
    assert world.workers[first].state is State.TERMINATED


def test_a_controller_without_its_private_network_is_replaced_and_its_nodes_are_kept() -> None:
    """Its slurmctld calls every node down, and they run."""
    world = running(4)
    before = world.controller
    nodes = {*world.members} - {before}
    world.pods[before].cut = True
    world.lost.add(before)
    world.run(1_500)
    assert world.controller in nodes
    assert before not in world.live_workers
    assert nodes < set(world.of(MemberStatus.READY))


def test_a_node_without_its_private_network_is_replaced_and_the_others_are_kept() -> None:
    world = running(4)
    (cut, *others) = sorted({*world.members} - {world.controller})
    world.pods[cut].cut = True
    world.lost.add(cut)
    world.run(1_500)
    assert cut not in world.live_workers
    assert {world.controller, *others} < set(world.of(MemberStatus.READY))


def test_a_lost_member_is_replaced_and_its_index_is_used_again() -> None:
    world = running(3)
    gone = next(name for name in world.of(MemberStatus.READY) if name != world.controller)
    index = world.members[gone].index_no
    world.kill(gone)
    world.until(DEGRADED, within_s=120)
    world.until(RUNNING, within_s=600)
    world.run(30)
    assert sorted(world.members[name].index_no for name in world.of(MemberStatus.READY)) == [0, 1, 2]
    assert index in {world.members[name].index_no for name in world.of(MemberStatus.READY)}


def test_a_slurmctld_that_ended_is_started_again_on_its_pod() -> None:
    world = running(2)
    world.pods[world.controller].slurmctld = False
    world.until(DEGRADED, within_s=30)
    world.until(RUNNING, within_s=120)
    assert len(world.workers) == 2


def test_a_node_that_slurm_drains_with_each_job_is_replaced() -> None:
    """As one on which slurmd cannot start a job: each repair makes it ready for a moment."""
    world = running(2)
    [victim] = [name for name in world.of(MemberStatus.READY) if name != world.controller]
    world.lost.add(victim)
    for _ in range(48):
        if victim in world.of(MemberStatus.READY):
            world.pods[world.controller].drained.add(world.members[victim].node_name)
        world.run(15)
    assert victim in world.of(MemberStatus.FAILED)
    assert world.members[victim].reason == "not ready after 610 s: slurmctld shows its node as drained"


def test_troubles_with_a_while_between_them_do_not_add_up() -> None:
    world = running(2)
    [victim] = [name for name in world.of(MemberStatus.READY) if name != world.controller]
    for _ in range(8):
        world.pods[victim].slurmd = False
        world.run(120)
    assert world.of(MemberStatus.FAILED) == []
    assert victim in world.of(MemberStatus.READY)


def test_a_member_that_slurm_still_hears_is_not_lost_although_ssh_fails() -> None:
    world = running(3)
    other = next(name for name in world.of(MemberStatus.READY) if name != world.controller)
    world.pods[other].reachable = False
    world.run(1_200)
    assert world.members[other].status is MemberStatus.READY
    assert world.row.status is RUNNING


def test_a_controller_whose_slurmctld_others_hear_is_not_lost_although_ssh_fails() -> None:
    world = running(3)
    world.pods[world.controller].reachable = False
    world.run(1_200)
    assert world.row.status is RUNNING
    assert len(world.workers) == 3


@pytest.mark.parametrize("lost", ["all of SSH", "every reading"])
def test_unknown_never_removes_a_member(lost: str) -> None:
    """This process has no network for an hour, while the agents' heartbeats arrive; or its probes say nothing."""
    world = running(4)
    if lost == "all of SSH":
        for pod in world.pods.values():
            pod.reachable = False
    else:
        world.reads = lambda _reading: Reading()
    world.change(demand=NONE)
    world.run(1_200)
    assert len(world.of(MemberStatus.READY)) == 4
    assert world.row.status is RUNNING
    assert (world.row.nodes, len(world.workers)) == (4, 4)


def test_a_cluster_whose_pods_all_died_at_once_is_replaced() -> None:
    world = running(2)
    for name in world.members:
        world.kill(name)
    world.until(DEGRADED, within_s=1_000)
    world.until(RUNNING, within_s=1_000)


def test_nodes_follow_the_tasks() -> None:
    world = running(2)
    world.change(demand=tasks(2, 4, 1))
    world.run(600)
    assert len(world.of(MemberStatus.READY)) == 4
    world.change(demand=tasks(1))
    world.run(500)
    assert world.row.waiting_for == "work for all nodes: 3 of 4 have none, and are released then"
    assert len(world.of(MemberStatus.READY)) == 4
    world.run(400)
    assert world.of(MemberStatus.READY) == [world.controller]
    assert len(world.live_workers) == 1
    assert world.statuses[-1] is RUNNING
    assert DEGRADED not in world.statuses  # neither growth nor release is a fault


def test_a_surplus_that_is_used_again_is_not_released() -> None:
    world = running(3)
    world.change(demand=tasks(1))
    world.run(400)
    world.change(demand=tasks(3))
    world.run(20)
    assert (world.row.deadline_at, world.row.waiting_for) == (None, None)
    world.change(demand=tasks(1))
    world.run(400)
    assert world.row.nodes == 3


def test_a_node_is_not_released_because_another_one_had_no_work() -> None:
    """One of three has none for ten minutes; the others have worked until a moment ago."""
    world = running(3)
    world.change(demand=tasks(2))
    world.run(580)
    world.change(demand=NONE)
    world.run(100)
    assert (world.row.status, world.row.nodes) == (RUNNING, 2)
    world.run(400)
    assert world.row.status is RUNNING
    world.until(REQUESTED, within_s=300)


def test_a_surplus_that_shrinks_keeps_its_time() -> None:
    world = running(3)
    world.change(demand=tasks(1))
    world.run(300)
    world.change(demand=tasks(2))
    world.run(400)
    assert world.row.nodes == 2


def test_another_size_begins_another_time() -> None:
    world = running(3)
    world.change(demand=tasks(1))
    world.run(590)
    world.change(nodes=2)
    world.run(300)
    assert world.row.nodes == 2


def test_a_node_with_a_job_of_its_own_is_not_released() -> None:
    """Somebody logged in and submitted it with sbatch: no task of the queue knows it."""
    world = running(2)
    for name in world.members:
        world.pods[name].busy = True
    world.change(demand=NONE)
    world.run(2_000)
    assert world.row.nodes == 2


def test_a_cluster_without_work_releases_all_nodes_and_comes_back() -> None:
    world = running(2)
    world.change(demand=NONE)
    world.until(REQUESTED, within_s=700)
    world.run(120)
    assert not world.live_workers
    assert world.row.nodes == 0
    world.run(2_000)
    assert world.row.status is REQUESTED
    world.change(demand=tasks(3))
    world.until(RUNNING)
    assert len(world.of(MemberStatus.READY)) == 3


def test_tasks_that_go_while_nodes_are_allocated_again_stop_the_allocation() -> None:
    world = running(2)
    world.change(demand=NONE)
    world.until(REQUESTED)
    world.change(demand=tasks(2))
    world.until(ClusterStatus.ALLOCATING, within_s=300)
    world.change(demand=NONE)
    world.until(REQUESTED, within_s=10)


def test_min_nodes_stay_without_work() -> None:
    world = running(3, min_nodes=2)
    world.change(demand=NONE)
    world.run(2_000)
    assert len(world.of(MemberStatus.READY)) == 2


def test_a_pool_that_allows_fewer_nodes_limits_the_growth_but_not_min_nodes() -> None:
    world = running(2, min_nodes=2)
    world.policy = replace(world.policy, max_nodes=3)
    world.change(demand=tasks(9))
    world.run(300)
    assert world.row.nodes == 3
    world.policy = replace(world.policy, max_nodes=1)
    world.change(demand=NONE)
    world.run(900)
    assert world.row.nodes == 2


def test_a_drained_node_is_removed_and_replaced() -> None:
    world = running(3)
    name = next(one for one in world.of(MemberStatus.READY) if one != world.controller)
    world.ask(operation(world, 1, OperationKind.DRAIN, name))
    world.run(400)
    assert world.members[name].status is MemberStatus.REMOVED
    assert len(world.of(MemberStatus.READY)) == 3
    assert len(world.live_workers) == 3


def test_operations_reach_every_member_or_say_why_not() -> None:
    world = running(3)
    world.told.clear()
    world.ask(operation(world, 1, OperationKind.RECONCILE, None))
    world.run(20)
    assert {one.worker_id for one in world.told if isinstance(one, act.Reconfigure)} == set(world.members)
    world.ask(operation(world, 2, OperationKind.BOOTSTRAP_SSH, world.controller))
    world.run(20)
    assert [one.worker_id for one in world.told if isinstance(one, act.ReconcileAuthorizedKey)] == [world.controller]
    world.ask(operation(world, 3, OperationKind.DRAIN, world.controller))  # the command refuses it at once
    world.ask(operation(world, 4, OperationKind.DRAIN, "gpu-unknown"))
    world.run(10)
    errors = {one.id: one.error for one in world.row.operations if one.status is OperationStatus.FAILED}
    assert str(errors[3]).startswith("it is the controller")
    assert errors[4] == "the cluster has no such live member"


def operation(world: World, number: int, kind: OperationKind, worker_id: str | None) -> MemberOperation:
    until = world.now + timedelta(minutes=5)
    return MemberOperation(
        number, "train", worker_id, kind, OperationStatus.ACCEPTED, "anna", None, None, world.now, world.now, until
    )


def test_fifty_members_survive_losses_slow_probes_unknown_readings_and_other_leaders() -> None:
    world = World(50)
    world.change(demand=tasks(50))
    world.slow_s = 20
    chance = world.random

    def vague(reading: Reading) -> Reading:
        """Some probes say nothing at all, and some lack one answer."""
        if chance.random() < 0.1:
            return Reading()
        if reading.reached and chance.random() < 0.2:
            lost = chance.choice(["slurmd_state", "slurmctld_state", "node_states", "conf_sha", "munge_ok"])
            return replace(reading, **{lost: None})
        return reading

    world.reads = vague
    world.until(RUNNING, within_s=1_500)
    for _ in range(15):
        world.run(60)
        if chance.random() < 0.3:
            world.another_leader()
        if chance.random() < 0.4:
            world.kill(chance.choice(sorted(world.of(MemberStatus.READY))))
    world.run(600)  # the last loss is noticed after a minute, and its successor boots for two
    assert world.row.status is RUNNING
    assert len(world.of(MemberStatus.READY)) == 50
    assert len(world.live_workers) == 50
    world.change(delete_requested_at=world.now)
    world.until(ClusterStatus.DELETED, within_s=1_500)


def test_nodes_that_no_task_needs_are_not_rented() -> None:
    """`create --min-nodes 0` rents its nodes when a task is ready, and all of the nodes that were asked for."""
    world = World(3)
    world.run(300)
    assert (world.row.status, world.row.nodes, world.live_workers) == (REQUESTED, 3, [])
    world.change(demand=tasks(1))
    world.until(RUNNING)
    assert len(world.of(MemberStatus.READY)) == 3


def test_the_first_nodes_are_enough_for_the_task_that_waits() -> None:
    world = World(1)
    world.change(demand=tasks(3))
    world.until(ClusterStatus.ALLOCATING)
    assert world.row.nodes == 3


def test_an_operator_who_asks_for_no_node_gets_no_node() -> None:
    """Whatever the state: none is kept, and the next task starts nodes again."""
    world = running(2)
    world.change(demand=NONE, nodes=0)
    world.until(REQUESTED, within_s=60)
    world.run(180)
    assert not world.live_workers
    world.change(demand=tasks(1))
    world.until(ClusterStatus.ALLOCATING, within_s=60)
    world.change(demand=NONE, nodes=0)
    world.until(REQUESTED, within_s=60)
    world.run(180)
    assert not world.live_workers


def test_a_job_ends_before_the_last_node_is_released() -> None:
    world = running(2)
    for pod in world.pods.values():
        pod.busy = True
    world.change(demand=NONE, nodes=0)
    world.run(300)
    assert world.row.status is RUNNING
    for pod in world.pods.values():
        pod.busy = False
    world.until(REQUESTED, within_s=120)


def test_a_cluster_whose_nodes_do_not_drain_is_deleted_after_the_bound() -> None:
    """Its slurmctld answers, and refuses every drain."""
    world = running(2)
    fails = world._carry_out
    world._carry_out = lambda action: not isinstance(action, act.DrainNode) and fails(action)  # type: ignore[method-assign]
    world.change(delete_requested_at=world.now)
    world.until(ClusterStatus.DELETED, within_s=world.policy.delete_s + 300)
    assert not world.live_workers


def being_repaired(world: World) -> str:
    """A member with a running job, on which the cluster's key is written again and again."""
    name = next(name for name in world.of(MemberStatus.READY) if name != world.controller)
    world.pods[world.controller].busy = world.pods[name].busy = True
    address = FabricAddress(world.pods[name].ip)
    world.reads = lambda read: replace(read, munge_matches=False) if read.fabric_addr == address else read
    world.run(10)
    assert world.of(MemberStatus.RECONCILING) == [name]
    return name


def test_a_smaller_size_takes_no_node_from_a_running_job() -> None:
    """Not even one that is being repaired: its job runs on. A node without a job goes."""
    world = running(3)
    world.change(demand=tasks(2))
    busy = being_repaired(world)
    world.change(nodes=2)
    world.run(120)
    assert world.members[busy].status is MemberStatus.RECONCILING
    assert len(world.of(MemberStatus.REMOVED)) == 1


def test_a_job_on_a_node_that_is_being_repaired_may_end_before_a_delete() -> None:
    world = running(3)
    busy = being_repaired(world)
    world.change(delete_requested_at=world.now)
    world.run(120)
    assert world.members[busy].status is MemberStatus.DRAINING
    for pod in world.pods.values():
        pod.busy = False
    world.until(ClusterStatus.DELETED, within_s=300)


def test_a_release_keeps_the_controller_whatever_its_place() -> None:
    """Without it, slurmctld would lose its state and all jobs. Places beyond the wanted number go first."""
    world = running(3)
    world.kill(world.controller)
    world.until(DEGRADED, within_s=120)
    world.until(RUNNING, within_s=900)
    world.run(60)
    controller = world.controller
    assert world.members[controller].index_no > 0
    world.change(demand=tasks(1))
    world.run(900)
    assert world.of(MemberStatus.READY) == [controller]


def test_another_leader_deletes_as_quickly_as_the_first() -> None:
    """It has seen nothing yet: a node that it does not drain would be waited for until the bound."""
    world = running(3)
    world.change(delete_requested_at=world.now)
    world.until(ClusterStatus.DELETING, within_s=10)
    world.slow_s = 30
    world.another_leader()
    world.until(ClusterStatus.DELETED, within_s=world.policy.delete_s / 2)


def test_a_node_that_slurm_drained_by_itself_does_not_stay_ready() -> None:
    """As after a job that it could not kill: a job over all nodes would wait for it without end."""
    world = running(2, min_nodes=2)
    other = next(name for name in world.members if name != world.controller)
    world.pods[world.controller].drained.add(world.members[other].node_name)
    world.lost.add(other)
    world.run(60)
    assert other in world.of(MemberStatus.RECONCILING)
    world.run(1_200)
    assert len(world.of(MemberStatus.READY)) == 2


def test_a_node_that_the_tasks_need_is_not_drained_by_a_smaller_size() -> None:
    """It would be replaced at once, by a node that costs money and is not ready."""
    world = running(3)
    world.change(demand=tasks(3), nodes=1)
    world.run(120)
    assert world.row.nodes == 3
    assert len(world.members) == 3
    assert not any(isinstance(one, act.DrainNode) for one in world.told)


def draining(world: World) -> str:
    """A member that drains while a job runs on all nodes."""
    for pod in world.pods.values():
        pod.busy = True
    name = next(name for name in world.members if name != world.controller)
    world.ask(operation(world, 1, OperationKind.DRAIN, name))
    world.run(60)
    assert world.of(MemberStatus.DRAINING) == [name]
    return name


def test_a_node_that_looks_drained_after_a_start_of_slurmctld_is_not_removed() -> None:
    """For some seconds, Slurm does not know the node's running job. Its end would be the job's end."""
    world = running(2, min_nodes=2)
    name = draining(world)
    started_at = world.now
    drained = {world.members[name].node_name: "drained"}

    def restarted(reading: Reading) -> Reading:
        if (world.now - started_at).total_seconds() > 15 or reading.node_states is None:
            return reading
        again = started_at if reading.slurmctld_pid else None
        return replace(reading, node_states={**reading.node_states, **drained}, slurmctld_started_at=again)

    world.reads = restarted
    world.run(15)
    assert world.of(MemberStatus.DRAINING) == [name]
    world.run(60)
    world.pods[name].busy = False
    world.run(120)
    assert world.members[name].status is MemberStatus.REMOVED


def test_a_draining_node_drains_on_under_another_controller() -> None:
    """The new slurmctld knows nothing of it, and would give it new jobs for a day."""
    world = running(3, min_nodes=3)
    name = draining(world)
    world.kill(world.controller)
    for pod in world.pods.values():
        pod.busy = False
    world.run(900)
    assert world.members[name].status is MemberStatus.REMOVED


def test_a_new_controller_is_not_ready_before_its_slurmctld_runs() -> None:
    """A ready controller claims tasks; it would submit them to the slurmctld of the lost one."""
    world = running(2, min_nodes=2)
    lost = world.controller
    world.kill(lost)
    world.pods[lost].slurmctld = False
    for _ in range(300):
        world.run(5)
        heads = [name for name in world._controllers() if name != lost]
        assert all(world.pods[one].slurmctld for one in heads if one in world.of(MemberStatus.READY))
    assert heads
    assert world.row.status is RUNNING


def test_a_worker_that_is_asked_to_end_drains_its_node_first_and_is_replaced() -> None:
    """Its agent has no task: the job on its node belongs to the controller's task."""
    world = running(3, min_nodes=3)
    name = next(one for one in world.of(MemberStatus.READY) if one != world.controller)
    world.pods[name].busy = True
    world.terminate(name)
    world.run(300)
    assert world.members[name].status is MemberStatus.DRAINING
    assert world.pods[name].slurmd
    assert len(world.of(MemberStatus.READY)) == 3  # its replacement does not wait for the job
    world.pods[name].busy = False
    world.run(120)
    assert world.members[name].status is MemberStatus.REMOVED
    assert world.workers[name].state is State.TERMINATED
    assert DEGRADED not in world.statuses


def test_a_drain_of_a_worker_ends_at_its_deadline() -> None:
    world = running(2, min_nodes=2)
    name = next(one for one in world.members if one != world.controller)
    world.pods[name].busy = True
    world.terminate(name)
    world.run(world.fleet.drain_grace_s - 30)
    assert world.members[name].status is MemberStatus.DRAINING
    world.run(90)
    assert world.members[name].status is MemberStatus.FAILED
    assert world.members[name].reason == "its worker ends"
    assert world.workers[name].state is State.TERMINATED


def test_a_worker_that_is_ended_at_once_does_not_wait_for_its_node() -> None:
    world = running(3, min_nodes=3)
    name = next(one for one in world.of(MemberStatus.READY) if one != world.controller)
    world.pods[name].busy = True
    world.terminate(name, at_once=True)
    world.run(60)
    assert world.workers[name].state is State.TERMINATED
    assert world.members[name].status is MemberStatus.FAILED


def test_a_controller_that_is_asked_to_end_serves_its_job_to_the_end() -> None:
    """Slurm's state is on it: without it, the jobs of all nodes are lost."""
    world = running(2, min_nodes=2)
    first = world.controller
    for pod in world.pods.values():
        pod.busy = True
    world.workers[first] = replace(world.workers[first], tasks_running=1)  # the task of the job
    world.terminate(first)
    world.run(300)
    assert world.controller == first
    assert world.pods[first].slurmctld
    for pod in world.pods.values():
        pod.busy = False
    world.workers[first] = replace(world.workers[first], tasks_running=0)
    world.until(DEGRADED, within_s=60)
    world.until(RUNNING, within_s=600)
    assert world.controller != first
    assert world.workers[first].state is State.TERMINATED


def test_all_workers_that_are_asked_to_end_drain_before_the_controller_ends() -> None:
    world = running(3, min_nodes=0)
    world.change(demand=NONE)
    busy = next(one for one in world.members if one != world.controller)
    world.pods[busy].busy = True
    first = world.controller
    for name in world.members:
        world.terminate(name)
    world.fleet = replace(world.fleet, pools=(replace(world.fleet.pools[0], max_active=0),))
    world.run(200)
    assert world.members[busy].status is MemberStatus.DRAINING
    assert world.pods[first].slurmctld
    world.pods[busy].busy = False
    world.run(120)
    assert world.members[busy].status is MemberStatus.REMOVED
    assert not world.live_workers


def test_a_node_whose_worker_is_asked_to_end_before_it_is_ready_is_removed_at_once() -> None:
    world = running(2, min_nodes=2)
    name = next(one for one in world.members if one != world.controller)
    world.pods[name].slurmd = False
    world.reads = lambda reading: replace(reading, munge_ok=False) if reading.slurmd_state == "down" else reading
    world.run(15)
    assert world.members[name].status is MemberStatus.RECONCILING
    world.terminate(name)
    world.run(60)
    assert world.members[name].status is MemberStatus.REMOVED

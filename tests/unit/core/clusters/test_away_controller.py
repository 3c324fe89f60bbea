"""A controller that is away for longer than a node may take to become ready: its nodes are kept, and come back."""

from orchestrator.core.cluster_states import MemberStatus
from tests.unit.core.clusters.test_life import running


def test_nodes_are_kept_while_the_controller_is_away_for_longer_than_a_node_may_take() -> None:
    """A node whose slurmd ended meanwhile can only be started again after it."""
    world = running(3, lost_s=3_600)
    head, (first, second) = world.controller, sorted({*world.members} - {world.controller})
    world.pods[head].reachable = world.pods[head].slurmctld = False
    world.pods[first].slurmd = False
    world.run(2 * world.policy.reconcile_s)
    assert world.members[first].status is MemberStatus.RECONCILING
    world.pods[head].reachable = True
    world.run(120)
    assert world.of(MemberStatus.READY) == sorted([head, first, second])
    assert not world.of(MemberStatus.FAILED)


def test_a_node_that_does_not_come_up_after_the_controllers_absence_has_its_own_time_and_no_more() -> None:
    world = running(3, lost_s=3_600)
    head, victim = world.controller, min({*world.members} - {world.controller})
    world.pods[head].reachable = world.pods[head].slurmctld = False
    world.pods[victim].slurmd = False
    world.run(2 * world.policy.reconcile_s)
    world.pods[head].reachable = True
    world.lost.add(victim)
    for _ in range(int(1.5 * world.policy.reconcile_s / 5)):
        world.pods[victim].slurmd = False
        world.run(5)
    assert world.of(MemberStatus.FAILED) == [victim]

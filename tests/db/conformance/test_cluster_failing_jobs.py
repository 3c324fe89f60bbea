"""Jobs that fail one after the other do not end the controller of a cluster: nothing else could judge them."""

from tests.db.conformance.builders import Fleet
from tests.db.conformance.cluster_builders import POOL, Cluster

FAILURES = 6  # one more than holds a worker of another pool back


async def test_a_controller_whose_jobs_fail_claims_the_next_one(fleet: Fleet) -> None:
    cluster = await Cluster(fleet).running()
    controller = cluster.agents[0]
    await fleet.submit(*[{"pool": POOL, "max_attempts": 1} for _ in range(FAILURES + 1)])
    for _ in range(FAILURES):
        (task,) = await controller.claim()
        await controller.fail(task, code="EXIT_STATUS", message="exit status 1", exit_class="exception", retryable=True)
    assert len(await controller.claim()) == 1

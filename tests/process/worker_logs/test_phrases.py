"""The phrases that operators search the log for, where they are said."""

import pytest
from structlog.testing import capture_logs

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.store import SqlStore
from orchestrator.core.actions import Rescue
from orchestrator.core.failures import FailureCode
from orchestrator.observability import log_phrases
from tests.db.conformance.loops import executor_over
from tests.unit.core.build import policy, snapshot

NO_DATABASE = "postgresql://nobody@127.0.0.1:9/none"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (FailureCode.AUTH_FAILED, "Authentication failed"),
        (FailureCode.API_AUTH, "Authentication failed"),
        (FailureCode.TCP_REFUSED, "SSH connection failed"),
        (FailureCode.TCP_TIMEOUT, "SSH connection failed"),
        (FailureCode.CONNECTION_LOST, "SSH connection failed"),
        (FailureCode.NO_RUNTIME, "otherwise"),
        (None, "otherwise"),
    ],
)
def test_a_failure_has_the_phrases_of_the_guide(code: FailureCode | None, said: str) -> None:
    """Of SSH and of keys; of nothing else."""
    assert log_phrases.of_failure(code, "otherwise") == said


async def test_tasks_that_cannot_be_reset_are_logged_with_the_phrase() -> None:
    """When the database refuses or does not answer."""
    db = await PostgresDb.open(NO_DATABASE, pool_size=1, call_timeout_s=0.5)
    rules = policy()

    store = SqlStore(db, "test")
    executor = executor_over(store, None, rules)
    with capture_logs() as logs:
        await executor.start(1, snapshot(), (Rescue("leases are over"),))
    await db.close()
    [line] = [line for line in logs if line["event"] == "action_failed"]
    assert line["message"].startswith("Failed to reset orphaned tasks: ")

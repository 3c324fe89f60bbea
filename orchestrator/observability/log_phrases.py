"""The literal phrases that operators search the log for; each is said exactly when it is true."""

from orchestrator.core.failures import AUTHENTICATION_FAILED, FailureCode

CYCLE = "ORCHESTRATOR CYCLE"
STARTED = "Worker startup completed successfully"
AUTHENTICATION = AUTHENTICATION_FAILED  # SSH's, or RunPod's of our key
RESET = "Failed to reset orphaned tasks"


def of_failure(code: FailureCode | None, otherwise: str) -> str:
    """What a log line about a worker that ends with this code says."""
    return (code.row.phrase if code else None) or otherwise

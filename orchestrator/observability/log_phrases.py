"""The literal phrases for which operators search the log. Each is logged only if it is true."""

from orchestrator.core.failures import AUTHENTICATION_FAILED, FailureCode

CYCLE = "ORCHESTRATOR CYCLE"
STARTED = "Worker startup completed successfully"
AUTHENTICATION = AUTHENTICATION_FAILED  # SSH's, or RunPod's of our key
RESET = "Failed to reset orphaned tasks"


def of_failure(code: FailureCode | None, otherwise: str) -> str:
    """Return the phrase for the end of a worker with this code."""
    return (code.row.phrase if code else None) or otherwise

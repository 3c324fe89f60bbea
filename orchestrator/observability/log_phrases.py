"""The literal phrases that operators search the log for; each is said exactly when it is true."""

from orchestrator.core.states import FailureCode

CYCLE = "ORCHESTRATOR CYCLE"
STARTED = "Worker startup completed successfully"
AUTHENTICATION = "Authentication failed"  # SSH's, or RunPod's of our key
SSH = "SSH connection failed"
RESET = "Failed to reset orphaned tasks"
UNCONNECTED = frozenset(
    {
        FailureCode.TCP_REFUSED,
        FailureCode.TCP_TIMEOUT,
        FailureCode.NOT_SSH,
        FailureCode.HOST_KEY_CHANGED,
        FailureCode.HOST_KEY_UNPROVEN,
        FailureCode.HOST_KEY_RELAYED,
        FailureCode.CONNECTION_LOST,
    }
)


def of_failure(code: str | None, otherwise: str) -> str:
    """What a log line about a worker that ends with this code says."""
    if code in {FailureCode.AUTH_FAILED, FailureCode.API_AUTH}:
        return AUTHENTICATION
    return SSH if code in UNCONNECTED else otherwise

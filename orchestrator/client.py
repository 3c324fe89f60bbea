"""The Python client (clients/python), for programs that have both installed."""

try:
    from gpu_orchestrator_client import (
        ApiError,
        AsyncClient,
        AsyncOutput,
        AsyncTask,
        Client,
        IncompleteOutput,
        Output,
        ServiceUnavailable,
        Task,
        TaskEvent,
        TaskInfo,
        WaitTimeout,
    )
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"{error}; fix: pip install gpu-orchestrator-client", name=error.name) from None

__all__ = [
    "ApiError",
    "AsyncClient",
    "AsyncOutput",
    "AsyncTask",
    "Client",
    "IncompleteOutput",
    "Output",
    "ServiceUnavailable",
    "Task",
    "TaskEvent",
    "TaskInfo",
    "WaitTimeout",
]

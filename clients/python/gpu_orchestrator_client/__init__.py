"""A client of gpu-orchestrator's API: submit tasks, wait for them, follow them, get their outputs."""

from gpu_orchestrator_client.aio import AsyncClient, AsyncOutput, AsyncTask
from gpu_orchestrator_client.client import Client, Output, Task
from gpu_orchestrator_client.errors import ApiError, IncompleteOutput, ServiceUnavailable, WaitTimeout
from gpu_orchestrator_client.models import TaskEvent, TaskInfo

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

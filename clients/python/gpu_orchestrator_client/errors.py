"""What can go wrong, as a program can tell it apart."""

from typing import Any

import httpx

ADDRESS = "check GPU_ORCHESTRATOR_URL: the scheme (https) and the host"


class ApiError(Exception):
    """The service refused a request. `id` is stable: `orchestrator explain <id>` says more."""

    def __init__(self, status: int, problem: dict[str, Any]) -> None:
        self.status = status
        self.id = str(problem.get("id", ""))
        self.title = str(problem.get("title", ""))
        self.detail = str(problem.get("detail", ""))
        self.fix = str(problem.get("fix", ""))
        super().__init__(f"{status} {self.id}: {self.title}: {self.detail}; fix: {self.fix}")

    @classmethod
    def of(cls, response: httpx.Response) -> "ApiError":
        """From an answer whose body was read, and which may come from a proxy in front of the service."""
        try:
            problem = response.json()
        except ValueError:
            problem = None
        if not isinstance(problem, dict):
            problem = {"title": response.reason_phrase, "detail": response.text[:200]}
            if response.has_redirect_location:
                problem |= {"detail": f"it leads to {response.headers['location'][:200]}", "fix": ADDRESS}
            elif response.is_success:
                problem |= {"title": "not an answer of gpu-orchestrator", "fix": ADDRESS}
        return cls(response.status_code, problem)


class ServiceUnavailable(Exception):
    """The service gave no answer, however often it was asked."""


class IncompleteOutput(Exception):
    """The bytes that arrived are not those that the task stored."""


class WaitTimeout(Exception):
    """The task has not ended within the time."""

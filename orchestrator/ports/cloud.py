"""The GPU provider, and its errors."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from orchestrator.core.provider import Pod, PodSpec
from orchestrator.ports.errors import PortError, Unavailable


class NoCapacity(PortError):
    """This offer has nothing to rent now."""


class QuotaExceeded(PortError): ...


class NoBalance(PortError): ...


class ApiAuth(PortError):
    """401 or 403: the key is wrong or may not do this."""


class BadSpec(PortError):
    """The request itself was refused (400/404/422 without a capacity text): another try would be refused too."""


class NotSent(Unavailable):
    """No request was sent, so the call had no effect."""

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RateLimited(PortError):
    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Bill:
    """The provider's charge for one pod in one hour."""

    pod_id: str
    since: datetime  # when the hour begins
    usd: float


class Cloud(Protocol):
    """The GPU provider."""

    async def list_pods(self) -> tuple[Pod, ...]:
        """Every pod of the account, all pages; Unavailable unless the list is complete and well-formed."""
        ...

    async def create_pod(self, spec: PodSpec) -> Pod:
        """The new pod. Unavailable when it may exist although no clear answer came; NotSent when it cannot."""
        ...

    async def delete_pod(self, pod_id: str) -> bool:
        """True if deleted by this call, False if the provider did not know it (which proves nothing)."""
        ...

    async def pod_log(self, pod_id: str) -> str:
        """The last lines of the provider's own log about a pod (image pull, container start)."""
        ...

    async def prices(self) -> Mapping[str, float]:
        """Return dollars per hour of one GPU by "<GPU type>|<cloud>". Unavailable if the catalogue is unreadable."""
        ...

    async def volume_id(self, name: str) -> tuple[str, str]:
        """(id, data centre) of a network volume by its name; BadSpec if there is none of that name, or several."""
        ...

    async def registry_id(self, name: str) -> str:
        """The id of registry credentials by their name or id; BadSpec if there are none of that name, or several."""
        ...

    async def billing(self, since: datetime, until: datetime) -> tuple[Bill, ...]:
        """Return the charges per pod for the full hours that cover the window. They may lag behind."""
        ...

    def list_pause_s(self) -> float:
        """The least seconds between two pages of lists that the provider's limits allow now; 0 where none are known."""
        ...

    async def close(self) -> None: ...

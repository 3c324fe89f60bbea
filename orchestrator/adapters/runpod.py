"""The Cloud port on the RunPod SDK 2.x (REST v2).

The SDK is synchronous and bounds each read (30 s), not the call. Each call therefore runs in a thread of its own, under
one deadline. A call that exceeds it continues in its thread and may still have its effect: this is `Unavailable`, like
any lost reply, and adoption by name covers it. A call that was never sent is `NotSent`.
"""

import asyncio
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from datetime import datetime
from http import HTTPStatus
from typing import Any, TypeVar

import requests
import runpod
from runpod.api.rest import run_rest_request
from runpod.error import AuthenticationError, QueryError, RunPodError

from orchestrator.adapters.runpod_fields import Malformed
from orchestrator.adapters.runpod_lanes import CallAttempt, Lanes
from orchestrator.adapters.runpod_logs import system_log
from orchestrator.adapters.runpod_replies import (
    bills,
    page,
    pod,
    port_error,
    prices,
    registry,
    volume,
)
from orchestrator.adapters.runpod_requests import create_body, rfc3339
from orchestrator.adapters.runpod_transport import install
from orchestrator.core.call_budget import Priority
from orchestrator.core.provider import Pod, PodSpec
from orchestrator.ports import BadSpec, Bill, NoCapacity, NotSent, PortError, QuotaExceeded, RateLimited, Unavailable

MAX_ATTEMPTS = 3  # of one request; it is sent again up to the limit
RETRY_PAUSE_S = 0.5  # doubles with each attempt
RETRY_JITTER = 0.2  # of the pause, in both directions
MAX_PAGES = 500  # pages of one list
MAX_RECORDS = 50_000  # records of one list
Result = TypeVar("Result")


class RunPodCloud:
    """RunPod pods of one account; one instance per process, since the SDK's key and base URL are global."""

    def __init__(
        self,
        api_key: str,
        *,
        base_url: str,
        call_timeout_s: float = 30,
        on_call: Callable[[str, str], None] = lambda _operation, _status: None,
    ) -> None:
        """Use this key. `on_call` gets the operation of each request, and its HTTP status or why it has none."""
        self._api_key = api_key
        self._call_timeout_s = call_timeout_s
        self._on_call = on_call
        self._lanes = Lanes()
        self._paged: set[str] = set()  # collections whose lists have said whether they are complete; they always will
        runpod.api_key = api_key  # create_pod and terminate_pod have no key argument
        os.environ["RUNPOD_API_BASE_URL"] = base_url.rstrip("/")  # the SDK reads it at each call
        install()
        os.environ["NETRC"] = os.devnull  # otherwise requests would replace the Bearer key by a .netrc entry

    async def list_pods(self) -> tuple[Pod, ...]:
        """Return every pod of the account, from all pages. Unavailable unless the list is complete and well-formed."""
        records = await self._whole_list("/v2/pods", "pods", Priority.LIST)
        return await asyncio.to_thread(_pods, records)  # 50,000 records take more than a second

    async def create_pod(self, spec: PodSpec) -> Pod:
        """Return the new pod. Unavailable if it may exist without a clear answer; NotSent if it cannot exist.

        The call is repeated only after a 429, or if there was no connection.
        """
        doing = f"create pod {spec.name}"
        reply = await self._call(
            Priority.CREATE,
            "create",
            doing,
            lambda: run_rest_request("POST", "/v2/pods", api_key=self._api_key, json=create_body(spec)),
            only_rate_limit=True,
        )
        created = _read(pod, reply, doing)
        if created is None or created.worker_id != spec.name or created.fleet_id != spec.fleet_id:
            raise Unavailable(f"{doing}: the answer is about another pod")
        return created

    async def delete_pod(self, pod_id: str) -> bool:
        """Return True if this call deleted the pod, False if the provider did not know it (which proves nothing)."""

        def delete() -> bool:
            try:
                runpod.terminate_pod(pod_id)
            except QueryError as error:
                if error.status_code == HTTPStatus.NOT_FOUND:
                    return False
                raise
            return True

        try:
            return await self._call(Priority.DELETE, "delete", f"delete pod {pod_id}", delete)
        except BadSpec as error:  # a refused delete may be accepted later, for example while the pod is busy
            raise Unavailable(str(error)) from error

    async def pod_log(self, pod_id: str) -> str:
        """Return the last lines of the provider's log about a pod. Unavailable without a log."""
        doing = f"read the log of pod {pod_id}"
        try:
            return await self._call(Priority.OTHER, "log", doing, lambda: system_log(pod_id, self._api_key))
        except (BadSpec, NoCapacity, QuotaExceeded) as error:
            raise Unavailable(str(error)) from error

    async def prices(self) -> Mapping[str, float]:
        """Return dollars per hour of one GPU by "<GPU type>|<cloud>", from the catalogue.

        Unavailable if it cannot be read.
        """
        doing = "read the catalogue"
        try:
            reply = await self._call(
                Priority.OTHER,
                "prices",
                doing,
                lambda: run_rest_request("GET", "/v2/catalog/gpus", api_key=self._api_key),
            )
        except (BadSpec, NoCapacity, QuotaExceeded) as error:  # this request has no parameters that could be refused
            raise Unavailable(str(error)) from error
        return _read(prices, reply, doing)

    async def volume_id(self, name: str) -> tuple[str, str]:
        """Return (id, data centre) of a network volume by its name. BadSpec if no volume or several have this name."""
        records = await self._whole_list("/v2/network-volumes", "networkVolumes", Priority.OTHER)
        volumes = [one for record in records if (one := _read(volume, record, "list network volumes")) is not None]
        found = [(volume_id, center) for volume_id, known, center in volumes if known == name]
        if len(found) != 1:
            names = ", ".join(sorted(known for _, known, _ in volumes)) or "none"
            raise BadSpec(f"{len(found)} network volumes are named {name!r}; the account has: {names}")
        return found[0]

    async def registry_id(self, name: str) -> str:
        """Return the id of registry credentials by their name or id. BadSpec if none or several have this name."""
        records = await self._whole_list("/v2/registries", "registries", Priority.OTHER)
        registries = [one for record in records if (one := _read(registry, record, "list registries")) is not None]
        found = [own for own, known in registries if known == name]
        if name in {own for own, _ in registries}:
            return name
        if len(found) != 1:
            names = ", ".join(sorted(known for _, known in registries)) or "none"
            raise BadSpec(f"{len(found)} registry credentials are named {name!r}; the account has: {names}")
        return found[0]

    async def billing(self, since: datetime, until: datetime) -> tuple[Bill, ...]:
        """Return the charges of each pod in the account for the whole hours that cover the window."""
        doing = "read the pods' bill"
        span = {"startTime": rfc3339(since), "endTime": rfc3339(until), "bucketSize": "hour"}
        reply = await self._call(
            Priority.OTHER,
            "bill",
            doing,
            lambda: run_rest_request("GET", "/v2/billing/pods", api_key=self._api_key, params=span),
        )
        return await asyncio.to_thread(_read, bills, reply, doing)

    def list_pause_s(self) -> float:
        """Return the least seconds between two pages of lists that the account's limits allow now."""
        return self._lanes.pace_s()

    async def close(self) -> None:
        """Do nothing: running calls end with their threads, or with the process."""

    async def _whole_list(self, path: str, collection: str, priority: Priority) -> list[Any]:
        """Return every record of a paginated collection, under one deadline."""
        doing = f"list {collection}"
        records: list[Any] = []
        cursors: set[str] = set()
        cursor: str | None = None
        try:
            async with asyncio.timeout(self._call_timeout_s):
                for _ in range(MAX_PAGES):
                    asked = _page_request(path, cursor, self._api_key)
                    reply = await self._call(priority, "list", doing, asked)
                    found, cursor, paged = _read(lambda one: page(one, collection), reply, doing)
                    if not paged and collection in self._paged:
                        raise Unavailable(f"{doing}: the answer does not say whether it is complete")
                    self._paged |= {collection} if paged else set()
                    records += found
                    if len(records) > MAX_RECORDS:
                        raise Unavailable(f"{doing}: more than {MAX_RECORDS} records")
                    if cursor is None:
                        return records
                    if cursor in cursors:
                        raise Unavailable(f"{doing}: the cursor came back again")
                    cursors.add(cursor)
        except (BadSpec, NoCapacity, QuotaExceeded) as error:  # a list has no parameters to refuse: not a list
            raise Unavailable(str(error)) from error
        except TimeoutError as error:
            raise Unavailable(f"{doing}: not complete within {self._call_timeout_s} s") from error
        raise Unavailable(f"{doing}: more than {MAX_PAGES} pages")

    async def _call(
        self,
        priority: Priority,
        operation: str,
        doing: str,
        request: Callable[[], Result],
        *,
        only_rate_limit: bool = False,
    ) -> Result:
        """Make a request under the deadline. Repeat it after a 429 and, if allowed, after an unclear answer."""
        until_s = asyncio.get_running_loop().time() + self._call_timeout_s
        answered: PortError | None = None  # after the last attempt: its result
        one = CallAttempt(priority, doing, until_s)
        try:
            async with asyncio.timeout(self._call_timeout_s):
                for attempt in range(1, MAX_ATTEMPTS + 1):
                    one = CallAttempt(priority, doing, until_s)
                    try:
                        reply = await self._lanes.make(one, request)
                    except NotSent as error:
                        raise answered or error from error
                    except (RunPodError, requests.RequestException, ValueError, OSError) as error:
                        self._on_call(operation, _status(error))
                        answered = self._meaning(error, doing, priority)
                        if not _may_repeat(answered, only_rate_limit) or attempt == MAX_ATTEMPTS:
                            raise answered from error
                    else:
                        self._on_call(operation, "200")
                        return reply
                    if not isinstance(answered, RateLimited):  # after a 429, the lane waits for the announced time
                        await asyncio.sleep(_pause_s(doing, attempt))
        except TimeoutError as error:
            if not one.sent:
                raise answered or NotSent(f"{doing}: not sent within {self._call_timeout_s} s") from error
            if answered is not None and one.ended:  # the time ended between two attempts: no result is unknown
                raise answered from error
            self._on_call(operation, "timeout")
            raise Unavailable(f"{doing}: no answer within {self._call_timeout_s} s") from error
        raise AssertionError("the last attempt returns or raises")

    def _meaning(self, error: Exception, doing: str, priority: Priority) -> PortError:
        """Return the port's error for an error of a call. RateLimited has the seconds until the next call."""
        # An unreadable body raises a ValueError too, in requests or json: the call was made, and its result is unknown.
        unreadable = isinstance(error, requests.RequestException | json.JSONDecodeError | UnicodeError)
        if isinstance(error, ValueError) and not unreadable:
            return BadSpec(f"{doing}: {error}")
        meaning = port_error(error, doing)
        if isinstance(meaning, RateLimited):
            meaning.retry_after_s = max(meaning.retry_after_s, self._lanes.wait_s(priority))
        return meaning


def _may_repeat(error: PortError, only_rate_limit: bool) -> bool:
    """Return whether the call may be repeated; a create call only if it certainly had no effect."""
    if isinstance(error, RateLimited | NotSent):
        return True
    return isinstance(error, Unavailable) and not only_rate_limit


def _pods(records: list[Any]) -> tuple[Pod, ...]:
    pods: dict[str, Pod] = {}
    for record in records:
        read = _read(pod, record, "list pods")
        if read is not None:
            pods.setdefault(read.id, read)  # after a create between two pages, a pod may be on both pages
    return tuple(pods.values())


def _page_request(path: str, cursor: str | None, api_key: str) -> Callable[[], Any]:
    parameters = {} if cursor is None else {"cursor": cursor}
    return lambda: run_rest_request("GET", path, api_key=api_key, params=parameters)


def _status(error: Exception) -> str:
    """Return how a failed request ended: its HTTP status, or the reason why there is none."""
    if isinstance(error, AuthenticationError):
        return str(HTTPStatus.UNAUTHORIZED.value)
    status = getattr(error, "status_code", None)
    return str(int(status)) if status is not None else "unreachable"


def _read(reader: Callable[[object], Result], reply: object, doing: str) -> Result:
    """Decode an answer. Unavailable if it does not match the API."""
    try:
        return reader(reply)
    except Malformed as error:
        raise port_error(error, doing) from error


def _pause_s(doing: str, attempt: int) -> float:
    """Return the pause after an attempt. The jitter is derived from the operation, so that a run can be replayed."""
    spread = hashlib.sha256(f"{doing}:{attempt}".encode(errors="backslashreplace")).digest()[0] / 255  # 0..1
    return float(RETRY_PAUSE_S * 2 ** (attempt - 1) * (1 - RETRY_JITTER + 2 * RETRY_JITTER * spread))

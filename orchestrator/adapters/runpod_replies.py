"""Reading RunPod's answers: pods strictly, errors into the port's. What cannot be read is never taken for empty."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

import requests
from runpod.error import AuthenticationError, QueryError

from orchestrator.core.model import Pod, PodStatus
from orchestrator.ports import (
    ApiAuth,
    BadSpec,
    Bill,
    NoBalance,
    NoCapacity,
    PortError,
    QuotaExceeded,
    RateLimited,
    Unavailable,
)

FLEET_VARIABLE = "ORCHESTRATOR_FLEET_ID"
DATABASE_VARIABLE = "ORCHESTRATOR_DATABASE_ID"
WORKER_VARIABLE = "ORCHESTRATOR_WORKER_ID"
NAMED_LIKE_OURS = re.compile(r"gpu-\d{8}_\d{6}-[0-9a-f]{8}")  # core/scaling.py, worker_id
SSH_PORT = 22
MAX_PORT = 65_535
MAX_USD = 1e9  # of an hour, or of a bill
STATUSES = frozenset(PodStatus)
# The SDK does not hand over Retry-After; the usual window is a minute, and waiting it out whole would waste most of it.
RETRY_AFTER_S = 10.0
MAX_DETAIL_CHARACTERS = 300

# Collected refusals (spec of the API, "Failures that happen"); compared without regard to case.
CAPACITY = re.compile(
    r"no longer any instances available"
    r"|no instances (?:are )?currently available"
    r"|does not have the resources to deploy"
    r"|could not find any pods with required specifications"
    r"|not enough (?:free )?(?:gpus|disk space|resources|capacity)",
    re.IGNORECASE,
)
BALANCE = re.compile(r"balance is too low|add funds|insufficient (?:funds|balance)", re.IGNORECASE)
QUOTA = re.compile(r"quota|maximum number of (?:pods|gpus)|spend(?:ing)? limit", re.IGNORECASE)
CLOUDFLARE = re.compile(r"error code: 1\d\d\d")  # the proxy in front refused the client, not the key

# What became of an answer that is none; the first that fits.
NO_ANSWER: tuple[tuple[type[requests.RequestException], str], ...] = (
    (requests.exceptions.InvalidJSONError, "the answer cannot be read: no JSON, or not all of it"),
    (requests.exceptions.ChunkedEncodingError, "the answer was cut off"),
    (requests.Timeout, "no answer in time"),
    (requests.ConnectionError, "no connection, or it was cut"),
)


class Malformed(Exception):
    """An answer that is not what the API promises; the text names the field."""


def pod(record: object) -> Pod:
    """Read one pod. Of a pod that is not ours only id, name, status and env are looked at."""
    fields = _object(record, "pod")
    pod_id, name = _text(fields, "id"), _text(fields, "name")
    status = _text(fields, "status")
    # Without an env nobody can tell whose pod it is: one that is named like ours is unknown, any other is foreign.
    env = _object(fields.get("env"), "env") if NAMED_LIKE_OURS.fullmatch(name) else _optional_object(fields, "env")
    # A status that RunPod has come up with since must not hide all pods: none could be ended, and each is paid for.
    known = PodStatus(status) if status in STATUSES else PodStatus.UNKNOWN
    if FLEET_VARIABLE not in env:
        return Pod(pod_id, name, known, None, None, False, None, None, None, 0, None, None, None, None)
    running = status == PodStatus.RUNNING
    runtime = _optional_object(fields, "runtime")
    gpu = _optional_object(fields, "gpu")
    host, port = _ssh(fields, runtime) if running else (None, None)  # an exited pod shows the ports it had
    return Pod(
        id=pod_id,
        name=name,
        status=known,
        fleet_id=_text(env, FLEET_VARIABLE),
        worker_id=_text(env, WORKER_VARIABLE) if WORKER_VARIABLE in env else None,
        has_runtime=running and bool(runtime),
        ssh_host=host,
        ssh_port=port,
        gpu_type=_text(gpu, "id") if gpu else None,
        gpu_count=_whole(gpu, "count") if gpu else 0,
        data_center=_optional_text(fields, "dataCenterId"),
        # The suffix of the SSH proxy's user name may name the host, or the account: guessed wrong, one strike would
        # avoid every pod, so only a field that says so counts.
        machine_id=_optional_text(fields, "machineId"),
        price_usd_per_hour=None if fields.get("cost") is None else _dollars(fields, "cost"),
        created_at=None if fields.get("createdAt") is None else _moment(fields, "createdAt"),
        database_id=_text(env, DATABASE_VARIABLE) if DATABASE_VARIABLE in env else None,
    )


def ssh_address(record: object) -> tuple[str | None, int | None]:
    """Where port 22 of any pod is reachable, whoever's it is; (None, None) while RunPod says of no such place."""
    fields = _object(record, "pod")
    return _ssh(fields, _optional_object(fields, "runtime"))


def _ssh(fields: Mapping[str, Any], runtime: Mapping[str, Any]) -> tuple[str | None, int | None]:
    """Where port 22 is reachable: `ssh.direct`, else the runtime's mapping; (None, None) while neither is known."""
    direct = _optional_object(_optional_object(fields, "ssh"), "direct")
    if direct.get("host") is not None or direct.get("port") is not None:
        return _text(direct, "host"), _port(direct, "port")
    ports = runtime.get("ports") or []
    if not isinstance(ports, list):
        raise Malformed("runtime.ports is not a list")
    for entry in ports:
        mapping = _object(entry, "runtime.ports")
        if mapping.get("private") == SSH_PORT and mapping.get("type") == "tcp":
            return _text(mapping, "ip"), _port(mapping, "public")
    return None, None


def page(reply: object, collection: str) -> tuple[list[Any], str | None]:
    """Read one page of a list: its records, and the cursor of the next page if there is one."""
    fields = _object(reply, "reply")
    records = fields.get(collection)
    if not isinstance(records, list):
        raise Malformed(f"{collection} is not a list")
    pagination = _object(fields.get("pagination"), "pagination")
    more = pagination.get("hasNextPage")
    if not isinstance(more, bool):
        raise Malformed("pagination.hasNextPage")
    return records, _text(pagination, "nextCursor") if more else None


def volume(record: object) -> tuple[str, str, str]:
    """Read a network volume: id, name, data centre."""
    fields = _object(record, "network volume")
    return _text(fields, "id"), _text(fields, "name"), _text(fields, "dataCenterId")


def prices(reply: object) -> dict[str, float]:
    """Read the catalogue: "<GPU type>|<cloud>" -> $/h of one GPU, for what has a price."""
    records = _object(reply, "reply").get("gpus")
    if not isinstance(records, list):
        raise Malformed("gpus is not a list")
    found = {}
    for record in records:
        fields = _object(record, "gpu")
        price = _optional_object(fields, "price")
        for cloud, usd in price.items():
            if usd is not None:
                found[f"{_text(fields, 'id')}|{cloud.upper()}"] = _dollars(price, cloud)
    return found


def bills(reply: object) -> tuple[Bill, ...]:
    """Read the pods' billing history: per pod and bucket a `totalAmount`, GPU, CPU and disk together."""
    records = _object(reply, "reply").get("records")
    if not isinstance(records, list):
        raise Malformed("records is not a list")
    rows = [_object(record, "billing record") for record in records]
    return tuple(Bill(_text(row, "podId"), _moment(row, "startTime"), _dollars(row, "totalAmount")) for row in rows)


def port_error(error: Exception, doing: str) -> PortError:
    """Say what an SDK error means; never with a header or a key in it."""
    if isinstance(error, AuthenticationError):
        return ApiAuth(f"{doing}: the API key was refused (401)")
    if isinstance(error, QueryError) and error.status_code is not None:
        return _refusal(int(error.status_code), str(error)[:MAX_DETAIL_CHARACTERS], doing)
    if isinstance(error, Malformed):
        return Unavailable(f"{doing}: the answer cannot be read: {error}")
    if isinstance(error, requests.RequestException):
        how = next((words for kind, words in NO_ANSWER if isinstance(error, kind)), "no answer")
        return Unavailable(f"{doing}: {how} ({type(error).__name__})")
    return Unavailable(f"{doing}: {type(error).__name__}: {str(error)[:MAX_DETAIL_CHARACTERS]}")


def _refusal(status: int, detail: str, doing: str) -> PortError:
    text = f"{doing}: {status} {detail}"
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return RateLimited(text, RETRY_AFTER_S)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status < HTTPStatus.BAD_REQUEST:
        return Unavailable(text)
    if status == HTTPStatus.FORBIDDEN and CLOUDFLARE.search(detail):
        return Unavailable(text)
    meanings: tuple[tuple[bool, type[PortError]], ...] = (
        (status == HTTPStatus.PAYMENT_REQUIRED or BALANCE.search(detail) is not None, NoBalance),
        (CAPACITY.search(detail) is not None, NoCapacity),
        (QUOTA.search(detail) is not None, QuotaExceeded),
        (status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN), ApiAuth),
        (status == HTTPStatus.REQUEST_TIMEOUT, Unavailable),
    )
    return next((kind for holds, kind in meanings if holds), BadSpec)(text)


def _object(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise Malformed(f"{what} is not an object")
    return value


def _optional_object(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The object of that name; an empty one for null, and for a name that is missing."""
    return {} if fields.get(name) is None else _object(fields[name], name)


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise Malformed(name)
    return value


def _optional_text(fields: Mapping[str, Any], name: str) -> str | None:
    return None if fields.get(name) is None else _text(fields, name)


def _whole(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise Malformed(name)
    return value


def _port(fields: Mapping[str, Any], name: str) -> int:
    value = _whole(fields, name)
    if not 1 <= value <= MAX_PORT:
        raise Malformed(name)
    return value


def _dollars(fields: Mapping[str, Any], name: str) -> float:
    value = fields.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= MAX_USD:
        raise Malformed(name)
    return float(value)


def _moment(fields: Mapping[str, Any], name: str) -> datetime:
    try:
        moment = datetime.fromisoformat(_text(fields, name))
    except ValueError as error:
        raise Malformed(name) from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)

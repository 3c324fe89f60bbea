"""Parses RunPod's answers: the owner of a pod strictly, other fields separately. Unreadable is never empty."""

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import requests
from runpod.error import AuthenticationError, QueryError
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

from orchestrator.adapters.runpod_fields import (
    Malformed,
    an_object,
    dollars,
    host,
    inner,
    known,
    moment,
    port,
    price,
    public_address,
    text,
    whole,
)
from orchestrator.core.provider import Pod, PodStatus
from orchestrator.ports import (
    ApiAuth,
    BadSpec,
    Bill,
    NoBalance,
    NoCapacity,
    NotSent,
    PortError,
    QuotaExceeded,
    RateLimited,
    Unavailable,
)

FLEET_VARIABLE = "ORCHESTRATOR_FLEET_ID"
DATABASE_VARIABLE = "ORCHESTRATOR_DATABASE_ID"
WORKER_VARIABLE = "ORCHESTRATOR_WORKER_ID"
SSH_PORT = 22
MAX_CURSOR_CHARACTERS = 4_096
IDENTITY = (FLEET_VARIABLE, DATABASE_VARIABLE, WORKER_VARIABLE)
USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
STATUSES = frozenset(PodStatus)
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
CLOUDFLARE = re.compile(r"error code: 1\d\d\d")  # the proxy in front of the API refused the client, not the key

# What an error answer means; the first row that matches.
NO_ANSWER: tuple[tuple[type[requests.RequestException], str], ...] = (
    (requests.exceptions.InvalidJSONError, "the answer cannot be read: no JSON, or not all of it"),
    (requests.exceptions.ChunkedEncodingError, "the answer was cut off"),
    (requests.Timeout, "no answer in time"),
    (requests.ConnectionError, "no connection, or it was cut"),
)


def pod(record: object) -> Pod | None:
    """Read one pod of a list. Return None for a record without an id that certainly does not belong to this fleet.

    Only the identity is required: the id, and the owner in the environment. Every other field is a value or unknown, so
    an odd record affects only its own pod. Nothing else of a foreign pod is read.
    """
    fields = an_object(record, "pod")
    env = fields.get("env")
    if isinstance(env, dict) and FLEET_VARIABLE not in env:
        foreign_id = known(text, fields, "id")
        return None if foreign_id is None else _opaque(foreign_id, fields)
    pod_id = text(fields, "id")
    if not isinstance(env, dict) and known(text, fields, "name") is None:
        raise Malformed("env")  # without a name too, the record may not be a pod at all
    # A member of a cluster that RunPod itself runs is no pod of ours, and only its cluster can be deleted.
    is_member = known(text, inner(fields, "cluster"), "id") is not None
    if is_member or not isinstance(env, dict) or not all(_readable(env, name) for name in IDENTITY):
        return _opaque(pod_id, fields, owner_unknown=True)
    return _own(pod_id, env, fields)


def _readable(env: Mapping[str, Any], name: str) -> bool:
    return name not in env or known(text, env, name) is not None


def _opaque(pod_id: str, fields: Mapping[str, Any], *, owner_unknown: bool = False) -> Pod:
    """Return a pod of unknown owner, on which no action is possible."""
    name, status = known(text, fields, "name") or "", _status(fields)
    return Pod(
        pod_id, name, status, None, None, False, None, None, None, None, None, None, None, None,
        owner_unknown=owner_unknown,
    )  # fmt: skip


def _own(pod_id: str, env: Mapping[str, Any], fields: Mapping[str, Any]) -> Pod:
    status = _status(fields)
    running = status is PodStatus.RUNNING
    gpu = inner(fields, "gpu")
    ssh_host, ssh_port = _ssh(fields) if running else (None, None)  # a pod that has exited shows its earlier ports
    return Pod(
        id=pod_id,
        name=known(text, fields, "name") or "",
        status=status,
        fleet_id=text(env, FLEET_VARIABLE),
        worker_id=known(text, env, WORKER_VARIABLE),
        has_runtime=running and bool(inner(fields, "runtime")),
        ssh_host=ssh_host,
        ssh_port=ssh_port,
        gpu_type=known(text, gpu, "id"),
        gpu_count=known(whole, gpu, "count"),
        data_center=known(text, fields, "dataCenterId"),
        # The suffix of the SSH proxy's user name may name the host, or the account. If it is the account, one strike
        # would avoid every pod. RunPod documents no field for the machine, so the public address of its SSH server
        # identifies it.
        machine_id=known(text, fields, "machineId") or public_address(ssh_host),
        price_usd_per_hour=known(price, fields, "cost"),
        created_at=known(moment, fields, "createdAt"),
        database_id=known(text, env, DATABASE_VARIABLE),
        ssh_user=_user(fields) if running else None,
    )


def _status(fields: Mapping[str, Any]) -> PodStatus:
    """Parse the status. An unknown status (added later by RunPod) must not hide all pods, because each costs money."""
    status = fields.get("status")
    return PodStatus(status) if isinstance(status, str) and status in STATUSES else PodStatus.UNKNOWN


def ssh_address(record: object) -> tuple[str | None, int | None]:
    """Return the address of port 22 of any pod, also of a foreign one. (None, None) while RunPod shows none."""
    return _ssh(an_object(record, "pod"))


def _ssh(fields: Mapping[str, Any]) -> tuple[str | None, int | None]:
    """Return the address of port 22: `ssh.direct`, else the runtime's mapping. (None, None) while neither is known."""
    direct = inner(inner(fields, "ssh"), "direct")
    where, number = known(host, direct, "host"), known(port, direct, "port")
    if where is not None and number is not None:
        return where, number
    mappings = inner(fields, "runtime").get("ports")
    for mapping in mappings if isinstance(mappings, list) else ():
        if isinstance(mapping, dict) and mapping.get("private") == SSH_PORT and mapping.get("type") == "tcp":
            where, number = known(host, mapping, "ip"), known(port, mapping, "public")
            if where is not None and number is not None:
                return where, number
    return None, None


def _user(fields: Mapping[str, Any]) -> str | None:
    """Return the account for SSH logins, if it is known and valid."""
    user = known(text, inner(inner(fields, "ssh"), "direct"), "username")
    return user if user is not None and USER.fullmatch(user) else None


def page(reply: object, collection: str) -> tuple[list[Any], str | None, bool]:
    """Read one page of a list.

    Its records, the cursor of the next page or None, and whether the page shows completeness.

    The published document has no pagination of pods: a reply without that field is the whole list.
    """
    fields = an_object(reply, "reply")
    records = fields.get(collection)
    if not isinstance(records, list):
        raise Malformed(f"{collection} is not a list")
    if "pagination" not in fields:
        return records, None, False
    pagination = an_object(fields["pagination"], "pagination")
    more = pagination.get("hasNextPage")
    if not isinstance(more, bool):
        raise Malformed("pagination.hasNextPage")
    return records, _cursor(pagination) if more else None, True


def _cursor(pagination: Mapping[str, Any]) -> str:
    cursor = pagination.get("nextCursor")
    if not isinstance(cursor, str) or not 0 < len(cursor) <= MAX_CURSOR_CHARACTERS:
        raise Malformed("pagination.nextCursor")
    return cursor


def volume(record: object) -> tuple[str, str, str] | None:
    """Read a network volume: id, name, data centre. None for an unusable record."""
    fields = an_object(record, "network volume")
    center = known(text, fields, "dataCenter") or known(text, fields, "dataCenterId")  # documented; older API
    volume_id, name = known(text, fields, "id"), known(text, fields, "name")
    return None if volume_id is None or name is None or center is None else (volume_id, name, center)


def registry(record: object) -> tuple[str, str] | None:
    """Read registry credentials: id, name. None for an unusable record."""
    fields = an_object(record, "registry")
    registry_id, name = known(text, fields, "id"), known(text, fields, "name")
    return None if registry_id is None or name is None else (registry_id, name)


def prices(reply: object) -> dict[str, float]:
    """Read the catalogue: "<GPU type>|<cloud>" -> dollars per hour of one GPU, without entries that have no price."""
    records = an_object(reply, "reply").get("gpus")
    if not isinstance(records, list):
        raise Malformed("gpus is not a list")
    found = {}
    for record in records:
        fields = record if isinstance(record, dict) else {}
        gpu_type, by_cloud = known(text, fields, "id"), inner(fields, "price")
        for cloud in by_cloud if gpu_type is not None else ():
            usd = known(price, by_cloud, cloud)  # 0 means: not available in that cloud
            if usd is not None:
                found[f"{gpu_type}|{cloud.upper()}"] = usd
    return found


def bills(reply: object) -> tuple[Bill, ...]:
    """Read the pods' billing history: `totalAmount` per pod and bucket, GPU, CPU and disk together."""
    records = an_object(reply, "reply").get("records")
    if not isinstance(records, list):
        raise Malformed("records is not a list")
    rows = [an_object(record, "billing record") for record in records]
    return tuple(Bill(text(row, "podId"), moment(row, "startTime"), dollars(row, "totalAmount")) for row in rows)


def port_error(error: Exception, doing: str) -> PortError:
    """Return the port's error for an SDK error. Its text never contains a header or a key."""
    if isinstance(error, AuthenticationError):
        return ApiAuth(f"{doing}: the API key was refused (401)")
    if isinstance(error, QueryError) and error.status_code is not None:
        return _refusal(int(error.status_code), str(error)[:MAX_DETAIL_CHARACTERS], doing)
    if isinstance(error, Malformed):
        return Unavailable(f"{doing}: the answer cannot be read: {error}")
    if isinstance(error, requests.RequestException):
        if _never_sent(error):
            return NotSent(f"{doing}: no connection ({type(error).__name__})")
        how = next((words for kind, words in NO_ANSWER if isinstance(error, kind)), "no answer")
        return Unavailable(f"{doing}: {how} ({type(error).__name__})")
    return Unavailable(f"{doing}: {type(error).__name__}: {str(error)[:MAX_DETAIL_CHARACTERS]}")


def _never_sent(error: requests.RequestException) -> bool:
    """Return whether there was no connection, so that no request can have been sent."""
    if isinstance(error, requests.ConnectTimeout):
        return True
    reason = getattr(error.args[0], "reason", None) if error.args else None
    return isinstance(reason, NewConnectionError | ConnectTimeoutError)


def _refusal(status: int, detail: str, doing: str) -> PortError:
    text = f"{doing}: {status} {detail}"
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return RateLimited(text, 0.0)  # the adapter adds the time
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

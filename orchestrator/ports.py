"""What the loop needs from the world: four ports, each with the errors it raises.

A port that cannot answer raises; it never returns an empty answer for "I don't know". `Unavailable` means that the
other side may or may not have acted.
"""

import base64
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from orchestrator.core.failures import FailureCode
from orchestrator.core.host_strikes import Strike
from orchestrator.core.model import (
    Demand,
    EndedBringUp,
    OfferState,
    Pause,
    Pod,
    PodSpec,
    Spent,
    StoreAway,
    TaskType,
    Worker,
)
from orchestrator.core.states import Stage, State


class PortError(Exception):
    """Something outside did not do what was asked; the text says what, never with a secret in it."""


class Unavailable(PortError):
    """No clear answer: a timeout, a broken connection, a 5xx, a reply that cannot be read. It may have been done."""


# --- Store -----------------------------------------------------------------------------------------------------------


class NotLeader(PortError):
    """OR001: the term is stale; another orchestrator leads."""


class LostRace(PortError):
    """OR002: the row is no longer in one of the states that the caller named."""


class OverBudget(PortError):
    """OR003."""


class UnknownWorker(PortError):
    """OR005: no such worker, or it has terminated."""


class BadToken(PortError):
    """OR006."""


class BadArgument(PortError):
    """OR007: the caller's fault; the text says what, why and how to mend it."""


class DatabaseAuth(BadToken):
    """The database, or the door in front of it, refuses the key that we have, or the role that we call as."""


class TooManyConnections(Unavailable):
    """The database, or the pooler in front of it, has no connection left: it will, once other clients close theirs."""


class SchemaMismatch(PortError):
    """The database lacks a function this version calls, or is newer than this version."""


class Db(Protocol):
    """One transport to the SQL functions."""

    async def call(self, function: str, /, **args: Any) -> Any:
        """The function's jsonb, decoded. Raises the errors above, by SQLSTATE."""
        ...

    def notifications(self) -> AsyncIterator[tuple[str, str]]:
        """(channel, payload) of NOTIFYs as they come, reconnecting for ever; ("connected", "") after each gap."""
        ...

    async def close(self) -> None: ...


HEARTBEATS = "fleet_heartbeats"
TASKS_CHANNEL = "orchestrator_tasks"  # payload: the pool in which tasks became ready to run
FLEET_CHANNEL = "orchestrator_fleet"  # payload: the worker whose row has changed
ASKS_CHANNEL = "orchestrator_asks"  # payload: the worker that asks something of the leader


class WorkerDb(Protocol):
    """What the gateway needs of the database: calls as the worker that the claims of its token name."""

    async def call_as_worker(self, claims: Mapping[str, Any], function: str, args: Mapping[str, Any]) -> Any:
        """The function's jsonb, decoded. Raises PortError."""
        ...

    async def heartbeats(self, beats: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """The answers of `worker_heartbeat` by worker id, as far as there are any. Raises PortError."""
        ...


LEASE_TTL_S = 15.0
LEAD_EVERY_S = 5.0  # how often its holder renews it


@dataclass(frozen=True, slots=True)
class Lease:
    """The answer to `fleet_lead`; `term` is the fencing epoch when `leader`, else the present leader's."""

    leader: bool
    term: int
    holder: str
    expires_at: datetime
    since: datetime  # when this term began


@dataclass(frozen=True, slots=True)
class DatabaseHalf:
    """One statement's view of the database."""

    now: datetime
    workers: tuple[Worker, ...]
    demand: tuple[Demand, ...]
    expired_leases: int
    offers: Mapping[str, OfferState]
    last_spawn_at: Mapping[str, datetime]
    paused: Mapping[str, Pause]
    ended: tuple[EndedBringUp, ...]
    proven: frozenset[str]
    spent: Spent
    avoid: Mapping[str, datetime]
    database_id: str | None  # made once for each database; None: its schema is older than that


@dataclass(frozen=True, slots=True)
class Attempt:
    """How one attempt at a bring-up stage ended."""

    outcome: str  # ok | failed | timeout | cancelled | lost
    failure_code: FailureCode | None = None
    exception_type: str | None = None
    evidence: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class LogRange:
    """A piece of one stream, `[first, last)` in bytes, and where it lies."""

    worker_id: str
    boot_id: str
    stream: str
    seq: int
    first: int
    last: int
    sha256: str  # of the raw bytes
    key: str


class Store(Protocol):
    """The rows of the fleet. Every `term` argument is checked by the database (NotLeader)."""

    async def lead(self, holder: str, ttl_s: float) -> Lease: ...
    async def resign(self, holder: str, term: int) -> None: ...
    async def snapshot(self) -> DatabaseHalf: ...
    async def spawn(self, term: int, worker: Mapping[str, Any]) -> bool:
        """Insert an intent with its reservation; False if the id exists already. OverBudget with the arithmetic."""
        ...

    async def move(
        self,
        term: int,
        worker_id: str,
        *,
        from_states: Sequence[State],
        to_state: State | None = None,
        stage: Stage | None = None,
        reason: str,
        fields: Mapping[str, Any] | None = None,
    ) -> Worker:
        """Compare-and-set on one worker: state, stage and `fields` together. LostRace if the state has changed."""
        ...

    async def worker(self, worker_id: str) -> Mapping[str, Any]:
        """The row of one worker with its events, its attempts at each stage and the tasks it held."""
        ...

    async def open_attempt(self, term: int, worker_id: str, stage: Stage) -> int: ...
    async def note_attempt(
        self, term: int, attempt_id: int, code: FailureCode | None, evidence: Mapping[str, Any]
    ) -> None:
        """What is suspected and seen in an attempt that goes on."""
        ...

    async def close_attempt(self, term: int, attempt_id: int, result: Attempt) -> None: ...
    async def rescue(
        self, term: int, *, worker_id: str | None = None, over_s: float = 0
    ) -> Sequence[Mapping[str, Any]]:
        """Requeue (or at last fail) tasks whose lease has been over for `over_s`; all of a worker that is named."""
        ...

    async def note_offer(self, term: int, key: str, *, refused: bool, code: str | None) -> None: ...
    async def strike(self, term: int, strike: Strike, *, code: str, evidence: Mapping[str, Any]) -> Mapping[str, Any]:
        """Hold a failure against a machine or a place; its strikes that count, and until when it is avoided."""
        ...

    async def hosts(self, *, avoided: bool = False) -> Sequence[Mapping[str, Any]]:
        """Machines and places that failed, newest first; with `avoided` only those that are avoided now."""
        ...

    async def record_decision(self, term: int, decision: Mapping[str, Any]) -> None: ...
    async def declare_pools(self, term: int, task_types: Sequence[TaskType]) -> None:
        """Let submitted tasks go to the pool of their type, with its limits; what was declared before is forgotten."""
        ...

    async def declare_programs(self, term: int, pools: Sequence[str], stuck_s: float) -> None:
        """Name the pools whose programs take tasks; in others a task that nobody holds is requeued after `stuck_s`."""
        ...

    async def declare_release(self, term: int, releases: Mapping[str, str], task_types: Sequence[str]) -> None:
        """Let be known, while this term lasts, what a worker of each pool would run now, and the types it handles."""
        ...

    async def hold_claims(self, term: int, away: StoreAway | None, *, for_s: float) -> None:
        """While the object store is away no worker of the fleet claims; None: it is back."""
        ...

    async def log_begin(self, term: int, piece: LogRange) -> None:
        """Ledger row before the upload; its range can never be given to another object."""
        ...

    async def log_shipped(self, term: int, piece: LogRange) -> None: ...
    async def log_ends(self, worker_id: str) -> Sequence[Mapping[str, Any]]:
        """Of each stream of a worker the ledger's last piece, and the last one that has arrived."""
        ...

    async def log_lost(
        self, term: int, worker_id: str, boot_id: str, stream: str, first: int, last: int | None, reason: str
    ) -> None:
        """Declare bytes from `first` on lost with their host; `last` None when the end was never known."""
        ...

    async def metrics(self, since: datetime | None) -> Mapping[str, Any]:
        """{"claimed", "ended": [{"outcome", "code", "n"}], "log_bytes_pending", "until"}: of tasks since a moment."""
        ...

    async def retention(self, term: int) -> Mapping[str, int] | None: ...


# --- Cloud -----------------------------------------------------------------------------------------------------------


class NoCapacity(PortError):
    """This offer has nothing to rent now."""


class QuotaExceeded(PortError): ...


class NoBalance(PortError): ...


class ApiAuth(PortError):
    """401 or 403: the key is wrong or may not do this."""


class BadSpec(PortError):
    """The request itself was refused (400/404/422 without a capacity text): another try would be refused too."""


class NotSent(Unavailable):
    """No request went out: whatever was asked for has certainly not been done."""

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RateLimited(PortError):
    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Bill:
    """What the provider charged for one pod in one hour."""

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
        """Dollars an hour of one GPU by "<GPU type>|<cloud>", from the catalogue; Unavailable if it cannot be read."""
        ...

    async def volume_id(self, name: str) -> tuple[str, str]:
        """(id, data centre) of a network volume by its name; BadSpec if there is none of that name, or several."""
        ...

    async def billing(self, since: datetime, until: datetime) -> tuple[Bill, ...]:
        """What each pod of the account was charged in the whole hours that cover the window; may lag behind."""
        ...

    def list_pause_s(self) -> float:
        """The least seconds between two pages of lists that the provider's limits allow now; 0 where none are known."""
        ...

    async def close(self) -> None: ...


# --- Shell -----------------------------------------------------------------------------------------------------------


class Refused(PortError):
    """TCP connection refused."""


class Silent(Unavailable):
    """The TCP connection was accepted, and no banner came."""


class NotSsh(PortError):
    """Something answers, but not with an SSH banner."""


class HostKeyChanged(PortError):
    """The key differs from the pinned one: never the same machine again."""


class AuthFailed(PortError):
    """The server refused our key, or our key cannot be used; `cause` is the sub-cause."""

    def __init__(self, message: str, cause: str) -> None:
        super().__init__(message)
        self.cause = cause


@dataclass(frozen=True, slots=True)
class Completed:
    """A finished remote command; `exit_status` None means unknown: the connection went first, or a signal."""

    exit_status: int | None
    stdout: bytes
    stderr: bytes


class Session(Protocol):
    """One SSH connection to one pod; every method raises Unavailable when the connection is gone or time is up."""

    @property
    def host_key(self) -> str:
        """The host key presented, in OpenSSH's one-line form without a comment."""
        ...

    @property
    def evidence(self) -> Mapping[str, str]:
        """Both socket ends and the fingerprint of the key used."""
        ...

    @property
    def closed(self) -> bool:
        """Whether the connection is known to be gone."""
        ...

    async def run(self, command: str, *, stdin: bytes = b"", timeout_s: float) -> Completed: ...
    async def put(self, path: str, content: bytes, *, timeout_s: float) -> None:
        """Write a file whole (0600, temporary name, then renamed) over SFTP; parents are made."""
        ...

    async def read(self, path: str, offset: int, limit: int, *, timeout_s: float) -> bytes | None:
        """Up to `limit` bytes from `offset`; b"" at the end of the file, None if there is no such file."""
        ...

    async def list(self, path: str, *, timeout_s: float) -> Mapping[str, int] | None:
        """Name -> size in bytes of a directory's entries; None if there is no such directory."""
        ...

    async def close(self) -> None: ...


class Shell(Protocol):
    """SSH to pods."""

    async def banner(self, host: str, port: int, *, timeout_s: float) -> str:
        """The server's identification line; Refused, Silent, Unavailable or NotSsh."""
        ...

    async def connect(
        self, host: str, port: int, *, pinned: str | None, timeout_s: float, user: str | None = None
    ) -> Session:
        """Authenticate as `user` (None: root). HostKeyChanged before anything is sent if the key is not `pinned`."""
        ...


# --- Blobs -----------------------------------------------------------------------------------------------------------


class NotFound(PortError):
    """No such object."""


class BlobRefused(PortError):
    """The server understood and said no (wrong key, forbidden): the same call would fail again."""


class NoBucket(BlobRefused):
    """The bucket itself is not there."""


class ObjectExists(BlobRefused):
    """A write on condition that there is no object found one."""


@dataclass(frozen=True, slots=True)
class Upload:
    """What a signed URL for one write is bound to: the bucket refuses any other request."""

    size_bytes: int
    sha256: str
    content_type: str

    def headers(self) -> Mapping[str, str]:
        """The headers that the request must carry besides its length."""
        return {
            "If-None-Match": "*",
            "Content-Type": self.content_type,
            "x-amz-checksum-sha256": self.checksum,
            "x-amz-meta-sha256": self.sha256,
        }

    @property
    def checksum(self) -> str:
        """The SHA-256 as S3 compares it with what it receives."""
        return base64.b64encode(bytes.fromhex(self.sha256)).decode()


class Blobs(Protocol):
    """The S3 bucket; keys are relative to S3_PREFIX."""

    async def put(self, key: str, content: bytes, *, content_type: str) -> None:
        """Store, then read size back (HEAD) and compare: an object that was not kept raises Unavailable."""
        ...

    async def get(self, key: str) -> bytes: ...
    async def size(self, key: str) -> int: ...
    async def look(self, key: str) -> Mapping[str, Any]:
        """HEAD: {bytes, etag}, and `version` and `sha256` where the bucket or the writer gave one. Raises NotFound."""
        ...

    async def put_new(self, key: str, content: bytes) -> None:
        """Store if there is no object of this key. Raises ObjectExists."""
        ...

    def sign_get(self, key: str, *, expires_s: int) -> str: ...
    def sign_head(self, key: str, *, expires_s: int) -> str: ...
    def sign_put(self, key: str, *, expires_s: int, upload: Upload | None = None) -> str:
        """With `upload` the URL takes one write of exactly that; without it, any bytes at any time until it expires."""
        ...

    def location(self, key: str) -> str:
        """`s3://bucket/prefix/key`."""
        ...

    def key_of(self, location: str) -> str | None:
        """The inverse of `location`; None for a location in another bucket or prefix."""
        ...


class SessionPool(Protocol):
    """Where bring-up and shipping get a session from: one connection per worker, shared and re-made when broken."""

    def session(self, worker: Worker, *, timeout_s: float) -> AbstractAsyncContextManager[Session]: ...

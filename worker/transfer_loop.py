"""The loop of every transfer: get presigned URLs, send the requests, wait for a service that is unavailable.

It waits for the end of an outage of the store without a limit. The orchestrator may be unreachable for `patience_s`.
"""

from __future__ import annotations

import errno
import http.client
import itertools
import json
import os
import time
import zlib
from collections import deque

from .connections import ParallelConnections, SingleConnection
from .store import Again, RequestFailed, StoreConnection, TryLater
from .transfer_errors import Replaced, TransferError, Unserved, Unstored
from .waits import ORCHESTRATOR, STORE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from typing import Any

    from .channel import TaskChannel
    from .downloads import Download
    from .uploads import File, Part, StoreRequest

WRONG_TRIES = 6  # errors in a row that the request itself causes, after which the transfer fails
PROGRESS_S = 10.0  # between two progress reports of a transfer
PAUSE_MAX_S = 15.0  # between two tries of one transfer; each try has a new URL, so that no URL expires meanwhile
ASK_S = 30.0  # seconds for the agent's answer; the agent asks the orchestrator once
ROOM_BYTES = 16 << 20  # free space that the disk must keep while a result waits
FILES_A_GRANT = 300  # requests of one call for URLs
GRANT_BYTES = 96 << 10  # bytes of one call for URLs; the gateway's limit is 128 KiB
PARTS_A_GRANT = 32
# Errors of the pod's own disk; every other OSError is an error of the network.
LOCAL = {
    errno.ENOENT, errno.EACCES, errno.EISDIR, errno.ENOTDIR, errno.EIO, errno.EROFS, errno.ENOSPC, errno.EDQUOT,
    errno.EFBIG, errno.EMFILE, errno.ENAMETOOLONG,
}  # fmt: skip


class TransferLoop:
    """Sends the requests of one task."""

    def __init__(self, channel: TaskChannel, task_id: str, directory: Path, patience_s: float, clock: Any) -> None:
        self._channel, self._task_id, self._directory, self._clock = channel, task_id, directory, clock
        self._patience_s = patience_s  # how long the orchestrator may be unreachable
        self._idle: list[StoreConnection] = []

    def run_one(self, request: StoreRequest, wanted: Callable[[], dict[str, Any]], wait: TransferWait) -> None:
        """Send one request, for which `wanted` says what must be signed."""
        self.run([request], 1, lambda _, wait: [self.grant(wanted(), wait)], wait)

    def run(
        self,
        requests: Sequence[StoreRequest],
        at_once: int,
        grants: Callable[[deque[Any], TransferWait], list[dict[str, Any]]],
        wait: TransferWait,
    ) -> None:
        """Send all requests. Wait for the store while the disk has room; the attempt's timeout is paused meanwhile.

        `grants` returns the signed URLs for as many requests at the front of a list as fit into one call. The next call
        is made when half of the last one is done: with fewer URLs left, small files would wait for the call.
        """
        if not requests:
            return
        waiting, several = deque(requests), len(requests) > 1
        connections = ParallelConnections(min(at_once, len(requests))) if several else SingleConnection(self._idle)
        granted = 0  # URLs of the last call
        try:
            while waiting or connections.pending:
                if waiting and connections.pending <= max(2 * at_once, granted // 2):
                    items = grants(waiting, wait)
                    granted = len(items)
                    for item in items:
                        connections.submit(waiting.popleft(), item)
                request, error = connections.next()
                if error is None:
                    done = len(requests) - len(waiting) - connections.pending
                    wait.progress(f"{done} of {len(requests)} requests to the store are done: {request.what}")
                elif isinstance(error, Again):
                    waiting.append(request)
                else:
                    failed = [(request, error), *self._drain(connections, waiting)]
                    self._pause(failed, wait)
                    waiting.extend(request for request, _ in failed)
        finally:
            connections.close()

    def _drain(
        self, connections: ParallelConnections | SingleConnection, waiting: deque[StoreRequest]
    ) -> list[tuple[StoreRequest, Exception]]:
        """Let the other connections finish, and return what failed: an outage causes one pause, not one for each."""
        waiting.extend(connections.recall())
        results = []
        while connections.pending:
            request, error = connections.next()
            if error is not None:
                results.append((request, error))
        return results

    def _pause(self, failed: list[tuple[StoreRequest, Exception]], wait: TransferWait) -> None:
        """Pause before the next try. Raises TransferError if another try cannot succeed."""
        reasons = [reason for one in failed if (reason := self._reason(*one))]
        if reasons:
            self.check_room(failed[0][0].what, reasons[0])
            wait.pause(STORE, reasons[0], PAUSE_MAX_S)

    def _reason(self, request: StoreRequest, error: Exception) -> str:
        """Return why a try failed, "" if it only needs a new URL. Raises if another try cannot succeed."""
        if isinstance(error, Again):
            return ""
        if isinstance(error, RequestFailed):
            request.failures += 1
            if request.failures >= WRONG_TRIES:
                kind = Unstored if request.is_corrupted else TransferError
                raise kind(f"{request.what} failed {request.failures} times, the last time: {error}") from None
            return str(error)
        if isinstance(error, TryLater):
            return str(error)
        if isinstance(error, (OSError, http.client.HTTPException)):
            why = f"{type(error).__name__}: {error}"
            if isinstance(error, OSError) and error.errno in LOCAL:
                raise TransferError(f"{request.what} failed on this pod: {why}") from error
            return why
        raise error

    def check_room(self, what: str, why: str) -> None:
        disk = os.statvfs(self._directory)
        if disk.f_bavail * disk.f_frsize < ROOM_BYTES:
            raise Unserved(f"{what} waited for the store ({why}), and the pod's disk is full")

    def file_grants(self, waiting: deque[File | Download], wait: TransferWait) -> list[dict[str, Any]]:
        wanted: list[dict[str, Any]] = []
        size = 0
        for request in itertools.islice(waiting, FILES_A_GRANT):
            item = request.wanted()
            size += len(json.dumps(item)) + 1
            if wanted and size > GRANT_BYTES:
                break
            wanted.append(item)
        granted = self._grants(wanted, wait)
        return [granted[item["key"]] for item in wanted]

    def part_grants(self, waiting: deque[Part], wait: TransferWait) -> list[dict[str, Any]]:
        parts = list(itertools.islice(waiting, PARTS_A_GRANT))
        signed: list[dict[str, Any]] = self.grant(parts[0].upload.wanted(parts), wait).get("parts") or []
        if len(signed) != len(parts):
            raise TransferError(f"{len(signed)} of {len(parts)} parts of {parts[0].upload.key} were granted")
        return signed

    def grant(self, wanted: dict[str, Any], wait: TransferWait, *, patient: bool = True) -> dict[str, Any]:
        return self._grants([wanted], wait, patient=patient)[wanted["key"]]

    def _grants(
        self, wanted: list[dict[str, Any]], wait: TransferWait, *, patient: bool = True
    ) -> dict[str, dict[str, Any]]:
        """Return the signed URLs by key. Waits while the orchestrator is unreachable, unless not `patient`."""
        what = f"{wanted[0]['method']} of {wanted[0]['key']}"
        until = self._clock.monotonic() + (self._patience_s if patient else 0.0)
        while True:
            try:
                reply = self._channel.ask({"op": "grants", "items": wanted}, ASK_S)
            except TimeoutError as error:
                reply = {"error": str(error), "final": False}
            granted = {item["key"]: item for item in reply.get("items") or ()}
            if granted.keys() >= {item["key"] for item in wanted}:
                return granted
            if reply.get("replaced"):
                raise Replaced(f"{reply['replaced'][0]} is not the object with which its task was completed")
            if "error" not in reply or reply["final"]:
                refused = reply.get("refused") or [wanted[0]["key"]]
                more = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
                why = reply.get("error", "refused")
                raise TransferError(f"{wanted[0]['method']} of {refused[0]}{more} was not granted: {why}")
            if self._clock.monotonic() > until:
                raise Unserved(f"{what}: no grant within {self._patience_s:.0f} s: {reply['error']}")
            wait.pause(ORCHESTRATOR, reply["error"], reply.get("again_s", 8.0))


class TransferWait:
    """The pauses and the progress of one transfer. Each one is reported to the agent."""

    def __init__(self, channel: TaskChannel, task_id: str, number: int, clock: Any) -> None:
        self._channel, self._task_id, self._number, self._clock = channel, task_id, number, clock
        self._tries = 0
        self._since = ""
        self._reported_at = clock.monotonic()
        self.report("")

    def report(self, service: str | None, why: str = "") -> None:
        self._reported_at = self._clock.monotonic()
        self._channel.send({
            "op": "service", "task": self._task_id, "seq": self._number, "service": service, "why": why,
            "tries": self._tries, "since": self._since,
        })  # fmt: skip

    def progress(self, message: str) -> None:
        """End the wait, if there was one. Report a long transfer from time to time, so that it does not seem stuck."""
        if self._tries:
            self._tries, self._since = 0, ""
            self.report("")
        elif self._clock.monotonic() - self._reported_at > PROGRESS_S:
            self.report("", message)

    def pause(self, service: str, why: str, most_s: float) -> None:
        """Sleep, longer after each try. The pause differs per task, to spread the load."""
        self._since = self._since or time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._clock.time()))
        self._tries += 1
        self.report(service, why)
        spread = 0.75 + zlib.crc32(f"{self._task_id}{self._tries}".encode()) % 1000 / 2000
        self._clock.sleep(spread * min(most_s, 0.25 * 2.0 ** min(self._tries, 10)))

"""The table of faults: kind -> the operation that it hits, and the moment.

A fault is injected with POST /__emulator__/faults {"kind", "operation", "nth", "times", "probability", "name", …}.
It hits the nth matching call (counted from its injection), or each matching call with a probability, at most `times`
times; `name` is a regular expression found in the pod's name.
"""

import random
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from testbed.runpod.machine_faults import MACHINE_FAULTS

CAPACITY_TEXTS = (
    "There are no longer any instances available with the requested specifications. Please refresh and try again.",
    "There are no longer any instances available with enough disk space.",
    "This machine does not have the resources to deploy your pod. Please try a different machine",
    "There are no instances currently available",
    "could not find any pods with required specifications",
)
BALANCE_TEXT = "Your account balance is too low to rent a pod. Please add funds to your account."
QUOTA_TEXT = "You have reached the maximum number of pods for this account (pod quota exceeded)."
BAD_REQUEST_TEXT = "request body is invalid: image is not a known image reference"
RATE_LIMIT_TEXT = "rate limit exceeded for the minute window"


class Moment(Enum):
    """When a fault applies."""

    BEFORE = "before"  # instead of the operation: nothing is committed
    AFTER = "after"  # the operation is done, and the answer is wrong or lost
    VIEW = "view"  # one read shows a false state
    POD = "pod"  # chosen at the create call, and active on the pod


@dataclass(frozen=True, slots=True)
class FaultKind:
    """One row of the table. `status` None: the fault affects the connection itself."""

    moment: Moment
    operation: str  # the default; "any" matches every API call
    status: int | None = None
    detail: str = ""


KINDS: Mapping[str, FaultKind] = {
    "no_capacity": FaultKind(Moment.BEFORE, "create", 400, CAPACITY_TEXTS[0]),
    "quota": FaultKind(Moment.BEFORE, "create", 400, QUOTA_TEXT),
    "no_balance": FaultKind(Moment.BEFORE, "create", 402, BALANCE_TEXT),
    "bad_request": FaultKind(Moment.BEFORE, "create", 422, BAD_REQUEST_TEXT),
    "unauthorized": FaultKind(Moment.BEFORE, "any", 401, "missing bearer token"),
    "forbidden": FaultKind(Moment.BEFORE, "any", 403, "access denied"),
    "cloudflare": FaultKind(Moment.BEFORE, "any", 403, "error code: 1010"),
    "not_found": FaultKind(Moment.BEFORE, "get", 404, "pod not found"),
    "conflict": FaultKind(Moment.BEFORE, "action", 409, "the pod is busy"),
    "rate_limited": FaultKind(Moment.BEFORE, "any", 429, RATE_LIMIT_TEXT),
    "internal_error": FaultKind(Moment.BEFORE, "any", 500, "internal server error"),
    "bad_gateway": FaultKind(Moment.BEFORE, "any", 502, "html"),
    "unavailable": FaultKind(Moment.BEFORE, "any", 503, "service unavailable"),
    "gateway_timeout": FaultKind(Moment.BEFORE, "any", 504, "html"),
    "cut_before_commit": FaultKind(Moment.BEFORE, "any"),
    "hang_before_commit": FaultKind(Moment.BEFORE, "any"),
    "delete_lies": FaultKind(Moment.BEFORE, "delete", 204),  # answers 204, and the pod keeps running
    "commit_then_500": FaultKind(Moment.AFTER, "create", 500, "internal server error"),
    "commit_then_502": FaultKind(Moment.AFTER, "create", 502, "html"),
    "commit_then_cut": FaultKind(Moment.AFTER, "create"),
    "commit_then_hang": FaultKind(Moment.AFTER, "create"),
    "slow_drip": FaultKind(Moment.AFTER, "list"),  # one byte each `seconds`
    "truncated_json": FaultKind(Moment.AFTER, "list", 200),
    "short_body": FaultKind(Moment.AFTER, "list", 200),  # fewer bytes than Content-Length, then the connection is cut
    "html_reply": FaultKind(Moment.AFTER, "list", 200, "html"),
    "null_reply": FaultKind(Moment.AFTER, "list", 200),
    "empty_reply": FaultKind(Moment.AFTER, "list", 200),
    "odd_reply": FaultKind(Moment.AFTER, "list", 200),  # {"data": null}
    "repeated_cursor": FaultKind(Moment.VIEW, "list"),
    "empty_list": FaultKind(Moment.VIEW, "list"),  # well-formed, and false
    "flicker_runtime": FaultKind(Moment.VIEW, "list"),
    "missing_from_list": FaultKind(Moment.VIEW, "list"),
    "odd_fields": FaultKind(Moment.VIEW, "list"),  # `fields` instead of the pod's own
    "listing_lag": FaultKind(Moment.POD, "create"),  # not in the list for `seconds`
    "early_404": FaultKind(Moment.POD, "create"),  # GET answers 404 for `seconds`
    "slow_boot": FaultKind(Moment.POD, "create"),  # boots in `seconds`
    "stuck_provisioning": FaultKind(Moment.POD, "create"),
    "stuck_starting": FaultKind(Moment.POD, "create"),
    "no_runtime": FaultKind(Moment.POD, "create"),  # RUNNING with runtime null for ever
    "no_ssh_details": FaultKind(Moment.POD, "create"),
    "boot_error": FaultKind(Moment.POD, "create"),  # status ERROR instead of RUNNING
    "exits": FaultKind(Moment.POD, "create"),  # the next four: `seconds` after RUNNING
    "vanishes": FaultKind(Moment.POD, "create"),
    "freezes": FaultKind(Moment.POD, "create"),
    "flickers": FaultKind(Moment.POD, "create"),  # runtime null for `seconds` once, after RUNNING
    "same_machine": FaultKind(Moment.POD, "create"),  # the API names its machine: `detail`, the same each time
    "no_nonce": FaultKind(Moment.POD, "create"),  # its environment lacks BOOTSTRAP_NONCE
    "wrong_pod_id": FaultKind(Moment.POD, "create"),  # its RUNPOD_POD_ID is another pod's
    "corrupt_uploads": FaultKind(Moment.POD, "create"),  # a byte of what comes by SFTP is another one on the disk
    **{kind: FaultKind(Moment.POD, "create") for kind in MACHINE_FAULTS},
    "disk_fills": FaultKind(Moment.POD, "create"),  # `seconds` after RUNNING; the pod's python3 sees it too
    "agent_dies": FaultKind(Moment.POD, "create"),  # as soon as it was started
    "agent_cut_off": FaultKind(Moment.POD, "create"),  # it runs, and its calls get no answer
    "slow_pull": FaultKind(Moment.POD, "create"),  # the log shows the image coming for `seconds`
    "clock_skew": FaultKind(Moment.POD, "create"),  # `date` on the pod is off by `seconds`
    "ssh_refused": FaultKind(Moment.POD, "create"),
    "ssh_silent": FaultKind(Moment.POD, "create"),  # accepts and says nothing
    "ssh_not_ssh": FaultKind(Moment.POD, "create"),  # something else answers
    "ssh_relayed": FaultKind(Moment.POD, "create"),  # another machine answers and passes everything on to the pod
    "ssh_wrong_key": FaultKind(Moment.POD, "create"),  # another at each connection; cut as ssh_dropped is
    "ssh_auth_refused": FaultKind(Moment.POD, "create"),
    "ssh_no_shell": FaultKind(Moment.POD, "create"),  # logs in, and runs nothing
    "ssh_dropped": FaultKind(Moment.POD, "create"),  # cut `seconds` after the first `detail` commands start, or each
}


@dataclass(frozen=True, slots=True)
class Call:
    """What a fault can be matched against."""

    operation: str
    pod_name: str | None = None
    gpu_type: str | None = None
    data_centers: Sequence[str] = ()


@dataclass(slots=True)
class Fault:
    """One injected fault, and how often it was checked and took effect."""

    id: int
    kind: str
    operation: str
    nth: tuple[int, ...] = ()  # of the matching calls since injection, from 1; empty: all
    times: int | None = None  # how often at most
    probability: float = 1.0
    name: str | None = None  # a regular expression for the pod's name, found anywhere in it
    gpu_type: str | None = None  # with data_center: only create calls for that offer
    data_center: str | None = None
    seconds: float = 0.0
    detail: str | None = None
    retry_after_s: float | None = None
    fields: Mapping[str, Any] | None = None
    asked: int = 0
    applied: int = 0
    applied_at: float | None = None  # epoch seconds of the first time

    @property
    def moment(self) -> Moment:
        """When this fault applies."""
        return KINDS[self.kind].moment

    def concerns(self, call: Call) -> bool:
        """Tell whether the fault is meant for such a call at all."""
        return (
            self.operation in ("any", call.operation)
            and (self.name is None or re.search(self.name, call.pod_name or "") is not None)
            and self.gpu_type in (None, call.gpu_type)
            and (self.data_center is None or self.data_center in call.data_centers)
        )

    def as_json(self) -> dict[str, Any]:
        """Show the fault over the control API."""
        return {field: getattr(self, field) for field in type(self).__slots__}


class FaultTable:
    """The injected faults; deterministic for a seed and an order of calls."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(f"faults:{seed}")
        self._next_id = 1
        self.faults: list[Fault] = []

    def inject(self, spec: Mapping[str, Any]) -> Fault:
        """Add a fault; ValueError says what is wrong with it."""
        fields = dict(spec)
        kind = fields.pop("kind", None)
        if kind not in KINDS:
            message = f"unknown fault kind {kind!r}; known: {', '.join(sorted(KINDS))}"
            raise ValueError(message)
        unknown = set(fields) - set(Fault.__slots__) | set(fields) & {"id", "asked", "applied", "applied_at"}
        if unknown:
            message = f"unknown fault fields: {', '.join(sorted(unknown))}"
            raise ValueError(message)
        nth = fields.pop("nth", ())
        fields["nth"] = (nth,) if isinstance(nth, int) else tuple(nth)
        if fields.get("name") is not None:
            re.compile(fields["name"])
        operation = fields.pop("operation", KINDS[kind].operation)
        fault = Fault(self._next_id, kind, operation, **fields)
        self._next_id += 1
        self.faults.append(fault)
        return fault

    def clear(self) -> None:
        """Remove all faults. Pods keep the faults of their create call."""
        self.faults.clear()

    def applying(self, call: Call, moment: Moment) -> list[Fault]:
        """Every fault that hits this call at this moment, in the order of injection."""
        return [fault for fault in self.faults if fault.moment is moment and self._hits(fault, call)]

    def _hits(self, fault: Fault, call: Call) -> bool:
        if not fault.concerns(call) or (fault.times is not None and fault.applied >= fault.times):
            return False
        fault.asked += 1
        if fault.nth and fault.asked not in fault.nth:
            return False
        if fault.probability < 1.0 and self._random.random() >= fault.probability:
            return False
        fault.applied += 1
        fault.applied_at = fault.applied_at or time.time()
        return True

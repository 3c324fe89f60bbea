"""What can be made to go wrong, as a table: kind of fault -> which operation it hits and at which moment.

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
    """When a fault strikes."""

    BEFORE = "before"  # instead of the operation: nothing is committed
    AFTER = "after"  # the operation is done, the answer is spoilt
    VIEW = "view"  # one read shows something else than the truth
    POD = "pod"  # chosen at the create call, lived by the pod


@dataclass(frozen=True, slots=True)
class Kind:
    """One row of the table; `status` None means that the connection itself misbehaves."""

    moment: Moment
    operation: str  # the default; "any" matches every API call
    status: int | None = None
    detail: str = ""


KINDS: Mapping[str, Kind] = {
    "no_capacity": Kind(Moment.BEFORE, "create", 400, CAPACITY_TEXTS[0]),
    "quota": Kind(Moment.BEFORE, "create", 400, QUOTA_TEXT),
    "no_balance": Kind(Moment.BEFORE, "create", 402, BALANCE_TEXT),
    "bad_request": Kind(Moment.BEFORE, "create", 422, BAD_REQUEST_TEXT),
    "unauthorized": Kind(Moment.BEFORE, "any", 401, "missing bearer token"),
    "forbidden": Kind(Moment.BEFORE, "any", 403, "access denied"),
    "cloudflare": Kind(Moment.BEFORE, "any", 403, "error code: 1010"),
    "not_found": Kind(Moment.BEFORE, "get", 404, "pod not found"),
    "conflict": Kind(Moment.BEFORE, "action", 409, "the pod is busy"),
    "rate_limited": Kind(Moment.BEFORE, "any", 429, RATE_LIMIT_TEXT),
    "internal_error": Kind(Moment.BEFORE, "any", 500, "internal server error"),
    "bad_gateway": Kind(Moment.BEFORE, "any", 502, "html"),
    "unavailable": Kind(Moment.BEFORE, "any", 503, "service unavailable"),
    "gateway_timeout": Kind(Moment.BEFORE, "any", 504, "html"),
    "cut_before_commit": Kind(Moment.BEFORE, "any"),
    "hang_before_commit": Kind(Moment.BEFORE, "any"),
    "delete_lies": Kind(Moment.BEFORE, "delete", 204),  # says 204, and the pod lives on
    "commit_then_500": Kind(Moment.AFTER, "create", 500, "internal server error"),
    "commit_then_502": Kind(Moment.AFTER, "create", 502, "html"),
    "commit_then_cut": Kind(Moment.AFTER, "create"),
    "commit_then_hang": Kind(Moment.AFTER, "create"),
    "slow_drip": Kind(Moment.AFTER, "list"),  # one byte each `seconds`
    "truncated_json": Kind(Moment.AFTER, "list", 200),
    "short_body": Kind(Moment.AFTER, "list", 200),  # fewer bytes than Content-Length, then the connection is cut
    "html_reply": Kind(Moment.AFTER, "list", 200, "html"),
    "null_reply": Kind(Moment.AFTER, "list", 200),
    "empty_reply": Kind(Moment.AFTER, "list", 200),
    "odd_reply": Kind(Moment.AFTER, "list", 200),  # {"data": null}
    "repeated_cursor": Kind(Moment.VIEW, "list"),
    "empty_list": Kind(Moment.VIEW, "list"),  # well-formed, and false
    "flicker_runtime": Kind(Moment.VIEW, "list"),
    "missing_from_list": Kind(Moment.VIEW, "list"),
    "odd_fields": Kind(Moment.VIEW, "list"),  # `fields` instead of the pod's own
    "listing_lag": Kind(Moment.POD, "create"),  # not in the list for `seconds`
    "early_404": Kind(Moment.POD, "create"),  # GET answers 404 for `seconds`
    "slow_boot": Kind(Moment.POD, "create"),  # boots in `seconds`
    "stuck_provisioning": Kind(Moment.POD, "create"),
    "stuck_starting": Kind(Moment.POD, "create"),
    "no_runtime": Kind(Moment.POD, "create"),  # RUNNING with runtime null for ever
    "no_ssh_details": Kind(Moment.POD, "create"),
    "boot_error": Kind(Moment.POD, "create"),  # status ERROR instead of RUNNING
    "exits": Kind(Moment.POD, "create"),  # the next four: `seconds` after RUNNING
    "vanishes": Kind(Moment.POD, "create"),
    "freezes": Kind(Moment.POD, "create"),
    "flickers": Kind(Moment.POD, "create"),  # runtime null for `seconds` once, after RUNNING
    "same_machine": Kind(Moment.POD, "create"),  # the API names its machine: `detail`, the same each time
    "no_nonce": Kind(Moment.POD, "create"),  # its environment lacks BOOTSTRAP_NONCE
    "wrong_pod_id": Kind(Moment.POD, "create"),  # its RUNPOD_POD_ID is another pod's
    "corrupt_uploads": Kind(Moment.POD, "create"),  # a byte of what comes by SFTP is another one on the disk
    **{kind: Kind(Moment.POD, "create") for kind in MACHINE_FAULTS},
    "disk_fills": Kind(Moment.POD, "create"),  # `seconds` after RUNNING; the pod's python3 sees it too
    "agent_dies": Kind(Moment.POD, "create"),  # as soon as it was started
    "agent_cut_off": Kind(Moment.POD, "create"),  # it lives, and what it calls does not answer
    "slow_pull": Kind(Moment.POD, "create"),  # the log shows the image coming for `seconds`
    "clock_skew": Kind(Moment.POD, "create"),  # `date` on the pod is off by `seconds`
    "ssh_refused": Kind(Moment.POD, "create"),
    "ssh_silent": Kind(Moment.POD, "create"),  # accepts and says nothing
    "ssh_not_ssh": Kind(Moment.POD, "create"),  # something else answers
    "ssh_relayed": Kind(Moment.POD, "create"),  # another machine answers and passes everything on to the pod
    "ssh_wrong_key": Kind(Moment.POD, "create"),  # another at each connection; cut as ssh_dropped is
    "ssh_auth_refused": Kind(Moment.POD, "create"),
    "ssh_no_shell": Kind(Moment.POD, "create"),  # logs in, and runs nothing
    "ssh_dropped": Kind(Moment.POD, "create"),  # cut `seconds` after the first `detail` commands start, or each
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
    """One injected fault and how often it was asked and struck."""

    id: int
    kind: str
    operation: str
    nth: tuple[int, ...] = ()  # of the matching calls since injection, from 1; empty: all
    times: int | None = None  # at most so many strikes
    probability: float = 1.0
    name: str | None = None  # a regular expression for the pod's name, found anywhere in it
    gpu_type: str | None = None  # with data_center: only create calls for that offer
    data_center: str | None = None
    seconds: float = 0.0
    detail: str | None = None
    retry_after_s: float | None = None
    fields: Mapping[str, Any] | None = None
    asked: int = 0
    struck: int = 0
    struck_at: float | None = None  # epoch seconds of the first strike

    @property
    def moment(self) -> Moment:
        """When this fault strikes."""
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
        unknown = set(fields) - set(Fault.__slots__) | set(fields) & {"id", "asked", "struck", "struck_at"}
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
        """Forget every fault; pods keep what they were born with."""
        self.faults.clear()

    def strike(self, call: Call, moment: Moment) -> list[Fault]:
        """Every fault that hits this call at this moment, in the order of injection."""
        return [fault for fault in self.faults if fault.moment is moment and self._hits(fault, call)]

    def _hits(self, fault: Fault, call: Call) -> bool:
        if not fault.concerns(call) or (fault.times is not None and fault.struck >= fault.times):
            return False
        fault.asked += 1
        if fault.nth and fault.asked not in fault.nth:
            return False
        if fault.probability < 1.0 and self._random.random() >= fault.probability:
            return False
        fault.struck += 1
        fault.struck_at = fault.struck_at or time.time()
        return True

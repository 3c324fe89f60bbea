"""What `health` must say during each fault: the true cause, and whether work or money is affected (exit 1).

The report is built by the functions of the command, in this process. It does not ask RunPod or S3: a request of ours
would use up a fault that is meant for the orchestrator. What the leader says of both is in the database.
"""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.cli.output import Output
from orchestrator.cli.progress import counting
from orchestrator.cli.report_builder import report_on
from orchestrator.config.settings import Settings
from orchestrator.diagnostics.condition_kinds import HIGH

ASK_EVERY_S = 1.0
NOT_ASKED = {"runpod_api_key": None, "s3_bucket": None}
LISTS, ODD, LEASE = "RunPod does not answer", "RunPod's list differs", "does not renew its lease|is not running"


@dataclass(frozen=True, slots=True)
class ExpectedHealth:
    """`cause`: what a condition must say, in its sentence or evidence; empty: nothing has to be said."""

    cause: str = ""
    affected: bool | None = None  # True: this condition makes the fleet UNHEALTHY; False: none may; None: either


def _bringup(code: str) -> ExpectedHealth:
    """Every pod of the wave fails with this code, so that tasks wait."""
    return ExpectedHealth(rf"bring-ups? failed \({code}\)", affected=True)


def _lost(code: str) -> str:
    """A worker ended with its task."""
    return rf"lost with (?:its|their) worker \({code}|workers? in service failed \({code.partition('/')[0]}"


LIST_FAULTS = (
    "cloudflare", "rate_limited", "internal_error", "bad_gateway", "unavailable",
    "gateway_timeout", "slow_drip", "truncated_json", "short_body", "html_reply", "null_reply", "empty_reply",
    "odd_reply", "repeated_cursor", "odd_fields", "provider_away",
)  # fmt: skip
LOST = {
    "pod_vanishes": "POD_MISSING", "pod_exits": "POD_EXITED", "pod_freezes": "NO_HEARTBEAT",
    "agent_killed": "NO_HEARTBEAT/KILLED", "agent_stopped": "NO_HEARTBEAT",
}  # fmt: skip
EXPECTED: Mapping[str, ExpectedHealth] = {
    "nothing": ExpectedHealth(affected=False),
    # until the task is done by its next attempt, which may be sooner than the next look; then the worker's end is shown
    **{name: ExpectedHealth(_lost(code)) for name, code in LOST.items()},
    "poison": ExpectedHealth(r"Task \S+ \(hang\) has ended \d workers", affected=True),
    "stuck": ExpectedHealth("task_stuck|STUCK"),
    **{f"ssh_{how}_later": ExpectedHealth("do not reach S3", affected=False) for how in ("refused", "silent")},
    "ssh_wrong_key_later": ExpectedHealth("do not reach S3"),
    "ports_change": ExpectedHealth(affected=False),
    **{name: ExpectedHealth(LEASE) for name in ("killed", "leader_killed", "leader_frozen", "orchestrator_frozen")},
    "intent_unasked": ExpectedHealth("is not running", affected=True),
    **{name: ExpectedHealth("its calls get no answer", affected=True) for name in ("gateway_cut", "gateway_away")},
    **{name: ExpectedHealth("The database is unreachable", affected=True) for name in ("postgres_crashes",
                                                                                     "postgres_restarts")},
    "s3_restarts": ExpectedHealth("S3 cannot be used|do not reach S3"),
    "store_away": ExpectedHealth("S3 cannot be used", affected=True),
    **{name: ExpectedHealth(LISTS) for name in LIST_FAULTS},
    **{name: ExpectedHealth("RunPod refuses the API key") for name in ("unauthorized", "forbidden")},
    **{name: ExpectedHealth(ODD) for name in ("empty_list", "empty_list_for_long", "flicker_runtime",
                                              "missing_from_list")},
    "quota": ExpectedHealth(r"refuses to rent for pool default \(QUOTA\)", affected=True),
    "broke": ExpectedHealth(r"refuses to rent for pool default \(BALANCE\)", affected=True),
    "no_balance": ExpectedHealth(r"refuses to rent for pool default \(BALANCE\)", affected=True),
    "bad_request": ExpectedHealth(r"refuses to rent for pool default \(BAD_SPEC\)", affected=True),
    **{name: ExpectedHealth(r"refuses to rent for pool default \(API_AUTH\)", affected=True)
       for name in ("create_unauthorized", "create_forbidden")},
    "dry_market": ExpectedHealth("Every offer of pool default is sold out", affected=True),
    **{name: ExpectedHealth("has not deleted the pod of worker") for name in ("not_found", "conflict", "delete_lies")},
    **{name: ExpectedHealth("CREATE_UNKNOWN") for name in ("cut_before_commit", "hang_before_commit")},
    "slow_pull": ExpectedHealth("IMAGE_PULL_SLOW"),
    **{name: ExpectedHealth("TASKS_FAIL_HERE|different tasks failed in a row")
       for name in ("sick_gpu", "sick_library", "sick_model", "sick_network")},
    "sick_alone": ExpectedHealth("TASKS_FAIL_UNJUDGED|different tasks failed in a row"),
    "disk_fills": ExpectedHealth("disk is full|DISK_FULL"),
    "release_bad": ExpectedHealth("fails its tasks on every worker|different tasks failed in a row"),
    "setup_command": _bringup("SETUP_FAILED"),
    "same_machine": ExpectedHealth("ECC|HOST_AVOIDED"),
    "machine_xid": ExpectedHealth("XID_79"),
    "machine_gpu_lost": ExpectedHealth("GPU_LOST"),
    "machine_smi_hangs": ExpectedHealth("SIGNAL_LOST|GPU_UNCHECKED|GPU_HUNG"),
    "machine_gpu_gone": ExpectedHealth("GPU_COUNT_DROPPED"),
    "machine_ecc": ExpectedHealth("ECC_UNCORRECTED"),
    "machine_recovery": ExpectedHealth("GPU_RECOVERY"),
    **{name: ExpectedHealth("POD_EXITED|POD_MISSING|NO_HEARTBEAT") for name in ("exits", "vanishes", "freezes")},
    "cluster_controller_evicted": ExpectedHealth(_lost("POD_MISSING")),
    "cluster_controller_freezes": ExpectedHealth(_lost("MEMBER_LOST")),
    **{name: ExpectedHealth(LEASE) for name in ("cluster_orchestrator_killed", "cluster_lost_and_unled")},
    **{f"cluster_{name}": ExpectedHealth(code) for name, code in {
        "ctld_killed": "CONTROLLER_DOWN", "node_killed": "NODE_DOWN", "munge_key": "MUNGE_KEY_MISMATCH",
        "clock_skew": "CLOCK_SKEW", "network_cut": "FABRIC_CUT", "ssh_lost": "MEMBER_UNREACHED",
        "member_evicted": "MEMBER_UNREACHED|MEMBER_LOST|NODES_MISSING",
    }.items()},
    "cluster_half_sold_out": ExpectedHealth(r"Cluster \S+ of pool \S+ has failed", affected=True),
}  # fmt: skip
UNSEEN = frozenset({  # over before an operator could ask, or nothing that anybody has to know
    "ssh_dropped_later", "redeployed", "leader_ends", "no_capacity", "commit_then_500", "commit_then_502",
    "commit_then_cut", "commit_then_hang", "listing_lag", "early_404", "slow_boot", "flickers",
})  # fmt: skip


def expected_of(name: str, ends_as: Sequence[str]) -> ExpectedHealth:
    """What must be said during a case; of a wave of pods that ends with one code, that code."""
    if name in EXPECTED:
        return EXPECTED[name]
    return ExpectedHealth() if name in UNSEEN or not ends_as else _bringup(ends_as[0])


class HealthWatch:
    """Asks all the while; `lines` are the conditions that were found after the fault."""

    def __init__(self, environment: Callable[[], Mapping[str, str]], expected: ExpectedHealth) -> None:
        self._environment, self.expected = environment, expected
        self._cause = re.compile(expected.cause)
        self.named: Mapping[str, Any] | None = None  # the condition that says the cause, the most severe form of it
        self.unhealthy: set[str] = set()
        self._reports = 0

    async def watch(self, has_begun: Callable[[], bool]) -> None:
        """Look until cancelled, or until no further look can change the result: a report is much work."""
        while not self.settled:
            if has_begun():
                await self.look()
            await asyncio.sleep(ASK_EVERY_S)

    @property
    def settled(self) -> bool:
        """Whether the cause was said in its most severe form, or nothing has to be said and a report was made."""
        if self.expected.affected is False:
            return False
        if not self.expected.cause:
            return self._reports > 0
        return self.named is not None and self.named["priority"] == HIGH

    async def look(self) -> None:
        """One report."""
        given = self._environment()
        said: dict[str, Any] = {name.lower(): value for name, value in given.items() if value}
        settings = Settings(**said).model_copy(update=NOT_ASKED)
        with counting(Output(), None, 1) as told:
            report = await report_on(settings, given, told, deep=False)
        self._reports += 1
        for one in report["recommendations"]:
            severe = one["priority"] == HIGH
            if severe:
                self.unhealthy.add(f"{one['issue']}: {one['detail']}")
            fits = self.expected.cause and self._cause.search(f"{one['issue']} {one['detail']}")
            if fits and (self.named is None or (severe and self.named["priority"] != HIGH)):
                self.named = one

    @property
    def sentence(self) -> str:
        """What was said, and the exit code of `health` because of it."""
        if self.named is None:
            return ""
        return f"exit {int(self.named['priority'] == HIGH)}: {self.named['issue']}"

    def missed(self) -> list[str]:
        """What no report said. A cause may last for seconds only, in which a busy machine makes no report."""
        if self.expected.cause and self.named is None:
            return [f"health never said {self.expected.cause!r}"]
        if self.expected.affected and self.named and self.named["priority"] != HIGH:
            return [f"health exited with 0: {self.named['issue']}"]
        return []

    def wrong(self) -> list[str]:
        """What `health` said without need."""
        if self.expected.affected is False and self.unhealthy:
            return [f"health exited with 1: {'; '.join(sorted(self.unhealthy))}"]
        return []

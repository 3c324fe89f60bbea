"""A case for every kind in the emulator's table of faults, under the kind's own name."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.core.failures import FailureCode
from testbed.runpod.machine_faults import MACHINE_FAULTS
from tests.proofs.fault_matrix.environment import Environment
from tests.proofs.fault_matrix.infrastructure import SILENT, UNSHOWN
from tests.proofs.fault_matrix.runner import BOOT_S, Act, Case

HOLD_S = 6.0  # a fault of the list lasts for three lists
WAVE = 2  # pods in the first wave: MAX_ACTIVE_GPUS of runner.SETTINGS
UNLISTED, NOT_JSON = "(?:no list of pods|no new one).*", "no JSON, or not all of it"
LISTED = "it is still listed since"
BRINGUP_S = {"SPAWNING_TIMEOUT_SEC": "12"}  # the hard cap, where a stage's own deadline is a minute or ten
POD_PYTHON = {"WORKER_PYTHON": "python3"}  # the pod's own: what befalls an agent there begins with it
# The RTX 4090 has no rows to remap.
A100 = {"RUNPOD_GPU_TYPE": "NVIDIA A100 80GB PCIe", "MAX_HOURLY_COST_USD": "6.60", "DAILY_BUDGET_USD": "0.95"}
TWO_GPUS = {
    "POOLS_FILE": str(Path(__file__).with_name("two_gpus.toml")),
    "MAX_HOURLY_COST_USD": "14",
    "DAILY_BUDGET_USD": "2",
}
REPLACED = "replaced by another pod"
ACCEPTED_LATER = "tried again at intervals; rented when allowed"
ADOPTED = "adopted by its name, none rented twice"
UNTOUCHED = "nothing decided about pods; the work goes on"
UNNOTICED = "no worker ends, nothing is done"


async def until_named(env: Environment) -> None:
    """The faults were injected before the work; they last until a row names the cause."""
    await env.named()


async def until_applied(env: Environment) -> None:
    """… or until they were applied and named."""
    await env.faults_applied()
    await env.named()


def during(kind: str, **fields: Any) -> Act:
    """Inject a fault in the middle of the work; it lasts for HOLD_S, and until a row names the cause."""

    async def act(env: Environment) -> None:
        await env.under_way()
        await env.fault(kind, **fields)
        await env.faults_applied()
        await asyncio.sleep(HOLD_S)
        await env.named()

    return act


async def other_key(env: Environment) -> None:
    """Another machine seems to answer at a busy pod's address."""
    busy = await env.busy()
    env.mark_fault()
    await env.stack.control("POST", f"pods/{busy['pod']}/ssh", {"mode": "wrong_key", "cut": True})
    await env.named()


def _boots(shown: str) -> str:
    """What is said of a pod while RunPod shows it so."""
    return f"RunPod shows it as {shown},"


def _born(
    kind: str,
    description: str,
    ends_as: FailureCode,
    says: str | None = None,
    *,
    settings: Mapping[str, str] | None = None,
    quick: bool = False,
    **fields: Any,
) -> Case:
    """A whole wave of pods is born with a fault that ends it; `says`: where more than the code may be said."""
    return Case(
        name=kind,
        description=description,
        outcome=REPLACED,
        says=says or rf"\b{ends_as}\b",
        act=until_named,
        faults=({"kind": kind, "times": WAVE, **fields},),
        settings=settings or {},
        ends_as=(ends_as,),
        keeps_logs=kind not in {"exits", "vanishes", "freezes"},
        after_s=BOOT_S[0] + fields["seconds"] if kind in {"exits", "vanishes", "freezes"} else 0,
        quick=quick,
    )


def _odd(kind: str, description: str, says: str, **fields: Any) -> Case:
    """A pod is born odd, and must be taken as it is."""
    fault = {"kind": kind, "times": WAVE, **fields}
    return Case(kind, description, UNNOTICED, says, until_applied, faults=(fault,), pods=WAVE + 2)


def _listed(kind: str, description: str, says: str, *, quick: bool = False, **fields: Any) -> Case:
    """The provider's list is unreadable in the middle of the work; what is said must say in what way."""
    fields = {"operation": "list", **fields}
    return Case(kind, description, UNTOUCHED, UNLISTED + says, during(kind, **fields), pods=WAVE + 2, quick=quick)


def _false(kind: str, description: str, says: str, **fields: Any) -> Case:
    """The provider's list is well-formed and untrue for a moment."""
    return Case(kind, description, UNNOTICED, says, during(kind, **fields), pods=WAVE + 2)


def _lost_reply(kind: str, description: str, *, quick: bool = False, **more: Any) -> Case:
    """The pod exists, the answer to the create call does not arrive."""
    says = "the reply to the create call was lost|RunPod has not answered the create call"
    fault = {"kind": kind, "times": WAVE}
    return Case(kind, description, ADOPTED, says, until_named, faults=(fault,), pods=WAVE + 2, quick=quick, **more)


# What a case needs besides the fault of its machine: the GPUs that can have it, or a stage that ends sooner.
HARDWARE: Mapping[str, Mapping[str, Any]] = {
    **{kind: {"settings": TWO_GPUS} for kind in ("gpu_missing", "gpu_lost", "nvlink_inactive", "nvlink_degraded")},
    "remap_pending": {"settings": A100},
    "smi_hangs": {
        "says": "nvidia-smi has not answered|GPU_NOT_ATTACHED",
        "settings": {"BRINGUP_DEADLINES": "gpu_inventory=4"},
        "quick": True,
    },
}
KINDS: tuple[Case, ...] = (
    Case(
        "no_capacity", "the first GPU type has no stock", "the next offer is asked at once", "NO_CAPACITY",
        until_named, faults=({"kind": "no_capacity", "gpu_type": "NVIDIA GeForce RTX 4090"},),
        settings={"RUNPOD_GPU_TYPE": "NVIDIA GeForce RTX 4090,NVIDIA L40S"}, meets=(FailureCode.NO_CAPACITY,),
        quick=True,
    ),
    Case("quota", "the account may have no more pods", ACCEPTED_LATER, "QUOTA",
          until_named, faults=({"kind": "quota"},), ends_as=(FailureCode.QUOTA,)),
    Case("no_balance", "402 to every create", "tried again at intervals; rented when there is money", "BALANCE",
          until_named, faults=({"kind": "no_balance"},), ends_as=(FailureCode.BALANCE,)),
    Case("bad_request", "422 to every create", ACCEPTED_LATER, "BAD_SPEC",
          until_named, faults=({"kind": "bad_request"},), ends_as=(FailureCode.BAD_SPEC,)),
    _listed("unauthorized", "401 to every call", r"\(401\)", operation="any", quick=True),
    _listed("forbidden", "403 to every call", "403 access denied", operation="any"),
    _listed("cloudflare", "403 from Cloudflare to every call", "403 error code: 1010", operation="any"),
    Case("not_found", "404 to the delete, and the pod lives", "deleted again until no list shows it", LISTED,
          until_applied, faults=({"kind": "not_found", "operation": "delete", "times": WAVE},)),
    Case("conflict", "409 to the delete", "deleted again until no list shows it", "deleting failed",
          until_applied, faults=({"kind": "conflict", "operation": "delete", "times": WAVE},)),
    _listed("rate_limited", "429 with Retry-After to every call", "429 rate limit", operation="any", retry_after_s=1),
    _listed("internal_error", "500 to every call", "500 internal", operation="any"),
    _listed("bad_gateway", "502 in HTML to every call", "502 ", operation="any"),
    _listed("unavailable", "503 to every call", "503 service", operation="any"),
    _listed("gateway_timeout", "504 in HTML to every call", "504 ", operation="any"),
    Case("cut_before_commit", "the create call is cut, no pod comes", "looked for by name, then " + REPLACED,
          "CREATE_UNKNOWN", until_applied,
          faults=({"kind": "cut_before_commit", "operation": "create", "times": WAVE},),
          ends_as=(FailureCode.CREATE_UNKNOWN,), limit_s=240),
    Case("hang_before_commit", "the create call hangs, no pod comes", "looked for by name, then " + REPLACED,
          "CREATE_UNKNOWN|has not answered the create call", until_applied,
          faults=({"kind": "hang_before_commit", "operation": "create", "times": WAVE},),
          ends_as=(FailureCode.CREATE_UNKNOWN,), limit_s=240),
    Case("delete_lies", "204 to the delete, and the pod lives", "deleted again until no list shows it",
          LISTED, until_applied, faults=({"kind": "delete_lies", "times": WAVE},), quick=True),
    _lost_reply("commit_then_500", "500 to the create, and the pod exists"),
    _lost_reply("commit_then_502", "502 in HTML to the create, and the pod exists"),
    _lost_reply("commit_then_cut", "the create's answer is cut, and the pod exists", quick=True),
    _lost_reply("commit_then_hang", "the create's answer never comes, and the pod exists"),
    Case("slow_drip", "the list comes byte by byte", UNTOUCHED, UNLISTED + "not answered yet",
          during("slow_drip", seconds=0.2), pods=WAVE + 2),
    _listed("truncated_json", "the list ends in the middle", NOT_JSON, quick=True),
    _listed("short_body", "the list is cut in the middle", "was cut off"),
    _listed("html_reply", "the list is a web page", NOT_JSON),
    _listed("null_reply", "the list is null", "reply is not an object"),
    _listed("empty_reply", "the list is no byte at all", "reply is not an object"),
    _listed("odd_reply", 'the list is {"data": null}', "pods is not a list"),
    _listed("repeated_cursor", "the list's cursor comes back for ever", "the cursor came back again"),
    _listed("odd_fields", "a pod in the list has an id of another type", "cannot be read: id", fields={"id": 7}),
    _false("empty_list", "two lists are empty, and false", UNSHOWN, times=2),
    _false("flicker_runtime", "three lists show no runtime", "missing from RunPod's list: RUNNING", times=3),
    _false("missing_from_list", "two lists leave the pods out", UNSHOWN, times=2),
    _odd("listing_lag", "the pod is not in the list for 8 s", "no list of RunPod has shown it yet", seconds=8),
    _odd("early_404", "GET says 404 of the new pod for 8 s", "verified", seconds=8),  # nobody asks by GET: all is well
    _odd("slow_boot", "the pod boots in 10 s", _boots("(PROVISIONING|STARTING)"), seconds=10),
    Case("slow_pull", "the image comes for 26 s, the stage has 20 s", "waited for once more: its log shows it",
          "its image is being pulled", until_applied, faults=({"kind": "slow_pull", "times": WAVE, "seconds": 26},),
          settings={"BRINGUP_DEADLINES": "pod_running=20"}, meets=(FailureCode.IMAGE_PULL_SLOW,), pods=WAVE + 2),
    _odd("flickers", "the new pod's runtime is null for 5 s", _boots("RUNNING without a runtime"), seconds=5),
    _born("stuck_provisioning", "PROVISIONING for ever", FailureCode.NO_RUNTIME, _boots("PROVISIONING"),
          settings=BRINGUP_S),
    _born("stuck_starting", "STARTING for ever", FailureCode.IMAGE_PULL_SLOW, _boots("STARTING"),
          settings={"SPAWNING_TIMEOUT_SEC": "24"}),  # its log is read until it pauses, in an eighth of that time
    _born("no_runtime", "RUNNING without a runtime for ever", FailureCode.NO_RUNTIME,
          _boots("RUNNING without a runtime"), settings={"BRINGUP_DEADLINES": "pod_running=12"}, quick=True),
    _born("no_ssh_details", "no public address for port 22", FailureCode.SSH_DETAILS_MISSING,
          "no public address for its port 22", settings=BRINGUP_S),
    _born("boot_error", "status ERROR instead of RUNNING", FailureCode.POD_ERROR),
    _born("exits", "EXITED a second after RUNNING", FailureCode.POD_EXITED, seconds=1),
    _born("vanishes", "gone 4 s after RUNNING, without a notice", FailureCode.POD_MISSING, UNSHOWN, seconds=4,
          settings={"HEARTBEAT_TIMEOUT_SEC": "18"}),
    _born("freezes", "frozen 4 s after RUNNING", FailureCode.NO_HEARTBEAT, SILENT, seconds=4),
    _born("wrong_pod_id", "the pod's RUNPOD_POD_ID is another's", FailureCode.POD_MISMATCH),
    _born("no_nonce", "the pod has no BOOTSTRAP_NONCE", FailureCode.HOST_KEY_UNPROVEN),
    _born("corrupt_uploads", "a byte of each file that is sent there is changed", FailureCode.STALE_CODE),
    *(_born(kind, fault.description, fault.code, **HARDWARE.get(kind, {})) for kind, fault in MACHINE_FAULTS.items()),
    _born("agent_dies", "the agent ends as soon as it was started", FailureCode.NO_PROCESS, settings=POD_PYTHON),
    _born("agent_cut_off", "the agent lives and reaches nobody", FailureCode.NO_HEARTBEAT, "none has come|NO_HEARTBEAT",
          settings={**POD_PYTHON, "BRINGUP_DEADLINES": "heartbeat=5"}, quick=True),
    _born("clock_skew", "the pod's clock is 300 s off", FailureCode.CLOCK_SKEW, seconds=300),
    _born("ssh_refused", "nothing listens at the SSH port", FailureCode.TCP_REFUSED, settings=BRINGUP_S),
    _born("ssh_silent", "sshd accepts and says nothing", FailureCode.TCP_TIMEOUT,
          settings={"BRINGUP_DEADLINES": "tcp=12"}, quick=True),
    _born("ssh_not_ssh", "a web server at the SSH port", FailureCode.NOT_SSH, settings=BRINGUP_S),
    _born("ssh_wrong_key", "another host key at each connection, cut after 0.02 s", FailureCode.HOST_KEY_CHANGED,
          seconds=0.02),
    Case("ssh_wrong_key_later", "another host key after a cut connection", "refused, recorded; the work goes on",
          "HostKeyChanged|HOST_KEY_CHANGED", other_key, keeps_logs=False),
    _born("ssh_relayed", "another machine answers and passes on to the pod", FailureCode.HOST_KEY_RELAYED),
    _born("ssh_auth_refused", "our key is refused", FailureCode.AUTH_FAILED),
    _born("ssh_no_shell", "logs in, and runs nothing", FailureCode.EXEC_FAILED),
    _born("ssh_dropped", "each command is cut after 0.02 s", FailureCode.CONNECTION_LOST, settings=BRINGUP_S,
          seconds=0.02),
)  # fmt: skip

"""A trial for every kind in the emulator's table of faults, under the kind's own name."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.demo.trials.harms import SILENT, UNSHOWN
from orchestrator.demo.trials.scene import Scene
from orchestrator.demo.trials.trial import BOOT_S, Act, Trial

HOLD_S = 6.0  # a fault of the list lasts for three lists
WAVE = 2  # pods in the first wave: MAX_ACTIVE_GPUS of trial.SETTINGS
UNLISTED = "no list of pods"
BOOTS = "RunPod shows it as (PROVISIONING|STARTING|RUNNING without a runtime)"
LISTED = "it is still listed since"
CLIMB_S = {"SPAWNING_TIMEOUT_SEC": "12"}  # the hard cap, where a stage's own deadline is a minute or ten
POD_PYTHON = {"WORKER_PYTHON": "python3"}  # the pod's own: what befalls an agent there begins with it
A100 = {"RUNPOD_GPU_TYPE": "NVIDIA A100 80GB PCIe"}  # the RTX 4090 has no rows to remap
TWO_GPUS = {"POOLS_FILE": str(Path(__file__).with_name("two_gpus.toml"))}
REPLACED = "replaced by another pod"
ADOPTED = "adopted by its name, none rented twice"
UNTOUCHED = "nothing decided about pods; the work goes on"
UNNOTICED = "nobody is harmed, nothing is done"


async def until_named(scene: Scene) -> None:
    """The faults were injected before the work; they last until a row names the cause."""
    await scene.named()


async def until_struck(scene: Scene) -> None:
    """… or until they have struck, and that was said."""
    await scene.struck()
    await scene.named()


def during(kind: str, **fields: Any) -> Act:
    """Inject a fault in the middle of the work; it lasts for HOLD_S, and until a row names the cause."""

    async def act(scene: Scene) -> None:
        await scene.under_way()
        await scene.fault(kind, **fields)
        await scene.struck()
        await asyncio.sleep(HOLD_S)
        await scene.named()

    return act


async def other_key(scene: Scene) -> None:
    """Another machine seems to answer at a busy pod's address."""
    busy = await scene.busy()
    scene.strike()
    await scene.stack.control("POST", f"pods/{busy['pod']}/ssh", {"mode": "wrong_key", "cut": True})
    await scene.named()


def _born(
    kind: str, harm: str, says: str, *, settings: Mapping[str, str] | None = None, quick: bool = False, **fields: Any
) -> Trial:
    """A whole wave of pods is born with a fault that ends it."""
    return Trial(
        name=kind,
        harm=harm,
        outcome=REPLACED,
        says=says,
        act=until_named,
        faults=({"kind": kind, "times": WAVE, **fields},),
        settings=settings or {},
        spares=False,
        keeps_logs=kind not in {"exits", "vanishes", "freezes"},
        after_s=BOOT_S[0] + fields["seconds"] if kind in {"exits", "vanishes", "freezes"} else 0,
        quick=quick,
    )


def _odd(kind: str, harm: str, says: str, **fields: Any) -> Trial:
    """A pod is born odd, and must be taken as it is."""
    fault = {"kind": kind, "times": WAVE, **fields}
    return Trial(kind, harm, UNNOTICED, says, until_struck, faults=(fault,), pods=WAVE + 2)


def _listed(kind: str, harm: str, *, quick: bool = False, **fields: Any) -> Trial:
    """The provider's list is unreadable in the middle of the work."""
    fields = {"operation": "list", **fields}
    return Trial(kind, harm, UNTOUCHED, UNLISTED, during(kind, **fields), pods=WAVE + 2, quick=quick)


def _false(kind: str, harm: str, says: str, **fields: Any) -> Trial:
    """The provider's list is well-formed and untrue for a moment."""
    return Trial(kind, harm, UNNOTICED, says, during(kind, **fields), pods=WAVE + 2)


def _lost_reply(kind: str, harm: str, *, quick: bool = False, **more: Any) -> Trial:
    """The pod exists, the answer to the create call does not arrive."""
    says = "the reply to the create call was lost|RunPod has not answered the create call"
    fault = {"kind": kind, "times": WAVE}
    return Trial(kind, harm, ADOPTED, says, until_named, faults=(fault,), pods=WAVE + 2, quick=quick, **more)


KINDS: tuple[Trial, ...] = (
    Trial(
        "no_capacity", "the first GPU type has no stock", "the next offer is asked at once", "NO_CAPACITY",
        until_named, faults=({"kind": "no_capacity", "gpu_type": "NVIDIA GeForce RTX 4090"},),
        settings={"RUNPOD_GPU_TYPE": "NVIDIA GeForce RTX 4090,NVIDIA L40S"}, quick=True,
    ),
    Trial("quota", "the account may have no more pods", "asked again now and then, rented when it may", "QUOTA",
          until_named, faults=({"kind": "quota"},), spares=False),
    Trial("no_balance", "402 to every create", "asked again now and then, rented when there is money", "BALANCE",
          until_named, faults=({"kind": "no_balance"},), spares=False),
    _listed("unauthorized", "401 to every call", operation="any", quick=True),
    _listed("forbidden", "403 to every call", operation="any"),
    _listed("cloudflare", "403 from Cloudflare to every call", operation="any"),
    Trial("not_found", "404 to the delete, and the pod lives", "deleted again until no list shows it", LISTED,
          until_struck, faults=({"kind": "not_found", "operation": "delete", "times": WAVE},)),
    Trial("conflict", "409 to the delete", "deleted again until no list shows it", "deleting failed",
          until_struck, faults=({"kind": "conflict", "operation": "delete", "times": WAVE},)),
    _listed("rate_limited", "429 with Retry-After to every call", operation="any", retry_after_s=1),
    _listed("internal_error", "500 to every call", operation="any"),
    _listed("bad_gateway", "502 in HTML to every call", operation="any"),
    _listed("unavailable", "503 to every call", operation="any"),
    _listed("gateway_timeout", "504 in HTML to every call", operation="any"),
    Trial("cut_before_commit", "the create call is cut, no pod comes", "looked for by name, then " + REPLACED,
          "CREATE_UNKNOWN", until_struck, faults=({"kind": "cut_before_commit", "operation": "create", "times": WAVE},),
          spares=False, limit_s=240),
    Trial("hang_before_commit", "the create call hangs, no pod comes", "looked for by name, then " + REPLACED,
          "CREATE_UNKNOWN|has not answered the create call", until_struck,
          faults=({"kind": "hang_before_commit", "operation": "create", "times": WAVE},),
          spares=False, limit_s=240),
    Trial("delete_lies", "204 to the delete, and the pod lives", "deleted again until no list shows it",
          LISTED, until_struck, faults=({"kind": "delete_lies", "times": WAVE},), quick=True),
    _lost_reply("commit_then_500", "500 to the create, and the pod exists"),
    _lost_reply("commit_then_502", "502 in HTML to the create, and the pod exists"),
    _lost_reply("commit_then_cut", "the create's answer is cut, and the pod exists", quick=True),
    _lost_reply("commit_then_hang", "the create's answer never comes, and the pod exists"),
    Trial("slow_drip", "the list comes byte by byte", UNTOUCHED, UNLISTED, during("slow_drip", seconds=0.2),
          pods=WAVE + 2),
    _listed("truncated_json", "the list ends in the middle", quick=True),
    _listed("short_body", "the list is cut in the middle"),
    _listed("html_reply", "the list is a web page"),
    _listed("null_reply", "the list is null"),
    _listed("empty_reply", "the list is no byte at all"),
    _listed("odd_reply", 'the list is {"data": null}'),
    _listed("repeated_cursor", "the list's cursor comes back for ever"),
    _listed("odd_fields", "a pod in the list has a status of another type", fields={"status": 7}),
    _false("empty_list", "two lists are empty, and false", UNSHOWN, times=2),
    _false("flicker_runtime", "three lists show no runtime", "does not show: RUNNING", times=3),
    _false("missing_from_list", "two lists leave the pods out", UNSHOWN, times=2),
    _odd("listing_lag", "the pod is not in the list for 8 s", "no list of RunPod has shown it yet", seconds=8),
    _odd("early_404", "GET says 404 of the new pod for 8 s", "verified", seconds=8),  # nobody asks by GET: all is well
    _odd("slow_boot", "the pod boots in 10 s", BOOTS, seconds=10),
    Trial("slow_pull", "the image comes for 26 s, the stage has 20 s", "waited for once more: its log shows it",
          f"IMAGE_PULL_SLOW|{BOOTS}", until_struck, faults=({"kind": "slow_pull", "times": WAVE, "seconds": 26},),
          settings={"BRINGUP_DEADLINES": "pod_running=20"}, pods=WAVE + 2),
    _odd("flickers", "the new pod's runtime is null for 5 s", BOOTS, seconds=5),
    _born("stuck_provisioning", "PROVISIONING for ever", f"NO_RUNTIME|{BOOTS}", settings=CLIMB_S),
    _born("stuck_starting", "STARTING for ever", f"NO_RUNTIME|IMAGE_PULL_SLOW|{BOOTS}", settings=CLIMB_S),
    _born("no_runtime", "RUNNING without a runtime for ever", f"NO_RUNTIME|{BOOTS}", settings=CLIMB_S, quick=True),
    _born("no_ssh_details", "no public address for port 22", "SSH_DETAILS_MISSING|no public address",
          settings=CLIMB_S),
    _born("boot_error", "status ERROR instead of RUNNING", "POD_ERROR"),
    _born("exits", "EXITED a second after RUNNING", "POD_EXITED", seconds=1),
    _born("vanishes", "gone 4 s after RUNNING, without a word", f"POD_MISSING|{UNSHOWN}", seconds=4,
          settings={"HEARTBEAT_TIMEOUT_SEC": "18"}),
    _born("freezes", "frozen 4 s after RUNNING", f"{SILENT}|CONNECTION_LOST|NO_PROCESS|heartbeat_lost", seconds=4),
    _born("zero_gpus", "RUNNING with no GPU", "GPU_NOT_ATTACHED"),
    _born("gpu_missing", "one GPU fewer than rented", "GPU_COUNT", settings=TWO_GPUS),
    _born("gpu_lost", "nvidia-smi cannot reach a GPU", "GPU_NOT_ATTACHED|GPU_COUNT|XID|GPU_", settings=TWO_GPUS),
    _born("gpu_wrong_type", "another GPU than rented", "GPU_TYPE"),
    _born("gpu_small_memory", "nine tenths of the type's memory", "GPU_MEMORY"),
    _born("gpu_busy", "memory that nobody on the pod uses", "GPU_BUSY"),
    _born("xid", "an Xid 79 in the kernel's log", "XID_79"),
    _born("ecc_errors", "uncorrected memory errors", "ECC"),
    _born("remap_pending", "memory rows that wait to be remapped", "ECC", settings=A100),
    _born("smi_hangs", "nvidia-smi never answers", "GPU_NOT_ATTACHED|nvidia-smi has not answered",
          settings={"BRINGUP_DEADLINES": "gpu_inventory=4"}, quick=True),
    _born("smi_absent", "no nvidia-smi", "GPU_NOT_ATTACHED"),
    _born("nvlink_inactive", "no NVLink between two GPUs", "NVLINK_INACTIVE", settings=TWO_GPUS),
    _born("nvlink_degraded", "two NVLinks of a GPU are down", "NVLINK_DEGRADED", settings=TWO_GPUS),
    _born("disk_full", "no room on the disk", "DISK"),
    _born("no_inodes", "no inodes left", "INODES"),
    _born("agent_dies", "the agent ends as soon as it was started", "NO_PROCESS", settings=POD_PYTHON),
    _born("agent_cut_off", "the agent lives and reaches nobody", "NO_HEARTBEAT|none has come",
          settings={**POD_PYTHON, "BRINGUP_DEADLINES": "heartbeat=5"}, quick=True),
    _born("old_driver", "a driver too old for the image", "DRIVER_TOO_OLD"),
    _born("clock_skew", "the pod's clock is 300 s off", "CLOCK_SKEW", seconds=300),
    _born("ssh_refused", "nothing listens at the SSH port", "TCP_REFUSED|TCP_TIMEOUT", settings=CLIMB_S),
    _born("ssh_silent", "sshd accepts and says nothing", "TCP_TIMEOUT", settings=CLIMB_S, quick=True),
    _born("ssh_not_ssh", "a web server at the SSH port", "NOT_SSH", settings=CLIMB_S),
    Trial("ssh_wrong_key", "another host key after a cut connection", "refused, recorded; the work goes on",
          "HostKeyChanged|HOST_KEY_CHANGED", other_key, spares=False, keeps_logs=False),
    _born("ssh_auth_refused", "our key is refused", "AUTH_FAILED"),
    _born("ssh_dropped", "each connection is cut after 0.2 s", "CONNECTION_LOST", settings=CLIMB_S, seconds=0.2),
)  # fmt: skip

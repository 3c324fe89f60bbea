"""Checks of the output of nvidia-smi and the kernel log, in real forms, against the rented GPUs."""

from typing import Any

import pytest

from orchestrator.core import gpus, interconnect
from orchestrator.core.gpu_profiles import PROFILES
from orchestrator.core.machine_checks import CheckResult, Sections, sections

H100, R4090 = "NVIDIA H100 80GB HBM3", "NVIDIA GeForce RTX 4090"
UUIDS = ["GPU-5f1b8a60-0000-0000-0000-000000000000", "GPU-5f1b8a60-0000-0000-0000-000000000001"]
H100_ROW = "{}, {}, 00000000:{}:00.0, NVIDIA H100 80GB HBM3, 550.127.05, 81559, 4, Disabled, 0"
R4090_ROW = "0, " + UUIDS[0] + ", 00000000:41:00.0, NVIDIA GeForce RTX 4090, 535.183.01, 24564, 2, [N/A], [N/A]"
TWO = "\n".join([H100_ROW.format(0, UUIDS[0], "4E"), H100_ROW.format(1, UUIDS[1], "5D")])
DETAILS = "=====NVSMI LOG=====\n\nDriver Version                : 550.127.05\nCUDA Version                  : 12.4\n"
REMAPPED = f"{UUIDS[0]}, No, No\n{UUIDS[1]}, 0, 0"
UNKNOWN_FIELD = 'Field "gpu_recovery_action" is not a valid field to query.'


def links(*active: int, of: int = 18) -> str:
    """`nvidia-smi nvlink --status` of GPUs with so many active links each."""
    lines = []
    for index, count in enumerate(active):
        lines.append(f"GPU {index}: {H100} (UUID: {UUIDS[index]})")
        lines += [f"\t Link {n}: " + ("26.562 GB/s" if n < count else "<inactive>") for n in range(of)]
    return "\n".join(lines)


def topology(first: str, second: str, third: str) -> str:
    """`nvidia-smi topo -m` of three GPUs, by what is between 0 and 1, 0 and 2, 1 and 2; with a network card."""
    rows = ((" X ", first, second), (first, " X ", third), (second, third, " X "))
    lines = ["\t".join([f"GPU{n}", *row, "PIX", "0-51", "0", "N/A"]) for n, row in enumerate(rows)]
    head = "\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m"
    card = "NIC0\tPIX\tSYS\tSYS\t X \t\t\t"
    return "\n".join([head, *lines, card, "", "Legend:", "", "  NV#  = Connection traversing NVLinks"])


def output(statuses: dict[str, int] | None = None, **given: str) -> Sections:
    """Two healthy H100s, except for what is given."""
    plain = {
        "gpus": TWO,
        "apps": "",
        "remapped": REMAPPED,
        "recovery": "0, None\n1, None",
        "cuda": DETAILS,
        "nvlink": links(18, 18),
        "topology": "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV18\t0-51\nGPU1\tNV18\t X \t0-51",
        "fabric": "0, Completed, Success\n1, Completed, Success",
        "uptime": "100000.50 1.0",
        "xid": "",
    }
    status = statuses or {}
    text = "".join(f"=== {name} {status.get(name, 0)}\n{answer}\n" for name, answer in (plain | given).items())
    return sections(text.encode())


def code(result: CheckResult) -> str | None:
    return str(result.fault[0]) if result.fault else None


ONE = TWO.splitlines()[0]
NO_FILE = "timeout: failed to run command 'nvidia-smi': No such file or directory"
NO_DRIVER = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
NO_HANDLE = "Unable to determine the device handle for GPU0000:{}:00.0: {}"
NO_DEVICES = ({"gpus": 6}, "No devices were found")
INVENTORY: list[tuple[dict[str, int], str, str, int, str | None]] = [
    ({}, TWO, H100, 2, None),
    ({}, R4090_ROW, R4090, 1, None),
    ({}, R4090_ROW, "NVIDIA GeForce RTX 9090", 1, None),  # a type that nobody knows: recorded
    (*NO_DEVICES, H100, 2, "GPU_NOT_ATTACHED"),
    ({"gpus": 127}, NO_FILE, H100, 1, "GPU_NOT_ATTACHED"),
    ({"gpus": 127}, "sh: 1: nvidia-smi: not found", H100, 1, "GPU_NOT_ATTACHED"),
    ({"gpus": 124}, "", H100, 1, "GPU_NOT_ATTACHED"),
    ({"gpus": 9}, NO_DRIVER, H100, 1, "GPU_NOT_ATTACHED"),
    ({"gpus": 18}, "Failed to initialize NVML: Driver/library version mismatch", H100, 1, "GPU_NOT_ATTACHED"),
    ({"gpus": 255}, NO_HANDLE.format("4E", "Unknown Error"), H100, 2, "GPU_NOT_ATTACHED"),
    ({"gpus": 255}, ONE + "\n" + NO_HANDLE.format("5D", "GPU is lost."), H100, 2, "GPU_COUNT"),
    ({}, TWO.replace("5D:00.0, NVIDIA H100 80GB HBM3", "5D:00.0, [GPU requires reset]"), H100, 2, "GPU_COUNT"),
    ({}, TWO, H100, 8, "GPU_COUNT"),
    ({}, TWO, H100, 1, "GPU_COUNT"),
    ({}, TWO.replace("H100 80GB HBM3", "H100 PCIe", 1), H100, 2, "GPU_TYPE"),
    ({}, TWO, "NVIDIA H100 PCIe", 2, "GPU_TYPE"),
    ({}, TWO.replace(H100, "[Unknown Error]"), H100, 2, None),
    ({}, TWO.replace("81559", "79000"), H100, 2, "GPU_MEMORY"),
    ({}, TWO.replace("81559", "81079"), H100, 2, None),  # 99 %: another driver, another reserve
    ({}, TWO.replace("81559", "[N/A]"), H100, 2, None),
    ({}, TWO.replace("81559", "ERR!"), H100, 2, None),
    ({}, TWO.replace("Disabled", "Enabled").replace("81559", "[Insufficient Permissions]"), H100, 2, "GPU_MEMORY"),
]  # fmt: skip


@pytest.mark.parametrize(("statuses", "rows", "gpu_type", "count", "expected"), INVENTORY)
def test_the_inventory_matches_what_was_rented_or_says_why_not(
    statuses: dict[str, int], rows: str, gpu_type: str, count: int, expected: str | None
) -> None:
    """Count, type, memory, in this order."""
    assert code(gpus.inventory(output(statuses, gpus=rows), gpu_type, count)) == expected


@pytest.mark.parametrize(
    ("rows", "count", "says"),
    [
        (ONE, 2, "1 GPUs answer, 2 are rented: GPU 0 at 0:4e:0; missing: GPU 1"),
        (
            ONE + "\n" + NO_HANDLE.format("5D", "GPU is lost."),
            2,
            "missing: GPU 1; nvidia-smi says: Unable to determine",
        ),
        (
            TWO.replace("5D:00.0, NVIDIA H100 80GB HBM3", "5D:00.0, [GPU requires reset]"),
            2,
            "missing: GPU 1; nvidia-smi",
        ),
        (TWO, 1, "2 GPUs answer, 1 are rented: GPU 0 at 0:4e:0, GPU 1 at 0:5d:0"),
        (TWO, 16, "missing: GPU 2, GPU 3, GPU 4, GPU 5, GPU 6, GPU 7, GPU 8, GPU 9"),
    ],
)
def test_a_wrong_count_names_the_gpus(rows: str, count: int, says: str) -> None:
    """Those that answer, and those that do not."""
    fault = gpus.inventory(output({}, gpus=rows), H100, count).fault
    assert fault is not None
    assert says in str(fault)


def test_values_unknown_to_nvidia_smi_are_recorded_as_unknown() -> None:
    """Neither the good nor the bad of it is made up."""
    seen = output(gpus=R4090_ROW.replace("24564, 2,", "ERR!, [N/A],"), remapped=f"{UUIDS[0]}, [N/A], [N/A]", xid="",
                recovery=UNKNOWN_FIELD, statuses={"recovery": 2, "xid": 1})  # fmt: skip
    assert gpus.inventory(seen, R4090, 1).evidence["unknown"] == ["memory of GPU 0"]
    result = gpus.health(seen, None)
    assert result.fault is None
    assert set(result.unknown) == {
        "driver against image", "ecc of GPU 0", "free memory of GPU 0", "recovery", "remapped rows", "xid"
    }  # fmt: skip


XID = "[99000.123456] NVRM: Xid (PCI:0000:{}:00): {}, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
OLD = XID.replace("[99000.123456]", "[  100.000000]")
HEALTH: list[tuple[dict[str, Any], str | None]] = [
    ({}, None),
    ({"xid": XID.format("4e", 79)}, "XID_79"),
    ({"xid": XID.format("4E", 48)}, "XID_48"),
    ({"xid": XID.format("af", 79)}, None),  # the neighbour's GPU
    ({"xid": OLD.format("4e", 79)}, None),  # a day ago and more
    ({"xid": OLD.format("4e", 79), "uptime": ""}, "XID_79"),  # nobody knows when
    ({"xid": XID.format("4e", 31)}, None),
    ({"xid": XID.format("4e", 74)}, None),
    ({"xid": "\n".join([XID.format("4e", 74)] * 2)}, "XID_74"),
    ({"xid": XID.format("4e", 63)}, None),
    ({"xid": "Nov 21 09:00:01 host kernel: NVRM: Xid (PCI:0000:5d:00): 119, Timeout waiting for RPC"}, "XID_119"),
    ({"xid": "dmesg: read kernel buffer failed: Operation not permitted", "statuses": {"xid": 1}}, None),
    ({"recovery": "0, None\n1, Reset"}, "XID_154"),
    ({"recovery": "0, Drain and Reset\n1, None"}, "XID_154"),
    ({"recovery": "0, [N/A]\n1, [N/A]"}, None),
    ({"recovery": UNKNOWN_FIELD, "statuses": {"recovery": 2}}, None),
    ({"gpus": TWO.replace("Disabled, 0", "Disabled, 3", 1)}, "ECC"),
    ({"remapped": REMAPPED.replace("No, No", "Yes, No")}, "ECC"),
    ({"remapped": REMAPPED.replace("0, 0", "0, 1")}, "ECC"),
    ({"remapped": f"{UUIDS[0]}, [N/A], [N/A]"}, None),
    ({"gpus": TWO.replace("81559, 4", "81559, 2000", 1)}, "GPU_BUSY"),
    ({"gpus": TWO.replace("81559, 4", "81559, 2000", 1), "apps": f"{UUIDS[0]}, 4242, 1990"}, None),
    ({"gpus": TWO.replace("81559, 4", "81559, 2000", 1), "apps": f"{UUIDS[1]}, 4242, 1990"}, "GPU_BUSY"),
    ({"gpus": TWO.replace("81559, 4", "81559, 2000", 1), "apps": f"{UUIDS[0]}, 4242, [N/A]"}, None),
    ({"gpus": TWO.replace("81559, 4", "81559, 2000", 1), "statuses": {"apps": 124}}, None),
    ({"gpus": TWO.replace("81559, 4", "81559, 1000", 1)}, None),
    ({"cuda": DETAILS.replace("12.4", "12.2")}, "DRIVER_TOO_OLD"),
    ({"cuda": DETAILS.replace("12.4", "13.0")}, None),
    ({"cuda": DETAILS.replace("12.4", "N/A")}, None),  # driver 550 brings 12.4
    ({"cuda": "", "gpus": TWO.replace("550.127.05", "470.57.02")}, "DRIVER_TOO_OLD"),
    ({"cuda": "", "gpus": TWO.replace("550.127.05", "[N/A]")}, None),
]  # fmt: skip


@pytest.mark.parametrize(("given", "expected"), HEALTH)
def test_health_is_ruled_out_only_by_what_is_known(given: dict[str, Any], expected: str | None) -> None:
    """Recent Xids of our GPUs, ECC, remapping, memory, driver."""
    assert code(gpus.health(output(**given), (12, 4))) == expected


FABRIC: list[tuple[str, dict[str, Any], str | None]] = [
    (H100, {}, None),
    (H100, {"nvlink": links(18, 0)}, "NVLINK_INACTIVE"),
    (H100, {"nvlink": links(18, 16)}, "NVLINK_DEGRADED"),
    (H100, {"nvlink": links(12, 12, of=12)}, "NVLINK_DEGRADED"),
    (H100, {"nvlink": links(18)}, None),  # the other said nothing: unknown, and its count is the inventory's
    (H100, {"nvlink": "", "statuses": {"nvlink": 124}}, None),
    (H100, {"nvlink": links(18, 18).replace("26.562 GB/s", "<unknown>")}, None),
    (H100, {"fabric": "0, In Progress, N/A\n1, Completed, Success"}, "NVLINK_INACTIVE"),
    (H100, {"fabric": "0, Completed, Success\n1, Completed, Timeout"}, "NVLINK_INACTIVE"),
    (H100, {"fabric": "0, Completed, [N/A]\n1, Completed, Success"}, None),
    (H100, {"fabric": "0, Not Started, N/A\n1, Not Supported, N/A"}, None),
    (H100, {"fabric": "0, [N/A], [N/A]\n1, [N/A], [N/A]"}, None),
    (H100, {"fabric": 'Field "fabric.state" is not a valid field to query.', "statuses": {"fabric": 2}}, None),
    ("NVIDIA A100 80GB PCIe", {"nvlink": links(0, 0, of=12), "fabric": ""}, None),  # no bridge is plugged in
    ("NVIDIA A100 80GB PCIe", {"nvlink": links(12, 8, of=12), "fabric": ""}, "NVLINK_DEGRADED"),
    (R4090, {"nvlink": "", "fabric": ""}, None),
    ("NVIDIA GeForce RTX 9090", {"nvlink": links(0, 0)}, None),
    (H100, {"topology": topology("NV18", "PHB", "NV18")}, "NVLINK_INACTIVE"),
    (H100, {"topology": topology("SYS", "NODE", "PIX")}, "NVLINK_INACTIVE"),
    (H100, {"topology": topology("NV18", "NV4", "NV18")}, "NVLINK_DEGRADED"),
    (H100, {"topology": topology("NV17", "PXB", "NV18")}, "NVLINK_INACTIVE"),  # the worse of the two is said
    (H100, {"topology": topology("NV6", "NV6", "NV6")}, None),  # a board of four: 18 links for three others
    (H100, {"topology": topology("NV18", "NV18", "NV18")}, None),
    (H100, {"topology": topology("NV18", "N/A", "ERR!")}, None),
    (H100, {"topology": topology("NV18", "SOC", "NV18").replace("\t", "    ")}, None),  # of a driver before 390
    (H100, {"topology": topology("SYS", "SYS", "SYS"), "statuses": {"topology": 124}}, None),
    (H100, {"topology": ""}, None),
    ("NVIDIA A100-SXM4-80GB", {"nvlink": links(12, 12, of=12), "topology": topology("NV4", "NV4", "NV4")}, None),
    ("NVIDIA A100-SXM4-80GB", {"nvlink": links(12, 12, of=12), "topology": topology("NV12", "NV8", "NV12")},
     "NVLINK_DEGRADED"),
    ("NVIDIA H200 NVL", {"topology": topology("NV18", "SYS", "SYS")}, None),  # pairs, where the owner put bridges
    (R4090, {"nvlink": "", "topology": topology("PHB", "SYS", "PHB")}, None),
]  # fmt: skip


@pytest.mark.parametrize(("gpu_type", "given", "expected"), FABRIC)
def test_links_are_those_that_the_type_has(gpu_type: str, given: dict[str, Any], expected: str | None) -> None:
    """By the profile; without one nothing is concluded."""
    assert code(interconnect.check(output(**given), gpu_type)) == expected


UNREAD: list[tuple[dict[str, Any], set[str]]] = [
    ({"topology": ""}, {"topology"}),
    ({"topology": topology("NV18", "N/A", "NV18")}, {"way between GPU0 and GPU2"}),
    ({"fabric": "", "statuses": {"fabric": 2}}, {"fabric"}),
    ({"fabric": "0, [N/A], [N/A]\n1, Completed, Success"}, {"fabric of GPU 0"}),
    ({"nvlink": ""}, {"nvlink"}),
    ({}, set()),
]


@pytest.mark.parametrize(("given", "expected"), UNREAD)
def test_unreported_links_are_unknown(given: dict[str, Any], expected: set[str]) -> None:
    """By name, in the evidence."""
    assert set(interconnect.check(output(**given), H100).unknown) == expected


def test_a_fabric_gets_time_only_while_it_is_being_joined() -> None:
    """And only where there is one."""
    joining = output(fabric="0, Completed, Success\n1, In Progress, N/A")
    assert interconnect.is_joining(joining, H100)
    assert not interconnect.is_joining(output(), H100)
    assert not interconnect.is_joining(joining, "NVIDIA H100 PCIe")
    assert not interconnect.is_joining(joining, R4090)
    assert not interconnect.is_joining(output(fabric=""), H100)


def test_the_types_that_operators_rent_have_profiles() -> None:
    """With a memory that a card can have, and links only where there is a connector."""
    for name in ("NVIDIA H200", "NVIDIA H200 NVL", H100, "NVIDIA A100-SXM4-80GB", R4090, "NVIDIA A40", "NVIDIA L40S"):
        assert PROFILES[name].memory_mib > 20_000
    assert (PROFILES[H100].nvlinks, PROFILES["NVIDIA A100-SXM4-80GB"].nvlinks, PROFILES[R4090].nvlinks) == (18, 12, 0)

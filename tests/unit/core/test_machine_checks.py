"""The checks of a pod's disk, clock and cgroup."""

import subprocess
from pathlib import Path

import pytest

from orchestrator.core.failures import FailureCode
from orchestrator.core.images import cuda_of, digest_of, has_digest, is_pulling
from orchestrator.core.machine_checks import CheckResult, platform, sections
from orchestrator.pods import probe_scripts

GIB = 1024 * 1024  # in blocks of 1 KiB
DF = "Filesystem     1024-blocks     Used Available Capacity Mounted on\noverlay {} {} {} 2% /"
INODES = "Filesystem       Inodes  IUsed    IFree IUse% Mounted on\noverlay {} {} {} 4% /"
V2 = {"memory.max": "67108864000", "memory.current": "1048576", "cpu.max": "1200000 100000", "pids.max": "max"}
V1 = {
    "memory/memory.limit_in_bytes": "9223372036854771712",
    "memory/memory.usage_in_bytes": "3969581056",
    "cpu/cpu.cfs_quota_us": "-1",
    "cpu/cpu.cfs_period_us": "100000",
}


def tool_output(**given: str) -> bytes:
    """A probe's output; a healthy pod's, except for what is given (a missing section: "")."""
    plain = {
        "clock_first": "1000",
        "disk": DF.format(50 * GIB, GIB, 49 * GIB),
        "inodes": INODES.format(1000, 40, 960),
        "clock_last": "1000",
    }
    answers = {name: text for name, text in (plain | given).items() if text}
    return "".join(f"=== {name} 0\n{text}\n" for name, text in answers.items()).encode()


def judged(between_s: tuple[float, float] = (999.5, 1000.5), **given: str) -> CheckResult:
    """Return the result for a machine that was asked and answered between these moments."""
    return platform(sections(tool_output(**given)), *between_s)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({}, None),
        ({"disk": DF.format(50 * GIB, 46 * GIB, 4 * GIB)}, "DISK"),
        ({"disk": DF.format(1000 * GIB, 975 * GIB, 25 * GIB)}, "DISK"),
        ({"disk": DF.format(6 * GIB, GIB, 5 * GIB)}, None),  # small, and mostly free
        ({"disk": DF.format(6 * GIB, 4 * GIB, 2 * GIB)}, "DISK"),
        ({"inodes": INODES.format(1000, 985, 15)}, "INODES"),
        ({"inodes": INODES.format(0, 0, 0)}, None),  # a filesystem that counts none
        ({"disk": "df: Stale file handle"}, None),
        ({"clock_first": "1040", "clock_last": "1040"}, "CLOCK_SKEW"),
        ({"clock_first": "960", "clock_last": "960"}, "CLOCK_SKEW"),
        ({"clock_first": "1025", "clock_last": "1025"}, None),
        ({"clock_first": "date: not found"}, None),
    ],
)
def test_a_platform_is_ruled_out_only_by_what_is_known(given: dict[str, str], code: str | None) -> None:
    """What cannot be read is neither good nor bad."""
    fault = platform(sections(tool_output(**given)), 999.5, 1000.5).fault
    assert (fault[0] if fault else None) == code


def test_a_slow_probe_does_not_make_a_clock_wrong() -> None:
    """The difference is bounded on both sides: only what the round trip cannot explain counts."""
    assert judged((960, 1040), clock_first="961", clock_last="1039").facts["clock_skew_s"] == pytest.approx(0, abs=1)
    slow = judged((900, 1040), clock_first="1035", clock_last="1036")
    assert slow.fault is None  # it may have started late
    assert judged((999, 1001), disk="", inodes="", clock_first="").evidence["unknown"] == [
        "cgroup",
        "clock",
        "disk",
        "inodes",
    ]


@pytest.mark.parametrize(
    ("files", "limit", "cpus", "version"),
    [
        (V2, 67_108_864_000, 12.0, 2),
        (V1, None, None, 1),
        ({**V2, "memory.max": "max", "cpu.max": "max 100000"}, None, None, 2),
    ],
)
def test_the_limits_of_both_cgroups_are_read(
    tmp_path: Path, files: dict[str, str], limit: int | None, cpus: float | None, version: int
) -> None:
    """The script itself reads a directory in place of /."""
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    command = ["sh", "-c", probe_scripts.platform_command(20, str(tmp_path))]
    done = subprocess.run(command, input=probe_scripts.PLATFORM.encode(), capture_output=True, timeout=30, check=True)
    found = sections(done.stdout)
    result = platform(found, 0, 10**10)
    facts = result.facts
    assert (facts["cgroup"], facts["memory_limit_bytes"], facts["cpus"]) == (version, limit, cpus)
    assert (found["clock_first"].ok, found["disk"].ok) == (True, True)
    assert facts["disk_total_bytes"] > 0


def test_memory_that_is_nearly_full_is_reported() -> None:
    """It rules nothing out."""
    limits = b"=== cgroup/memory.max 0\n1000\n=== cgroup/memory.current 0\n900\n"
    result = platform(sections(tool_output() + limits), 999.5, 1000.5)
    assert (result.fault, len(result.warnings)) == (None, 1)


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("runpod/pytorch:2.4.0-py3.11-cuda12.4.1-devel-ubuntu22.04", (12, 4)),
        ("runpod/pytorch:1.0.2-cu1281-torch280-ubuntu2404", (12, 8)),
        ("nvidia/cuda:11.8.0-base-ubuntu22.04", (11, 8)),
        ("pytorch/pytorch:2.4.0-cuda12.1-cudnn9-runtime", (12, 1)),
        ("ghcr.io/me/worker:v12.4", None),
        (None, None),
    ],
)
def test_an_images_name_may_contain_its_cuda_version(image: str | None, version: tuple[int, int] | None) -> None:
    """Only where it says so."""
    assert cuda_of(image) == version


SHA = "sha256:" + "0a" * 32


@pytest.mark.parametrize(
    ("image", "named"), [(f"a/b@{SHA}", True), (f"a/b:1@{SHA}", True), ("a/b:1", False), ("a/b@sha256:0a", False)]
)
def test_an_image_is_named_by_its_content_or_by_a_tag(image: str, *, named: bool) -> None:
    """A tag may name another image tomorrow."""
    assert has_digest(image) is named


def test_the_log_of_a_pull_shows_the_digest() -> None:
    """The last one, if there are several."""
    assert digest_of(f"pulling\nDigest: sha256:{'1b' * 32}\n2026 Digest: {SHA}\nStatus: Downloaded") == SHA
    assert digest_of("Digest: sha256:zz") is None


@pytest.mark.parametrize(
    ("log", "pulling"),
    [
        ("create container x\nlatest Pulling from library/x", True),
        ("pulling image x\nimage pulled\nstart container", False),
        ("a1b2 Downloading [==>  ]  12MB/900MB", True),
        ("Status: Downloaded newer image for x", False),
        ("pulling image x\nerror pulling image: manifest unknown", False),
        ("", False),
    ],
)
def test_the_last_line_about_a_pull_counts(log: str, pulling: bool) -> None:
    """What came before is history."""
    assert is_pulling(log) is pulling


def test_every_xid_has_a_code() -> None:
    """One and the same, however it is made."""
    assert FailureCode("XID_79") == FailureCode.xid(79) == "XID_79"
    assert {FailureCode.xid(79): 1}[FailureCode("XID_79")] == 1
    for wrong in ("XID_", "XID_0", "XID_79x", "xid_79"):
        with pytest.raises(ValueError, match="is not a valid FailureCode"):
            FailureCode(wrong)

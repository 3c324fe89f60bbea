"""Files of /proc and /sys under a root directory: cgroup 2 and 1, missing, and hostile."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from worker.cgroup import boot_id
from worker.disk import Disk
from worker.host_findings import volume_full
from worker.kernel_log import KernelLog
from worker.network_volumes import NetworkVolumes
from worker.readings import MachineReading, Readings

V2 = {
    "proc/self/cgroup": "0::/pod/x\n",
    "sys/fs/cgroup/pod/x/memory.max": "1000000\n",
    "sys/fs/cgroup/pod/x/memory.current": "900000\n",
    "sys/fs/cgroup/pod/x/memory.stat": "anon 300000\ninactive_file 400000\nactive_file 100000\n",
    "sys/fs/cgroup/pod/x/memory.events": "low 0\noom 1\noom_kill 3\n",
    "sys/fs/cgroup/pod/x/cpu.max": "1200000 100000\n",
    "sys/fs/cgroup/pod/x/cpu.stat": "usage_usec 2500000\nnr_periods 10\nnr_throttled 4\n",
    "sys/fs/cgroup/pod/x/cpu.pressure": "some avg10=80.00 avg60=12.50 avg300=3.00 total=1\nfull avg10=0.00\n",
}
V1 = {
    "proc/self/cgroup": "4:memory:/docker/abc\n2:cpuacct:/docker/abc\n1:cpu:/docker/abc\n0::/\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "1000000\n",  # the container sees its own cgroup at the top
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "900000\n",
    "sys/fs/cgroup/memory/memory.stat": "inactive_file 1\ntotal_inactive_file 400000\ntotal_active_file 100000\n",
    "sys/fs/cgroup/memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
    "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "1200000\n",
    "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    "sys/fs/cgroup/cpu/cpu.stat": "nr_periods 10\nnr_throttled 4\nthrottled_time 5\n",
    "sys/fs/cgroup/cpuacct/cpuacct.usage": "2500000000\n",
}
HOST = {"proc/loadavg": "490.12 480.00 470.00 9/999 4711\n", "sys/devices/system/cpu/online": "0-63,128-191\n"}


def read(root: Path, files: dict[str, str]) -> MachineReading:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Readings(str(root), str(root)).read()


@pytest.mark.parametrize("files", [V2, V1], ids=["v2", "v1"])
def test_both_versions_of_cgroups_say_the_same(tmp_path: Path, files: dict[str, str]) -> None:
    """Page cache is not counted as memory in use; the slice has 12 of the host's 128 processors."""
    found = read(tmp_path, {**files, **HOST})
    assert found.memory_share == pytest.approx(0.4)
    assert (found.oom_kills, found.cpu_s, found.periods, found.throttled) == (3, 2.5, 10, 4)
    assert (found.cpus, found.host_cpus, found.load) == (12, 128, 490.12)
    assert found.pressure == (12.5 if files is V2 else None)


@pytest.mark.parametrize(
    ("name", "limit"), [("memory.max", "max"), ("memory/memory.limit_in_bytes", "9223372036854771712")]
)
def test_without_a_limit_no_memory_is_tight(tmp_path: Path, name: str, limit: str) -> None:
    """The host's own memory is another matter."""
    files = {f"sys/fs/cgroup/{name}": limit, "sys/fs/cgroup/memory.current": "5000000000"}
    files["sys/fs/cgroup/memory/memory.usage_in_bytes"] = "5000000000"
    assert read(tmp_path, files).memory_share == 0.0


@pytest.mark.parametrize(("files", "place"), [(V2, "pod/x"), (V1, "memory")], ids=["v2", "v1"])
def test_tight_memory_is_reported_with_the_processes_that_hold_it(
    tmp_path: Path, files: dict[str, str], place: str
) -> None:
    """Each loader process of a framework has a copy of the data. One that ended meanwhile is left out."""
    page = os.sysconf("SC_PAGE_SIZE")
    more = {
        f"sys/fs/cgroup/{place}/memory.stat": "inactive_file 0\nactive_file 0\n",
        f"sys/fs/cgroup/{place}/cgroup.procs": "7\n8\n9\n",
        "proc/7/statm": "900 100 1 1 0 1 0\n",
        "proc/9/statm": "900 300 1 1 0 1 0\n",
    }
    found = read(tmp_path, files | more)
    assert found.memory_share == pytest.approx(0.9)
    assert found.processes == (2, 300 * page)
    assert read(tmp_path, files).processes is None, "not read while there is room"


def test_a_slice_without_a_quota_has_all_processors(tmp_path: Path) -> None:
    assert read(tmp_path, {**HOST, "sys/fs/cgroup/cpu.max": "max 100000"}).cpus == 128
    assert read(tmp_path / "v1", {**HOST, "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1"}).cpus == 128


@pytest.mark.parametrize(
    "text", ["", "\0\0\0", "-1", "9" * 400, "x" * 100_000, "oom_kill -3", "oom_kill \u00b2", "12:34", "\udcff"]
)
def test_nonsense_is_unknown(tmp_path: Path, text: str) -> None:
    """Each file alone may be spoilt; nothing is raised, and no number is made up."""
    for name in {**V2, **V1, **HOST}:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, errors="surrogateescape")
    found = Readings(str(tmp_path), str(tmp_path)).read()
    assert {name for name, value in found.signals().items() if value is None} >= {"oom_kills", "cpu", "cpu_pressure"}
    assert found.memory_share in {None, 0.0}


def test_a_pod_without_proc_and_sys_has_a_disk_and_nothing_else(tmp_path: Path) -> None:
    found = read(tmp_path, {})
    assert {name for name, value in found.signals().items() if value is not None} == {"disk"}
    assert Readings(str(tmp_path), str(tmp_path / "missing")).read().disk is None


def test_only_other_local_volumes_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Statvfs of a network file system whose server is gone never returns; /proc, /etc and files are none of ours."""
    line = "36 35 98:0 / {} {},noatime shared:1 - {} /dev/x rw\n"
    cases = (("/workspace", "rw", "fuse.mfs"), ("/etc/hosts", "rw", "ext4"), ("/", "rw", "ext4"), ("/x", "ro", "xfs"))
    text = (
        "".join(line.format(*case) for case in cases) + "nonsense\n" + line.format("/missing\\040place", "rw", "ext4")
    )
    here, asked_for, statvfs = threading.get_ident(), list[str](), os.statvfs

    def noted(path: str) -> os.statvfs_result:
        """Only the thread of the network volumes may ask for them, whenever it does."""
        if threading.get_ident() != here:
            raise OSError("the server is gone")
        asked_for.append(path)
        return statvfs(path)

    monkeypatch.setattr(os, "statvfs", noted)
    found = read(tmp_path, {"proc/self/mountinfo": text})
    for thread in [one for one in threading.enumerate() if one.name == "volumes"]:
        thread.join(60)
    assert (found.volumes, asked_for) == ([], [str(tmp_path)])


def test_the_boot_id_names_a_boot(tmp_path: Path) -> None:
    boot = "0b5b3a1e-8a1c-4c5e-9f1e-1a2b3c4d5e6f"
    assert boot_id(str(tmp_path)) is None
    read(tmp_path, {"proc/sys/kernel/random/boot_id": boot + "\n"})
    assert boot_id(str(tmp_path)) == boot


def test_the_kernel_log_is_read_from_its_end(tmp_path: Path) -> None:
    """Records without their head; a line that is cut by the end of a read is completed by the next."""
    device = tmp_path / "dev/kmsg"
    device.parent.mkdir()
    device.write_text("6,1,1000,-;before the agent\n")
    log = KernelLog(str(tmp_path))
    with device.open("a") as file:
        file.write("4,2,2000,-,caller=T1;NVRM: one; two\n SUBSYSTEM=pci\nno head\n6,3,3000,-;half")
        file.flush()
        assert log.lines() == ["NVRM: one; two", " SUBSYSTEM=pci", "no head"]
        file.write(" done\n")
    assert log.lines() == ["half done"]
    assert log.lines() == []
    log.close()


GIB = 1 << 30


def volume(free_gib: float, inodes_free: int = 900) -> Callable[[str], os.statvfs_result]:
    """The answer of a network file system of 300 TiB that many pods share."""
    total, free = 300 * 1024 * GIB // 4096, int(free_gib * GIB) // 4096
    return lambda _: os.statvfs_result((4096, 4096, total, free, free, 1_000, inodes_free, inodes_free, 0, 255))


def network_root(tmp_path: Path) -> Path:
    (tmp_path / "proc/self").mkdir(parents=True)
    mount = "36 35 98:0 / /workspace rw,noatime shared:1 - fuse mfs#host:9421 rw\n"
    (tmp_path / "proc/self/mountinfo").write_text(mount)
    return tmp_path


def asked(volumes: NetworkVolumes) -> list[Disk]:
    """What it knows once its thread has an answer."""
    volumes.latest()
    for thread in [one for one in threading.enumerate() if one.name == "volumes"]:
        thread.join(60)
    return volumes.latest()


@pytest.mark.parametrize(
    ("free_gib", "inodes_free", "said"),
    [
        (4, 900, "/workspace: 4096 of 314572800 MiB are free"),
        (900, 10, "/workspace: 99% of 1000 inodes are in use"),
        (900, 900, None),
    ],
    ids=["bytes", "inodes", "99.7 % of the shared file system are in use"],
)
def test_a_full_network_volume_is_a_warning(
    tmp_path: Path, free_gib: float, inodes_free: int, said: str | None
) -> None:
    """Tasks write their checkpoints there. A share of a file system of many pods says nothing (guards U6, U7)."""
    reading = MachineReading(0.0)
    reading.volumes = asked(NetworkVolumes(str(network_root(tmp_path)), volume(free_gib, inodes_free)))
    assert len(reading.volumes) == 1
    found = volume_full(reading)
    assert (found and (found.code, found.evidence)) == (said and ("VOLUME_FULL", said))


def test_a_network_volume_that_does_not_answer_delays_nothing(tmp_path: Path) -> None:
    """One thread waits for it; its state is unknown."""
    asking, answer = threading.Event(), threading.Event()
    asked_for: list[str] = []

    def silent(path: str) -> os.statvfs_result:
        asked_for.append(path)
        asking.set()
        answer.wait(60)
        return volume(1)(path)

    volumes = NetworkVolumes(str(network_root(tmp_path)), silent)
    try:
        assert volumes.latest() == []
        assert asking.wait(60)
        assert [volumes.latest() for _ in range(3)] == [[], [], []]
        assert asked_for == ["/workspace"]
    finally:
        answer.set()
    assert len(asked(volumes)) == 1


def test_the_monitor_reads_the_network_volumes(tmp_path: Path) -> None:
    """Those that the pod has mounted."""
    root = network_root(tmp_path)
    (root / "proc/self/mountinfo").write_text(f"36 35 98:0 / {tmp_path} rw - fuse.mfs x rw\n")
    readings = Readings(str(root), str(root))
    readings.read()
    for thread in [one for one in threading.enumerate() if one.name == "volumes"]:
        thread.join(60)
    assert [one.path for one in readings.read().volumes] == [str(tmp_path)]

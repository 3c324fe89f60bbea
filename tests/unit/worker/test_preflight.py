"""Checks before the first claim: what the packages, the GPU and the mounts say."""

from pathlib import Path
from typing import Any

import pytest

from worker import preflight
from worker.network_volumes import network_volumes
from worker.preflight import of_lock, of_torch, of_volumes

BUILT = ["sm_50", "sm_80", "sm_86", "sm_90a", "compute_90"]


@pytest.mark.parametrize(
    ("archs", "gpu", "fits"),
    [
        (BUILT, [8, 0], True), (BUILT, [8, 9], True), (BUILT, [9, 0], True), (BUILT, [12, 0], True),
        (BUILT[:-1], [12, 0], False), (BUILT, [7, 5], False), (["sm_120"], [12, 0], True), ([], [9, 0], True),
        (["gfx90a"], [9, 0], True),
    ],
)  # fmt: skip
def test_torch_needs_code_for_the_gpu(archs: list[str], gpu: list[int], fits: bool) -> None:
    """Of the same major version, or PTX of an older one. A list that is not known proves nothing."""
    found = of_torch({"torch": "2.0.1", "archs": archs, "gpus": [gpu]})
    assert [one.code for one in found] == ([] if fits else ["TORCH_ARCH"])
    assert of_torch({}) == []


def test_packages_are_compared_with_the_lock_file() -> None:
    """Names in any spelling; lines with conditions, hashes and options do not count."""
    packages = {"NumPy": "1.26.4", "typing_extensions": "4.12.2", "torch": "2.4.0"}
    lock = "# comment\n-r other\nnumpy==2.1.0 \\\n  --hash=sha256:0\ntyping-extensions==4.12.2\ntorch[x]==2.4.0\n"
    lock += "pywin32==306 ; sys_platform == 'win32'\nabsent==1.0\n"
    (found,) = of_lock({"packages": packages}, lock)
    assert (found.code, found.evidence) == (
        "LOCK_DRIFT", "numpy is 1.26.4, the lock has 2.1.0; absent is absent, the lock has 1.0",
    )  # fmt: skip
    assert of_lock({}, lock) == of_lock({"packages": packages}, None) == []


def test_only_network_volumes_are_probed(tmp_path: Path) -> None:
    line = "36 35 98:0 / {} rw,noatime shared:1 - {} /dev/x rw\n"
    cases = (("/workspace", "fuse.mfs"), ("/", "overlay"), ("/sys/fs/fuse", "fusectl"), ("/my\\040data", "nfs4"))
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text("".join(line.format(*case) for case in cases) + "nonsense\n")
    assert network_volumes(str(tmp_path)) == [("/workspace", "fuse.mfs"), ("/my data", "nfs4")]
    assert network_volumes(str(tmp_path / "nowhere")) == []


def test_a_slow_read_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A volume without a large file proves nothing."""
    volumes: list[Any] = [(str(tmp_path), "fuse.mfs")]
    (tmp_path / "small").write_bytes(b"x")
    assert of_volumes(volumes) == []
    (tmp_path / "model").write_bytes(bytes(preflight.SMALLEST_BYTES))
    monkeypatch.setattr(preflight, "SLOW_BYTES_PER_S", 0.0)
    assert of_volumes(volumes) == []
    monkeypatch.setattr(preflight, "SLOW_BYTES_PER_S", 1e15)
    assert [one.code for one in of_volumes(volumes)] == ["VOLUME_SLOW"]

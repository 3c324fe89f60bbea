"""POOLS_FILE: what it makes of the environment's pool, and how it is refused."""

from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from orchestrator.config.errors import SettingProblem, SettingsError
from orchestrator.config.pools import read_pools
from orchestrator.core.policy import PoolKind, ScheduledSize, TaskType
from orchestrator.core.provider import Offer
from tests.unit.core.build import A40, L4, pool

WHOLE = """
[pools.default]
max_active_gpus = 7

[pools.training]
task_types = ["finetune", "eval"]
gpu_types = ["NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"]
data_centers = ["US-KS-2"]
cloud = "COMMUNITY"
image = "mine:2"
gpu_count = 2
tasks_per_gpu_threshold = 1
gpu_idle_timeout_sec = 60
storage_name = "models"

[task_types.finetune]
timeout_s = 7200
max_attempts = 2
keep_processes = true

[task_types.draw]
timeout_s = 60
"""


SIZED = """
[[pools.default.scheduled_sizes]]
cron = "0 8 * * 1-5"
time_zone = "Europe/Berlin"
min_active_gpus = 2
max_active_gpus = 8

[[pools.default.scheduled_sizes]]
cron = "@daily"
max_active_gpus = 1

"""
CLUSTER = "[pools.a]\nkind = 'cluster'\ndata_centers = ['EU-RO-1']\n"


def refused(path: Path, text: str) -> tuple[SettingProblem, ...]:
    """Everything that is wrong with a file of this text."""
    path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        read_pools(path, pool())
    return caught.value.problems


def test_without_a_file_there_is_the_environments_pool() -> None:
    """And nothing is declared of any type."""
    assert read_pools(None, pool()) == ((pool(),), ())


def test_a_file_of_another_system_is_read(tmp_path: Path) -> None:
    """With a mark of the byte order and line ends of Windows."""
    (tmp_path / "pools.toml").write_bytes(b"\xef\xbb\xbf[pools.a]\r\nmax_active_gpus = 3\r\n")
    assert [one.max_active for one in read_pools(tmp_path / "pools.toml", pool())[0]] == [pool().max_active, 3]


def test_a_pool_is_the_environments_with_what_the_file_says(tmp_path: Path) -> None:
    """Changes of the default pool hold for the others too."""
    (tmp_path / "pools.toml").write_text(WHOLE)
    pools, task_types = read_pools(tmp_path / "pools.toml", pool())
    default, training = pools
    assert default == pool(max_active=7)
    assert training == pool(
        name="training",
        offers=(
            Offer("NVIDIA H100 80GB HBM3", "US-KS-2", "COMMUNITY"),
            Offer("NVIDIA A100-SXM4-80GB", "US-KS-2", "COMMUNITY"),
        ),
        image="mine:2",
        gpu_count=2,
        tasks_per_gpu=1,
        idle_timeout_s=60,
        volume_name="models",
        max_active=7,
    )
    assert task_types == (
        TaskType("draw", None, 60, None),
        TaskType("eval", "training", None, None),
        TaskType("finetune", "training", 7200, 2, keep_processes=True),
    )


def test_sizes_of_a_pool_follow_the_time(tmp_path: Path) -> None:
    """Those of the default pool are its own: another pool may have other limits."""
    (tmp_path / "pools.toml").write_text(SIZED + "[pools.a]\n")
    default, other = read_pools(tmp_path / "pools.toml", pool())[0]
    assert default.scheduled_sizes == (
        ScheduledSize("0 8 * * 1-5", ZoneInfo("Europe/Berlin"), 2, 8),
        ScheduledSize("@daily", ZoneInfo("UTC"), None, 1),
    )
    assert other.scheduled_sizes == ()


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("0 8 * * 1-5", "61 8 * * *", "Bad minute"),
        ("0 8 * * 1-5", "0 0 30 2 *", "Bad day-of-month"),
        ("0 8 * * 1-5", "0 0 8 * * 1-5", "Wrong number of fields"),
        ("Europe/Berlin", "Mars/Base", "is no time zone"),
        ("Europe/Berlin", "../../etc/passwd", "is no time zone"),
        ("min_active_gpus = 2", "min_active_gpus = 9", "min_active_gpus 9 is more than max_active_gpus 8"),
        ("min_active_gpus = 2", "min_active_gpus = -1", "greater than or equal to 0"),
        ("min_active_gpus = 2", "min_active_gpus = true", "valid integer"),
        ("max_active_gpus = 1", "", "it sets nothing"),
        ("max_active_gpus = 1", "max_gpus = 1", "nothing reads it"),
    ],
)
def test_a_size_that_cannot_be_meant_is_refused(tmp_path: Path, before: str, after: str, why: str) -> None:
    """With its place in the file."""
    (problem,) = refused(tmp_path / "pools.toml", SIZED.replace(before, after))
    assert "scheduled_sizes" in problem.what
    assert why in problem.why


def test_a_scheduled_minimum_of_a_pool_that_is_switched_off_is_refused(tmp_path: Path) -> None:
    """It would start no worker. With its own maximum, or 0 in both, it is meant."""
    off = "[pools.a]\nmax_active_gpus = 0\n[[pools.a.scheduled_sizes]]\ncron = '@daily'\nmin_active_gpus = 2\n"
    (problem,) = refused(tmp_path / "pools.toml", off)
    assert "entry 1 of scheduled_sizes" in problem.what
    assert problem.why == "it starts no worker: min_active_gpus is 2, and the pool's max_active_gpus is 0"
    assert problem.fix == "give the entry max_active_gpus, at least 2"
    for meant in (off + "max_active_gpus = 2\n", off + "max_active_gpus = 0\n", off.replace("gpus = 2", "gpus = 0")):
        (tmp_path / "pools.toml").write_text(meant)
        assert len(read_pools(tmp_path / "pools.toml", pool())[0]) == 2


def test_a_pool_without_its_own_offers_has_those_of_the_environment(tmp_path: Path) -> None:
    """Every GPU type in every data centre, in order."""
    (tmp_path / "pools.toml").write_text("[pools.a]\n[pools.b]\ndata_centers = []\n")
    _, a, b = read_pools(tmp_path / "pools.toml", pool(offers=(A40, Offer("NVIDIA L4", None, "SECURE"))))[0]
    assert a.offers == (A40, Offer("NVIDIA L4", None, "SECURE"))
    assert b.offers == a.offers
    assert L4 not in a.offers


@pytest.mark.parametrize(
    ("key", "offers"),
    [
        ("gpu_types = ['NVIDIA H100']", (("NVIDIA H100", None, "SECURE"), ("NVIDIA H100", "EU-RO-1", "SECURE"))),
        ("data_centers = ['US-KS-2']", (("NVIDIA A40", "US-KS-2", "SECURE"), ("NVIDIA L4", "US-KS-2", "SECURE"))),
        ("cloud = 'COMMUNITY'", tuple((gpu, center, "COMMUNITY") for gpu in ("NVIDIA A40", "NVIDIA L4")
                                      for center in (None, "EU-RO-1"))),
    ],
)  # fmt: skip
def test_each_key_of_the_offers_is_independent(
    tmp_path: Path, key: str, offers: tuple[tuple[str, str | None, str], ...]
) -> None:
    """What the file leaves out is as in the environment."""
    (tmp_path / "pools.toml").write_text(f"[pools.a]\n{key}\n")
    _, made = read_pools(tmp_path / "pools.toml", pool(offers=(A40, L4)))[0]
    assert made.offers == tuple(Offer(*one) for one in offers)


@pytest.mark.parametrize(
    ("text", "what", "fix"),
    [
        ("[pools.a\n", "POOLS_FILE is not TOML", "example"),
        ("[pools.a]\ngpu_type = ['x']\n", "POOLS_FILE: pools.a.gpu_type is not a setting", "rename it gpu_types"),
        ("[pools.a]\nmax_active_gpus = -1\n", "POOLS_FILE: pools.a.max_active_gpus cannot be used", "example"),
        ("[pools.a]\ngpu_types = []\n", "POOLS_FILE: pools.a.gpu_types cannot be used", "example"),
        ("[pools.'a b']\n", "POOLS_FILE [pools.a b] cannot be used", "letters"),
        ("[pools.a]\nmin_active_gpus = 9\n", "POOLS_FILE [pools.a] contradicts itself", "lower"),
        ("max_active_gpus = 2\n", "POOLS_FILE: max_active_gpus is in no pool", "[pools.default]"),
        ("[pools.a]\nmax_active_gpus = true\n", "POOLS_FILE: pools.a.max_active_gpus cannot be used", "example"),
        ("[pools.a]\nimage = 'x:${TAG}'\n", "POOLS_FILE: pools.a.image cannot be used", "example"),
        ("[pools.a]\nimage = '<image>'\n", "POOLS_FILE: pools.a.image cannot be used", "example"),
        ("[pools.a]\nimage = 'My Image'\n", "POOLS_FILE: pools.a.image cannot be used", "example"),
        ("[pools.a]\ntask_types = ['<type>']\n", "POOLS_FILE: pools.a.task_types cannot be used", "example"),
        ("[task_types.t]\nmax_attempts = 0\n", "POOLS_FILE: task_types.t.max_attempts cannot be used", "example"),
        ("[pools.a]\nkind = 'slurm'\n", "POOLS_FILE: pools.a.kind cannot be used", "example"),
        ("[pools.a]\ninstall_slurm = true\n", "POOLS_FILE [pools.a] contradicts itself", 'kind = "cluster"'),
        ("[pools.a]\nkind = 'cluster'\n", "POOLS_FILE [pools.a] cannot be a cluster", "data_centers"),
        (CLUSTER + "cloud = 'COMMUNITY'\n", "POOLS_FILE [pools.a] cannot be a cluster", "SECURE"),
        (CLUSTER + "min_active_gpus = 1\n", "POOLS_FILE [pools.a] cannot be a cluster", "min-nodes"),
        (CLUSTER + "machines_to_keep_idle = 1\n", "POOLS_FILE [pools.a] cannot be a cluster", "min-nodes"),
        (CLUSTER.replace("pools.a", "pools.default"), "POOLS_FILE [pools.default] cannot be a cluster", "another name"),
        (
            "[pools.a]\ntask_types = ['t']\n[pools.b]\ntask_types = ['t']\n",
            "POOLS_FILE: task type 't' has no single pool",
            "leave it in one",
        ),
    ],
)
def test_an_invalid_file_is_refused_with_what_why_and_the_fix(tmp_path: Path, text: str, what: str, fix: str) -> None:
    """One problem each, naming the line's place in the file."""
    ((said, why, corrected),) = refused(tmp_path / "pools.toml", text)
    assert said == what
    assert why
    assert fix in corrected


def test_a_cluster_pool_has_only_the_workers_that_its_cluster_wants(tmp_path: Path) -> None:
    """Whatever the environment keeps warm in other pools; and no other pool becomes a cluster by it."""
    (tmp_path / "pools.toml").write_text(CLUSTER + "install_slurm = true\n[pools.b]\n")
    base = pool(min_active=1, keep_idle=2)
    default, cluster, other = read_pools(tmp_path / "pools.toml", base)[0]
    assert (cluster.kind, cluster.min_active, cluster.keep_idle) == (PoolKind.CLUSTER, 0, 0)
    assert cluster.install_slurm
    assert {offer.data_center for offer in cluster.offers} == {"EU-RO-1"}
    assert default == base
    assert (other.kind, other.min_active) == (PoolKind.QUEUE, 1)


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    """Not one at each start."""
    assert len(refused(tmp_path / "pools.toml", "[pools.a]\ncolour = 1\ngpu_count = 99\n")) == 2


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """With the reason of the system."""
    with pytest.raises(SettingsError, match=r"no\.toml': No such file"):
        read_pools(tmp_path / "no.toml", pool())

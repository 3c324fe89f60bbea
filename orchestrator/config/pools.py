"""POOLS_FILE: pools beside the default one, and what holds for a type of task, in TOML.

    [pools.training]
    task_types = ["finetune"]              # tasks of these types go to this pool
    gpu_types = ["NVIDIA H100 80GB HBM3"]  # in order of preference, as all of RunPod's names
    gpu_count = 2
    max_active_gpus = 4
    worker_handlers = ["finetune"]         # its workers get these handlers of WORKER_HANDLERS only
    worker_env = ["HF_TOKEN"]              # and these variables of WORKER_ENV only; [] for none

    [task_types.finetune]
    timeout_s = 7200
    max_attempts = 2

A pool's keys are the environment's names in lower case without RUNPOD_; what is left out is as in the environment, and
[pools.default] changes the default pool itself.
"""

import difflib
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orchestrator.config.errors import PATH_CHARS, Problem, SettingsError, shown
from orchestrator.core.model import ID_PATTERN, Offer, Pool, TaskType

Count = Annotated[int, Field(ge=0, le=10_000)]
Batch = Annotated[int, Field(ge=1, le=100)]  # what worker_claim hands out at most
Seconds = Annotated[float, Field(gt=0, le=7 * 86_400)]
EXAMPLE = "orchestrator/config/pools.py has an example"
Names = Annotated[tuple[Annotated[str, Field(min_length=1, max_length=200)], ...], Field(min_length=1)]
SAME_NAME = {
    "image": "image",
    "storage_name": "volume_name",
    "volume_mount_path": "volume_mount_path",
    "container_disk_gb": "disk_gb",
    "min_memory_gb": "min_memory_gb",
    "min_vcpu": "min_vcpu",
    "gpu_count": "gpu_count",
    "min_active_gpus": "min_active",
    "max_active_gpus": "max_active",
    "tasks_per_gpu_threshold": "tasks_per_gpu",
    "machines_to_keep_idle": "keep_idle",
    "gpu_idle_timeout_sec": "idle_timeout_s",
    "gpu_overcapacity_idle_timeout_sec": "overcapacity_idle_timeout_s",
    "worker_tasks_per_claim": "batch",
    "worker_handlers": "handlers",
    "worker_env": "env",
}  # key -> field of Pool


class PoolEntry(BaseModel):
    """One [pools.<name>]; None: as in the environment."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    task_types: Names | None = None
    gpu_types: Names | None = None
    data_centers: tuple[str, ...] | None = None
    cloud: Literal["SECURE", "COMMUNITY"] | None = None
    image: str | None = None
    storage_name: str | None = None
    volume_mount_path: str | None = None
    container_disk_gb: Annotated[int, Field(ge=1, le=10_000)] | None = None
    min_memory_gb: Annotated[int, Field(ge=1, le=4_096)] | None = None
    min_vcpu: Annotated[int, Field(ge=1, le=512)] | None = None
    gpu_count: Annotated[int, Field(ge=1, le=8)] | None = None
    min_active_gpus: Count | None = None
    max_active_gpus: Count | None = None
    tasks_per_gpu_threshold: Annotated[int, Field(ge=1, le=100_000)] | None = None
    machines_to_keep_idle: Count | None = None
    gpu_idle_timeout_sec: Seconds | None = None
    gpu_overcapacity_idle_timeout_sec: Seconds | None = None
    worker_tasks_per_claim: Batch | None = None
    worker_handlers: tuple[str, ...] | None = None  # task types: a part of WORKER_HANDLERS
    worker_env: tuple[str, ...] | None = None  # names: a part of WORKER_ENV; [] for none

    def pool(self, name: str, base: Pool) -> Pool:
        """The base pool with what is said here."""
        said = {SAME_NAME[key]: value for key, value in self if key in SAME_NAME and value is not None}
        return replace(base, name=name, offers=self._offers(base), **said)

    def _offers(self, base: Pool) -> tuple[Offer, ...]:
        if self.gpu_types is None and self.data_centers is None and self.cloud is None:
            return base.offers
        types = self.gpu_types or tuple(dict.fromkeys(offer.gpu_type for offer in base.offers))
        known = tuple(dict.fromkeys(offer.data_center for offer in base.offers))
        centers = known if self.data_centers is None else self.data_centers or (None,)
        cloud = self.cloud or base.offers[0].cloud
        return tuple(Offer(gpu, center, cloud) for gpu in types for center in centers)


class TypeEntry(BaseModel):
    """One [task_types.<type>]."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    timeout_s: Annotated[float, Field(gt=0, le=30 * 86_400)] | None = None
    max_attempts: Annotated[int, Field(ge=1, le=100)] | None = None


class PoolsFile(BaseModel):
    """The whole file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pools: Mapping[str, PoolEntry] = Field(default_factory=dict)
    task_types: Mapping[str, TypeEntry] = Field(default_factory=dict)

    def all_pools(self, default: Pool) -> tuple[Pool, ...]:
        """The default pool first, then the others by name."""
        base = self.pools["default"].pool("default", default) if "default" in self.pools else default
        others = (self.pools[name].pool(name, base) for name in sorted(self.pools) if name != "default")
        return (base, *others)

    def all_types(self) -> tuple[TaskType, ...]:
        """What is declared of each type that is named anywhere."""
        pool_of = {kind: name for name, pool in self.pools.items() for kind in pool.task_types or ()}
        named = {name: self.task_types.get(name, TypeEntry()) for name in sorted({*pool_of, *self.task_types})}
        return tuple(TaskType(name, pool_of.get(name), e.timeout_s, e.max_attempts) for name, e in named.items())


def read_pools(path: Path | None, default: Pool) -> tuple[tuple[Pool, ...], tuple[TaskType, ...]]:
    """The pools and the declared types. Raises SettingsError with everything that is wrong with the file."""
    if path is None:
        return (default,), ()
    try:
        file = PoolsFile.model_validate(tomllib.loads(path.read_text("utf-8")))
    except OSError as error:
        why = f"{shown(str(path), PATH_CHARS)}: {error.strerror or error}"
        raise SettingsError([Problem("POOLS_FILE cannot be read", why, "give the path of a TOML file")]) from error
    except ValidationError as error:
        raise SettingsError([_problem(dict(item)) for item in error.errors()]) from None
    except (ValueError, RecursionError) as error:  # TOML or UTF-8, or nested without end
        raise SettingsError([Problem("POOLS_FILE is not TOML", f"{path}: {error}", EXAMPLE)]) from None
    pools = file.all_pools(default)
    problems = [*_contradictions(pools), *_claimed_twice(file)]
    if problems:
        raise SettingsError(problems)
    return pools, file.all_types()


def _contradictions(pools: Iterable[Pool]) -> Iterable[Problem]:
    for pool in pools:
        where = f"POOLS_FILE [pools.{pool.name}]"
        if not ID_PATTERN.fullmatch(pool.name):
            fix = "letters, digits, '-' and '_' only, at most 63"
            yield Problem(f"{where} cannot be used", f"{pool.name!r} is not a name for a pool", fix)
        if pool.max_active and pool.min_active > pool.max_active:
            why = f"min_active_gpus {pool.min_active} is more than max_active_gpus {pool.max_active}"
            yield Problem(f"{where} contradicts itself", why, "lower min_active_gpus")


def _claimed_twice(file: PoolsFile) -> Iterable[Problem]:
    counted = Counter(kind for pool in file.pools.values() for kind in set(pool.task_types or ()))
    for kind, times in sorted(counted.items()):
        if times > 1:
            names = ", ".join(sorted(name for name, pool in file.pools.items() if kind in (pool.task_types or ())))
            why = f"pools {names} all take it"
            yield Problem(f"POOLS_FILE: task type {kind!r} has no single pool", why, "leave it in one of them")


def _problem(item: Mapping[str, Any]) -> Problem:
    where = ".".join(map(str, item["loc"]))
    if item["type"] == "extra_forbidden":
        known = [*PoolEntry.model_fields, *TypeEntry.model_fields, *PoolsFile.model_fields]
        near = difflib.get_close_matches(str(item["loc"][-1]), known, n=1)
        fix = f"rename it {near[0]}" if near else f"remove it, or take one of {', '.join(sorted(known))}"
        return Problem(f"POOLS_FILE: {where} is not a setting", "nothing reads it", fix)
    why = f"{shown(item.get('input'))}: {item['msg']}"
    return Problem(f"POOLS_FILE: {where} cannot be used", why, EXAMPLE)

"""POOLS_FILE: additional pools and settings of task types, in TOML.

    [pools.training]
    task_types = ["finetune"]              # tasks of these types go to this pool
    gpu_types = ["NVIDIA H100 80GB HBM3"]  # in order of preference, as all of RunPod's names
    gpu_count = 2                          # 1 to 8
    max_active_gpus = 4
    worker_handlers = ["finetune"]         # its workers get these handlers of WORKER_HANDLERS only
    worker_env = ["HF_TOKEN"]              # and these variables of WORKER_ENV only; [] for none

    [[pools.training.scheduled_sizes]]     # sizes from these times on, until the next entry is due
    cron = "0 8 * * 1-5"
    time_zone = "Europe/Berlin"            # the default is UTC
    min_active_gpus = 2                    # or max_active_gpus, or both

    [pools.slurm]
    kind = "cluster"                       # its workers are the nodes of a Slurm cluster (docs/clusters.md)
    data_centers = ["EU-RO-1"]             # exactly one, with a global network; cloud must be SECURE
    install_slurm = true                   # if the image has no Slurm; the default is false

    [task_types.finetune]
    timeout_s = 7200                       # at most 2592000, 30 days
    max_attempts = 2                       # 1 to 100
    keep_processes = true                  # what its handler starts may outlive a task (docs/handlers.md)

docs/settings.md names the setting that each key overrides. A key that is left out has the environment's value, and
[pools.default] changes the default pool itself.
"""

import difflib
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, create_model, field_validator

from orchestrator.config.cluster_pools import cluster_problems
from orchestrator.config.errors import LIBRARY_WORDS, PATH_CHARS, SettingProblem, SettingsError, shown
from orchestrator.config.fleet_settings import Machines, Scaling, WorkerPrograms
from orchestrator.config.placeholders import refuse_invisible, refuse_placeholder, refuse_reference
from orchestrator.config.scheduled_sizes import MAX_ENTRIES, SizeEntry, size_problems
from orchestrator.config.setting import settings_of
from orchestrator.core.model import ID_PATTERN
from orchestrator.core.policy import Pool, PoolKind, TaskType
from orchestrator.core.provider import Offer

EXAMPLE = "orchestrator/config/pools.py has an example"
Names = Annotated[tuple[Annotated[str, Field(min_length=1, max_length=200)], ...], Field(min_length=1)]
OVERRIDES = tuple(
    one for section in (Scaling, Machines, WorkerPrograms) for one in settings_of(section) if one.pool_key
)
FIELDS = {str(one.pool_key): one.pool_field for one in OVERRIDES if one.pool_field} | {
    "gpu_count": "gpu_count",
    "worker_handlers": "handlers",
    "worker_env": "env",
    "install_slurm": "install_slurm",
}  # key -> field of Pool


class PoolKeys(BaseModel):
    """The keys of [pools.<name>] that are no settings, or that a pool writes in another form. None: not set."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    task_types: Names | None = None
    gpu_count: Annotated[int, Field(ge=1, le=8)] | None = None
    worker_handlers: tuple[str, ...] | None = None  # task types: a part of WORKER_HANDLERS
    worker_env: tuple[str, ...] | None = None  # names: a part of WORKER_ENV; [] for none
    kind: Literal["queue", "cluster"] = "queue"
    scheduled_sizes: Annotated[tuple[SizeEntry, ...], Field(max_length=MAX_ENTRIES)] | None = None
    install_slurm: bool | None = None  # only for a cluster: on pods whose image has no Slurm

    @field_validator("*", mode="before")
    @classmethod
    def _as_written(cls, value: object, info: ValidationInfo) -> object:
        """Refuse what nobody has filled in, as the settings of the environment do, and true in place of a number."""
        if isinstance(value, bool) and info.field_name != "install_slurm":
            raise ValueError("it is true or false, and the key has another kind of value")
        for text in value if isinstance(value, list) else (value,):
            if isinstance(text, str):
                refuse_invisible(text)
                refuse_reference(text)
                refuse_placeholder(text)
        return value

    def pool(self, name: str, base: Pool) -> Pool:
        """Return the base pool with these values. A cluster pool has only the workers that its cluster wants."""
        given = {key: value for key, value in self if value is not None}
        kind = PoolKind(self.kind)
        alone = {"min_active": 0, "keep_idle": 0} if kind is PoolKind.CLUSTER else {}
        same = alone | {FIELDS[key]: value for key, value in given.items() if key in FIELDS}
        sizes = tuple(one.size() for one in self.scheduled_sizes or ())  # not the base's: it may have other limits
        return replace(base, name=name, kind=kind, offers=_offers(given, base), scheduled_sizes=sizes, **same)


def _offers(given: Mapping[str, Any], base: Pool) -> tuple[Offer, ...]:
    if not given.keys() & {"gpu_types", "data_centers", "cloud"}:
        return base.offers
    types = given.get("gpu_types", tuple(dict.fromkeys(offer.gpu_type for offer in base.offers)))
    centers = given.get("data_centers", tuple(dict.fromkeys(offer.data_center for offer in base.offers))) or (None,)
    cloud = given.get("cloud", base.offers[0].cloud)
    return tuple(Offer(gpu, center, cloud) for gpu in types for center in centers)


if TYPE_CHECKING:
    PoolEntry = PoolKeys
else:
    copied = [one for one in OVERRIDES if one.pool_key not in PoolKeys.model_fields]
    fields = {one.pool_key: (one.field.rebuild_annotation() | None, None) for one in copied}
    PoolEntry = create_model("PoolEntry", __base__=PoolKeys, **fields)


class TypeEntry(BaseModel):
    """One [task_types.<type>]."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    timeout_s: Annotated[float, Field(gt=0, le=30 * 86_400)] | None = None
    max_attempts: Annotated[int, Field(ge=1, le=100)] | None = None
    keep_processes: bool | None = None


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
        """Return the declaration of each task type that the file names."""
        pool_of = {kind: name for name, pool in self.pools.items() for kind in pool.task_types or ()}
        named = {name: self.task_types.get(name, TypeEntry()) for name in sorted({*pool_of, *self.task_types})}
        return tuple(
            TaskType(name, pool_of.get(name), e.timeout_s, e.max_attempts, e.keep_processes)
            for name, e in named.items()
        )


def read_pools(path: Path | None, default: Pool) -> tuple[tuple[Pool, ...], tuple[TaskType, ...]]:
    """The pools and the declared types. Raises SettingsError with everything that is wrong with the file."""
    if path is None:
        return (default,), ()
    try:
        file = PoolsFile.model_validate(tomllib.loads(path.read_text("utf-8-sig")))
    except OSError as error:
        why = f"{shown(str(path), PATH_CHARS)}: {error.strerror or error}"
        raise SettingsError(
            [SettingProblem("POOLS_FILE cannot be read", why, "give the path of a TOML file")]
        ) from error
    except ValidationError as error:
        raise SettingsError([_problem(dict(item)) for item in error.errors()]) from None
    except (ValueError, RecursionError) as error:  # TOML or UTF-8, or nested without end
        raise SettingsError([SettingProblem("POOLS_FILE is not TOML", f"{path}: {error}", EXAMPLE)]) from None
    pools = file.all_pools(default)
    problems = [*_contradictions(pools), *_claimed_twice(file)]
    if problems:
        raise SettingsError(problems)
    return pools, file.all_types()


def _contradictions(pools: Iterable[Pool]) -> Iterable[SettingProblem]:
    for pool in pools:
        where = f"POOLS_FILE [pools.{pool.name}]"
        if not ID_PATTERN.fullmatch(pool.name):
            fix = "letters, digits, '-' and '_' only, at most 63"
            yield SettingProblem(f"{where} cannot be used", f"{pool.name!r} is not a name for a pool", fix)
        if pool.max_active and pool.min_active > pool.max_active:
            why = f"min_active_gpus {pool.min_active} is more than max_active_gpus {pool.max_active}"
            yield SettingProblem(f"{where} contradicts itself", why, "lower min_active_gpus")
        yield from cluster_problems(pool, where)
        yield from size_problems(pool, where)


def _claimed_twice(file: PoolsFile) -> Iterable[SettingProblem]:
    counted = Counter(kind for pool in file.pools.values() for kind in set(pool.task_types or ()))
    for kind, times in sorted(counted.items()):
        if times > 1:
            names = ", ".join(sorted(name for name, pool in file.pools.items() if kind in (pool.task_types or ())))
            why = f"pools {names} all take it"
            yield SettingProblem(f"POOLS_FILE: task type {kind!r} has no single pool", why, "leave it in one of them")


def _problem(item: Mapping[str, Any]) -> SettingProblem:
    where = ".".join(map(str, item["loc"]))
    if item["type"] == "extra_forbidden" and len(item["loc"]) == 1 and where in PoolEntry.model_fields:
        return SettingProblem(f"POOLS_FILE: {where} is in no pool", "nothing reads it", "put it below [pools.default]")
    if item["type"] == "extra_forbidden":
        known = [*PoolEntry.model_fields, *TypeEntry.model_fields, *PoolsFile.model_fields]
        near = difflib.get_close_matches(str(item["loc"][-1]), known, n=1)
        fix = f"rename it {near[0]}" if near else f"remove it, or take one of {', '.join(sorted(known))}"
        return SettingProblem(f"POOLS_FILE: {where} is not a setting", "nothing reads it", fix)
    why = f"{shown(item.get('input'))}: {item['msg'].removeprefix(LIBRARY_WORDS)}"
    return SettingProblem(f"POOLS_FILE: {where} cannot be used", why, EXAMPLE)

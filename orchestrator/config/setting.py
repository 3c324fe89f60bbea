"""What a setting declares: its default, limits, meaning and unit, and how a pool of POOLS_FILE overrides it.

`.env.example`, docs/settings.md, the keys of a pool and the search for misspelt names are made from the declaration.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, get_args

from pydantic import AliasChoices, BaseModel, Field
from pydantic.fields import FieldInfo


class Setting(NamedTuple):
    """One declared setting."""

    name: str  # of the field; the environment variable is this name in capitals
    field: FieldInfo
    unit: str | None
    pool_key: str | None  # the key in POOLS_FILE that overrides it; None: a pool cannot
    pool_field: str | None  # the field of core.policy.Pool with the same value; None: a pool needs more than a copy
    min_bytes: int | None  # of a secret that could otherwise be guessed
    limits: str | None  # which values are accepted, in words; None: all that the meaning allows

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables that are read, the first that is set."""
        alias = self.field.validation_alias
        return tuple(map(str, alias.choices)) if isinstance(alias, AliasChoices) else (self.name.upper(),)


def setting(
    default: Any,
    meaning: str,
    *,
    unit: str | None = None,
    pool: str | None = None,
    pool_key: str | None = None,
    variables: tuple[str, ...] = (),
    min_bytes: int | None = None,
    limits: str | None = None,
) -> Any:
    """Declare a setting. `pool`: the field of Pool that it fills; `variables`: its names, if it has several.

    `limits`: limits that neither its type nor `min_bytes` shows.
    """
    extra: dict[str, Any] = {"unit": unit, "pool": pool, "pool_key": pool_key}
    extra |= {"min_bytes": min_bytes, "limits": limits}
    alias = AliasChoices(*variables) if variables else None
    return Field(default, description=meaning, validation_alias=alias, json_schema_extra=extra)


def settings_of(section: type[BaseModel]) -> Iterator[Setting]:
    """The settings of a section, or of all sections together, in the order of their declaration."""
    for name, field in section.model_fields.items():
        extra: dict[str, Any] = field.json_schema_extra  # type: ignore[assignment]
        key = extra["pool_key"] or (name.removeprefix("runpod_") if extra["pool"] else None)
        fewest = extra["min_bytes"]
        limits = extra["limits"] or (f"at least {fewest} bytes" if fewest else _range(field))
        yield Setting(name, field, extra["unit"], key, extra["pool"], fewest, limits)


def _range(field: FieldInfo) -> str | None:
    """Return the range of a number, or of the numbers within a list, as its type has it."""
    bounds: dict[str, Any] = {}
    for one in (*field.metadata, *_metadata(field.annotation)):
        bounds |= {name: getattr(one, name) for name in ("gt", "ge", "le") if getattr(one, name, None) is not None}
    if "le" not in bounds:
        return None
    least = f"more than {bounds['gt']}, at most" if "gt" in bounds else f"{bounds['ge']} to"
    return f"{least} {bounds['le']}"


def _metadata(kind: object) -> Iterator[object]:
    """Yield what is annotated within a type."""
    for one in getattr(kind, "__metadata__", ()):
        yield from one.metadata if isinstance(one, FieldInfo) else (one,)
    for part in get_args(kind):
        yield from _metadata(part)

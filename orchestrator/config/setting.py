"""What a setting declares: its default, what it means, its unit, and how a pool of POOLS_FILE overrides it.

`.env.example`, docs/settings.md, the keys of a pool and the search for misspelt names are made from the declaration.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from pydantic import AliasChoices, BaseModel, Field
from pydantic.fields import FieldInfo


class Setting(NamedTuple):
    """One declared setting."""

    name: str  # of the field; the environment variable is this name in capitals
    field: FieldInfo
    unit: str | None
    pool_key: str | None  # the key in POOLS_FILE that overrides it; None: a pool cannot
    pool_field: str | None  # the field of core.model.Pool with the same value; None: a pool needs more than a copy

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
) -> Any:
    """Declare a setting. `pool`: the field of Pool that it fills; `variables`: its names, if it has several."""
    extra: dict[str, Any] = {"unit": unit, "pool": pool, "pool_key": pool_key}
    alias = AliasChoices(*variables) if variables else None
    return Field(default, description=meaning, validation_alias=alias, json_schema_extra=extra)


def settings_of(section: type[BaseModel]) -> Iterator[Setting]:
    """The settings of a section, or of all sections together, in the order of their declaration."""
    for name, field in section.model_fields.items():
        extra: dict[str, Any] = field.json_schema_extra  # type: ignore[assignment]
        key = extra["pool_key"] or (name.removeprefix("runpod_") if extra["pool"] else None)
        yield Setting(name, field, extra["unit"], key, extra["pool"])

"""The settings that a replay knows, by their names, and values for them as a person writes them."""

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from orchestrator.config.errors import LIBRARY_WORDS, shown
from orchestrator.config.fleet_settings import Scaling
from orchestrator.config.setting import Setting, settings_of
from orchestrator.core.economics.scaling_settings import ScalingSettings

OF_THE_FLEET = {"scale_down_grace_period_sec": "grace_s"}  # no pool can override it


@cache
def known_settings() -> Mapping[str, tuple[str, Setting]]:
    """Return the field of ScalingSettings, and the declaration, of each setting that a replay knows."""
    replayed = {one.name for one in fields(ScalingSettings)}
    found = {}
    for one in settings_of(Scaling):
        field = OF_THE_FLEET.get(one.name, one.pool_field)
        if field in replayed:
            found[one.variables[0]] = (str(field), one)
    return found


def value_of(name: str, text: str) -> tuple[str, Any]:
    """Return the field of a known setting, and its value. ValueError says why the text is none."""
    field, declared = known_settings()[name]
    adapter: TypeAdapter[Any] = TypeAdapter(declared.field.rebuild_annotation())
    try:
        return field, adapter.validate_python(text.strip())
    except ValidationError as error:
        words = error.errors()[0]["msg"].removeprefix(LIBRARY_WORDS)
        raise ValueError(f"{shown(text)}: {words[:1].lower()}{words[1:]}") from None

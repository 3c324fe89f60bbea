"""The configuration that is in effect: each value, where it comes from, and one hash of all of them (guard U27).

A value of a pool goes before the environment's, and the environment's before the default. Secrets are shown and hashed
as "set".
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import fields
from typing import NamedTuple

from pydantic import SecretStr

from orchestrator.config.setting import settings_of
from orchestrator.config.settings import Settings
from orchestrator.core.provider import Offer

DEFAULT, ENVIRONMENT, POOLS_FILE = "default", "environment", "POOLS_FILE"
HASH_CHARS = 12


class Effective(NamedTuple):
    """One setting's value and its source."""

    name: str
    value: str
    source: str


def effective(settings: Settings) -> list[Effective]:
    """Every value, in the order of docs/settings.md. Raises SettingsError where POOLS_FILE cannot be used."""
    return [*_of_environment(settings), *_of_pools(settings)]


def digest(values: list[Effective]) -> str:
    """Return the beginning of the SHA-256 of all values: equal for two processes with the same configuration."""
    text = json.dumps([[one.name, one.value] for one in values])
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:HASH_CHARS]


def _of_environment(settings: Settings) -> Iterator[Effective]:
    for one in settings_of(Settings):
        source = ENVIRONMENT if one.name in settings.model_fields_set else DEFAULT
        yield Effective(one.variables[0], _text(getattr(settings, one.name)), source)


def _of_pools(settings: Settings) -> Iterator[Effective]:
    policy, base = settings.policy(), settings.default_pool()
    for pool in policy.pools:
        for field in fields(pool):
            value = getattr(pool, field.name)
            if field.name != "name" and value != getattr(base, field.name):
                yield Effective(f"pools.{pool.name}.{field.name}", _text(value), POOLS_FILE)
    for kind in policy.task_types:
        for field in fields(kind):
            if field.name != "name" and (value := getattr(kind, field.name)) is not None:
                yield Effective(f"task_types.{kind.name}.{field.name}", _text(value), POOLS_FILE)


def _text(value: object) -> str:
    if isinstance(value, SecretStr):
        return "set"
    if isinstance(value, tuple | list):
        return ",".join(map(_text, value))
    return value.key if isinstance(value, Offer) else "" if value is None else str(value)

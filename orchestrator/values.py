"""How settings are spelled: what the text of a variable must be like, and what it becomes."""

import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr
from pydantic_settings import NoDecode

from orchestrator.core.model import ID_PATTERN
from orchestrator.core.states import RUNGS
from orchestrator.pools import Seconds

QUOTED = re.compile(r"(['\"])((?:(?!\1).)*)\1", re.DOTALL)


def unquoted(value: object) -> object:
    """A text without the quotes around it, which `docker run --env-file` takes for a part of it."""
    found = QUOTED.fullmatch(value) if isinstance(value, str) else None
    return found[2] if found else value


def _split(value: object) -> object:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def _some_gpu(value: tuple[str, ...]) -> tuple[str, ...]:
    if not value:
        raise ValueError("it names no GPU type, so no pod could ever be asked for")
    return value


def _handlers(value: object) -> object:
    if not isinstance(value, str):
        return value
    pairs = []
    for part in (piece.strip() for piece in value.split(",")):
        name, equals, target = part.partition("=")
        if part and not (equals and name.strip() and ":" in target):
            raise ValueError(f"{part!r} is not task_type=module:function or task_type=cmd:command")
        if part:
            pairs.append((name.strip(), target.strip()))
    return tuple(pairs)


def _deadlines(value: object) -> object:
    if not isinstance(value, str):
        return value
    pairs = []
    for part in (piece.strip() for piece in value.split(",") if piece.strip()):
        stage, _, seconds = (word.strip() for word in part.partition("="))
        if stage not in set(RUNGS):
            raise ValueError(f"{part!r} is not stage=seconds; stages are {', '.join(RUNGS)}")
        pairs.append((stage, seconds))
    return tuple(pairs)


def _fleet(value: str) -> str:
    if not ID_PATTERN.fullmatch(value):
        raise ValueError("letters, digits, '-' and '_' only, at most 63")
    return value


def _conninfo(value: SecretStr) -> SecretStr:
    text = value.get_secret_value()
    if "=" not in text.partition("://")[0] and not text.startswith(("postgresql://", "postgres://")):
        raise ValueError("must be a URL that begins with postgresql:// (or libpq's host=… dbname=…)")
    return value


def _url(value: str) -> str:
    if not value.startswith(("http://", "https://")):
        raise ValueError("must begin with http:// or https://")
    return value.rstrip("/")


Dollars = Annotated[float, Field(ge=0, le=1_000_000)]
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
GpuTypes = Annotated[Names, AfterValidator(_some_gpu)]
Handlers = Annotated[tuple[tuple[str, str], ...], NoDecode, BeforeValidator(_handlers)]  # task type, what does it
Deadlines = Annotated[tuple[tuple[str, Seconds], ...], NoDecode, BeforeValidator(_deadlines)]  # stage, seconds
FleetId = Annotated[str, AfterValidator(_fleet)]
Conninfo = Annotated[SecretStr, AfterValidator(_conninfo)]
Url = Annotated[str, AfterValidator(_url)]  # without a slash at its end

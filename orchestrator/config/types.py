"""The types of settings: which texts of a variable are valid, and which value each text becomes."""

import ipaddress
import re
import urllib.parse
from collections import Counter
from collections.abc import Iterator
from datetime import time
from types import UnionType
from typing import Annotated, Union, get_args, get_origin
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr
from pydantic_settings import NoDecode

from orchestrator.config.errors import shown
from orchestrator.config.weak_secrets import is_readable_on_the_way
from orchestrator.core.model import ID_PATTERN
from orchestrator.core.stages import STAGE_SPECS
from orchestrator.core.states import Stage
from worker.protocol import SLURM_HANDLER

STAGES = tuple(
    stage for stage in STAGE_SPECS if stage not in {Stage.INTENT, Stage.POD_CREATED}
)  # what a bring-up may take
QUOTED = re.compile(r"(['\"])((?:(?!\1).)*)\1", re.DOTALL)
URL_CHARACTERS = re.compile(r"[A-Za-z0-9\-._~:/@!$&'()*+,;=%\[\]]*")  # RFC 3986, without what follows a path
CLOCK = r"((?:[01]\d|2[0-3]):[0-5]\d)"
QUIET_TIMES = re.compile(rf"{CLOCK}-{CLOCK}(?: +([A-Za-z0-9_+/-]{{1,60}}))?", re.ASCII)
NUMBER = re.compile(r"-?(?=[0-9.]*[1-9])[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]{1,3})?|0+(?:\.0+)?", re.ASCII)  # no -0
URL_START = re.compile(r"postgres(?:ql)?://")
# As written, in a URL's query and among libpq's pairs: there with a backslash before what means something else.
PASSWORD = re.compile(r"(?:ssl)?password\s*=\s*(?:'((?:[^'\\]|\\.)*)'|((?:[^\s&\\]|\\.)+))", re.DOTALL)


def unquoted(value: object) -> object:
    """Return a text without the quotes around it. `docker run --env-file` keeps them as a part of the value."""
    found = QUOTED.fullmatch(value) if isinstance(value, str) else None
    return found[2] if found else value


def _split(value: object) -> object:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def _networks(value: tuple[str, ...]) -> tuple[str, ...]:
    for one in value:
        try:
            ipaddress.ip_network(one)
        except ValueError:
            raise ValueError(f"{shown(one)} is no network such as 10.1.0.0/16, or has bits beyond its prefix") from None
    return value


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
        if part and not (equals and name.strip() and (":" in target or target.strip() == SLURM_HANDLER)):
            raise ValueError(
                f"{shown(part)} is not task_type=module:function, task_type=cmd:command or task_type=slurm"
            )
        if part:
            pairs.append((name.strip(), target.strip()))
    for name, times in Counter(name for name, _ in pairs).items():
        if times > 1:
            raise ValueError(f"the task type {shown(name)} has {times} handlers; give it one")
    return tuple(pairs)


def _deadlines(value: object) -> object:
    if not isinstance(value, str):
        return value
    pairs = []
    for part in (piece.strip() for piece in value.split(",") if piece.strip()):
        stage, _, seconds = (word.strip() for word in part.partition("="))
        if stage not in STAGES:
            raise ValueError(f"{shown(part)} is not stage=seconds; stages are {', '.join(STAGES)}")
        pairs.append((stage, in_digits(seconds)))
    return tuple(pairs)


def _fleet(value: str) -> str:
    if not ID_PATTERN.fullmatch(value):
        raise ValueError("letters, digits, '-' and '_' only, at most 63")
    return value


def conninfo_passwords(text: str) -> Iterator[str]:
    """The passwords in a connection string, as libpq reads them and as written; not one that is the user's own name."""
    read = _as_libpq(text)
    written = (quoted or bare for quoted, bare in PASSWORD.findall(text))
    for password in (read.get("password"), read.get("sslpassword"), *written):
        if password and password != read.get("user"):
            yield password
            yield urllib.parse.unquote(password)


def _conninfo(value: SecretStr) -> SecretStr:
    """Refuse a connection string that libpq would refuse or split in the wrong place: its error quotes the password."""
    text = value.get_secret_value()
    is_url = URL_START.match(text)
    if not is_url and "=" not in text.partition("://")[0]:
        raise ValueError("must be a URL that begins with postgresql:// (or libpq's host=… dbname=…)")
    read = _as_libpq(text)
    login, at, rest = text.partition("://")[2].partition("@")
    is_misplaced = "@" in rest.partition("?")[0] or (at and "/" in login and "?" not in login)
    if is_url and (is_misplaced or "?" in read.get("user", "")):
        raise ValueError("an '@' or '/' stands in a password or the user's name: write %40 or %2F for it")
    if re.search(r"[^\d,]", read.get("port", "")):
        raise ValueError("its port is not a number")
    return value


def _as_libpq(text: str) -> dict[str, str]:
    from psycopg import ProgrammingError  # noqa: PLC0415  not needed where Supabase's API is the way in
    from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415

    try:
        return {name: str(value) for name, value in conninfo_to_dict(text).items()}
    except ProgrammingError:
        how = "a password with a space is '…' in host=… password=…, and has %20 in a URL, where % itself is %25"
        raise ValueError(f"it cannot be read as a connection string, and may not be shown; {how}") from None


def _url(value: str) -> str:
    """Refuse a URL that another program could read as the address of another host."""
    if not value.startswith(("http://", "https://")):
        raise ValueError("must begin with http:// or https://")
    if not URL_CHARACTERS.fullmatch(value):
        raise ValueError(
            "contains a character that no base URL has: a space, a backslash, '?', '#', or one beyond ASCII"
        )
    try:
        parts = urllib.parse.urlsplit(value)
        host, port = parts.hostname, parts.port
    except ValueError:  # its text quotes the value
        raise ValueError("its host or port cannot be read; a port is a number from 1 to 65535") from None
    if not host or port == 0:
        raise ValueError("it names no host, or the port 0")
    return value.rstrip("/")


def _alert_url(value: SecretStr) -> SecretStr:
    """Its path is a secret, so no complaint quotes it."""
    try:
        parts = urllib.parse.urlsplit(value.get_secret_value())
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ValueError("its host or port cannot be read") from None
    if parts.scheme not in {"http", "https"} or not host or parts.username is not None:
        raise ValueError("must be a URL that begins with https:// and names a host, without a user")
    if is_readable_on_the_way(value.get_secret_value()):
        raise ValueError("must begin with https://, or everybody on the way can read it")
    return value


def _quiet_times(value: object) -> object:
    if not isinstance(value, str):
        return value
    found = QUIET_TIMES.fullmatch(value.strip())
    if found is None:
        raise ValueError(f"{shown(value)} is not 22:00-07:00 or 22:00-07:00 Europe/Berlin")
    begin, end, zone = time.fromisoformat(found[1]), time.fromisoformat(found[2]), found[3] or "UTC"
    if begin == end:
        raise ValueError("its begin is its end")
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"{shown(zone)} is no time zone of this machine") from None
    return begin, end, zone


def in_digits(value: object) -> object:
    """Check that a number is written in the usual form: Python also reads 1_000 and others."""
    if isinstance(value, str) and not NUMBER.fullmatch(value.strip()):
        raise ValueError("is not a number in digits, such as 3 or 0.5")
    return value


def is_number(kind: object) -> bool:
    """Whether a field of this type is a number, or may be none."""
    either = get_origin(kind) in {Annotated, Union, UnionType}
    return kind in {int, float} or (either and any(map(is_number, get_args(kind))))


Count = Annotated[int, Field(ge=0, le=10_000)]
Batch = Annotated[int, Field(ge=1, le=100)]  # what worker_claim hands out at most
Seconds = Annotated[float, Field(gt=0, le=7 * 86_400)]
Dollars = Annotated[float, Field(ge=0, le=1_000_000)]
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
Networks = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split), AfterValidator(_networks)]
GpuTypes = Annotated[Names, AfterValidator(_some_gpu)]
Handlers = Annotated[tuple[tuple[str, str], ...], NoDecode, BeforeValidator(_handlers)]  # task type, what does it
Deadlines = Annotated[tuple[tuple[str, Seconds], ...], NoDecode, BeforeValidator(_deadlines)]  # stage, seconds
FleetId = Annotated[str, AfterValidator(_fleet)]
Conninfo = Annotated[SecretStr, AfterValidator(_conninfo)]
Url = Annotated[str, AfterValidator(_url)]  # without a slash at its end
ENCRYPTED_URL = "https://, or http:// on this machine"
AlertUrl = Annotated[SecretStr, AfterValidator(_alert_url)]
QuietTimes = Annotated[tuple[time, time, str], NoDecode, BeforeValidator(_quiet_times)]  # begin, end, time zone

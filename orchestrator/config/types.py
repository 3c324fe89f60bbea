"""The types of settings: which texts of a variable are valid, and which value each text becomes."""

import ipaddress
import re
import urllib.parse
from collections import Counter
from datetime import time
from types import UnionType
from typing import Annotated, Union, get_args, get_origin
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr
from pydantic_settings import NoDecode

from orchestrator.config.conninfo import conninfo
from orchestrator.config.errors import shown
from orchestrator.config.names import gpu_types
from orchestrator.config.placeholders import refuse_names, refuse_placeholder
from orchestrator.config.weak_secrets import is_readable_on_the_way
from orchestrator.core.model import ID_PATTERN
from orchestrator.core.stages import STAGE_SPECS
from orchestrator.core.states import Stage
from worker.protocol import SLURM_HANDLER

STAGES = tuple(
    stage for stage in STAGE_SPECS if stage not in {Stage.INTENT, Stage.POD_CREATED}
)  # what a bring-up may take
QUOTED = re.compile(r"(['\"])((?:(?!\1).)*)\1", re.DOTALL)
CURLY = re.compile(r"[\u2018\u201c](.*)[\u2019\u201d]", re.DOTALL)  # what a word processor makes of quotes
AROUND = "\ufeff\u200b"  # marks that an editor writes and nobody sees
URL_CHARACTERS = re.compile(r"[A-Za-z0-9\-._~:/@!$&'()*+,;=%\[\]]*")  # RFC 3986, without what follows a path
OTHER_LIST = re.compile(r"[;\[\]{}|\"\n]")  # of a JSON list, or between the entries of other tools' lists
LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
HOST = re.compile(rf"{LABEL}(?:\.{LABEL}){{0,60}}\.?")
ALERT_PATH = re.compile(r"[!-~]*")
DSN = re.compile(
    rf"https?://[A-Za-z0-9_-]+(?::[A-Za-z0-9_-]*)?@(?:{LABEL}(?:\.{LABEL}){{0,60}}|\[[0-9A-Fa-f:.]+\])(?::\d{{1,5}})?(?:/[\w.-]+)*/\d+/?",
    re.ASCII,
)
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110
HEADER_VALUE = re.compile(r"[ -~]*[!-~][ -~]*")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
CENTER = re.compile(r"[A-Z0-9]+(?:-[A-Z0-9]+)+")
CLOCK = r"((?:[01]\d|2[0-3]):[0-5]\d)"
QUIET_TIMES = re.compile(rf"{CLOCK}-{CLOCK}(?: +([A-Za-z0-9_+/-]{{1,60}}))?", re.ASCII)
NUMBER = re.compile(r"-?(?=[0-9.]*[1-9])[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]{1,3})?|0+(?:\.0+)?", re.ASCII)  # no -0


def unquoted(value: object, *, strips: bool = True) -> object:
    """Return a text without the quotes around it and, with `strips`, without spaces, line ends and marks around it.

    `docker run --env-file` keeps quotes and the line ends of Windows as a part of the value.
    """
    if not isinstance(value, str):
        return value
    text = value.strip().strip(AROUND).strip() if strips else value
    if found := QUOTED.fullmatch(text):
        text = found[2]
    elif found := CURLY.fullmatch(text):
        text = found[1]
    return text.strip() if strips else text


def _split(value: object) -> object:
    if not isinstance(value, str):
        return value
    if found := OTHER_LIST.search(value):
        what = "a line end" if found[0] == "\n" else found[0]
        raise ValueError(f"{what} is no part of a list: write entries with commas between them, without brackets")
    return tuple(part.strip() for part in value.split(",") if part.strip())


def _variables(value: tuple[str, ...]) -> tuple[str, ...]:
    for one in value:
        if not VARIABLE.fullmatch(one):  # what follows a '=' may be a secret
            what = f"{shown(one.partition('=')[0])} with a value" if "=" in one else shown(one)
            raise ValueError(f"{what} is no name of a variable: write names alone, with commas between them")
    return value


def _networks(value: tuple[str, ...]) -> tuple[str, ...]:
    for one in value:
        try:
            ipaddress.ip_network(one)
        except ValueError:
            raise ValueError(f"{shown(one)} is no network such as 10.1.0.0/16, or has bits beyond its prefix") from None
    return value


def _centers(value: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(map(str.upper, value))
    for name in names:
        if not CENTER.fullmatch(name):
            raise ValueError(f"{shown(name)} is no data centre such as EU-RO-1; empty means any")
    return names


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


def _url(value: str) -> str:
    """Refuse a URL that another program could read as the address of another host."""
    scheme, _, rest = value.partition("://")
    if scheme.lower() not in {"http", "https"} or "://" not in value:
        raise ValueError("must begin with http:// or https://")
    refuse_names(rest)
    value = f"{scheme.lower()}://{rest}"
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
    refuse_bad_host(host)
    return value.rstrip("/")


def refuse_bad_host(host: str) -> None:
    """Raise ValueError for what is neither a host name nor an address: a reference, or the begin of another URL."""
    if not (HOST.fullmatch(host) or _is_address(host)):
        raise ValueError(f"{shown(host)} is no name of a host")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _domain(value: str) -> str:
    """Return the host name of a domain, which some pages show as a URL."""
    host = re.sub(r"^https?://", "", value, flags=re.IGNORECASE).rstrip("/")
    refuse_names(host)
    refuse_bad_host(host)
    return host


def _dsn(value: SecretStr) -> SecretStr:
    """Refuse a DSN of Sentry that reports nothing. No complaint quotes it."""
    text = value.get_secret_value()
    refuse_names(text)
    if not DSN.fullmatch(text):
        raise ValueError("must be https://<key>@<host>/<project number>, from the project's Client Keys (DSN)")
    return value


def _header_list(value: SecretStr) -> SecretStr:
    """Refuse what the OpenTelemetry SDK would skip. No complaint quotes a value."""
    for part in filter(str.strip, value.get_secret_value().split(",")):
        name, equals, text = part.partition("=")
        refuse_placeholder(text)
        if not equals or not HEADER_NAME.fullmatch(name.strip()):
            raise ValueError("an entry is not name=value: write name=value,name=value")
        if not HEADER_VALUE.fullmatch(text):
            raise ValueError(f"the value of {shown(name.strip())} is empty, or has a character that no header has")
    return value


def _alert_url(value: SecretStr) -> SecretStr:
    """Its path is a secret, so no complaint quotes it."""
    refuse_names(value.get_secret_value())
    try:
        parts = urllib.parse.urlsplit(value.get_secret_value())
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ValueError("its host or port cannot be read") from None
    if parts.scheme not in {"http", "https"} or not host or parts.username is not None:
        raise ValueError("must be a URL that begins with https:// and names a host, without a user")
    refuse_bad_host(host)
    if not ALERT_PATH.fullmatch(f"{parts.path}?{parts.query}"):
        raise ValueError("a space, or a character beyond ASCII, stands in its path")
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


def in_digits(value: object, unit: str | None = None) -> object:
    """Check that a number is written in the usual form: Python also reads 1_000 and others."""
    if isinstance(value, str) and not NUMBER.fullmatch(value.strip()):
        its_unit = f"; its unit is {unit}, and is not written" if unit else ""
        raise ValueError(f"is not a number in digits, such as 3 or 0.5{its_unit}")
    return value


def is_number(kind: object) -> bool:
    """Whether a field of this type is a number, or may be none."""
    either = get_origin(kind) in {Annotated, Union, UnionType}
    return kind in {int, float} or (either and any(map(is_number, get_args(kind))))


Count = Annotated[int, Field(ge=0, le=10_000)]
Batch = Annotated[int, Field(ge=1, le=100)]  # what worker_claim hands out at most
Seconds = Annotated[float, Field(gt=0, le=7 * 86_400)]
Days = Annotated[float, Field(ge=1, le=3_660)]
Dollars = Annotated[float, Field(ge=0, le=1_000_000)]
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
Variables = Annotated[Names, AfterValidator(_variables)]
Networks = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split), AfterValidator(_networks)]
GpuTypes = Annotated[Names, AfterValidator(_some_gpu), AfterValidator(gpu_types)]
Centers = Annotated[Names, AfterValidator(_centers)]
Handlers = Annotated[tuple[tuple[str, str], ...], NoDecode, BeforeValidator(_handlers)]  # task type, what does it
Deadlines = Annotated[tuple[tuple[str, Seconds], ...], NoDecode, BeforeValidator(_deadlines)]  # stage, seconds
FleetId = Annotated[str, AfterValidator(_fleet)]
Conninfo = Annotated[SecretStr, AfterValidator(conninfo)]
Url = Annotated[str, AfterValidator(_url)]  # without a slash at its end
ENCRYPTED_URL = "https://, or http:// on this machine"
Domain = Annotated[str, AfterValidator(_domain)]
SentryDsn = Annotated[SecretStr, AfterValidator(_dsn)]
Headers = Annotated[SecretStr, AfterValidator(_header_list)]
AlertUrl = Annotated[SecretStr, AfterValidator(_alert_url)]
QuietTimes = Annotated[tuple[time, time, str], NoDecode, BeforeValidator(_quiet_times)]  # begin, end, time zone

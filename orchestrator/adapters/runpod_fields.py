"""Decodes single fields of RunPod's JSON. An invalid required field raises Malformed; any other is None (unknown)."""

import ipaddress
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

MAX_PORT = 65_535
MAX_USD = 1e9  # dollars: of an hour, or of a bill
MAX_TEXT_CHARACTERS = 256  # characters: of an id, a name, a host
HOST_NAME = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9])?)*\.?", re.IGNORECASE
)
Value = TypeVar("Value")


class Malformed(Exception):
    """An answer that does not match the API. The text names the field."""


def known(reader: Callable[[Mapping[str, Any], str], Value], fields: Mapping[str, Any], name: str) -> Value | None:
    """Return the field's value, or None if it is missing, null or invalid."""
    try:
        return reader(fields, name)
    except Malformed:
        return None


def an_object(value: object, what: str) -> Mapping[str, Any]:
    """Return a JSON object. Malformed otherwise."""
    if not isinstance(value, dict):
        raise Malformed(f"{what} is not an object")
    return value


def inner(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the object with that name, or an empty one for anything else."""
    value = fields.get(name)
    return value if isinstance(value, dict) else {}


def text(fields: Mapping[str, Any], name: str) -> str:
    """Return a non-empty string of bounded length. Malformed otherwise."""
    value = fields.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT_CHARACTERS:
        raise Malformed(name)
    return value


def host(fields: Mapping[str, Any], name: str) -> str:
    """Return an IP address or a valid DNS host name. Malformed otherwise."""
    value = text(fields, name)
    if HOST_NAME.fullmatch(value) and value.isascii():
        return value
    try:
        ipaddress.IPv6Address(value if "%" not in value else "")
    except ValueError as error:
        raise Malformed(name) from error
    return value


def whole(fields: Mapping[str, Any], name: str) -> int:
    """Return an integer of at least 0. Malformed otherwise."""
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise Malformed(name)
    return value


def port(fields: Mapping[str, Any], name: str) -> int:
    """Return a TCP port. Malformed otherwise."""
    value = whole(fields, name)
    if not 1 <= value <= MAX_PORT:
        raise Malformed(name)
    return value


def dollars(fields: Mapping[str, Any], name: str) -> float:
    """Return US dollars. Malformed otherwise."""
    value = fields.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= MAX_USD:
        raise Malformed(name)
    return float(value)


def price(fields: Mapping[str, Any], name: str) -> float:
    """Return US dollars per hour. Malformed for 0 too.

    RunPod shows 0 for a pod that has exited, and nothing is free.
    """
    value = dollars(fields, name)
    if value == 0:
        raise Malformed(name)
    return value


def moment(fields: Mapping[str, Any], name: str) -> datetime:
    """Return a point in time; UTC if it names no zone. Malformed otherwise."""
    try:
        found = datetime.fromisoformat(text(fields, name))
    except ValueError as error:
        raise Malformed(name) from error
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def public_address(address: str | None) -> str | None:
    """Return an address that names one machine. Malformed for a private or shared address.

    Several machines may have it.
    """
    try:
        return address if address is not None and ipaddress.ip_address(address).is_global else None
    except ValueError:
        return None

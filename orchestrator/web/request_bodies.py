"""The limits of a call's body: bytes, JSON nodes, depth and digits, all counted before the body is parsed.

Python's `json` and `re` hold the interpreter's lock, so one long parse stops every thread of the process. Each step of
a call with a body within these limits costs less than 50 ms (`bench/bodies.py` measures the worst bodies). The steps of
a large body run in a thread of their own: the event loop gets the interpreter's lock between them, and every 5 ms.

A number costs more than its bytes: Python reads and writes an integer in quadratic time, and a float in a time that
grows with its digits and with its exponent.
"""

import asyncio
import json
import math
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.requests import Request

from orchestrator.web.errors import BAD_BODY, Refusal
from worker import protocol, rules

ENVELOPE_BYTES, ENVELOPE_NODES = 16 << 10, 500  # of a call around a result: ids, an output's location
MAX_BODY_BYTES = rules.RESULT_BYTES + ENVELOPE_BYTES  # of a completion; what a pod says of itself is far smaller
MAX_TASKS_BYTES = 1 << 20  # of a submission
BODY_TIMEOUT_S = 30.0
TOO_SLOW = 408  # HTTP status: the request itself did not arrive in time
MAX_NODES = rules.RESULT_VALUES + ENVELOPE_NODES  # values and keys of one body: their parsing takes 50 ms at most
CHEAP_BYTES = 16 << 10  # a body up to this size costs less than asking the database whether its token is still valid
MAX_DEPTH = 64  # of nested JSON, below every parser's own limit
# Bytes of one call. A failure's own limit in the database is 64 KiB, and so is that of a worker's health.
MAX_BYTES: Mapping[str, int] = {
    protocol.REGISTER: 64 << 10,
    protocol.CLAIM: 4 << 10,
    protocol.HEARTBEAT: 256 << 10,
    protocol.COMPLETE: MAX_BODY_BYTES,
    protocol.COMPLETE_OUTPUT: MAX_BODY_BYTES,
    protocol.COMPLETE_MANY: MAX_BODY_BYTES,
    protocol.COMPLETE_AND_CLAIM: MAX_BODY_BYTES,
    protocol.FAIL: 128 << 10,
    protocol.RELEASE: 16 << 10,
    protocol.GRANTS: 128 << 10,
    protocol.RENEW: 4 << 10,
    protocol.NODE_TASK_DONE: 16 << 10,
}
T = TypeVar("T")
_BRACKETS = b"[]{}"
_NO_BRACKETS = bytes(set(range(256)) - set(_BRACKETS))
_DIGITS = bytes(ord("0") if byte in b"0123456789+-.eE" else ord(" ") for byte in range(256))  # a number becomes a run
_LONG = re.compile(rb"(?<!0)0{%d}" % (rules.LONG_NUMBER_CHARS + 1))  # it begins only where a run begins: linear
_WIDE = re.compile(rb"[eE][-+]?[0-9]{3}")


_apart = ThreadPoolExecutor(1, thread_name_prefix="large_bodies")  # one: several would outvote the event loop


async def apart_if_large(work: Callable[[bytes], T], body: bytes) -> T:
    """Return work(body); for a large body it runs in a thread."""
    if len(body) <= CHEAP_BYTES:
        return work(body)
    return await asyncio.get_running_loop().run_in_executor(_apart, work, body)


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """The body of a request. Raises Refusal if it is larger than the limit, or does not arrive in time."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limit_bytes:
                    raise Refusal(413, BAD_BODY, f"The body is larger than {limit_bytes} bytes")
    except TimeoutError:
        raise Refusal(TOO_SLOW, BAD_BODY, f"The body did not arrive within {BODY_TIMEOUT_S:.0f} s") from None
    return bytes(body)


def parsed(body: bytes) -> dict[str, Any]:
    """The object that a body holds. Raises Refusal for anything else, and for what no jsonb can hold."""
    check_size(body)
    try:
        found = json.loads(body.decode(), parse_constant=_no_constant)  # bytes would be guessed at: UTF-16, a BOM
    except (ValueError, RecursionError):
        raise Refusal(400, BAD_BODY, "Empty or invalid json") from None
    if not isinstance(found, dict):
        raise Refusal(400, BAD_BODY, "The body must be one JSON object of named arguments")
    _check(found)
    return found


def check_size(body: bytes) -> None:
    """Refuse too many nodes or too deep a nesting, by passes over the bytes that build no object for a node.

    A backslash is legal only within a string. Without escaped backslashes and escaped quotes, every second piece
    between quotes is outside of all strings. A body that is not JSON is counted correctly up to the byte where its
    parse ends.
    """
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > 2 * MAX_NODES:
        raise _too_many()
    structure = b"".join(plain.split(b'"')[::2])
    if sum(map(structure.count, (b",", b":", b"[", b"{"))) + 1 > MAX_NODES:
        raise _too_many()
    _check_numbers(structure)
    depth = 0
    for byte in structure.translate(None, _NO_BRACKETS):
        depth += 1 if byte in b"[{" else -1
        if depth > MAX_DEPTH:
            raise Refusal(400, BAD_BODY, f"The body is nested deeper than {MAX_DEPTH}")


def _check_numbers(structure: bytes) -> None:
    """Refuse numbers that cost too much to read and to write again; `structure` is what is outside of strings."""
    digits = structure.translate(_DIGITS)
    hint = "write such numbers as texts, or put them into an output file"
    if b"0" * (rules.NUMBER_CHARS + 1) in digits:
        raise Refusal(413, BAD_BODY, f"A number has more than {rules.NUMBER_CHARS} characters", hint=hint)
    if len(_LONG.findall(digits)) > rules.LONG_NUMBERS:
        many = f"The body has more than {rules.LONG_NUMBERS} numbers of more than {rules.LONG_NUMBER_CHARS} characters"
        raise Refusal(413, BAD_BODY, many, hint=hint)
    if len(_WIDE.findall(structure)) > rules.WIDE_NUMBERS:
        many = f"The body has more than {rules.WIDE_NUMBERS} numbers with exponents of three digits"
        raise Refusal(413, BAD_BODY, many, hint=hint)


def _too_many() -> Refusal:
    return Refusal(413, BAD_BODY, f"The body has more than {MAX_NODES} JSON values")


def _check(arguments: dict[str, Any]) -> None:
    """Refuse what no jsonb can hold: NUL, lone surrogates and endless numbers."""
    todo: list[Any] = [arguments]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            todo += value.keys()
            todo += value.values()
        elif isinstance(value, list):
            todo += value
        elif isinstance(value, str) and ("\0" in value or not _is_utf8(value)):
            raise Refusal(400, "22P05", "unsupported Unicode escape sequence")
        elif isinstance(value, float) and not math.isfinite(value):
            raise Refusal(400, BAD_BODY, "A number is out of range")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")

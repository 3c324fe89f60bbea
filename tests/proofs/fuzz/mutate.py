"""Mutates real input: first its structure (a missing field, another type, an extreme value), then bytes."""

import json
import math
from copy import deepcopy
from random import Random
from typing import Any

HOSTILE = [
    *(
        "",
        " ",
        "\x00",
        "\x1b[31mred\x1b[0m",
        "\x1b]0;title\x07",
        "\x9b2J",
        "a\nb",
        "a\r\nb",
        "\r",
        "\u2028",
        "\u202eabc",
    ),
    *("\ufeff", "\ud800", "\U000e0001", "²", "\u0663", "NaN", "-1", "1e999", "9" * 5000, "a" * 70_000, "[" * 3000),
    *("'; drop table tasks; --", "$(reboot)", "`id`", "; rm -rf /", "|| true", "<script>alert(1)</script>", "{{7*7}}"),
    *("%s%n", "../../etc/passwd", "[N/A]", "ERR!", "null"),
]
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 22, 65_536, 2**31, 2**63, 10**400, -(2**70), 0.0, -0.0, 1e308, math.nan, math.inf),
    *([], {}, [[]], [None], {"": None}, [[[[[[]]]]]]),
    *HOSTILE,
]
BYTES = [
    *(
        b"\x00",
        b"\xff\xfe",
        b"\xc3",
        b"\n",
        b"\r\n",
        b"\x1b[2J",
        b"\xc2\x9b",
        b"=== x 0\n",
        b",",
        b"=",
        b"nan",
        b"1e999",
    ),
    *(b"\xf0\x9f\x92\xa9", b"9" * 5000, "²\u0663".encode(), b"[" * 3000),
]
CODES = (0, 9, 27, 0x85, 0xA0, 0x2029, 0x1F4A9)


def spoilt(draw: Random, value: Any) -> Any:
    """Return the value with one to three mutations. The original is unchanged."""
    value = json.loads(json.dumps(value))
    for _ in range(draw.choice((1, 1, 2, 3))):
        value = _once(draw, value)
    return value


def _once(draw: Random, value: Any) -> Any:
    inside = isinstance(value, dict | list) and value and draw.random() < 0.85
    if not inside:
        return deepcopy(draw.choice(VALUES))  # the next mutation must not change what later inputs are made of
    key: Any = draw.choice(list(value)) if isinstance(value, dict) else draw.randrange(len(value))
    match draw.randrange(6):
        case 0:
            del value[key]
        case 1 if isinstance(value, dict):
            value[draw.choice(HOSTILE)] = value.pop(key)
        case 1 | 2 if isinstance(value, list):
            value.insert(key, value[key])
        case 3:
            value[key] = deepcopy(draw.choice(VALUES))
        case _:
            value[key] = _once(draw, value[key])
    return value


def spoilt_text(draw: Random, text: str) -> str:
    """Return the text with pieces removed, doubled, inserted or copied from another place in it."""
    for _ in range(draw.choice((1, 1, 2, 4))):
        at, end = sorted((draw.randint(0, len(text)), draw.randint(0, len(text))))
        piece = draw.choice(("", text[at:end] * 2, draw.choice(HOSTILE), chr(draw.choice(CODES))))
        text = text[:at] + piece + text[at if draw.random() < 0.5 else end :]
    return text


def spoilt_bytes(draw: Random, content: bytes) -> bytes:
    """Return mutated bytes, also with flipped bits."""
    raw = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 5))):
        at, end = sorted((draw.randint(0, len(raw)), draw.randint(0, len(raw))))
        match draw.randrange(5):
            case 0 if raw:
                raw[min(at, len(raw) - 1)] ^= 1 << draw.randrange(8)
            case 1:
                del raw[at:end]
            case 2:
                raw[at:at] = raw[at:end][:4096]
            case 3:
                raw[at:at] = draw.randbytes(draw.randint(1, 12))
            case _:
                raw[at:at] = draw.choice(BYTES)
    return bytes(raw)

"""One rule says what a result and an output's name may be. One beyond each bound is refused, and says what it is."""

import enum
import json
from collections import OrderedDict
from typing import Any

import pytest

from orchestrator.web.request_bodies import MAX_BODY_BYTES, parsed
from worker import rules


def nested(levels: int) -> Any:
    """An object that nests so deep."""
    value: Any = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


def circular() -> dict[str, Any]:
    """An object that contains itself, twice."""
    value: dict[str, Any] = {}
    value["a"] = value["b"] = value
    return value


class Mode(enum.Enum):
    """No JSON."""

    FAST = 1


ROOM = rules.RESULT_BYTES - len('{"a": ""}')
BESIDE_TEXT = rules.RESULT_BYTES - len('{"x": 1' + "0" * 300 + ', "a": ""}')
BOUNDS: dict[str, tuple[Any, Any, str]] = {  # what is taken, what is one beyond it, and what the owner reads
    "bytes": ({"a": "x" * ROOM}, {"a": "x" * (ROOM + 1)}, "more than 1048576 bytes as JSON: 1048577"),
    "bytes of UTF-8": ({"a": "é" * (ROOM // 2)}, {"a": "é" * (ROOM // 2 + 1)}, "more than 1048576 bytes as JSON"),
    "bytes of a number": (
        {"x": 1e300, "a": "x" * BESIDE_TEXT},
        {"x": 1e300, "a": "x" * (BESIDE_TEXT + 1)},
        "1048576 bytes as JSON: 1048577",
    ),
    "levels": (nested(60), nested(61), "nested deeper than 60 levels"),
    "values": ({"a": [0] * 19_997}, {"a": [0] * 19_998}, "more than 20000 keys and values"),
    "keys": ({str(n): 0 for n in range(9_999)}, {str(n): 0 for n in range(10_000)}, "more than 20000 keys and values"),
    "empty lists": ({"a": [[]] * 9_998}, {"a": [[]] * 9_999}, "more than 20000 keys and values"),
    "digits": ({"a": 10**999}, {"a": 10**1_000}, "a: a number has more than 1000 digits"),
    "long numbers": ({"a": [10**25] * 64}, {"a": [10**25] * 65}, "more than 64 numbers of more than 25 digits"),
    "wide numbers": ({"a": [1e-100] * 4_000}, {"a": [1e-100] * 4_001}, "more than 4000 numbers with exponents"),
}  # fmt: skip
NO_JSON: dict[str, tuple[Any, str]] = {
    "NaN": ({"a": [1, {"b": float("nan")}]}, "a.1.b: nan is not JSON"),
    "infinity": ({"loss": float("-inf")}, "loss: -inf is not JSON"),
    "a key that is no number": ({"a": {float("nan"): 1}}, "a: a key: nan is not JSON"),
    "NUL": ({"a": "x\0"}, "a: a text contains a NUL character"),
    "NUL in a key": ({"x\0": 1}, "a key: a text contains a NUL character"),
    "half a character": ({"a": "\ud800"}, "a: a text contains half of a surrogate pair"),
    "half a character in a key": ({"\udfff": 1}, "a key: a text contains half of a surrogate pair"),
    "bytes": ({"a": b"x"}, "a: a value of the type bytes is not JSON"),
    "a set": ({"a": {1}}, "a: a value of the type set is not JSON"),
    "an enum": ({"a": Mode.FAST}, "a: a value of the type Mode is not JSON"),
    "a key of another type": ({(1, 2): 1}, "a key of the type tuple is not JSON"),
    "a key of bytes": ({b"a": 1}, "a key: a value of the type bytes is not JSON"),
    "equal keys": ({1: "a", "1": "b"}, "two keys are '1' as JSON"),
    "equal keys of other types": ({True: "a", "true": "b"}, "two keys are 'true' as JSON"),
    "a circle": (circular(), "nested deeper than 60 levels"),
    "a very long number": ({"a": 1 << 10_000_000}, "a: a number has more than 1000 digits"),
}


@pytest.mark.parametrize("bound", BOUNDS)
def test_a_result_at_a_bound_is_taken_and_one_beyond_is_refused(bound: str) -> None:
    """And what the pod takes, the gateway takes, in the largest of its envelopes."""
    taken, beyond, why = BOUNDS[bound]
    assert rules.result_problem(taken) == ""
    assert why in rules.result_problem(beyond)
    entry = {"task_id": "x" * 36, "attempt": 2**31 - 1, "result_data": taken}
    envelope = {"p_worker_id": "w" * 63, "p_nonce": "n" * 63, "p_claim_no": 2**53, "p_batch": 100, "p_results": [entry]}
    body = json.dumps(envelope, separators=(",", ":"), ensure_ascii=False).encode()
    assert len(body) <= MAX_BODY_BYTES
    assert parsed(body)["p_results"][0]["result_data"] == json.loads(json.dumps(taken))


@pytest.mark.parametrize("case", NO_JSON)
def test_what_the_database_cannot_store_is_refused_with_its_place(case: str) -> None:
    """Before the agent sends it."""
    value, why = NO_JSON[case]
    assert why in rules.result_problem(value)


@pytest.mark.parametrize(
    "value", [None, {}, OrderedDict(a=(1, 2)), {"a": [True, None, -1, 0.5, "é\n\u2028😀"]}, {None: 1}]
)
def test_what_json_can_hold_is_taken(value: Any) -> None:
    """An empty object too."""
    assert rules.result_problem(value) == ""


LOCATION = "s3://b/" + "x" * (rules.LOCATION_BYTES - len('"s3://b/"'))


@pytest.mark.parametrize(
    ("location", "why"),
    [
        (None, ""),
        (LOCATION, ""),
        (LOCATION + "x", "output_location has 4097 bytes, more than 4096"),
        (7, "output_location is not a text, but of the type int"),
        ("a\0", "output_location: a text contains a NUL character"),
        ("a\ud800", "output_location: a text contains half of a surrogate pair"),
    ],
)
def test_a_location_is_a_text_that_can_be_stored(location: Any, why: str) -> None:
    """It comes from the handler."""
    assert rules.location_problem(location).startswith(why)
    assert bool(rules.location_problem(location)) == bool(why)


LONGEST = "/".join(["x" * 255, "y" * 255, "z" * 255, "w" * 32])
GOOD_NAMES = (
    "a", "a b.txt", " a ", "a.", "...", ".hidden", "Café/één 😀.png", "Capture d\u2019écran à 10.32\u202fPM.png",
    "a+b=c&d%20?.txt", "CON", "é" * 127, LONGEST, "/".join("a" * 32),
)  # fmt: skip
BAD_NAMES = {
    "": "empty", "/a": "empty part", "a/": "empty part", "a//b": "empty part", ".": "'.'", "a/../b": "'..'",
    "./a": "'.'",
    "a\nb": "control character '\\n'", "a\x7f": "control character '\\x7f'", "a\x85b": "control character '\\x85'",
    "a\u2028b": "control character '\\u2028'", "a\0": "control character '\\x00'", "a\\b": "backslash",
    "ok/b\udcff/c": "not UTF-8", "\udcff.txt": "not UTF-8", "x" * 256: "more than 255 bytes",
    "é" * 128: "more than 255 bytes",
    LONGEST + "x": "801 bytes, more than 800", "/".join("a" * 33): "33 parts, more than 32",
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD_NAMES)
def test_a_name_that_every_store_takes_is_taken(name: str) -> None:
    """The longest one too."""
    assert rules.name_problem(name) == ""


@pytest.mark.parametrize("name", BAD_NAMES, ids=ascii)
def test_a_name_that_is_refused_says_why(name: str) -> None:
    """In a text that any terminal can show."""
    assert BAD_NAMES[name] in rules.name_problem(name)
    assert rules.name_problem(name).isprintable()

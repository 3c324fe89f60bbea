"""The result of a command is the last JSON object of its standard output. No object is lost without a word."""

import json
from typing import Any

import pytest

from worker.result_lines import MAX_PRINTED_BYTES, ResultLines

LARGE = {"a": "x" * MAX_PRINTED_BYTES}
TEXTS: dict[str, tuple[str, Any]] = {
    "nothing": ("", None),
    "text": ("done.\n", None),
    "a number": ("42\n", None),
    "an object": ('{"a": 1}\n', {"a": 1}),
    "no line end": ('{"a": 1}', {"a": 1}),
    "an empty object": ("{}\n", {}),
    "text around it": ('begins\n{"a": 1}\ndone.\n', {"a": 1}),
    "empty lines after it": ('{"a": 1}\n\n  \n', {"a": 1}),
    "the last of several": ('{"a": 1}\n{"a": 2}\ndone.\n', {"a": 2}),
    "spaces before it": ('  {"a": 1}\r\n', {"a": 1}),
    "a mark at its begin": ('\ufeff{"a": 1}\n', {"a": 1}),
    "a progress bar before it": ('10 %\r99 %\r{"a": 1}\n', {"a": 1}),
    "an indent": (json.dumps({"a": {"b": [1, {}]}, "c": "}"}, indent=2) + "\n", {"a": {"b": [1, {}]}, "c": "}"}),
    "an indent, and text after it": (json.dumps({"a": {"b": 1}}, indent=1) + "\ndone.\n", {"a": {"b": 1}}),
    "a begin on its line": ('{"a": {},\n  "b": 2\n}\n', {"a": {}, "b": 2}),
    "an end on its line": ('{"a": 1,\n "b": {"c": [{}]}}\ndone.\n', {"a": 1, "b": {"c": [{}]}}),
    "two lines": ('{"a":\n1}\n', {"a": 1}),
    "an indent of the whole": ('  {\n    "a": {\n      "b": 1\n    }\n  }\n', {"a": {"b": 1}}),
    "braces and quotes in its texts": ('{"a": "}",\n "b": "{\\"{", "c": "\\\\"}\n', {"a": "}", "b": '{"{', "c": "\\"}),
    "lines that are cut, before it": ('{"a": {"b": 1\n{"a":\n1}\n', {"a": 1}),
    "text that begins like one": ('{not json\nmore\n{"a": 1}\n', {"a": 1}),
    "text in braces before it": ('{ok}\n{"a": 1}\n', {"a": 1}),
    "text in braces before text": ("{ok}\ndone.\n", None),
    "text that begins with braces": ('{"a": 1}\n{3} of {4} done\n', {"a": 1}),
    "a list": ("[1, 2]\n", None),
    "an integer of many digits": ('{"a": ' + "9" * 900 + "}\n", {"a": int("9" * 900)}),
}
REFUSED: dict[str, tuple[str, str]] = {
    "too large": (json.dumps(LARGE) + "\n", f"more than {MAX_PRINTED_BYTES}"),
    "too large, before text": (json.dumps(LARGE) + "\ndone.\n", f"more than {MAX_PRINTED_BYTES}"),
    "too large with an indent": (json.dumps(LARGE, indent=1) + "\n", f"more than {MAX_PRINTED_BYTES}"),
    "too large after a good one": ('{"a": 1}\n' + json.dumps(LARGE) + "\n", f"more than {MAX_PRINTED_BYTES}"),
    "no JSON": ("{'a': 1}\n", "is not JSON"),
    "no JSON after a good one": ("{\"a\": 1}\n{'a': 1}\n", "is not JSON"),
    "a key twice": ('{"a": 1, "a": 2}\ndone.\n', "the key 'a' is there twice"),
    "a key twice, the last of many": (json.dumps({str(n): 0 for n in range(50_000)})[:-1] + ', "49999": 1}', "'49999'"),
    "a key twice within": ('{"b": [{"a": 1, "a": 2}]}\n', "the key 'a' is there twice"),
    "too deep": ('{"a":' + "[" * 100_000 + "]" * 100_000 + "}\n", "nested too deeply"),
    "an integer of too many digits": ('{"a": ' + "9" * 5_000 + "}\n", "is not JSON"),
    "no end": ('{"a": 1,\n', "has no end"),
    "no end, without a line end": ('{"a": "x', "has no end"),
    "several lines that are not JSON": ('{"a": 1,\n "b": oh}\n', "is not JSON"),
    "no end with an indent of the whole": ('  {\n    "a": 1,\n', "has no end"),
    "no end with an indent": ('{\n  "a": 1,\n', "has no end"),
}


def read(text: bytes, block_bytes: int) -> ResultLines:
    """Taken as a pipe gives it, in blocks of at most so many bytes."""
    lines = ResultLines(lambda report: reports.append(report.decode()))
    reports.clear()
    for first in range(0, len(text), block_bytes):
        lines.take(text[first : first + block_bytes])
    return lines


reports: list[str] = []


@pytest.mark.parametrize("block_bytes", [3, 1 << 20])
@pytest.mark.parametrize("case", TEXTS)
def test_the_last_object_is_the_result(case: str, block_bytes: int) -> None:
    """Whatever is printed before it, or as text after it."""
    text, result = TEXTS[case]
    assert read(text.encode(), block_bytes).result() == (result, "")


@pytest.mark.parametrize("case", REFUSED)
def test_an_object_that_cannot_be_the_result_is_refused(case: str) -> None:
    """The attempt does not end as if it had printed nothing."""
    text, why = REFUSED[case]
    assert why in read(text.encode(), 1 << 20).result()[1]


def test_a_later_object_replaces_one_that_was_refused() -> None:
    """Programs may log in JSON."""
    assert read(json.dumps(LARGE).encode() + b'\n{"a": 1}\n', 1 << 20).result() == ({"a": 1}, "")


@pytest.mark.parametrize("block_bytes", [3, 1 << 20])
def test_reports_of_progress_are_no_result(block_bytes: int) -> None:
    """However they arrive."""
    text = b'progress: 0.5 half\n{"a": 1}\nprogress: 1\nnot progress: 2\n'
    assert read(text, block_bytes).result() == ({"a": 1}, "")
    assert reports == [" 0.5 half", " 1"]


def test_bytes_that_are_no_utf8_are_refused() -> None:
    """They could not be read as they were meant."""
    assert "is not JSON" in read(b'{"a": "\xff"}\n', 10).result()[1]


def test_a_list_is_noted_in_the_log() -> None:
    """It is text, and its author may have meant a result."""
    lines = read(b"[1, 2]\n", 10)
    lines.result()
    assert "only an object becomes result_data" in lines.note

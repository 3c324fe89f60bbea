"""The lines of `tasks import`: what is a task, and which id it gets."""

import io
import json

from orchestrator.cli.task_lines import MAX_LINE_BYTES, Line, read


def lines(*texts: str | bytes, key: str = "tasks.jsonl", task_type: str | None = None) -> list[Line]:
    """The lines of a file with these texts."""
    content = b"".join((text.encode() if isinstance(text, str) else text) + b"\n" for text in texts)
    return list(read(io.BytesIO(content), key, task_type))


def ids(*texts: str, key: str = "tasks.jsonl") -> list[str]:
    """The ids of the tasks."""
    return [line.task["id"] for line in lines(*texts, key=key) if line.task is not None]


A, B = '{"task_type": "a"}', '{"task_type": "b"}'


def test_a_line_has_the_same_id_at_any_place_in_the_file() -> None:
    """Equal lines are different tasks; another key is another import."""
    assert ids(A, B, A) == [*ids(A, B), ids(A, A)[1]]
    assert ids(B, A, A)[1:] == ids(A, A)
    assert len(set(ids(A, A, A))) == 3
    assert set(ids(A, B)).isdisjoint(ids(A, B, key="other"))
    assert ids('{"task_type": "a", "id": "mine"}') == ["mine"]


def test_bad_lines_are_numbered_and_the_others_are_read() -> None:
    """Not JSON, no object, no type, nested too deeply, too long: each is said; blank lines count and are no tasks."""
    deep = "[" * 100_000 + "]" * 100_000
    long = b'{"task_type": "' + b"x" * (2 * MAX_LINE_BYTES) + b'"}'
    batch = '{"task_type": "t", "depends_on": ["#0"]}'
    found = lines(A, "", "{", "[1]", "{}", deep, long, batch, b"\xff{}", B)
    assert [line.number for line in found] == [1, 3, 4, 5, 6, 7, 8, 9, 10]
    whys = [line.why for line in found if line.task is None]
    expected = (
        "not JSON",
        "not a JSON object, but list",
        "no task_type",
        "nested too deeply",
        "longer than",
        "#…",
        "not JSON",
    )
    assert len(whys) == len(expected)
    assert all(part in why for part, why in zip(expected, whys, strict=True)), whys
    assert [line.task["task_type"] for line in found if line.task] == ["a", "b"]
    assert (
        sum(line.size for line in found) + 1
        == sum(map(len, (A, deep, batch, B, "{", "[1]", "{}"))) + len(long) + 3 + 10
    )


def test_a_type_may_be_given_for_all_lines_that_name_none() -> None:
    """A line's own type wins."""
    tasks = [line.task for line in lines("{}", A, task_type="t")]
    assert [task["task_type"] for task in tasks if task] == ["t", "a"]
    assert json.dumps(tasks)

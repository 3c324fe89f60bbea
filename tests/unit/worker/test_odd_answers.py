"""An answer that the agent cannot decode is no answer: its threads go on, and ask again."""

import pytest

from worker.http1 import Unreachable
from worker.rpc import _object


@pytest.mark.parametrize("value", [b"[" * 100_000 + b"]" * 100_000, b"9" * 10_000])
def test_a_value_that_python_cannot_decode_does_not_crash_the_caller(value: bytes) -> None:
    with pytest.raises(Unreachable):
        _object(200, b'{"outcome": "ok", "node_tasks": ' + value + b"}")

"""Bad input: nothing crashes, hangs, gets in unseen, or steers a shell, a query, a log or a terminal."""

import pytest

from tests.proofs.fuzz.search import hunt
from tests.proofs.fuzz.targets import TARGETS, Target


@pytest.mark.parametrize("target", TARGETS, ids=[target.name for target in TARGETS])
def test_bad_input_is_refused_or_understood(target: Target) -> None:
    """Only the declared errors, in bounded time, and what is accepted is within its bounds."""
    hunt(target, 1, target.inputs)

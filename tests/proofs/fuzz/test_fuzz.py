"""Bad input crashes nothing, hangs nothing, and reaches no shell, query, log or terminal."""

import pytest

from tests.proofs.fuzz.search import hunt
from tests.proofs.fuzz.targets import TARGETS, Target


@pytest.mark.parametrize("target", TARGETS, ids=[target.name for target in TARGETS])
def test_bad_input_is_refused_or_understood(target: Target) -> None:
    """A reader raises only its declared errors, in bounded time, and accepts only values within its bounds."""
    hunt(target, 1, target.inputs)

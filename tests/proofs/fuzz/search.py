"""Feeds a target with mutated input, and measures the time of each input."""

import time
from random import Random

from tests.proofs.fuzz.targets import Target

LIMIT_S = 2.0  # of CPU time for one input; a regular expression without a bound takes minutes


def hunt(target: Target, seed: int, inputs: int) -> None:
    """Run inputs. Raises at the first one that breaks a promise, with the number that replays it."""
    for number in range(inputs):
        draw = Random(f"{target.name}:{seed}:{number}")
        given = target.make(draw)
        began = time.process_time()
        try:
            target.check(given)
        except Exception as error:
            message = f"{target.name}, seed {seed}, input {number}: {type(error).__name__}: {error}: {given!r:.1500}"
            raise AssertionError(message) from error
        assert time.process_time() - began < LIMIT_S, (target.name, seed, number)

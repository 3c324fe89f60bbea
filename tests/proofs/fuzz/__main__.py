"""`./run soak fuzz`: a million inputs and more, each reader in turn, with a seed of its own each round."""

import sys
import time

import click

from tests.proofs.fuzz.search import hunt
from tests.proofs.fuzz.targets import TARGETS


@click.command()
@click.option("--inputs", default=1_000_000, show_default=True, type=click.IntRange(min=1), help="In all, at least.")
@click.option("--seed", default=1, show_default=True, help="Of the first round; it grows by one.")
def main(inputs: int, seed: int) -> None:
    """Stop at the first input that breaks a promise. Its target, seed and number replay it."""
    began, done = time.monotonic(), dict.fromkeys((target.name for target in TARGETS), 0)
    while sum(done.values()) < inputs:
        for target in TARGETS:
            try:
                hunt(target, seed, target.inputs)
            except AssertionError as error:  # one of the targets has replaced the hook for uncaught errors
                sys.exit(str(error))
            done[target.name] += target.inputs
        seed += 1
    for name, number in done.items():
        sys.stdout.write(f"{number:>9,}  {name}\n")
    sys.stdout.write(f"{sum(done.values()):>9,}  inputs in {time.monotonic() - began:.0f} s: nothing broke\n")


if __name__ == "__main__":
    main()

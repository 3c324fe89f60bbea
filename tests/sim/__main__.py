"""`./run sim`: seeds of the simulated fleet; a failing one is printed with the command that replays it."""

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator

from tests.sim.story import story
from tests.sim.world import Outcome, World


def one(seed: int, *, trace: bool = False) -> Outcome:
    """Live through a seed."""
    return World(seed, trace=trace).run(story)


def main() -> int:
    """Run and report; 1 if a law was broken."""
    parser = argparse.ArgumentParser(prog="./run sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this one")
    parser.add_argument("--trace", action="store_true", help="print what happened")
    parser.add_argument("--seeds", type=int, default=500)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first violation")
    args = parser.parse_args()
    if args.seed is not None:
        outcome = one(args.seed, trace=args.trace)
        for line in outcome.log:
            print(line)
        print(f"seed {args.seed}: {outcome.violation or 'no violation'}")
        print(f"  {outcome.virtual_s:.0f} virtual s, {outcome.steps} events, {sum(outcome.faults.values())} faults, "
              f"log {outcome.digest[:16]}")  # fmt: skip
        return 1 if outcome.violation else 0
    return many(args.first, args.seeds, args.processes, keep_going=args.keep_going)


def _outcomes(seeds: range, processes: int) -> Iterator[Outcome]:
    """Of each seed, in any order; without processes in order, and here."""
    if not processes:
        yield from map(one, seeds)
        return
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        yield from pool.imap_unordered(one, seeds, chunksize=4)


def many(first: int, count: int, processes: int, *, keep_going: bool) -> int:
    """Many seeds, on several processors."""
    began, virtual_s, faults, bad = time.monotonic(), 0.0, Counter[str](), []
    for outcome in _outcomes(range(first, first + count), processes):
        virtual_s += outcome.virtual_s
        faults.update(outcome.faults)
        if outcome.violation:
            bad.append(outcome)
            print(f"seed {outcome.seed}: {outcome.violation}\n  ./run sim --seed {outcome.seed} --trace", flush=True)
            if not keep_going:
                break
    for name, number in sorted(faults.items()):
        print(f"  {number:8d} {name}")
    took_s = time.monotonic() - began
    print(f"{count} seeds, {virtual_s / 3600:.1f} virtual hours, {sum(faults.values())} faults of {len(faults)} kinds, "
          f"{len(bad)} violations, in {took_s:.0f} s")  # fmt: skip
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

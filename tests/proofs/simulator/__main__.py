"""`./run sim`: seeds of the simulated fleet; a failing one is printed with the command that replays it."""

import argparse
import gc
import itertools
import multiprocessing
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from tests.proofs.simulator import clusters
from tests.proofs.simulator.cluster_world import ClusterWorld
from tests.proofs.simulator.environment import Outcome, World
from tests.proofs.simulator.scenario import scenario

LOT = 16  # seeds for each process at a time


def one(seed: int, *, trace: bool = False, clustered: bool = False) -> Outcome:
    """Run one seed. The garbage collector runs once, at its end, which saves a sixth of the time."""
    gc.disable()
    try:
        if clustered:
            return ClusterWorld(seed, trace=trace).run(clusters.scenario)
        return World(seed, trace=trace).run(scenario)
    finally:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "coroutine .* was never awaited")  # a process was killed before its tick
            gc.collect()
        gc.enable()


def main() -> int:
    """Run the seeds and print the result. Return 1 if a law was broken."""
    parser = argparse.ArgumentParser(prog="./run sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this one")
    parser.add_argument("--trace", action="store_true", help="print what happened")
    parser.add_argument("--seeds", type=int, default=500)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first violation")
    parser.add_argument("--laws", default="", help="stop at a violation of one of these only, as I1 I8")
    parser.add_argument("--minutes", type=float, help="until they are over, however many seeds that is")
    parser.add_argument("--clusters", action="store_true", help="the life of a Slurm cluster, in place of a fleet's")
    args = parser.parse_args()
    if args.seed is not None:
        outcome = one(args.seed, trace=args.trace, clustered=args.clusters)
        for line in outcome.log:
            print(line)
        print(f"seed {args.seed}: {outcome.violation or 'no violation'}")
        print(f"  {outcome.virtual_s:.0f} virtual s, {outcome.steps} events, {sum(outcome.faults.values())} faults, "
              f"log {outcome.digest[:16]}")  # fmt: skip
        return 1 if outcome.violation else 0
    stops_at = None if args.keep_going else args.laws.split()
    seeds = range(args.first, args.first + args.seeds) if args.minutes is None else itertools.count(args.first)
    return many(_until(seeds, args.minutes), args.processes, stops_at, clustered=args.clusters)


def _until(seeds: Iterable[int], minutes: float | None) -> Iterator[int]:
    """These, as long as there is time."""
    end_s = None if minutes is None else time.monotonic() + minutes * 60
    return itertools.takewhile(lambda _: end_s is None or time.monotonic() < end_s, seeds)


def _outcomes(seeds: Iterator[int], processes: int, *, clustered: bool) -> Iterator[Outcome]:
    """Yield the outcome of each seed: in any order, or without processes in order and in this process."""
    live = partial(one, clustered=clustered)
    if not processes:
        yield from map(live, seeds)
        return
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        while lot := list(itertools.islice(seeds, LOT * processes)):
            yield from pool.imap_unordered(live, lot)


def many(seeds: Iterator[int], processes: int, stops_at: Sequence[str] | None, *, clustered: bool = False) -> int:
    """Many seeds, on several processors, up to a violation of one of these laws; of any, if none is named."""
    began, virtual_s, faults, bad, count = time.monotonic(), 0.0, Counter[str](), 0, 0
    for outcome in _outcomes(seeds, processes, clustered=clustered):
        count += 1
        virtual_s += outcome.virtual_s
        faults.update(outcome.faults)
        if outcome.violation:
            bad += 1
            again = f"./run sim{' --clusters' * clustered} --seed {outcome.seed} --trace"
            print(f"seed {outcome.seed}: {outcome.violation}\n  {again}", flush=True)
            if stops_at is not None and (not stops_at or outcome.violation.partition(":")[0] in stops_at):
                break
    for name, number in sorted(faults.items()):
        print(f"  {number:8d} {name}")
    took_s = time.monotonic() - began
    print(f"{count} seeds, {virtual_s / 3600:.1f} virtual hours, {faults.total()} faults of {len(faults)} kinds, "
          f"{bad} violations, in {took_s:.0f} s")  # fmt: skip
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

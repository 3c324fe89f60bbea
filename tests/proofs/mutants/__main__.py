"""`./run mutants`: runs the planted bugs, prints a line for each, and writes docs/mutants.md."""

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from tests.proofs.mutants.caught_by_laws import MUTANTS
from tests.proofs.mutants.caught_by_tests import MUTANTS_WITH_TESTS
from tests.proofs.mutants.run_mutant import ROOT, MutantResult, run_mutant, unmutated

SEEDS = 200  # the rarest is caught after 122
DOC = """# Planted bugs

`./run mutants --write` writes this page. Each planted bug changes the product in one place, or changes the simulator's
model of a SQL function. The simulator then runs seeds until it finds a violation of a law that the bug names. A
violation of another law does not count. [simulator](simulator.md) describes the laws. For a bug in what the simulator
does not run, the page names the test that must fail.

"""


def report(outcomes: Sequence[MutantResult], took_s: float) -> str:
    """Return the table of the planted bugs."""
    lines = ["| planted bug | where | breaks | caught after | by |", "|---|---|---|---|---|"]
    for outcome in outcomes:
        one = outcome.mutant
        after, laws = _after(outcome, "**survived**"), "" if one.has_test else ", ".join(one.law.split())
        lines.append(f"| {one.name} | `{one.path}` | {laws} | {after} | {_cell(outcome.how)} |")
    survived = sum(outcome.seeds is None for outcome in outcomes)
    lines += ["", f"{len(outcomes)} planted bugs, {survived} survived, in {took_s:.0f} s."]
    return "\n".join(lines) + "\n"


def _after(outcome: MutantResult, survived: str) -> str:
    if outcome.seeds is None:
        return survived
    return "its test" if outcome.mutant.has_test else f"{outcome.seeds} seed{'s' if outcome.seeds > 1 else ''}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").partition(" (at ")[0][:120]


def main() -> int:
    """Print the table. Return 1 if a mutant survived, or if the unchanged code fails too."""
    parser = argparse.ArgumentParser(prog="./run mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="only those whose name contains one of these")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="write the table into docs/mutants.md")
    options = parser.parse_args()
    chosen = [
        m for m in (*MUTANTS, *MUTANTS_WITH_TESTS) if not options.names or any(name in m.name for name in options.names)
    ]
    began, outcomes = time.monotonic(), list[MutantResult]()
    with ThreadPoolExecutor(options.processes) as pool:
        for done in as_completed([pool.submit(run_mutant, mutant, options.seeds) for mutant in chosen]):
            outcomes.append(outcome := done.result())
            law, after = "" if outcome.mutant.has_test else outcome.mutant.law, _after(outcome, "SURVIVED")
            sys.stdout.write(f"{outcome.mutant.name:52s} {law:7s} {after:8s}  {outcome.how[:110]}\n")
            sys.stdout.flush()
    most, of_clusters = (
        max((outcome.seeds or 0 for outcome in outcomes if outcome.mutant.simulation == simulation), default=0)
        for simulation in ("fleet", "clusters")
    )
    wrong = unmutated(most, of_clusters, options.processes, [mutant.law for mutant in chosen if mutant.has_test])
    outcomes.sort(key=lambda outcome: chosen.index(outcome.mutant))
    took_s, survived = time.monotonic() - began, sum(outcome.seeds is None for outcome in outcomes)
    if options.write:
        (ROOT / "docs" / "mutants.md").write_text(
            f"{DOC}{report(outcomes, took_s)}\nNot mutated, {most} seeds, {of_clusters} of clusters, and these tests break nothing.\n"
        )
    sys.stdout.write(f"{len(chosen)} mutants, {survived} survived, in {took_s:.0f} s\n")
    sys.stdout.write(wrong or f"not mutated, {most} seeds, {of_clusters} of clusters, and these tests break nothing\n")
    return 1 if survived or wrong else 0


if __name__ == "__main__":
    sys.exit(main())

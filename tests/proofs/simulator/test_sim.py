"""The fleet in the simulator: the real loop in virtual time, with many faults, breaks no invariant."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from orchestrator.adapters.postgres import PostgresDb
from tests.proofs.mutants.caught_by_laws import MUTANTS
from tests.proofs.mutants.caught_by_tests import MUTANTS_WITH_TESTS
from tests.proofs.mutants.mutant import Mutant
from tests.proofs.mutants.run_mutant import ROOT, run_mutant
from tests.proofs.simulator.drift import drift

SEEDS = 10  # in a lot, which takes 40 s, and ten times as long on a busy machine
LOTS = [pytest.param(lot, marks=() if lot < 2 else pytest.mark.full) for lot in range(15)]
FAULTS = 800  # in each
FIVE = 5  # seeds of clusters in a lot, one of them with 50 members
CLUSTER_LOTS = [pytest.param(lot, marks=() if lot < 2 else pytest.mark.full) for lot in range(10)]
DEADLINE_S = 840.0  # pytest ends the worker process of a test that takes 900 s
WALKS = [(1, 1_000), (2, 500), (3, 500), pytest.param(5_000, 5_000, marks=pytest.mark.full)]  # a seed and its steps
LONG = 1_000  # steps: such a walk meets every kind of refusal
QUICK = [
    "no intent row before the create call",
    pytest.param("ownership is a prefix of the name", marks=pytest.mark.full),
    pytest.param("a piece is uploaded before its ledger row", marks=pytest.mark.full),
]


def simulate(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `./run sim` in a process of its own, because it replaces the clocks of its process."""
    command = [sys.executable, "-m", "tests.proofs.simulator", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )


@pytest.mark.parametrize("lot", LOTS)
def test_no_seed_breaks_an_invariant(lot: int) -> None:
    """All tasks end, all pods go, nothing doubles or leaks: twenty fleets in ./run test, 150 with --full.

    `./run proofs simulator` has 2,000.
    """
    done = simulate("--first", str(lot * SEEDS), "--seeds", str(SEEDS))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    faults = Counter({line.split()[1]: int(line.split()[0]) for line in done.stdout.splitlines() if line[:1] == " "})
    assert faults.total() >= FAULTS


@pytest.mark.parametrize("lot", CLUSTER_LOTS)
def test_no_seed_breaks_a_law_of_clusters(lot: int) -> None:
    """Ten clusters in ./run test, fifty with --full, two and ten of them with 50 members."""
    done = simulate("--clusters", "--first", str(lot * FIVE), "--seeds", str(FIVE))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_a_seed_replays_under_any_hash_seed() -> None:
    """The same seed gives the same action log under any PYTHONHASHSEED, so that a failure can be replayed."""
    logs = {simulate("--seed", "7", "--trace", PYTHONHASHSEED=seed).stdout for seed in ("0", "4242")}
    assert len(logs) == 1


@pytest.mark.parametrize(("seed", "steps"), WALKS)
async def test_the_model_of_the_sql_functions_has_not_drifted(real: PostgresDb, seed: int, steps: int) -> None:
    """What the simulated database answers is what PostgreSQL answers to the same calls."""
    calls = await drift(real, seed=seed, steps=steps)
    assert calls.total() >= steps
    refused = {name.split()[1] for name in calls}
    assert refused >= {"ok", "NotLeader", "LostRace", "OverBudget", "UnknownWorker", "BadArgument"} or steps < LONG


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_bug_is_caught(name: str) -> None:
    """One mutant of `./run mutants`, three with --full, so that each test run shows that the laws catch bugs."""
    (mutant,) = (mutant for mutant in MUTANTS if mutant.name == name)
    assert run_mutant(mutant, seeds=3).seeds is not None


def test_every_mutant_fits_the_code() -> None:
    """A planted bug that no longer fits the code would prove nothing."""
    assert len(MUTANTS) >= 30
    for mutant in (*MUTANTS, *MUTANTS_WITH_TESTS):
        text = Path(ROOT / mutant.path).read_text()
        assert mutant.planted(text) != text, mutant.name


PROGRAM = '''
def first():
    """A docstring."""
    return 1


class Second:
    async def first(self):
        x = 1
        return x
'''


def test_a_planted_bug_is_located_by_its_function() -> None:
    """The same text elsewhere in the file does not matter; a body can be replaced as a whole."""
    one = Mutant("one", "I1", "a.py", "return 1", "return 2", function="first")
    assert one.planted(PROGRAM) == PROGRAM.replace("return 1", "return 2")
    two = Mutant("two", "I1", "a.py", "1", "2", function="Second.first")
    assert two.planted(PROGRAM) == PROGRAM.replace("x = 1", "x = 2")
    whole = Mutant("whole", "I1", "a.py", "", "        return 3\n", function="Second.first")
    assert whole.planted(PROGRAM).endswith("async def first(self):\n        return 3\n")
    sql = "create or replace function public.{}()\nselect 1\n$$;\n"
    both, changed = sql.format("a") + sql.format("b"), sql.format("a") + sql.format("b").replace("1", "2")
    assert Mutant("sql", "I1", "a.sql", "select 1", "select 2", function="b").planted(both) == changed
    for function, text in (("third", "1"), ("first", "absent"), ("Second", "1")):
        with pytest.raises(ValueError, match=r"0 (functions|times)|stands 0"):
            Mutant("none", "I1", "a.py", text, "", function=function).planted(PROGRAM)

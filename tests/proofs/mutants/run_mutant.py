"""Runs one planted bug: plants it in a copy of the project, and checks whether a law or its test catches it."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.proofs.mutants.mutant import Mutant

ROOT = Path(__file__).resolve().parents[3]
TIMEOUT_S = 600.0


@dataclass(frozen=True)
class MutantResult:
    """Whether a mutant was caught, and by what."""

    mutant: Mutant
    seeds: int | None  # until it was caught; None if it survived
    how: str  # the violation


def run_mutant(mutant: Mutant, seeds: int) -> MutantResult:
    """Run seeds with a mutated copy of the product until a law that the mutant names is broken.

    A mutant with a test is caught if the test fails. A mutant that does not run is not caught: ValueError.
    """
    if mutant.has_test:
        return _tested(mutant)
    with tempfile.TemporaryDirectory(prefix="mutant-") as directory:
        copy = Path(directory)
        for name in ("orchestrator", "worker", "testbed", "tests/proofs/simulator"):
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        file = copy / mutant.path
        file.write_text(mutant.planted(file.read_text()))
        command = [
            sys.executable,
            "-m",
            "tests.proofs.simulator",
            "--seeds",
            str(seeds),
            "--processes",
            "0",
            "--laws",
            mutant.law,
            *(["--clusters"] if mutant.simulation == "clusters" else []),
        ]
        try:
            done = subprocess.run(
                command, cwd=copy, env=os.environ | {"PYTHONPATH": str(copy)}, capture_output=True, text=True,
                timeout=TIMEOUT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return MutantResult(mutant, None, f"no violation within {TIMEOUT_S:.0f} s")
        if done.returncode not in (0, 1) or (done.returncode and "seed " not in done.stdout):
            raise ValueError(f"{mutant.name!r}: {done.stdout[-500:]} {done.stderr[-1500:]}")
        for line in done.stdout.splitlines():
            number, _, violation = line.removeprefix("seed ").partition(": ")
            if number.isdigit() and violation.partition(":")[0] in mutant.law.split():
                return MutantResult(mutant, int(number) + 1, violation)
        return MutantResult(
            mutant, None, next((line for line in done.stdout.splitlines() if line.startswith("seed ")), "")
        )


def _tested(mutant: Mutant) -> MutantResult:
    with tempfile.TemporaryDirectory(prefix="mutant-") as directory:
        copy = Path(directory) / "copy"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "__pycache__"))
        file = copy / mutant.path
        file.write_text(mutant.planted(file.read_text()))
        done = _pytest(copy, mutant.law)
        if done.returncode not in (0, 1) or " error" in done.stdout.splitlines()[-1]:
            raise ValueError(f"{mutant.name!r}: {done.stdout[-2000:]} {done.stderr[-500:]}")
        return MutantResult(mutant, 1 if done.returncode else None, mutant.law.rpartition("::")[2])


def _pytest(root: Path, *tests: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    return subprocess.run(
        command, cwd=root, env=os.environ | {"PYTHONPATH": str(root)}, capture_output=True, text=True,
        timeout=TIMEOUT_S, check=False,
    )  # fmt: skip


def unmutated(seeds: int, of_clusters: int, processes: int, tests: Sequence[str]) -> str | None:
    """Return what the unchanged code breaks in as many seeds of each simulation and in these tests; None if nothing."""
    if tests and (tested := _pytest(ROOT, *tests)).returncode:
        return tested.stdout[-2000:] + tested.stderr[-500:]
    command = [sys.executable, "-m", "tests.proofs.simulator", "--processes", str(processes), "--seeds"]
    for more in ([str(seeds)], [str(of_clusters), "--clusters"]):
        done = subprocess.run(
            [*command, *more], cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        if done.returncode:
            return done.stdout[-500:] + done.stderr[-500:]
    return None

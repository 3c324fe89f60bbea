"""The script that Slurm gets: it has the options of the user's script, and runs that once in each job."""

import subprocess
from pathlib import Path

import pytest

from worker.slurm_submit import AGAIN, _write


def ran(script: str, job_id: str) -> int:
    """Run it as a job, and return its exit status."""
    return subprocess.run(
        ["/bin/sh", script], check=False, env={"SLURM_JOB_ID": job_id, "PATH": "/usr/bin:/bin"}
    ).returncode


def test_a_job_that_is_started_again_does_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each element of a job array is a job of its own."""
    place = tmp_path / "it's a place"
    place.mkdir()
    monkeypatch.chdir(place)
    script = _write("echo $SLURM_JOB_ID >>ran; exit 3\n")
    assert [ran(script, "7"), ran(script, "8")] == [3, 3]
    assert not Path(AGAIN).exists()
    assert ran(script, "7") == 75
    assert Path(AGAIN).exists()
    assert Path("ran").read_text() == "7\n8\n"


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("echo 1\n#SBATCH --late\n", []),
        ("#!/usr/bin/env python3\n#SBATCH --array=1-3\n\n# mine\n#SBATCH -p all\nprint()\n#SBATCH --late\n",
         ["#SBATCH --array=1-3", "#SBATCH -p all"]),
        ("#SBATCH --comment=a{b}c\ntrue", ["#SBATCH --comment=a{b}c"]),
    ],
)  # fmt: skip
def test_slurm_has_the_options_before_the_first_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, options: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    batch = Path(_write(text)).read_text().split("\n")
    assert [line for line in batch if line.startswith("#SBATCH")] == options

"""The handler `slurm` waits for a job: what slurmctld's answers, and its silence, mean for the task."""

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from worker import slurm_job
from worker.slurm_job import SILENT_S
from worker.slurm_output import OUTPUT
from worker.slurm_params import SlurmFailed, checked
from worker.slurm_submit import AGAIN

STEP_S = SILENT_S / 3  # of the clock, between two questions
RUNS = "JobId=7 JobState=RUNNING RunTime=00:05:00 NodeList=gpu-[1-2]"
DONE = "JobId=7 JobState=COMPLETED RunTime=00:09:00 NodeList=gpu-[1-2] ExitCode=0:0"
SILENCE = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"


class Clock:
    """A clock that only a wait moves."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        return self._now

    def sleep(self, _: float) -> None:
        self._now += STEP_S


class Task:
    """A task whose progress nobody reads."""

    def progress(self, *, message: str) -> None:
        assert message.startswith("Slurm job 7: ")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the task, and of a `scontrol` that a test writes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(slurm_job, "time", Clock())
    return tmp_path


def attended(place: Path, said: Sequence[str], **params: Any) -> dict[str, Any]:
    """The facts about a job whose `scontrol` says these lines one after the other, and then the last one again."""
    (place / "said").write_text("".join(f"{line}\n" for line in said))
    program = place / "scontrol"
    program.write_text(
        '#!/bin/sh\n[ "$3" != node ] || exec cat nodes\n'
        "head -n 1 said >line\n[ $(wc -l <said) = 1 ] || sed -i 1d said\ncat line; ! grep -q error line\n"
    )
    program.chmod(0o755)
    return slurm_job._attend(Task(), "7", checked({"command": ["true"], **params}))  # type: ignore[arg-type]


def test_a_silence_of_slurmctld_counts_from_its_last_answer(place: Path) -> None:
    """It is started again meanwhile; a job that has run for hours is not lost by one question without an answer."""
    ended = attended(place, [RUNS] * 5 + [SILENCE] * 2 + [RUNS] * 2 + [SILENCE] * 2 + [DONE])
    assert ended == {"job": 7, "state": "COMPLETED", "nodes": "gpu-[1-2]", "run_s": 540}


def test_a_job_is_lost_if_slurmctld_is_silent_for_long(place: Path) -> None:
    with pytest.raises(SlurmFailed, match="did not answer for 300 s: slurm_load_jobs error") as lost:
        attended(place, [RUNS, SILENCE])
    assert (lost.value.code, lost.value.retryable, lost.value.outage) == ("SLURM_JOB_LOST", True, False)


def test_the_time_limit_is_in_seconds_and_counts_the_running_time_only(place: Path) -> None:
    waits = "JobId=7 JobState=PENDING RunTime=00:05:00 Reason=Resources"
    assert attended(place, [waits, RUNS, DONE], time_limit_s=300)["state"] == "COMPLETED"
    with pytest.raises(SlurmFailed, match="job 7 ran for more than 299 s") as over:
        attended(place, [waits, RUNS, DONE], time_limit_s=299)
    assert (over.value.code, over.value.retryable) == ("SLURM_TIME_LIMIT", True)


@pytest.mark.parametrize(("lost", "code"), [(False, "EXIT_STATUS"), (True, "SLURM_NODE_FAILED")])
def test_a_job_that_srun_ends_because_of_a_lost_node_has_not_failed_by_itself(
    place: Path, lost: bool, code: str
) -> None:
    """The script exits with 1, before slurmctld calls the node down."""
    with socket.create_server(("127.0.0.1", 0)) as well, socket.create_server(("127.0.0.1", 0)) as other:
        ports = [one.getsockname()[1] for one in (well, other)]
        if lost:
            other.close()
        known = (f"NodeName=gpu-{n} NodeAddr=127.0.0.1 NodeHostName=pod Port={port}" for n, port in enumerate(ports))
        (place / "nodes").write_text("\n".join(known))
        with pytest.raises(
            SlurmFailed, match=r"exit status 1, .*gpu-1 does not answer$" if lost else "after 9 s$"
        ) as it:
            attended(place, [RUNS, "JobId=7 JobState=FAILED RunTime=00:00:09 NodeList=gpu-[0-1] ExitCode=1:0"])
    assert (it.value.code, it.value.retryable) == (code, True)


@pytest.mark.parametrize(
    ("nodes", "output", "again", "code", "outage"),
    [
        ("gpu-1", True, False, "SLURM_CANCELLED", False),
        ("(null)", False, False, "SLURM_CANCELLED", False),
        ("gpu-1", False, False, "SLURM_UNAVAILABLE", True),
        ("gpu-1", True, True, "SLURM_JOB_LOST", False),
    ],
    ids=["while it ran", "while it waited", "slurmd did not start it", "it was started again"],
)
def test_a_cancelled_job_may_be_slurms_own_doing(
    place: Path, nodes: str, output: bool, again: bool, code: str, outage: bool
) -> None:
    for name, there in ((OUTPUT, output), (AGAIN, again)):
        if there:
            (place / name).touch()
    with pytest.raises(SlurmFailed) as failed:
        attended(place, [RUNS, f"JobId=7 JobState=CANCELLED RunTime=00:00:00 NodeList={nodes} ExitCode=0:0"])
    assert (failed.value.code, failed.value.outage) == (code, outage)


def test_a_slurmctld_that_was_started_again_may_cancel_a_job(place: Path) -> None:
    (place / OUTPUT).touch()
    job = checked({"command": ["true"]})
    (place / "said").write_text("JobId=7 JobState=CANCELLED RunTime=00:00:00 NodeList=gpu-1 ExitCode=0:15\n")
    program = place / "scontrol"
    program.write_text(
        "#!/bin/sh\n[ $2 = config ] && echo 'BOOT_TIME               = 2026-11-26T07:32:27' || cat said\n"
    )
    program.chmod(0o755)
    for booted, code in (("2026-11-26T07:32:27", "SLURM_CANCELLED"), ("2026-11-26T07:30:00", "SLURM_JOB_LOST")):
        with pytest.raises(SlurmFailed) as failed:
            slurm_job._attend(Task(), "7", job, booted)  # type: ignore[arg-type]
        assert failed.value.code == code

"""Variables that no setting reads: named with the setting that was probably meant, or left alone."""

import os

import pytest

from orchestrator.config.environment import unread, usable


@pytest.fixture(autouse=True)
def _empty(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("DAILY_BUDGET", "DAILY_BUDGET_USD"),
        ("MAX_HOURLY_COST", "MAX_HOURLY_COST_USD"),
        ("GPU_IDLE_TIMEOUT", "GPU_IDLE_TIMEOUT_SEC"),
        ("S3_BUCKET_NAME", "S3_BUCKET"),
        ("WORKER_SETUP", "WORKER_SETUP_COMMAND"),
        ("daily_budget", "DAILY_BUDGET_USD"),
    ],
)
def test_a_similar_name_is_a_warning_that_names_the_setting(
    monkeypatch: pytest.MonkeyPatch, given: str, meant: str
) -> None:
    """The start is not refused: somebody else may read the variable."""
    monkeypatch.setenv(given, "3")
    settings, problems = usable()
    (found,) = unread(settings)
    assert (found.name, found.similar, problems) == (given, meant, [])
    assert meant in found.problem.fix


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("MAX_ACTIVE_GPU", "MAX_ACTIVE_GPUS"),
        ("RUNPOD_GPU_TYPES", "RUNPOD_GPU_TYPE"),
        ("WORKER_HANDLER", "WORKER_HANDLERS"),
    ],
)
def test_a_misspelt_name_stops_the_start_unless_the_right_one_is_set(
    monkeypatch: pytest.MonkeyPatch, given: str, meant: str
) -> None:
    """Next to the right variable, it is only a warning."""
    monkeypatch.setenv(given, "5")
    assert [problem.what for problem in usable()[1]] == [f"{given} is not a setting"]
    monkeypatch.setenv(meant, "a=b:c" if meant == "WORKER_HANDLERS" else "5")
    settings, problems = usable()
    assert ([one.similar for one in unread(settings)], problems) == ([meant], [])


def test_a_known_prefix_without_a_similar_setting_is_a_warning_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the page that lists all settings."""
    monkeypatch.setenv("WORKER_COLOUR", "1")
    (found,) = unread(usable()[0])
    assert found.similar is None
    assert "docs/settings.md" in found.problem.fix


def test_what_other_programs_read_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """So are settings under each of their names, and the variables that WORKER_ENV names."""
    names = ("AWS_PROFILE AWS_DEFAULT_REGION RAILWAY_SERVICE_ID RUNPOD_POD_ID PGHOST POSTGRES_PASSWORD SUPABASE_DB_URL "
             "SUPABASE_ANON_KEY HOSTNAME PREFIX PATH HOME WORKER_HANDLER")  # fmt: skip
    for name in names.split():
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("WORKER_ENV", "WORKER_HANDLER")
    settings, problems = usable()
    assert ([one.name for one in unread(settings)], problems) == ([], [])

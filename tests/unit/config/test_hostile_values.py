"""A value that cannot be used is refused with what, why and fix; the answer shows at most the beginning of it."""

import os

import pytest

from orchestrator.config.environment import load, usable
from orchestrator.config.errors import SettingProblem, SettingsError

LONGEST = 480  # characters of one part of an answer


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(("RUNPOD_", "WORKER_", "AWS_", "S3_", "SUPABASE_", "DATABASE_")):
            monkeypatch.delenv(name)


def _problem(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> SettingProblem:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as caught:
        load()
    (problem,) = caught.value.problems
    assert name in problem.what
    assert problem.why
    assert problem.fix
    return problem


@pytest.mark.parametrize(
    "url",
    [
        "http://[::1",
        "http://]",
        "https://",
        "https://:443",
        "http://evil.com\\@127.0.0.1",
        "https://x:99999999",
        "https://x:0",
        "https://x:port",
        "https://x\ny",
        "https://x\ty",
        "https://u:pw@x/\x1b[31m",
        "https://x y",
        "https://x\x7f",
        "https://\u202ex",
        "https://x/#fragment",
        "https://x/?query",
    ],
)
@pytest.mark.parametrize("name", ["WORKER_API_URL", "RUNPOD_API_BASE_URL"])
def test_a_url_that_programs_read_differently_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, url: str) -> None:
    """One that cannot be taken apart at all as well; the answer does not repeat it."""
    problem = _problem(monkeypatch, name, url)
    assert url not in problem.why


@pytest.mark.parametrize(
    "url", ["https://x", "http://127.0.0.1:8080", "http://[::1]:8080", "https://a.b/c/d", "https://u:p%40w@x:1/p"]
)
def test_a_usual_url_is_accepted(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Without the slash at its end."""
    monkeypatch.setenv("WORKER_API_URL", f"{url}/")
    settings, problems = usable()
    assert (settings.worker_api_url, problems) == (url, [])


@pytest.mark.parametrize("value", ["1_000", "-0.0", "-0", "\u0661", "0x10", "1e", "nan", "inf", "many", "1 000", "+1"])
@pytest.mark.parametrize("name", ["MAX_ACTIVE_GPUS", "GPU_IDLE_TIMEOUT_SEC", "DAILY_BUDGET_USD", "PORT"])
def test_a_number_is_written_in_digits(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """What Python reads as a number besides is more often a slip."""
    assert repr(value) in _problem(monkeypatch, name, value).why


def test_so_is_the_number_of_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a list of pairs."""
    assert "in digits" in _problem(monkeypatch, "BRINGUP_DEADLINES", "tcp=1_0").why


def test_usual_numbers_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """With spaces around them, as environment files have them."""
    for name, value in {"MAX_ACTIVE_GPUS": " 7 ", "GPU_IDLE_TIMEOUT_SEC": "0.5", "DAILY_BUDGET_USD": "1e3"}.items():
        monkeypatch.setenv(name, value)
    settings, problems = usable()
    assert (settings.max_active_gpus, settings.gpu_idle_timeout_sec, settings.daily_budget_usd) == (7, 0.5, 1000)
    assert problems == []


@pytest.mark.parametrize(
    "name",
    [
        "MAX_ACTIVE_GPUS",
        "BRINGUP_DEADLINES",
        "WORKER_HANDLERS",
        "FLEET_ID",
        "WORKER_CODE_DIR",
        "POOLS_FILE",
        "LOG_LEVEL",
    ],
)
def test_an_answer_shows_the_beginning_of_a_long_value(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Five thousand characters would push everything else off the screen."""
    problem = _problem(monkeypatch, name, "x" * 5_000)
    assert max(map(len, problem)) <= LONGEST


def test_a_task_type_has_one_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two, one would be ignored without a word."""
    assert "'a'" in _problem(monkeypatch, "WORKER_HANDLERS", "a=b:c,b=x:y,a=d:e").why


@pytest.mark.parametrize(
    "name", ["WORKER_JWT_SECRET", "DATABASE_URL", "RUNPOD_API_KEY", "FLEET_ID", "HF_TOKEN", "HF_HOME"]
)
def test_a_value_that_is_not_utf_8_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Nothing could send it: not in a header, and not in the configuration of an agent, whose pod would cost money."""
    monkeypatch.setenv("WORKER_ENV", "HF_TOKEN,HF_HOME")
    monkeypatch.setenv("HF_HOME", "/x")
    problem = _problem(monkeypatch, name, "postgresql://u:\udcff\udcfe" * 9)
    assert "UTF-8" in problem.why


def test_the_answer_is_in_our_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's name for the error is not a part of it."""
    assert (
        _problem(monkeypatch, "WORKER_API_URL", "example.com").why == "its value: must begin with http:// or https://"
    )

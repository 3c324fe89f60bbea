"""What the probes say of each state of the daemon."""

import pytest

from orchestrator.config.environment import load
from orchestrator.observability.health import Health
from orchestrator.observability.metrics import Metrics
from orchestrator.service.control_loop import health_of

START_S = 1_000.0


def _health() -> Health:
    runs = {"version": "1.2.3", "commit": None, "schema": "20261123000401"}
    return Health(started_at_s=START_S, dead_after_s=120, runs=runs, depends=lambda: {"database": "up"})


def test_a_process_that_has_just_started_is_alive_and_not_ready() -> None:
    """A platform must not send it traffic yet, nor kill it."""
    health = _health()
    assert health.alive(START_S + 5)
    assert not health.ready(START_S + 5)
    assert health.report(START_S + 5)["role"] == "starting"


def test_leader_and_standby_are_both_ready() -> None:
    """A rolling deploy waits for the new process to be ready, and that one waits for the old to go."""
    for become in (Health.leads, Health.stands_by):
        health = _health()
        health.ticked(START_S + 1)
        become(health, 7, "host:1")
        assert health.ready(START_S + 2)
        assert health.report(START_S + 2) | {"role": None} == {
            "status": "ok",
            "role": None,
            "term": 7,
            "leader": "host:1",
            "last_tick_age_s": 1.0,
            "database_answered": True,
            "reason": None,
            "version": "1.2.3",
            "commit": None,
            "schema": "20261123000401",
            "depends_on": {"database": "up"},
        }


def test_a_failing_database_makes_the_process_degraded_and_not_dead() -> None:
    """A restart of the process would not repair the database."""
    health = _health()
    health.leads(1, "host:1")
    health.ticked(START_S + 100)
    health.failed("Unavailable: connection refused")
    assert health.alive(START_S + 101)
    report = health.report(START_S + 101)
    assert (report["status"], report["reason"]) == ("degraded", "Unavailable: connection refused")
    health.recovered()
    assert health.report(START_S + 101)["status"] == "ok"


def test_a_standby_recovers_with_the_next_answer() -> None:
    """It runs no tick that could say so, and its next request may be the only sign for days."""
    health = _health()
    health.stands_by(1, "host:1")
    health.failed("database: connection refused")
    health.stands_by(1, "host:1")
    report = health.report(START_S + 1)
    assert (report["status"], report["reason"]) == ("ok", None)


def test_a_leader_whose_tick_failed_stays_degraded_when_its_lease_is_renewed() -> None:
    """The lease is renewed every few seconds, whatever the tick says; only a tick shows that ticks succeed."""
    health = _health()
    health.leads(1, "host:1")
    health.failed("KeyError: 'pool'")
    health.leads(1, "host:1")
    assert health.report(START_S + 1)["reason"] == "KeyError: 'pool'"


def test_a_loop_without_ticks_is_dead() -> None:
    """Only then does the platform restart the process."""
    health = _health()
    health.leads(1, "host:1")
    health.ticked(START_S + 1)
    assert not health.alive(START_S + 122)
    assert not health.ready(START_S + 122)
    assert "no tick for 121 s" in health.report(START_S + 122)["reason"]


def test_a_loop_with_a_long_interval_counts_as_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """A platform that kills it for that would never let it look at all."""
    monkeypatch.setenv("ORCHESTRATOR_POLL_SEC", "600")
    health = health_of(load(), Metrics(), "20261123000401")
    health.ticked(START_S)
    assert health.alive(START_S + 610)
    assert not health.alive(START_S + 730)

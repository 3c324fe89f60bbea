"""The second one of something in the agent: a wait, a renewal, a try of a report."""

import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.web.token_renewal import Renewals
from orchestrator.worker_tokens import mint
from worker import protocol, renewal, reports, waits
from worker.agent_state import AgentState
from worker.config import Config, RunDir
from worker.exits import Outcome
from worker.http1 import Unreachable
from worker.journal import Journal
from worker.renewal import Renewal, lifetime_s
from worker.reports import Reports
from worker.waits import ServiceWaits

WORKER, JTI, SECRET = "gpu-20260101_000000-0badf00d", "the-jti", "a secret for tests, of more than 32 bytes"
RENEWALS = Renewals((SECRET,), 900)
TASK = {"id": "one", "attempt": 1}


class Clock:
    """A time that passes as told."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    for module in (renewal, reports, waits):
        monkeypatch.setattr(module, "time", found)
    return found


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(str(tmp_path))


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(str(tmp_path / "agent.log"), ())


def test_each_wait_for_a_service_pauses_the_timeout(clock: Clock, run: RunDir, journal: Journal) -> None:
    """Two transfers one after the other, then two at once, which pause it once."""
    state = AgentState(60, run)
    service = ServiceWaits(state.hold(dict(TASK)), state, journal)
    for seconds in (5, 3):
        service.note_transfer({"seq": 1, "service": ""})
        clock.now_s += seconds
        service.note_transfer({"seq": 1, "service": None})
        clock.now_s += 10
    assert service.paused_s() == 8
    for name, at in ((1, ""), (2, ""), (1, None), (2, None)):
        service.note_transfer({"seq": name, "service": at})
        clock.now_s += 1
    assert service.paused_s() == 8 + 3


def test_each_token_is_renewed_after_half_of_its_own_lifetime(clock: Clock, run: RunDir, journal: Journal) -> None:
    """The second one too: neither at once, nor never."""
    token = mint(SECRET, WORKER, JTI, time.time(), 1_000)
    config = Config({
        "worker_id": WORKER, "nonce": "n", "api_url": "http://h", "token": token,
        "renewal_key": RENEWALS.key_for(WORKER, JTI),
    })  # fmt: skip
    asked: list[float] = []

    class Leader:
        def call(self, function: str, _args: Any, **_: Any) -> dict[str, Any]:
            assert function == protocol.RENEW
            asked.append(clock.now_s)
            return {"sealed": RENEWALS.sealed(WORKER, JTI, time.time())}

    renewals = Renewal(config, run, journal, Leader())  # type: ignore[arg-type]
    began_s, half_s = clock.now_s, RENEWALS.life_s / 2
    while len(asked) < 3:
        renewals.renew_if_due()
        clock.now_s += 10
        assert clock.now_s < began_s + 4 * half_s
    assert lifetime_s(config.token) == pytest.approx(RENEWALS.life_s, abs=2)
    assert asked == [pytest.approx(began_s + at, abs=60) for at in (500, 500 + half_s, 500 + 2 * half_s)]


def test_a_report_whose_answer_is_late_is_no_standstill(run: RunDir, journal: Journal) -> None:
    """Each try is a sign of life, also the third; the next report too."""
    state, seen = AgentState(60, run), list[float]()

    class Late:
        def call(self, function: str, _args: Any, **_: Any) -> dict[str, Any]:
            seen.append(state.still_s)
            state.still_s = 9_999.0  # the heartbeat counts while the call waits
            state.wake()  # so that the pause is over
            if len(seen) % 3:
                raise Unreachable("timed out")
            return {"outcome": "ok"}

    sender = Reports(state, journal, Late())  # type: ignore[arg-type]
    for name in ("one", "two"):
        sender.add(state.hold({"id": name, "attempt": 1}), Outcome("done", location="s3://b/k"))
    assert seen == [0.0] * 6
    assert state.held() == []


def test_the_tries_of_a_second_outage_begin_as_those_of_the_first(clock: Clock, run: RunDir, journal: Journal) -> None:
    """A result that waited long once does not make the next one wait."""
    state, away, asked = AgentState(60, run), [True], list[float]()

    class Database:
        def call(self, _function: str, args: Any, **_: Any) -> dict[str, Any]:
            asked.append(clock.now_s)
            if away[0]:
                raise Unreachable("timed out")
            return {"outcomes": ["ok"] * len(args["p_results"])}

    sender = Reports(state, journal, Database())  # type: ignore[arg-type]
    waited: list[list[float]] = []
    for name in ("one", "two"):
        away[0], began_s = True, clock.now_s
        asked.clear()
        sender.add(state.hold({"id": name, "attempt": 1}), Outcome("done", result={}))
        while len(asked) < 4:
            clock.now_s += sender.send_due()
        waited.append([round(at - began_s, 3) for at in asked])
        away[0] = False
        clock.now_s += 60
        assert sender.send_due() == float("inf")
    assert waited[0] == waited[1]
    assert state.held() == []

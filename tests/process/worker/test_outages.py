"""An outage of the store, the gateway or the database costs time, and neither a result nor an attempt."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.outputs import Upload
from tests.process.worker.scripted import Orchestrator, Pod
from worker import protocol, transfer_loop
from worker.transfer_errors import TransferError, Unserved
from worker.transfers import Transfers

STORING = """
def store(params, task):
    (task.dir / "a.bin").write_bytes(b"x" * 1000)
    task.upload("a.bin")

def read(params, task):
    return {"text": task.dependencies[0].download().read_text()}
"""
OUTAGE_S = 1800.0


class Clock:
    """Virtual time; somebody may watch it pass."""

    def __init__(self, passed: Callable[[float], None] = lambda _: None) -> None:
        self.now, self._passed = 1_000_000.0, passed

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self._passed(self.now - 1_000_000.0)


class Asked:
    """The agent's end of the channel: grants what is asked for, and keeps what it is told."""

    def __init__(self, orchestrator: Orchestrator) -> None:
        self._orchestrator = orchestrator
        self.told: list[dict[str, Any]] = []
        self.grants = 0
        self.recorded: dict[str, Any] = {}

    def send(self, message: dict[str, Any]) -> None:
        self.told.append(message)

    def ask(self, message: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        self.grants += 1
        [item] = message["items"]
        url = f"{self._orchestrator.url}/store/{item['key']}?signed={self.grants}"
        granted = {**item, "url": url, "location": f"s3://bucket/x/{item['key']}", **self.recorded}
        if item.get("once"):
            granted |= {"head": url, "headers": dict(Upload(item["bytes"], item["sha256"], "text/plain").headers())}
        return {"items": [granted]}


def transfers_with(orchestrator: Orchestrator, directory: Path, clock: Clock) -> tuple[Transfers, Asked]:
    asked = Asked(orchestrator)
    return Transfers(asked, "t", directory, patience_s=60, clock=clock), asked  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "says", [(503, "SlowDown"), (500, "InternalError"), (403, "AccessDenied"), (404, "NoSuchBucket")]
)
def test_an_upload_waits_out_thirty_minutes_without_the_store(
    orchestrator: Orchestrator, tmp_path: Path, says: tuple[int, str]
) -> None:
    """Each try has a fresh URL and is a sign of life; when the store is back the result is stored, once."""
    orchestrator.store_says = says

    def passed(seconds: float) -> None:
        if seconds >= OUTAGE_S:
            orchestrator.store_says = None

    clock = Clock(passed)
    one, asked = transfers_with(orchestrator, tmp_path, clock)
    (tmp_path / "result").write_bytes(b"kept")
    assert one.put("outputs/t/1/result", tmp_path / "result") == ("s3://bucket/x/outputs/t/1/result", 4)
    assert orchestrator.objects == {"outputs/t/1/result": b"kept"}
    waits = [message for message in asked.told if message.get("why")]
    assert asked.grants == len(waits) + 1
    assert OUTAGE_S / 10 > len(waits) > OUTAGE_S / 20  # every 15 s or so, and not thousands of times
    assert says[1] in waits[-1]["why"]
    assert (asked.told[0]["service"], asked.told[-1]["service"]) == ("", None)


def test_a_refusal_names_what_the_operator_must_check(orchestrator: Orchestrator, tmp_path: Path) -> None:
    """A 403 is a matter of keys and policies; nobody should look for it in the handler."""
    orchestrator.store_says = (403, "InvalidAccessKeyId")
    clock = Clock(lambda seconds: setattr(orchestrator, "store_says", None) if seconds > 60 else None)
    one, asked = transfers_with(orchestrator, tmp_path, clock)
    (tmp_path / "result").write_bytes(b"kept")
    one.put("outputs/t/1/result", tmp_path / "result")
    [first, *_] = [message["why"] for message in asked.told if message.get("why")]
    assert "the operator must check S3_BUCKET" in first
    assert "InvalidAccessKeyId" in first


@pytest.mark.parametrize("says", [(404, "NoSuchKey"), (400, "EntityTooLarge")])
def test_an_error_of_the_request_itself_is_not_waited_for(
    orchestrator: Orchestrator, tmp_path: Path, says: tuple[int, str]
) -> None:
    """An input that is not there, or a file that is too large, fails the attempt after a few tries."""
    orchestrator.store_says = says
    clock = Clock()
    one, _ = transfers_with(orchestrator, tmp_path, clock)
    with pytest.raises(TransferError, match=says[1]) as failed:
        one.get_all([("s3://bucket/x/outputs/other/1/o", tmp_path / "o", None)], "other")
    assert not failed.value.outage
    assert orchestrator.store_asked == transfer_loop.WRONG_TRIES


def test_a_wait_ends_when_the_disk_is_full(
    orchestrator: Orchestrator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A result is kept as long as the disk has room; then the task is handed back, and the reason is said."""
    orchestrator.store_says = (503, "SlowDown")
    monkeypatch.setattr(transfer_loop, "ROOM_BYTES", 1 << 60)
    one, _ = transfers_with(orchestrator, tmp_path, Clock())
    (tmp_path / "result").write_bytes(b"kept")
    with pytest.raises(Unserved, match="disk is full"):
        one.put("outputs/t/1/result", tmp_path / "result")


def test_waiting_for_the_store_stops_the_clock_of_the_task(
    orchestrator: Orchestrator, make_pod: Callable[..., Pod]
) -> None:
    """A task with a timeout of 5 s waits for 7 s: heartbeats hold its lease, each try is progress, and it completes."""
    orchestrator.store_says = (503, "SlowDown")
    pod = make_pod({"storing.py": STORING})
    pod.start({"store": "storing:store"})
    orchestrator.submit("kept", "store", timeout_s=5)
    orchestrator.until(lambda: orchestrator.store_asked)
    began = time.monotonic()

    def told() -> set[str]:
        beats = [beat for beat in orchestrator.calls_of(protocol.HEARTBEAT) if beat["p_health"].get("store")]
        return {beat["p_tasks"][0]["progress"]["message"] for beat in beats}

    said = orchestrator.until(lambda: time.monotonic() - began > 7 and len(told()) >= 2 and told())
    assert all("waits for the store since" in text for text in said)
    orchestrator.store_says = None
    orchestrator.completion("kept")
    assert orchestrator.failures == {}
    calls = orchestrator.count(protocol.HEARTBEAT)
    orchestrator.until(lambda: orchestrator.count(protocol.HEARTBEAT) > calls + 1)
    assert not orchestrator.calls_of(protocol.HEARTBEAT)[-1]["p_health"].get("store")


def test_a_pod_that_is_drained_while_it_waits_hands_its_task_back(
    orchestrator: Orchestrator, make_pod: Callable[..., Pod]
) -> None:
    """The end of a worker does not wait for the store, and the attempt does not count."""
    orchestrator.store_says = (503, "SlowDown")
    pod = make_pod({"storing.py": STORING})
    pod.start({"store": "storing:store"})
    orchestrator.submit("kept", "store")
    orchestrator.until(lambda: orchestrator.store_asked)
    orchestrator.tell(wanted=protocol.STOP)
    orchestrator.until(lambda: orchestrator.released)
    assert orchestrator.released == {"kept": "told to stop"}
    assert orchestrator.failures == {}


def test_a_result_that_the_bucket_cannot_show_yet_is_handed_back_at_the_end(
    orchestrator: Orchestrator, make_pod: Callable[..., Pod]
) -> None:
    """The gateway cannot say whether the output is there: the agent waits, and hands the task back when it must end."""
    orchestrator.bucket_away = True
    pod = make_pod({"storing.py": STORING})
    pod.start({"store": "storing:store"}, deadman_s=0.5)
    orchestrator.submit("kept", "store")
    orchestrator.until(lambda: orchestrator.count(protocol.COMPLETE_OUTPUT) > 3)
    assert any(beat["p_health"].get("store") for beat in orchestrator.calls_of(protocol.HEARTBEAT))
    orchestrator.tell(wanted=protocol.STOP)
    orchestrator.until(lambda: orchestrator.released)
    assert list(orchestrator.released) == ["kept"]


def test_an_orchestrator_that_grants_nothing_for_too_long_costs_no_attempt(
    orchestrator: Orchestrator, tmp_path: Path
) -> None:
    """An outage of the gateway is bounded; what runs out of it is handed back uncounted."""

    class SilentChannel(Asked):
        def ask(self, message: dict[str, Any], timeout_s: float) -> dict[str, Any]:
            return {"error": "no database", "final": False}

    one = Transfers(SilentChannel(orchestrator), "t", tmp_path, patience_s=60, clock=Clock())  # type: ignore[arg-type]
    (tmp_path / "result").write_bytes(b"kept")
    with pytest.raises(Unserved, match="no grant within 60 s"):
        one.put("outputs/t/1/result", tmp_path / "result")

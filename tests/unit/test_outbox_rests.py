"""How long a host rests that does not answer, after each failure and after each host's own."""

from collections.abc import Mapping
from typing import Any

from orchestrator.adapters.posting import ReceiverFailed
from orchestrator.leader_jobs.outbox import PER_HOST, REST_MOST_S, Outbox
from orchestrator.ports import Unavailable


class Rows:
    """An outbox in which one message to each host is always due."""

    def __init__(self, *hosts: str) -> None:
        self.hosts, self.retries = hosts, list[float | None]()

    async def take(self, _term: int, busy: Mapping[str, int], *_: Any, **__: Any) -> tuple[list[Any], None]:
        free = [host for host in self.hosts if busy.get(host, 0) < PER_HOST]
        return [{"id": 1, "owner": "", "host": host, "event": "opened", "attempts": 1} for host in free], None

    async def close(self, _term: int, _id: int, _failure: str | None, retry_s: float | None) -> None:
        self.retries.append(retry_s)


async def test_a_silent_host_rests_longer_after_each_failure_and_delays_no_other() -> None:
    """Until it answers: then its rest is as short as at first."""
    now_s, sent = 0.0, list[tuple[str, float]]()
    answers: dict[str, Exception] = {"silent": Unavailable("no route"), "busy": ReceiverFailed("it answered 500")}

    async def send(message: Mapping[str, Any]) -> None:
        sent.append((message["host"], now_s))
        if message["host"] in answers:
            raise answers[message["host"]]

    rows = Rows("silent", "busy")
    outbox = Outbox(rows, send, lambda: now_s)  # type: ignore[arg-type]
    for second in range(15):
        now_s = float(second)
        await outbox.step(1)
    assert [at for host, at in sent if host == "silent"] == [0, 2, 6, 14]
    assert [at for host, at in sent if host == "busy"] == [*range(15)]

    answers["silent"] = ReceiverFailed("it answered 500")
    rows.hosts = ("silent",)
    now_s += REST_MOST_S
    await outbox.step(1)
    answers["silent"] = Unavailable("no route")
    sent.clear()
    for second in range(1, 9):
        now_s = 14 + REST_MOST_S + second
        await outbox.step(1)
    assert [at - 14 - REST_MOST_S for _, at in sent] == [1, 3, 7]

"""The page of a worker: why it is where it is, its bring-up, and its log as far as it is stored."""

import gzip
import hashlib
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

from orchestrator.core.states import State
from orchestrator.ports import LogRange, Unavailable
from tests.process.web.api_rig import ADMIN
from tests.process.web.builders import Caller
from tests.process.web.dashboard_rig import HOSTILE, DashboardRig


@dataclass
class Shipping:
    """The shipper of one worker's handler log."""

    board: DashboardRig
    worker: Caller
    shipped: list[int] = field(default_factory=lambda: [0])

    async def ship(self, content: bytes) -> None:
        """One more piece of the stream."""
        seq, first = len(self.shipped) - 1, self.shipped[-1]
        last, sha = first + len(content), hashlib.sha256(content).hexdigest()
        key = f"logs/{self.worker.id}/{self.worker.nonce}/handler/{seq}.log.gz"
        piece = LogRange(self.worker.id, self.worker.nonce, "handler", seq, first, last, sha, key)
        await self.board.store.log_begin(self.board.term, piece)
        await self.board.api.blobs.put(key, gzip.compress(content), content_type="application/gzip")
        await self.board.store.log_shipped(self.board.term, piece)
        self.shipped.append(last)


async def test_the_page_says_what_a_worker_waits_for(board: DashboardRig) -> None:
    """The same facts as `explain`, in HTML that needs no script."""
    worker = await board.worker(state=State.SPAWNING)
    visitor = await board.visitor(ADMIN)
    answer = await visitor.get(f"/workers/{worker.id}")
    explained = await board.rows.worker_explained(worker.id)
    assert answer.status_code == 200
    for text in (worker.id, "spawning", "Must act", explained["worker"]["waiting_on"], "/do/drain"):
        assert text in answer.text, text


async def test_an_unknown_worker_is_not_found(board: DashboardRig) -> None:
    """Nor one of a pool that the token does not see: nobody learns which of both it is."""
    worker = await board.worker()
    restricted = await board.visitor(await board.token("read", pools=["another"]))
    answers = [
        await restricted.get(f"/workers/{name}{more}") for name in (worker.id, "gpu-nobody") for more in ("", "/log")
    ]
    assert [answer.status_code for answer in answers] == [404] * 4
    assert answers[0].text.replace(worker.id, "") == answers[2].text.replace("gpu-nobody", "")


async def test_the_log_is_shown_and_found_in(board: DashboardRig) -> None:
    """Its last lines, without control characters; with a text to find, only the lines that contain it."""
    shipping, visitor = Shipping(board, await board.worker()), await board.visitor(ADMIN)
    page = f"/workers/{shipping.worker.id}"
    assert "Nothing of its log is stored" in (await visitor.get(f"{page}?find=nothing")).text
    await shipping.ship(b"first line\nhalf of ")
    await shipping.ship(f"the second\n{HOSTILE}\n".encode())
    board.dashboard.shared.forget(f"log of {shipping.worker.id}")
    text = (await visitor.get(f"{page}?find=line")).text
    assert "first <mark>line</mark>" in text
    assert "the second" not in text
    text = (await visitor.get(page)).text
    assert "half of the second" in text
    assert "<script>document" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text


async def test_a_tail_is_bounded_and_goes_on(board: DashboardRig) -> None:
    """A long log costs a page as much as a short one, and what is shipped later is read alone."""
    shipping = Shipping(board, await board.worker())
    await shipping.ship(b"".join(b"line %06d of many\n" % number for number in range(20_000)))
    (tail,) = await board.api.log_tails.of_worker(shipping.worker.id)
    assert (len(tail.lines), tail.is_whole, tail.lines[-1].text) == (200, False, "line 019999 of many")
    await shipping.ship(b"and one more\n")
    (tail,) = await board.api.log_tails.of_worker(shipping.worker.id)
    assert [line.text for line in tail.lines[-2:]] == ["line 019999 of many", "and one more"]
    assert len({line.place for line in tail.lines}) == len(tail.lines) == 200


async def test_a_bucket_that_does_not_answer_is_not_an_empty_log(
    board: DashboardRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page has everything else."""
    shipping, visitor = Shipping(board, await board.worker()), await board.visitor(ADMIN)
    await shipping.ship(b"a line\n")

    async def away(_key: str) -> bytes:
        raise Unavailable("S3 is away")

    monkeypatch.setattr(board.api.pieces, "get", away)
    text = (await visitor.get(f"/workers/{shipping.worker.id}")).text
    assert "The log is not shown: it cannot be read from the bucket now" in text
    assert "Nothing of its log is stored" not in text
    assert "Bring-up" in text


async def test_a_log_is_downloaded_as_it_was_written(board: DashboardRig) -> None:
    """As a text file that no browser runs."""
    shipping, visitor = Shipping(board, await board.worker()), await board.visitor(ADMIN)
    for part in (b"one\n", b"<b>two", b"</b>\n"):
        await shipping.ship(part)
    answer = await visitor.get(f"/workers/{shipping.worker.id}/log")
    assert answer.content == b"one\n<b>two</b>\n"
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["content-disposition"].startswith("attachment")
    assert (await visitor.get(f"/workers/{shipping.worker.id}/log?stream=agent")).status_code == 404


async def test_the_load_of_its_gpus_is_shown_over_its_life(
    board: DashboardRig, hand: psycopg.AsyncConnection[Any]
) -> None:
    """With a gap where nothing was heard. A worker without a record says so."""
    worker, visitor = await board.worker(), await board.visitor(ADMIN)
    assert "No minute of it is recorded yet" in (await visitor.get(f"/workers/{worker.id}")).text
    await hand.execute("update workers set created_at = now() - interval '1 hour' where id = %s", (worker.id,))
    await hand.execute(
        "insert into orchestrator.worker_minutes select %s, date_trunc('minute', now()) - n * interval '1 minute', "
        "'active', 1, 60, 10240, 24576 from generate_series(1, 50) n where n not between 20 and 30",
        (worker.id,),
    )
    board.dashboard.shared.forget_all()
    page = (await visitor.get(f"/workers/{worker.id}")).text
    for text in ("Busy 60 % on average, at most 60 %", "At most 10.0 of 24.0 GiB in use", "busy 60 % now"):
        assert text in page, text
    assert page.count('<polygon class="area"') == 4
    assert "style=" not in page


async def test_a_worker_whose_events_retention_has_deleted_has_a_page(
    board: DashboardRig, hand: psycopg.AsyncConnection[Any]
) -> None:
    """Workers are kept longer than their events."""
    worker = await board.worker()
    await board.gateway.move(worker, (State.ACTIVE,), State.TERMINATING, exit_cause="manual")
    await board.gateway.move(worker, (State.TERMINATING,), State.TERMINATED)
    await hand.execute("delete from worker_events where worker_id = %s", (worker.id,))
    answer = await (await board.visitor(ADMIN)).get(f"/workers/{worker.id}")
    assert (answer.status_code, worker.id in answer.text) == (200, True)

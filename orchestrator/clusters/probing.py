"""Reads the members of clusters: one probe of each at a time, in the background, with the newest reading kept."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

import structlog

from orchestrator.clusters import node
from orchestrator.clusters.access import Members
from orchestrator.clusters.node import Question
from orchestrator.core.cluster_states import LIVE_MEMBER
from orchestrator.core.clusters.facts import node_of
from orchestrator.core.clusters.readings import UNREACHED, Observed, Reading, observe
from orchestrator.core.clusters.rows import ClusterRow, MemberRow
from orchestrator.core.clusters.view import Node
from orchestrator.ports import PortError, Unavailable

CONCURRENT_PROBES = 32
AGAIN_S = 3.0  # from a failed probe of a member to the next one
PEERS = 8  # whose slurmd one probe tries to reach: the next ones by index, so all pairs of a small cluster are tried
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ProbeSettings:
    """What a probe asks for that is the same for all members."""

    key_of: Callable[[str], bytes]  # cluster id -> its munge key
    api_url: str | None  # of the agents' API
    python: str


class Prober:
    """The probes of one leader. `observed` has the newest reading of each member since its last action began."""

    def __init__(self, members: Members, settings: ProbeSettings) -> None:
        self._members, self._settings = members, settings
        self._gate = asyncio.Semaphore(CONCURRENT_PROBES)
        self._running: dict[str, asyncio.Task[None]] = {}
        self._observed: dict[str, Observed] = {}
        self._has_news = False
        self._clock = (datetime.now(UTC), time.monotonic())  # the database's time, and when we learned it

    @property
    def observed(self) -> Mapping[str, Observed]:
        """Worker id -> what its probes said."""
        return self._observed

    def take_news(self) -> bool:
        """Return whether a probe has ended since the last call."""
        has_news, self._has_news = self._has_news, False
        return has_news

    def set_clock(self, now: datetime) -> None:
        """Take over the database's time. Readings have its time, whatever this machine's clock does in between."""
        self._clock = (now, time.monotonic())

    def now(self) -> datetime:
        """Return the database's time, as far as this process knows it."""
        told, at_s = self._clock
        return told + timedelta(seconds=time.monotonic() - at_s)

    def forget(self, worker_id: str) -> None:
        """Forget the reading of a member, and its running probe: an action on it begins."""
        self._observed.pop(worker_id, None)
        if (running := self._running.pop(worker_id, None)) is not None:
            running.cancel()

    def keep(self, worker_ids: frozenset[str]) -> None:
        """Forget all other members."""
        for worker_id in (self._observed.keys() | self._running.keys()) - worker_ids:
            self.forget(worker_id)

    def begin(self, row: ClusterRow, busy: frozenset[str], every_s: float) -> None:
        """Begin the probes that are due, except of members with a running action."""
        live = [member for member in row.members if member.status in LIVE_MEMBER]
        nodes = sorted((one for m in live if (one := node_of(m)) is not None), key=lambda one: one.index)
        for member in live:
            name, seen = member.worker_id, self._observed.get(member.worker_id)
            pause_s = min(every_s, AGAIN_S) if seen is not None and seen.unreached_since is not None else every_s
            is_due = seen is None or self.now() - seen.at >= timedelta(seconds=pause_s)
            if name in busy or name in self._running or not is_due:
                continue
            task = asyncio.create_task(self._probe(row.id, member, _peers(member, nodes)), name=f"probe:{name}")
            self._running[name] = task
            task.add_done_callback(partial(self._ended, name))

    async def stop(self) -> None:
        """Cancel the running probes, and forget everything."""
        tasks = list(self._running.values())
        self.keep(frozenset())
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, name: str, done: asyncio.Task[None]) -> None:
        if self._running.get(name) is done:
            del self._running[name]

    async def _probe(self, cluster: str, member: MemberRow, peers: Iterable[Node]) -> None:
        one = self._settings
        nonce = member.worker.nonce if member.worker else None
        question = Question(cluster, one.key_of(cluster), tuple(peers), nonce, one.api_url, python=one.python)
        try:
            async with self._gate:
                reading = await self._asked(member.worker_id, question)
        except Exception as error:  # a bug: the next probe is not earlier than after an answer, and nothing follows
            log.exception("cluster_probe_crashed", cluster=cluster, worker=member.worker_id)
            reading = Reading(error=f"{type(error).__name__}: {error}"[:300])
        if reading is not None and self._running.get(member.worker_id) is asyncio.current_task():
            self._observed[member.worker_id] = observe(self._observed.get(member.worker_id), reading, self.now())
            self._has_news = True

    async def _asked(self, worker_id: str, question: Question) -> Reading | None:
        """Return a member's answer. None: this process could not ask."""
        if self._members.worker(worker_id) is None:
            return None
        reading = None
        try:
            async with self._members.session(worker_id) as session:
                reading = await node.probe(session, question)
                if reading.reached is None:  # nothing came back: the next probe makes a new connection
                    raise Unavailable(reading.error or "no answer")
        except PortError as error:
            return reading or Reading(reached=UNREACHED.reached, error=str(error)[:300])
        return reading


def _peers(member: MemberRow, nodes: list[Node]) -> list[Node]:
    """Return the nodes that a member tries to reach: of these, in the order of their indexes, those after it first."""
    others = [one for one in nodes if one.worker_id != member.worker_id]
    return sorted(others, key=lambda one: one.index <= member.index_no)[:PEERS]

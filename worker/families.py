"""Which processes belong to which handler host.

The agent adopts orphans, so each process that a handler starts stays a descendant of the agent, whatever session and
environment it has. It belongs to its host by its parents, or else by the session or the mark of a host. An orphan
without both belongs to the host whose task runs or has just ended: one task runs at a time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from . import limited, processes

MAX_NAMES = 10  # of processes that are chased


class Family:
    """The processes of one host. `kept`: those that may outlive a task, as pid and start time."""

    def __init__(self, pid: int, mark: str) -> None:
        self.pid, self.mark = pid, mark
        self.kept: set[tuple[int, str]] = set()

    def roots(self, everything: dict[int, processes.ProcessRow]) -> set[int]:
        """Return the host, its kept processes that live, and the later ones of a session that a kept one has begun.

        A daemon begins a session, starts the process that stays, and ends.
        """
        return {self.pid} | {one.pid for one in everything.values() if self.keeps(one)}

    def keeps(self, one: processes.ProcessRow) -> bool:
        """Whether a process may outlive a task."""
        return one.session in self.begun() or (one.pid, one.started) in self.kept

    def begun(self) -> set[int]:
        """Return the kept pids, which may be sessions and groups too."""
        return {pid for pid, _ in self.kept} - {self.pid}

    def owns(self, orphan: processes.ProcessRow) -> bool:
        """Whether the orphan has this host's session or mark."""
        return orphan.session == self.pid or processes.has_mark(orphan.pid, self.mark)


class Families:
    """The families of one agent. Used by its main thread; `gpu_users` by any."""

    def __init__(self) -> None:
        self.adopts = processes.adopt_orphans()
        self._all: dict[int, Family] = {}

    def add(self, pid: int, mark: str) -> None:
        self._all[pid] = Family(pid, mark)

    def remove(self, pid: int) -> None:
        self._all.pop(pid, None)

    def of(self, pid: int) -> set[int]:
        """Return the live processes of a host, with the host itself."""
        family = self._all[pid]
        everything, orphans = self._look()
        if not self.adopts:
            return processes.tree(pid, family.mark) | self._live(everything, family.roots(everything))
        others = [one for one in self._all.values() if one is not family]
        foreign = {one for one in orphans if any(other.owns(everything[one]) for other in others)}
        for other in others:
            foreign |= other.roots(everything)
        mine = family.roots(everything) | (orphans - foreign)
        return self._live(everything, mine) - processes.descendants(everything, foreign)

    def is_alone(self, pid: int) -> bool:
        """Whether a host has no other process. The answer is quick: most tasks leave none. False if it is not known."""
        with limited.STARTING:
            mine, own = processes.children(os.getpid()), limited.own_pids() | self._all.copy().keys()
        return self.adopts and mine is not None and mine <= own and processes.children(pid) == set()

    def left_by_task(self, pid: int) -> set[int]:
        """Return the live processes of a host that may not outlive its task."""
        family = self._all[pid]
        everything = processes.table()
        may_stay = processes.descendants(everything, family.roots(everything) - {pid}) | {pid}
        return {
            one for one in self.of(pid) - may_stay
            if one in everything and not (everything[one].parent == pid and processes.is_pythons_own(one))
        }  # fmt: skip

    def keep(self, pid: int) -> None:
        """Let the present processes of a host outlive the tasks that it runs from now on."""
        everything = processes.table()
        kept = self.of(pid) - {pid}
        self._all[pid].kept = {(one, everything[one].started) for one in kept if one in everything}

    def chase(self, pid: int, *, is_over: bool) -> tuple[set[str], set[int]]:
        """End the orphans of a host that no look at the process table finds: each one starts the next and ends.

        The list of the agent's children has the newest one. `is_over`: the host has ended, so none may stay. Returns
        the names of the processes, and those that still live.
        """
        names: set[str] = set()
        before, until = set[int](), time.monotonic() + processes.KILL_WAIT_S
        while True:
            live, has_ended = self._strays(pid, is_over=is_over)
            if not (live or has_ended) or time.monotonic() >= until:
                return names, live
            names |= {processes.name_of(one) for one in live} if len(names) < MAX_NAMES else set()
            if live and live == before:
                time.sleep(processes.POLL_S)
            before = live

    def _strays(self, pid: int, *, is_over: bool) -> tuple[set[int], bool]:
        """Kill the orphans that may not stay, and reap those that have ended.

        Return the former, and whether there were any of the latter.
        """
        if not self.adopts:
            return set(), False
        with limited.STARTING:
            adopted, own = processes.children(os.getpid()) or set(), limited.own_pids() | self._all.copy().keys()
        live, has_ended = set(), False
        for row in filter(None, map(processes.row, adopted - own)):
            if row.is_zombie:
                has_ended = True
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(row.pid, os.WNOHANG)
            elif not self._stays(row, pid, is_over=is_over):
                live.add(row.pid)
                processes.signal_all({row.pid}, self._group(row.pid, pid, is_over=is_over), signal.SIGKILL)
        return live, has_ended

    def _stays(self, row: processes.ProcessRow, pid: int, *, is_over: bool) -> bool:
        """Whether an orphan may stay when the task of this host, or the host, is over."""
        others = [one for one in self._all.values() if one.pid != pid]
        mine = self._all[pid].keeps(row) and not is_over
        return mine or any(one.keeps(row) or one.owns(row) for one in others)

    def _group(self, orphan: int, pid: int, *, is_over: bool) -> int | None:
        """Return the group of an orphan if nobody in it may stay."""
        with contextlib.suppress(ProcessLookupError):
            group = os.getpgid(orphan)
            families = [one for one in self._all.values() if one.pid != pid or not is_over]
            if group != os.getpgrp() and not any(group in {one.pid, *one.begun()} for one in families):
                return group
        return None

    def everybody(self) -> set[int]:
        """Return the live processes of all hosts."""
        everything, orphans = self._look()
        roots = set().union(*(family.roots(everything) for family in self._all.copy().values()))
        return self._live(everything, roots | orphans)

    def gpu_users(self) -> int:
        """Return how many live processes of all hosts use a GPU."""
        return sum(map(processes.uses_gpu, self.everybody()))

    def _look(self) -> tuple[dict[int, processes.ProcessRow], set[int]]:
        """Return all processes, and those that the agent has adopted. Adopted ones that have ended are reaped."""
        with limited.STARTING:
            everything, own = processes.table(), limited.own_pids() | self._all.copy().keys()
        agent = os.getpid()
        orphans = {one.pid for one in everything.values() if one.parent == agent} - own if self.adopts else set()
        for pid in orphans:
            if everything[pid].is_zombie:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
        return everything, orphans

    @staticmethod
    def _live(everything: dict[int, processes.ProcessRow], roots: set[int]) -> set[int]:
        return {pid for pid in processes.descendants(everything, roots) if not everything[pid].is_zombie}

"""Claim and complete of no-ops, tasks a second: ours against the raw floor, procrastinate and pgqueuer, interleaved.

The floor is the least that a queue in Postgres can do: one narrow table with one partial index, an UPDATE … FOR UPDATE
SKIP LOCKED … RETURNING and an UPDATE, from the same client over the same connections in the same batches. The peers run
their own workers, in a process of their own, with the settings that their documentation gives for speed. Postgres is as
it comes, with synchronous_commit on. The queue is measured again with 100 tenants, and with 1,000 concurrency keys of
which each lets one task run.
"""

import contextlib
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from bench import peers
from bench.queues import Feature, Floor, Ours, Peer, Side, database
from testbed.services.postgres import EmbeddedPostgres

TRIES = 5  # rounds; the figures are medians of them
DEPTH = 10_000  # `./run bench depth` goes to a million
SHAPES = ((1, 1), (8, 1), (32, 1), (1, 50), (8, 50), (8, 100), (32, 50))  # connections, batch
COUNTS = {1: 2_000, 50: 6_000, 100: 6_000}  # tasks of one measurement, by batch
PEER_COUNTS = {"procrastinate": {1: 400, 50: 400, 100: 400}, "pgqueuer": {1: 400, 50: 6_000, 100: 6_000}}
USED: tuple[Feature, ...] = ("tenants", "keys")
SOME_SHAPES: dict[str, tuple[tuple[int, int], ...]] = {  # the peers take their time
    **dict.fromkeys(PEER_COUNTS, ((1, 1), (8, 1), (1, 50), (8, 100))),
    **dict.fromkeys(USED, ((1, 1), (1, 50), (8, 100))),
}
GOALS = {
    "of the floor 8x1": (">=", 0.55),
    "of the floor 32x1": (">=", 0.65),
    "times pgqueuer 1x50": (">=", 1.5),
    "times pgqueuer 8x100": (">=", 1.9),
    **{f"times procrastinate {shape}": (">=", 20) for shape in ("1x50", "8x100")},
    **{f"with tenants {c}x{b}": (">=", 0.9) for c, b in SOME_SHAPES["tenants"]},
    **{f"with keys {c}x{b}": (">=", 0.8) for c, b in SOME_SHAPES["keys"]},
}
TOLD = tuple(f"{name} {c}x{b}" for c, b in SHAPES for name in ("ours", "floor", *PEER_COUNTS))


async def measure(directory: Path, tries: int) -> dict[str, Any]:
    """Tasks a second of every side, their ratios in the same round, and the server's time for a task."""
    python = await peers.installed()
    rates: dict[str, list[float]] = {}
    server_us: dict[str, list[float]] = {}
    async with AsyncExitStack() as stack:
        postgres = await stack.enter_async_context(EmbeddedPostgres(directory / "postgres", keep=False))
        sides = await _sides(stack, postgres, python)
        for side in sides.values():
            await side.fill(DEPTH)
        for _ in range(tries):
            for connections, batch in SHAPES:
                for name, side in sides.items():
                    if (connections, batch) not in SOME_SHAPES.get(name, SHAPES):
                        continue
                    if name not in PEER_COUNTS:
                        # ANALYZE after a fill makes each connection plan again, in production once a minute at most.
                        await side.work(connections, batch, connections * batch)
                    count, key = PEER_COUNTS.get(name, COUNTS)[batch], f"{name} {connections}x{batch}"
                    before_s = _cpu_s(postgres)
                    rates.setdefault(key, []).append(count / await side.work(connections, batch, count))
                    if name not in PEER_COUNTS:  # whose connections have ended, with what they used
                        server_us.setdefault(key, []).append((_cpu_s(postgres) - before_s) / count * 1e6)
                    await side.fill(count + connections * batch)
    times = {f"{key}, server": f"{median(all_):,.0f} us" for key, all_ in server_us.items()}
    return _figures(rates) | times


def _cpu_s(postgres: EmbeddedPostgres) -> float:
    """The processor time that the server's processes have used."""
    used_s = 0.0
    for process in psutil.Process(postgres.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            used_s += times.user + times.system
    return used_s


async def _sides(stack: AsyncExitStack, postgres: EmbeddedPostgres, python: Path) -> dict[str, Side]:
    most = max(connections for connections, _ in SHAPES)
    sides: dict[str, Floor | Ours] = {"floor": Floor(await database(postgres, "floor"))}
    sides["ours"] = Ours(await database(postgres, "ours"))
    for used in USED:
        sides[used] = Ours(await database(postgres, used), used)
    for side in sides.values():
        await side.open(stack, most)
    return {**sides, **{name: Peer(name, python, await database(postgres, name)) for name in PEER_COUNTS}}


def _figures(rates: dict[str, list[float]]) -> dict[str, Any]:
    """What each did, and how that compares: the median of all rounds, and the worst one."""
    figures: dict[str, Any] = {key: f"{median(all_):,.0f}/s" for key, all_ in rates.items()}
    for key, all_ in rates.items():
        name, shape = key.split(" ", 1)
        if name == "ours":
            continue
        ours = rates[f"ours {shape}"]
        compared = f"with {name}" if name in USED else "of the floor" if name == "floor" else f"times {name}"
        rounds = [a / b if name in USED else b / a for a, b in zip(all_, ours, strict=True)]
        figures[f"{compared} {shape}"] = round(median(rounds), 2)
        figures[f"{compared} {shape}, least"] = round(min(rounds), 2)
    return figures

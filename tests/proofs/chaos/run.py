"""The steps of the test: set up, submit tasks and inject faults, stop the faults, wait for rest, check."""

import asyncio
import random
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg
from psycopg.types.json import Jsonb

from testbed.services.processes import ChildFailed
from tests.proofs.chaos.assertions import InjectedFault, assess
from tests.proofs.chaos.environment import ChaosEnvironment, prepared
from tests.proofs.chaos.faults import RANDOM_FAULTS, NoTarget, RandomFault
from tests.proofs.fault_matrix.environment import NotWithin
from tests.proofs.fault_matrix.runner import until_rest

AT_ONCE = 4  # faults at the same time
DRAW_AGAIN_S = 0.25  # if all drawn faults affect parts that are broken already
FEED_EVERY_S = 1.0
BATCH = 500
FIRST_TASKS = 20  # before the first fault
REST_S, TASK_REST_S = 240.0, 0.5  # to come to rest after the last fault, and more for each task that has not ended
FAULT_S = 150.0  # the longest duration of one fault, with its repair
QUEUED = "select count(*) as n from tasks where status in ('Queued', 'In Progress')"


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command."""

    minutes: float  # with faults
    tasks: int  # submitted evenly during these minutes
    seed: int
    every_s: float  # between two faults, on average
    directory: Path
    kinds: tuple[RandomFault, ...] = RANDOM_FAULTS


async def run(options: Options) -> dict[str, Any]:
    """Run the whole test. Return its summary, with `ok` and what was `wrong`."""
    async with prepared(options.directory, options.seed) as chaos:
        injections: list[InjectedFault] = []
        feeding = asyncio.create_task(_feed(chaos, options))
        await _inject_all(chaos, options, injections)
        ids = await feeding
        _log(chaos, "the faults are over")
        try:
            await chaos.calm()
            left = (await chaos.env.rows(QUEUED))[0]["n"]
            began_s = time.monotonic()
            await until_rest(chaos.env, REST_S + TASK_REST_S * left)
            rest_s = time.monotonic() - began_s
            _log(chaos, f"at rest after {rest_s:.0f} s, {left} tasks included")
        except (NotWithin, ChildFailed) as error:
            chaos.wrong.append(str(error))
            rest_s = None
        await chaos.look_for_crashes()
        summary = await assess(chaos, ids, injections)
    about = {"seed": options.seed, "minutes": options.minutes, "rest_s": rest_s and round(rest_s, 1)}
    return {**about, **summary}


async def _inject_all(chaos: ChaosEnvironment, options: Options, injections: list[InjectedFault]) -> None:
    """Inject faults until the time is over, and wait for the last of them."""
    dice, busy, running = random.Random(f"harms:{options.seed}"), set[str](), set[asyncio.Task[None]]()
    drawn, draws = list[RandomFault](), _draws(options.kinds, dice)
    until_s = chaos.seconds() + options.minutes * 60
    async with asyncio.TaskGroup() as group:
        while chaos.seconds() < until_s:
            await asyncio.sleep(min(dice.expovariate(1 / options.every_s), 3 * options.every_s))
            while len(running) >= AT_ONCE:
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            while (kind := next((kind for kind in drawn if not busy & set(kind.subjects)), None)) is None:
                drawn.append(next(draws))
                if len(drawn) > len(options.kinds):
                    await asyncio.sleep(DRAW_AGAIN_S)
            drawn.remove(kind)
            busy |= set(kind.subjects)
            injections.append(InjectedFault(kind.name, round(chaos.seconds(), 2)))
            injecting = _inject(chaos, kind, injections[-1], random.Random(f"{options.seed}:{len(injections)}"), busy)
            running.add(task := group.create_task(injecting))
            task.add_done_callback(running.discard)
            await chaos.look_for_crashes()


def _draws(kinds: Sequence[RandomFault], dice: random.Random) -> Iterator[RandomFault]:
    """Yield each kind as often as its weight, in a random order, again and again."""
    while True:
        draws = [kind for kind in kinds for _ in range(kind.weight)]
        dice.shuffle(draws)
        yield from draws


async def _inject(
    chaos: ChaosEnvironment, kind: RandomFault, injected: InjectedFault, dice: random.Random, busy: set[str]
) -> None:
    """Inject one fault, record its effect, and release the parts that it affected."""
    try:
        async with asyncio.timeout(FAULT_S):
            injected.what = await kind.act(chaos, dice)
    except NoTarget:
        injected.done, injected.what = False, "there was no target"
    except (psycopg.OperationalError, httpx.HTTPError) as error:
        injected.done, injected.what = False, f"not done: {type(error).__name__}"  # another fault was faster
    except (NotWithin, ChildFailed, TimeoutError) as error:
        injected.done, injected.what = False, f"{type(error).__name__}: {error}"
        chaos.wrong.append(f"{kind.name}: {injected.what}")
    busy.difference_update(kind.subjects)
    injected.ended_s = round(chaos.seconds(), 2)
    _log(chaos, f"{kind.name}: {injected.what}")


async def _feed(chaos: ChaosEnvironment, options: Options) -> list[str]:
    """Submit the tasks evenly while faults are injected, each batch until it is answered. Return their ids."""
    dice, ids = random.Random(f"tasks:{options.seed}"), list[str]()
    began_s = time.monotonic()
    while len(ids) < options.tasks:
        share = (time.monotonic() - began_s) / (options.minutes * 60)
        due = min(options.tasks, FIRST_TASKS + int(share * options.tasks), len(ids) + BATCH)
        batch = [_task(dice, ids) for _ in range(due - len(ids))]
        while batch:
            try:
                await chaos.env.rows("select task_submit(%s)", Jsonb(batch))
            except psycopg.OperationalError:  # down, or the answer was lost: the ids make it the same batch
                await asyncio.sleep(FEED_EVERY_S)
                continue
            ids += [task["id"] for task in batch]
            batch = []
        await asyncio.sleep(FEED_EVERY_S)
    return ids


def _task(dice: random.Random, before: Sequence[str]) -> dict[str, Any]:
    """Return a short or long task. Some leave a file, some depend on an earlier task."""
    params = {"seconds": round(dice.uniform(0.02, 0.2), 2), "lines": dice.randint(1, 20)}
    params["leaves_file"] = dice.random() < 0.125
    waits = [dice.choice(before[-50:])] if before and dice.random() < 0.05 else []
    task_id = str(uuid.UUID(int=dice.getrandbits(128), version=4))
    return {"id": task_id, "task_type": "toil", "params": params, "max_attempts": 100, "depends_on": waits}


def _log(chaos: ChaosEnvironment, text: str) -> None:
    print(f"{chaos.seconds():7.1f} s  {text}", file=sys.stderr, flush=True)

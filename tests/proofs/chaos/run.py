"""The order of it: set up, feed tasks and deal harms, calm, wait for rest, reckon."""

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
from tests.proofs.chaos.faults import DECK, Harm, NobodyThere
from tests.proofs.fault_matrix.environment import NotWithin
from tests.proofs.fault_matrix.runner import until_rest

AT_ONCE = 4  # harms under way
DEAL_AGAIN_S = 0.25  # when all cards in hand touch what is being harmed already
FEED_EVERY_S = 1.0
BATCH = 500
FIRST_TASKS = 20  # before the first harm
REST_S = 240.0  # after the last harm, for whatever it broke; and for each task that is still to be done:
TASK_REST_S = 0.5
HARM_S = 150.0  # the longest that one may last, mending included
QUEUED = "select count(*) as n from tasks where status in ('Queued', 'In Progress')"


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for."""

    minutes: float  # of harms
    tasks: int  # spread over them
    seed: int
    every_s: float  # between two harms, on average
    directory: Path
    deck: tuple[Harm, ...] = DECK


async def run(options: Options) -> dict[str, Any]:
    """The whole soak; its summary, with `ok` and what was `wrong`."""
    async with prepared(options.directory, options.seed) as chaos:
        injections: list[InjectedFault] = []
        feeding = asyncio.create_task(_feed(chaos, options))
        await _struck(chaos, options, injections)
        ids = await feeding
        _tell(chaos, "the harms are over")
        try:
            await chaos.calm()
            left = (await chaos.env.rows(QUEUED))[0]["n"]
            began_s = time.monotonic()
            await until_rest(chaos.env, REST_S + TASK_REST_S * left)
            rest_s = time.monotonic() - began_s
            _tell(chaos, f"at rest after {rest_s:.0f} s, {left} tasks included")
        except (NotWithin, ChildFailed) as error:
            chaos.wrong.append(str(error))
            rest_s = None
        await chaos.look_for_crashes()
        summary = await assess(chaos, ids, injections)
    about = {"seed": options.seed, "minutes": options.minutes, "rest_s": rest_s and round(rest_s, 1)}
    return {**about, **summary}


async def _struck(chaos: ChaosEnvironment, options: Options, injections: list[InjectedFault]) -> None:
    """Deal harms until the time is up, and wait for the last of them."""
    dice, busy, under_way = random.Random(f"harms:{options.seed}"), set[str](), set[asyncio.Task[None]]()
    hand, cards = list[Harm](), _deal(options.deck, dice)
    until_s = chaos.seconds() + options.minutes * 60
    async with asyncio.TaskGroup() as group:
        while chaos.seconds() < until_s:
            await asyncio.sleep(min(dice.expovariate(1 / options.every_s), 3 * options.every_s))
            while len(under_way) >= AT_ONCE:
                await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
            while (card := next((card for card in hand if not busy & set(card.subjects)), None)) is None:
                hand.append(next(cards))
                if len(hand) > len(options.deck):
                    await asyncio.sleep(DEAL_AGAIN_S)
            hand.remove(card)
            busy |= set(card.subjects)
            injections.append(InjectedFault(card.name, round(chaos.seconds(), 2)))
            harming = _strike(chaos, card, injections[-1], random.Random(f"{options.seed}:{len(injections)}"), busy)
            under_way.add(task := group.create_task(harming))
            task.add_done_callback(under_way.discard)
            await chaos.look_for_crashes()


def _deal(deck: Sequence[Harm], dice: random.Random) -> Iterator[Harm]:
    """The deck, shuffled again and again."""
    while True:
        cards = [description for description in deck for _ in range(description.cards)]
        dice.shuffle(cards)
        yield from cards


async def _strike(
    chaos: ChaosEnvironment, description: Harm, injected: InjectedFault, dice: random.Random, busy: set[str]
) -> None:
    """Do one harm, write down what came of it, and free what it harmed."""
    try:
        async with asyncio.timeout(HARM_S):
            injected.what = await description.act(chaos, dice)
    except NobodyThere:
        injected.done, injected.what = False, "nobody was there"
    except (psycopg.OperationalError, httpx.HTTPError) as error:
        injected.done, injected.what = False, f"not done: {type(error).__name__}"  # another harm was quicker
    except (NotWithin, ChildFailed, TimeoutError) as error:
        injected.done, injected.what = False, f"{type(error).__name__}: {error}"
        chaos.wrong.append(f"{description.name}: {injected.what}")
    busy.difference_update(description.subjects)
    injected.ended_s = round(chaos.seconds(), 2)
    _tell(chaos, f"{description.name}: {injected.what}")


async def _feed(chaos: ChaosEnvironment, options: Options) -> list[str]:
    """Submit the tasks evenly over the time of the harms; their ids. The same batch is sent until it is answered."""
    dice, ids = random.Random(f"tasks:{options.seed}"), list[str]()
    began_s = time.monotonic()
    while len(ids) < options.tasks:
        share = (time.monotonic() - began_s) / (options.minutes * 60)
        due = min(options.tasks, FIRST_TASKS + int(share * options.tasks), len(ids) + BATCH)
        batch = [_task(dice, ids) for _ in range(due - len(ids))]
        while batch:
            try:
                await chaos.env.rows("select task_submit(%s)", Jsonb(batch))
            except psycopg.OperationalError:  # away, or gone with the answer: by its ids it is the same batch again
                await asyncio.sleep(FEED_EVERY_S)
                continue
            ids += [task["id"] for task in batch]
            batch = []
        await asyncio.sleep(FEED_EVERY_S)
    return ids


def _task(dice: random.Random, before: Sequence[str]) -> dict[str, Any]:
    """Short and long ones; some leave a file, some wait for another."""
    params = {"seconds": round(dice.uniform(0.02, 0.2), 2), "lines": dice.randint(1, 20)}
    params["leaves_file"] = dice.random() < 0.125
    waits = [dice.choice(before[-50:])] if before and dice.random() < 0.05 else []
    task_id = str(uuid.UUID(int=dice.getrandbits(128), version=4))
    return {"id": task_id, "task_type": "toil", "params": params, "max_attempts": 100, "depends_on": waits}


def _tell(chaos: ChaosEnvironment, text: str) -> None:
    print(f"{chaos.seconds():7.1f} s  {text}", file=sys.stderr, flush=True)

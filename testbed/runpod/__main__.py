"""`python -m testbed.runpod --state-dir DIR`: serve until stopped. The first line has the addresses."""

import argparse
import asyncio
import json
import os
import signal
from pathlib import Path

from testbed.runpod.server import Emulator

PARENT_POLL_S = 0.5


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m testbed.runpod", description=__doc__)
    parser.add_argument("--state-dir", type=Path, required=True, help="where pods' homes are kept")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--boot-s", type=float, nargs=2, default=(2.0, 4.0), metavar=("LEAST", "MOST"))
    parser.add_argument("--balance-usd", type=float, help="the account's money")
    parser.add_argument("--light", action="store_true", help="pods without processes, for a thousand of them")
    parser.add_argument("--outlive-parent", action="store_true", help="go on when the parent process has died")
    return parser.parse_args()


async def _serve(arguments: argparse.Namespace) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    parent = os.getppid()
    emulator = Emulator(
        arguments.state_dir,
        seed=arguments.seed,
        boot_s=tuple(arguments.boot_s),
        port=arguments.port,
        api_key=os.environ.get("EMULATOR_API_KEY"),
        light=arguments.light,
    )
    async with emulator:
        if arguments.balance_usd is not None:
            emulator.core.world.balance_usd = arguments.balance_usd
        ready = {"url": emulator.url, "control_url": emulator.control_url, "api_key": emulator.api_key}
        print(json.dumps(ready), flush=True)  # noqa: T201 - the contract with the parent process
        while not stopping.is_set() and (arguments.outlive_parent or os.getppid() == parent):
            try:
                async with asyncio.timeout(PARENT_POLL_S):
                    await stopping.wait()
            except TimeoutError:
                continue


if __name__ == "__main__":
    asyncio.run(_serve(_arguments()))

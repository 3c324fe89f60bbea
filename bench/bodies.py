"""What one request costs the gateway: processor milliseconds for the worst bodies found within the limits.

    python -m bench.bodies

The sum is the longest time for which one request can keep the interpreter from all other threads.
"""

import contextlib
import json
import time
from collections.abc import Callable, Mapping

from orchestrator.observability.redaction import Redactor
from orchestrator.web.errors import Refusal
from orchestrator.web.gateway import WORDS
from orchestrator.web.request_bodies import MAX_BYTES, MAX_NODES, parsed
from worker import protocol

TRIES = 5
SECRETS = [f"secret-number-{number}-{'0123456789abcdef' * 4}" for number in range(50)]
FILLINGS: Mapping[str, Callable[[int], str]] = {
    "one text": lambda size: '"' + "x" * size + '"',
    "beginnings of tokens": lambda size: '"' + "eyJ" * (size // 3) + '"',
    "every mark of a secret": lambda size: (
        '"' + "eyj://a:b bearer basic mz-rpa_sb_secret_private key-" * (size // 52) + '"'
    ),
    "escapes": lambda size: '"' + "\\u0041" * (size // 6) + '"',
    "snowmen": lambda size: '"' + "\N{SNOWMAN}" * (size // 3) + '"',
    "short texts": lambda size: "[" + ",".join(['"ab"'] * min(size // 5, MAX_NODES - 9)) + "]",
    "longer texts": lambda size: "[" + ",".join(['"' + "abcdefgh" * 2 + '"'] * min(size // 19, MAX_NODES - 9)) + "]",
    "numbers": lambda size: "[" + ",".join(["1e5"] * min(size // 4, MAX_NODES - 9)) + "]",
    "one long number": lambda size: "0." + "1" * size,
    "empty lists": lambda size: "[" + ",".join(["[]"] * min(size // 3, MAX_NODES // 2 - 9)) + "]",
    "too many nodes": lambda size: "[" + "[]," * (size // 3) + "0]",
    "quotes": lambda size: '"' * size,
    "brackets": lambda size: "[" * size,
}
ARGUMENT = {protocol.FAIL: "p_failure", protocol.HEARTBEAT: "p_tasks", protocol.COMPLETE: "p_result_data"}


def cost_ms(hidden: Redactor, argument: str, body: bytes) -> float:
    """Processor milliseconds from the body's bytes to what the database gets; the best of some tries."""
    best = float("inf")
    for _ in range(TRIES):
        began = time.thread_time()
        with contextlib.suppress(Refusal):
            json.dumps(hidden.redact(parsed(body), by_shape=argument in WORDS))
        best = min(best, time.thread_time() - began)
    return best * 1_000


def main() -> None:
    """Print a line for each function and filling."""
    hidden = Redactor(SECRETS)
    for function, argument in ARGUMENT.items():
        for name, filling in FILLINGS.items():
            body = f'{{"{argument}":{filling(MAX_BYTES[function] - 64)}}}'.encode()
            print(f"{function:>16}  {name:<24} {len(body):>9} bytes {cost_ms(hidden, argument, body):8.1f} ms")


if __name__ == "__main__":
    main()

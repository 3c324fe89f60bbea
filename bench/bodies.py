"""What one request costs the gateway: processor milliseconds for the worst bodies found within the limits.

    python -m bench.bodies

A call has three steps, between which the event loop serves others if the body is large: reading (check and parse),
searching for secrets, and writing for the database. The longest step is how long one request can hold up all others.
"""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Mapping
from decimal import Context, Decimal

from orchestrator.adapters.arguments import plain
from orchestrator.observability.redaction import Redactor
from orchestrator.web.errors import Refusal
from orchestrator.web.gateway import WORDS
from orchestrator.web.request_bodies import MAX_BYTES, MAX_NODES, parsed
from worker import protocol
from worker.rules import LONG_NUMBERS, NUMBER_CHARS, WIDE_NUMBERS

TRIES = 5
HALF = str(Context(prec=NUMBER_CHARS).multiply(Decimal(sys.float_info.min), Decimal("1.5") / 2**52))  # 759 digits
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
    "floats": lambda size: _numbers("1.2345678901234567e-99", size, MAX_NODES),
    "long floats": lambda size: _numbers("1.2345678901234567890e-99", size, MAX_NODES),
    "wide floats": lambda size: _numbers("1.2345678901234567e-300", size, WIDE_NUMBERS, "1.2345678901234567e-99"),
    "halves of the least float": lambda size: _numbers(HALF, size, LONG_NUMBERS, "1.2345678901234567e-99"),
    "integers of 1,000 digits": lambda size: _numbers("9" * NUMBER_CHARS, size, LONG_NUMBERS, "9" * 25),
    "integers of 4,299 digits": lambda size: _numbers("9" * 4_299, size, MAX_NODES),
    "floats of 50 digits": lambda size: _numbers("1." + "7" * 49, size, MAX_NODES),
    "too many wide floats": lambda size: _numbers("1.2345678901234567e-300", size, MAX_NODES),
    "one long number": lambda size: "0." + "1" * size,
    "empty lists": lambda size: "[" + ",".join(["[]"] * min(size // 3, MAX_NODES // 2 - 9)) + "]",
    "too many nodes": lambda size: "[" + "[]," * (size // 3) + "0]",
    "quotes": lambda size: '"' * size,
    "brackets": lambda size: "[" * size,
}
ARGUMENT = {protocol.FAIL: "p_failure", protocol.HEARTBEAT: "p_tasks", protocol.COMPLETE: "p_result_data"}


def _numbers(number: str, size: int, most: int, other: str = "") -> str:
    """A list of `most` of these numbers, and others to fill it."""
    count = min(most - 9, size // (len(number) + 1))
    rest = min(MAX_NODES - 9 - count, (size - count * (len(number) + 1)) // (len(other) + 1)) if other else 0
    return f"[{','.join([number] * count + [other] * rest)}]"


def costs_ms(hidden: Redactor, argument: str, body: bytes) -> tuple[float, ...]:
    """Processor milliseconds of the three steps from the body's bytes to what the database gets; the best of some."""
    best = [float("inf")] * 3
    for _ in range(TRIES):
        times = [time.thread_time()]
        with contextlib.suppress(Refusal):
            found = parsed(body)
            times.append(time.thread_time())
            cleaned = hidden.redact(found, by_shape=argument in WORDS)
            times.append(time.thread_time())
            json.dumps(plain(cleaned))
        times += [time.thread_time()] * (4 - len(times))
        best = [min(so_far, end - start) for so_far, start, end in zip(best, times, times[1:], strict=False)]
    return tuple(seconds * 1_000 for seconds in best)


def main() -> None:
    """Print a line for each function and filling."""
    hidden = Redactor(SECRETS)
    for function, argument in ARGUMENT.items():
        for name, filling in FILLINGS.items():
            body = f'{{"{argument}":{filling(MAX_BYTES[function] - 64)}}}'.encode()
            steps = costs_ms(hidden, argument, body)
            shown = " ".join(f"{step:6.1f}" for step in steps)
            print(f"{function:>16}  {name:<26} {len(body):>9} bytes {shown}  longest {max(steps):6.1f} ms")


if __name__ == "__main__":
    main()

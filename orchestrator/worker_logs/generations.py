"""Generations of a log: a file that shrank or was replaced on the pod continues under another name in the ledger.

The ledger identifies a stream by its launch, and two pieces never overlap. If a file begins again, its offsets begin at
zero, so it needs another name: generation 2 of the launch `abc` is `abc.0002`. No nonce contains a dot.
"""

MARK = "."


def launch_of(boot_id: str) -> str:
    """The launch whose file a generation is read from."""
    return boot_id.partition(MARK)[0]


def following(boot_id: str) -> str:
    """The name of the generation after this one."""
    launch, _, number = boot_id.partition(MARK)
    return f"{launch}{MARK}{int(number or 1) + 1:04d}"

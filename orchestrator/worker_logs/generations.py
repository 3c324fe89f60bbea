"""Generations of a log: a file that shrank or was replaced on the pod goes on under another name in the ledger.

The ledger knows a stream by its launch and never lets two pieces overlap. If a file begins anew, its offsets begin anew
too: generation 2 of the launch `abc` is `abc.0002`. No launch of ours has a dot in its name.
"""

MARK = "."


def launch_of(boot_id: str) -> str:
    """The launch whose file a generation is read from."""
    return boot_id.partition(MARK)[0]


def following(boot_id: str) -> str:
    """The name of the generation after this one."""
    launch, _, number = boot_id.partition(MARK)
    return f"{launch}{MARK}{int(number or 1) + 1:04d}"

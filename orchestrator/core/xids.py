"""NVIDIA's Xid numbers: the meaning and severity of each.

Source: NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors), reduced to the relevant numbers. A number outside
the table counts as an error of the program.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from orchestrator.core.meanings import AVOIDED, LOGS, MORE, NOBODY, OPERATOR, PROVIDER, Meaning


class XidClass(StrEnum):
    """The severity of an Xid."""

    FATAL = "fatal"  # the GPU, its memory, its bus, its firmware or its links have failed
    REPEATABLE = "repeatable"  # the GPU recovers from the first one, not from a second one
    RECOVERY = "recovery"  # the driver logs it when a GPU's recovery action changes
    PROGRAM = "program"  # mostly an error of an application
    NOTED = "noted"  # no action


XIDS: Mapping[int, tuple[XidClass, str]] = MappingProxyType(
    {
        13: (XidClass.PROGRAM, "a graphics engine exception: an illegal access of the program, most often"),
        31: (XidClass.PROGRAM, "a page fault on the GPU: an illegal address of the program, most often"),
        43: (XidClass.PROGRAM, "a kernel of the program was stopped"),
        45: (XidClass.PROGRAM, "a channel was torn down: another fault came before, or the program was ended"),
        48: (XidClass.FATAL, "a double-bit memory error"),
        62: (XidClass.FATAL, "the GPU's micro-controller halted"),
        63: (XidClass.NOTED, "a memory row is recorded for remapping"),
        64: (XidClass.FATAL, "a memory row could not be recorded for remapping"),
        69: (XidClass.PROGRAM, "a class error of the graphics engine"),
        74: (XidClass.REPEATABLE, "an NVLink error"),
        79: (XidClass.FATAL, "the GPU has fallen off the bus"),
        92: (XidClass.NOTED, "many corrected memory errors"),
        94: (XidClass.PROGRAM, "a contained memory error: one program is affected"),
        95: (XidClass.FATAL, "an uncontained memory error: every program is affected"),
        109: (XidClass.FATAL, "a context switch timed out"),
        119: (XidClass.FATAL, "the GPU's system processor does not answer"),
        120: (XidClass.FATAL, "the GPU's system processor failed"),
        140: (XidClass.FATAL, "an unrecovered memory error"),
        143: (XidClass.FATAL, "the GPU's initialisation failed"),
        154: (XidClass.RECOVERY, "the driver wants the GPU to be reset or the machine to be rebooted"),
        158: (XidClass.FATAL, "a fatal timeout inside the GPU"),
    }
)
REACTIONS: Mapping[XidClass, tuple[str, str, str]] = MappingProxyType(  # who must act, what happens by itself, the fix
    {
        XidClass.FATAL: (PROVIDER, AVOIDED, MORE),
        XidClass.REPEATABLE: (PROVIDER, f"only noted the first time; when it comes again: {AVOIDED}", MORE),
        XidClass.RECOVERY: (PROVIDER, AVOIDED, MORE),
        XidClass.PROGRAM: (OPERATOR, "the next task gets a new handler host; the pod stays", LOGS),
        XidClass.NOTED: (NOBODY, "nothing: it is only noted", MORE),
    }
)


def xid_class(number: int) -> XidClass:
    """Return the severity of the Xid."""
    return XIDS[number][0] if number in XIDS else XidClass.PROGRAM


def xid_meaning(number: int) -> Meaning:
    """Return the meaning, the party that must act, what happens next, and the fix."""
    text = XIDS[number][1] if number in XIDS else "not in our list of known numbers"
    who, then, fix = REACTIONS[xid_class(number)]
    return Meaning(f"The GPU's driver reported Xid {number}: {text}.", who, then, fix)


def numbers(kind: XidClass) -> frozenset[int]:
    """Return the Xids of one severity."""
    return frozenset(number for number, (known, _) in XIDS.items() if known is kind)

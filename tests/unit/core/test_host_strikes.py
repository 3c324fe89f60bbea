"""Which host, machine or data center gets a strike for which failure."""

import pytest

from orchestrator.core.failures import FailureCode
from orchestrator.core.host_strikes import strikes
from tests.unit.core.build import worker

MACHINE, PLACE = "machine:m1", "place:EU-1|NVIDIA A40"


@pytest.mark.parametrize(
    ("code", "keys", "hours"),
    [
        ("ECC", [MACHINE, PLACE], 24),
        ("XID_79", [MACHINE, PLACE], 24),
        ("XID_31", [], None),  # a program's doing
        ("NO_RUNTIME", [MACHINE], 1),  # a suspicion
        ("HOST_AVOIDED", [PLACE], 0.5),  # known already
        ("NO_PROCESS", [], None),
        ("NO_CAPACITY", [], None),
    ],
)
def test_a_code_gives_a_strike_to_what_it_blames(code: str, keys: list[str], hours: float | None) -> None:
    """The machine for a fault of its own, its place too; only for a while."""
    found = strikes(worker(machine_id="m1", data_center="EU-1"), FailureCode(code))
    assert [strike.key for strike in found] == keys
    assert (found[0].avoid_s / 3600 if found else None) == hours


def test_an_unknown_machine_or_data_center_gets_no_strike() -> None:
    """No machine, no place: nothing to remember."""
    assert strikes(worker(machine_id=None, data_center=None), FailureCode.ECC) == ()
    assert [s.after for s in strikes(worker(machine_id="m", data_center="EU-1"), FailureCode.ECC)] == [1, 2]


def test_a_machine_is_blamed_the_same_in_every_pool() -> None:
    """The second pool with the same code adds to the strikes of the first: both rent the same machines."""
    first, second = (worker(name, pool=name, machine_id="m1", data_center="EU-1") for name in ("default", "second"))
    assert [strikes(first, code) for code in FailureCode] == [strikes(second, code) for code in FailureCode]

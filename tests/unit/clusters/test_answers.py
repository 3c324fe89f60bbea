"""What a pod prints becomes a value or unknown, line by line, whatever it is."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.clusters import answers
from orchestrator.clusters.answers import ScriptAnswer
from orchestrator.core.clusters.addresses import FabricAddress
from orchestrator.core.clusters.readings import DaemonState, Reading

UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
KEY, CONF, OLD = "a" * 64, "c" * 64, "d" * 64
WHOLE = f"""\
clock={int(NOW.timestamp()) + 30}
hostname=pod-1.example
uptime=1000.50
lacks=
version=slurm 23.11.4
cpus=16
memory_kb=64000000
memory_limit=2147483648
gpu_files=2
conf={CONF}
key={KEY} {KEY}
munged=11 100 unknown
slurmctld=12 90050 {CONF}
slurmd=13 90060 {CONF}
munge=yes
ping=up
fabric=10.1.2.3 abc.runpod.internal
api=yes https://api.example/x
peer=gpu-2 no
peer=stranger yes
agent={{"event": "heartbeat_refused", "why": "OR006: revoked"}}
agent={{"event": "heartbeat_unanswered"}}
node=gpu-1 idle
node=gpu-2 down*
nodes=all
end=
"""


def read(text: str | bytes) -> Reading:
    output = text if isinstance(text, bytes) else text.encode()
    return answers.reading(
        ScriptAnswer(output), fingerprint=KEY, peers=frozenset({"gpu-2"}), asked_agent=True, asked_at=NOW
    )


def test_a_whole_answer_becomes_a_reading() -> None:
    assert read(WHOLE) == Reading(
        reached=True,
        slurmctld_state=DaemonState.UP,
        slurmd_state=DaemonState.UP,
        munge_ok=True,
        munge_matches=True,
        node_states={"gpu-1": "idle", "gpu-2": "down*"},
        conf_sha=CONF,
        slurmctld_pid=12,
        slurmctld_started_at=NOW - timedelta(seconds=100),
        fabric_addr=FabricAddress("10.1.2.3"),
        hostname="pod-1.example",
        slurm_installed=True,
        version="23.11.4",
        cpus=16,
        memory_mb=2048,
        gpu_files=2,
        clock_skew_s=30.5,
        peers={"gpu-2": False},
        api_reachable=True,
        api_url="https://api.example/x",
        agent_log_tail=("token_invalid", "unanswered"),
    )


@pytest.mark.parametrize(
    ("line", "instead", "expected"),
    [
        (f"slurmd=13 90060 {CONF}", "slurmd=none", {"slurmd_state": DaemonState.DOWN}),
        (f"slurmd=13 90060 {CONF}", f"slurmd=13 90060 {OLD}", {"conf_sha": OLD}),
        (f"conf={CONF}", "conf=none", {"conf_sha": ""}),
        (f"conf={CONF}", "conf=x", {"conf_sha": None}),
        (f"conf={CONF}", f"conf={OLD}\nchanged=yes", {"conf_sha": OLD}),
        (f"key={KEY} {KEY}", f"key={KEY} {OLD}", {"munge_matches": False, "munge_ok": False}),
        (f"key={KEY} {KEY}", "key=none", {"munge_matches": None, "munge_ok": True}),
        ("munge=yes", "munge=no", {"munge_ok": False, "munge_matches": True}),
        ("munge=yes", "", {"munge_ok": None}),
        ("ping=up", "ping=down refused", {"slurmctld_state": DaemonState.DOWN, "node_states": None}),
        ("ping=up", "ping=\x1b[31mup", {"slurmctld_state": None, "node_states": None}),
        ("nodes=all", "", {"node_states": None}),
        ("node=gpu-2 down*", "node=gpu-2 dow", {"node_states": None}),
        ("lacks=", "lacks= munged slurmd", {"slurm_installed": False}),
        ("lacks=", "", {"slurm_installed": None}),
        ("fabric=10.1.2.3", "fabric=evil.example", {"fabric_addr": None}),
        ("hostname=pod-1.example", "hostname=$(reboot)", {"hostname": None}),
        ("cpus=16", "cpus=0x10", {"cpus": None}),
        ("slurmctld=12 90050", "slurmctld=12 9005000", {"slurmctld_started_at": None}),
        ("uptime=1000.50", "uptime=999999999999", {"slurmctld_started_at": None}),  # before the year 1
        (
            "api=yes https://api.example/x",
            "api=no http://a:1 Name or service not known",
            {"api_reachable": False, "api_url": "http://a:1", "api_error": "Name or service not known"},
        ),
        ("api=yes https://api.example/x", "api=no file:///x refused", {"api_reachable": False, "api_url": None}),
        ("api=yes https://api.example/x", "api=no", {"api_reachable": False, "api_url": None, "api_error": None}),
        ("api=yes https://api.example/x", "api=maybe http://a", {"api_reachable": None}),
        ("end=\n", "end=", {"agent_log_tail": None}),  # half a line
    ],
)
def test_one_bad_line_makes_one_answer_unknown(line: str, instead: str, expected: dict[str, Any]) -> None:
    assert line in WHOLE
    reading = read(WHOLE.replace(line, instead))
    assert {name: getattr(reading, name) for name in expected} == expected
    assert reading.reached is True


def test_too_much_output_is_no_answer() -> None:
    assert read(WHOLE + "x" * answers.MOST_BYTES).reached is None


@UNTIMED
@given(st.binary(max_size=3000))
def test_any_bytes_are_a_reading(noise: bytes) -> None:
    reading = read(noise)
    assert reading.error
    text = WHOLE.encode()
    middle = len(text) // 2
    mixed = read(text[:middle] + noise + text[middle:])
    assert mixed.reached is True
    assert mixed.hostname == "pod-1.example" or b"hostname=" in noise


@UNTIMED
@given(st.integers(0, len(WHOLE) - 1))
def test_a_cut_answer_never_invents_a_state(length: int) -> None:
    reading = read(WHOLE[:length])
    assert reading.node_states is None or reading.node_states == {"gpu-1": "idle", "gpu-2": "down*"}
    assert reading.conf_sha in {None, CONF}
    assert reading.slurmd_state in {None, DaemonState.UP}

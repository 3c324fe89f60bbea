"""Decodes what a member's scripts print. A pod may print anything, so each line by itself is a value or unknown."""

import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta

from orchestrator.core.clusters.addresses import NODE_NAME, FabricAddress
from orchestrator.core.clusters.readings import NO_CONFIGURATION, DaemonState, Reading

MOST_BYTES = 65_536  # of one script's output; a longer one is no answer
LINE = re.compile(r"([a-z_]{1,20})=([\x20-\x7e]{0,400})")
SHA = re.compile(r"[0-9a-f]{64}")
PROCESS = re.compile(r"([0-9]{1,9}) ([0-9]{1,15}) ([0-9a-f]{64}|unknown)")
VERSION = re.compile(r"slurm(?:-wlm)? ([0-9]{1,3}(?:\.[0-9]{1,3}){1,3})")
API_URL = re.compile(r"https?://[!-~]{1,200}", re.ASCII)
API_ERROR_CHARS = 100
HOSTNAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}")
# The words of sinfo's %T. Half a word, or a word of a later release, is no state.
STATE = re.compile(
    r"(allocated|blocked|completing|down|drained|draining|error|fail|failing|future|idle|inval|maint|mixed|perfctrs"
    r"|planned|power(?:ing|ed)?_(?:up|down)|reboot|reserved|resume|unknown)[*~#!%$@^+-]?"
)
TICKS_PER_S = 100  # of /proc/<pid>/stat on every architecture that has GPUs
MIB_BYTES = 1 << 20
MOST_NODES = 1_000  # lines about nodes or peers
YES = "yes"
# What a line of the agent's log shows. The first match counts.
AGENT_CODES = (
    ("JWT expired", "token_expired"),
    ("OR006", "token_invalid"),
    ('"heartbeat_unanswered"', "unanswered"),
    ('"token_renewed"', "token_renewed"),
    ('"token_not_renewed"', "token_not_renewed"),
    ('"heartbeat_refused"', "refused"),
    ('"call_refused"', "refused"),
)


class ScriptAnswer:
    """The whole lines of a script's output. A name that appears twice has its last value."""

    def __init__(self, output: bytes) -> None:
        whole = output if len(output) <= MOST_BYTES else b""
        text = whole[: whole.rfind(b"\n") + 1].decode("ascii", "replace")
        self._pairs = [(found[1], found[2]) for line in text.split("\n") if (found := LINE.fullmatch(line))]
        self._last = dict(self._pairs)

    def get(self, name: str) -> str | None:
        """Return a value, or None."""
        return self._last.get(name)

    def every(self, name: str) -> Iterator[str]:
        """Yield the values of a name that may appear more than once, at most MOST_NODES."""
        values = [value for one, value in self._pairs if one == name]
        yield from values[:MOST_NODES]

    def number(self, name: str, pattern: str = r"[0-9]{1,18}") -> float | None:
        """Return a value as a number, or None."""
        value = self.get(name)
        return float(value) if value is not None and re.fullmatch(pattern, value) else None

    def count(self, name: str) -> int | None:
        """Return a value as a whole number, or None."""
        value = self.number(name)
        return None if value is None else int(value)

    def yes(self, name: str) -> bool | None:
        """Return whether a value is yes; None if it is neither yes nor no."""
        return {YES: True, "no": False}.get(self.get(name) or "")

    @property
    def is_complete(self) -> bool:
        """Whether the script came to its end."""
        return self.get("end") is not None


def reading(
    answer: ScriptAnswer, *, fingerprint: str, peers: frozenset[str], asked_agent: bool, asked_at: datetime
) -> Reading:
    """Return what a probe said. `asked_at` is when the question was sent, by the caller's clock."""
    installed = None if answer.get("lacks") is None else not answer.get("lacks")
    matches = _key_matches(answer, fingerprint)
    controller = PROCESS.fullmatch(answer.get("slurmctld") or "")
    clock = answer.number("clock")
    version = VERSION.match(answer.get("version") or "")
    hostname = answer.get("hostname") or ""
    api_reached, api_url, api_error = _of_api(answer)
    return Reading(
        reached=True if clock is not None else None,
        slurmctld_state=_ping(answer.get("ping")),
        slurmd_state=_daemon(answer.get("slurmd")),
        munge_ok=_munge_ok(answer, matches),
        munge_matches=matches,
        node_states=_node_states(answer),
        conf_sha=_conf_sha(answer),
        slurmctld_pid=int(controller[1]) if controller else None,
        slurmctld_started_at=_started_at(controller, answer, asked_at),
        fabric_addr=FabricAddress.of((answer.get("fabric") or "").partition(" ")[0]),
        hostname=hostname if HOSTNAME.fullmatch(hostname) else None,
        slurm_installed=installed,
        version=version[1] if version else None,
        cpus=answer.count("cpus") or None,
        memory_mb=_memory_mb(answer),
        gpu_files=answer.count("gpu_files"),
        # date(1) cuts the fraction off, which is half a second on average
        clock_skew_s=None if clock is None else round(clock + 0.5 - asked_at.timestamp(), 1),
        peers=_peers(answer, peers),
        api_reachable=api_reached,
        api_url=api_url,
        api_error=api_error,
        agent_log_tail=tuple(map(_agent_code, answer.every("agent"))) if asked_agent and answer.is_complete else None,
        error=_error(answer),
    )


def _of_api(answer: ScriptAnswer) -> tuple[bool | None, str | None, str | None]:
    """Return whether the agent's API was reached, its URL, and why not."""
    said, _, rest = (answer.get("api") or "").partition(" ")
    url, _, why = rest.partition(" ")
    return {YES: True, "no": False}.get(said), url if API_URL.fullmatch(url) else None, why[:API_ERROR_CHARS] or None


def _ping(value: str | None) -> DaemonState | None:
    if value is None:
        return None
    return DaemonState.UP if value == "up" else DaemonState.DOWN if value.startswith("down") else None


def _daemon(value: str | None) -> DaemonState | None:
    if value == "none":
        return DaemonState.DOWN
    return DaemonState.UP if PROCESS.fullmatch(value or "") else None


def _key_matches(answer: ScriptAnswer, fingerprint: str) -> bool | None:
    """Compare the key file, and the key with which munged was started, with the cluster's key.

    "other": another munged runs than the one that we started.
    """
    words = (answer.get("key") or "").split()
    if not words or not all(SHA.fullmatch(word) or word == "other" for word in words):
        return None
    return all(word == fingerprint for word in words)


def _munge_ok(answer: ScriptAnswer, matches: bool | None) -> bool | None:
    if answer.get("munged") == "none":
        return False
    works = answer.yes("munge")
    return works and matches is not False if works is not None else None


def _conf_sha(answer: ScriptAnswer) -> str | None:
    """Return the SHA-256 of the files. If a daemon runs with another configuration that we wrote, return that one."""
    conf = answer.get("conf")
    if conf == "none":
        return NO_CONFIGURATION
    if conf is None or not SHA.fullmatch(conf):
        return None
    for daemon in () if answer.yes("changed") else ("slurmctld", "slurmd"):
        runs = PROCESS.fullmatch(answer.get(daemon) or "")
        if runs and SHA.fullmatch(runs[3]) and runs[3] != conf:
            return runs[3]
    return conf


def _started_at(process: re.Match[str] | None, answer: ScriptAnswer, asked_at: datetime) -> datetime | None:
    uptime_s = answer.number("uptime", r"[0-9]{1,10}(\.[0-9]{1,3})?")  # 300 years at most
    if process is None or uptime_s is None:
        return None
    age_s = uptime_s - int(process[2]) / TICKS_PER_S
    return asked_at - timedelta(seconds=age_s) if 0 <= age_s <= uptime_s else None


def _node_states(answer: ScriptAnswer) -> Mapping[str, str] | None:
    """Return the states only if the list is whole: a missing node would mean that slurmctld does not know it."""
    if answer.get("nodes") != "all" or answer.get("ping") != "up":
        return None
    states = {}
    for line in answer.every("node"):
        name, _, state = line.partition(" ")
        if not NODE_NAME.fullmatch(name) or not STATE.fullmatch(state):
            return None
        states[name] = state
    return states or None  # every cluster has a node


def _peers(answer: ScriptAnswer, asked: frozenset[str]) -> Mapping[str, bool] | None:
    found = {}
    for line in answer.every("peer"):
        name, _, word = line.partition(" ")
        if name in asked and word in {YES, "no"}:
            found[name] = word == YES
    return found or None


def _memory_mb(answer: ScriptAnswer) -> int | None:
    """Return the smaller one of the machine's memory and the container's limit."""
    machine, limit = answer.count("memory_kb"), answer.count("memory_limit")
    sizes = [size for size in (machine and machine >> 10, limit and limit // MIB_BYTES) if size]
    return min(sizes) if sizes else None


def _agent_code(line: str) -> str:
    return next((code for text, code in AGENT_CODES if text in line), "other")


def _error(answer: ScriptAnswer) -> str | None:
    if not answer.is_complete:
        return "the pod's answer is not complete"
    if answer.get("lacks"):
        return f"the image lacks{answer.get('lacks')}"
    ping = answer.get("ping") or ""
    return answer.get("sinfo") or (ping if ping.startswith("down") else None) or None

"""The readers of outside input: each with real input, the errors that it may raise, and its promise."""

import io
import json
import logging
import math
import os
import shlex
import tempfile
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import asyncssh
import structlog
from rich.console import Console
from runpod.error import QueryError

from orchestrator.adapters import rows, runpod_logs, runpod_replies
from orchestrator.adapters.functions import refusal
from orchestrator.adapters.runpod_fields import Malformed
from orchestrator.cli.log_lines import LogPrinter
from orchestrator.cli.log_reader import Reader
from orchestrator.cli.output import Output, one_line
from orchestrator.cli.tables import workers
from orchestrator.config import environment
from orchestrator.config.errors import SettingsError
from orchestrator.config.pools import read_pools
from orchestrator.config.settings import Settings
from orchestrator.config.ssh_keys import BadKey, login_pair
from orchestrator.core import gpus, interconnect, machine_checks
from orchestrator.core.failures import FailureCode
from orchestrator.core.model import ID_PATTERN
from orchestrator.core.policy import Pool
from orchestrator.observability import logging as our_logging
from orchestrator.observability.redaction import plain, redact
from orchestrator.pods import agent_commands, final_snapshot
from orchestrator.ports import Completed, PortError
from orchestrator.worker_logs import pieces
from tests.proofs.fuzz.corpus import ENVIRONMENT, GPU_OUTPUT, LAST_LOOK, PLATFORM_OUTPUT, POOLS, REPLIES, ROW
from tests.proofs.fuzz.mutate import HOSTILE, spoilt, spoilt_bytes, spoilt_text

NONCE = "launch-0123456789abcdef"


@dataclass(frozen=True)
class Target:
    """One reader: `make` returns a mutated input, `check` reads it and raises if a promise is broken."""

    name: str
    make: Callable[[Random], Any]
    check: Callable[[Any], None]
    inputs: int  # in an ordinary run


def storable(value: Any) -> None:
    """Check a value for a jsonb column: its numbers are finite and bounded."""
    assert len(json.dumps(rows.storable(value), allow_nan=False)) < 1_000_000


def harmless(text: str) -> None:
    """Check that a text has no control sequence for a terminal."""
    bad = [c for c in text if not (c.isprintable() or c in "\n\t")]
    assert not bad, f"{bad!r} reached the terminal"


def _reply(draw: Random) -> tuple[str, object]:
    name = draw.choice([*REPLIES])
    if draw.random() < 0.8:
        return name, spoilt(draw, REPLIES[name])
    try:
        return name, json.loads(spoilt_bytes(draw, json.dumps(REPLIES[name]).encode()))
    except (ValueError, RecursionError):
        return name, draw.choice(HOSTILE)


def _read_reply(given: tuple[str, object]) -> None:
    name, reply = given
    reader: Callable[[Any], Any] = {
        "pod": runpod_replies.pod,
        "page": lambda one: runpod_replies.page(one, "pods"),
        "volume": runpod_replies.volume,
        "prices": runpod_replies.prices,
        "bills": runpod_replies.bills,
    }[name]
    try:
        found = reader(reply)
    except Malformed:
        return
    if name == "pod" and found is not None:
        assert found.id
        assert found.ssh_port is None or 1 <= found.ssh_port <= 65_535
        assert found.gpu_count is None or found.gpu_count >= 0
        assert found.price_usd_per_hour is None or 0 <= found.price_usd_per_hour < math.inf
        assert found.created_at is None or found.created_at.tzinfo
        assert (found.ssh_host is None) == (found.ssh_port is None)
        assert found.fleet_id is None or isinstance(found.fleet_id, str)
    elif name == "prices":
        assert all(0 <= usd < math.inf for usd in found.values())
    elif name == "bills":
        assert all(0 <= bill.usd < math.inf and bill.since.tzinfo for bill in found)


def _read_error(given: tuple[int, str]) -> None:
    status, text = given
    error = runpod_replies.port_error(QueryError(text, "POST /v2/pods", status_code=status), "create pod gpu-1")
    assert isinstance(error, PortError)
    assert len(str(error)) < 400


def _read_event(line: bytes) -> None:
    assert len(runpod_logs._message(line)) <= runpod_logs.MAX_MESSAGE_CHARACTERS


def _read_probe(output: bytes) -> None:
    found = machine_checks.sections(output)
    for result in (
        machine_checks.platform(found, 1_000.0, 1_001.0),
        gpus.inventory(found, "NVIDIA H100 80GB HBM3", 2),
        gpus.health(found, (12, 4)),
        interconnect.check(found, "NVIDIA H100 80GB HBM3"),
    ):
        storable(result.evidence)
        assert result.fault is None or isinstance(result.fault[0], FailureCode)


def _read_look(output: bytes) -> None:
    seen = final_snapshot.bounded(final_snapshot.read(output.decode("utf-8", "replace"), NONCE))
    storable(seen)
    assert len(json.dumps(seen).encode()) <= final_snapshot.MAX_BYTES


def _read_agent(output: bytes) -> None:
    line = agent_commands.answer(Completed(0, output, b""))
    agent = agent_commands.agent(line or {})
    if agent is not None:
        assert shlex.split(agent_commands.alive_command(agent.pid))
        agent_commands.is_alive(output, agent, NONCE)
    agent_commands.digests(output)


def _in_a_shell(text: str) -> None:
    paths = [text, "b"]
    assert (
        shlex.split(agent_commands.digest_command(paths).partition("then sha256sum ")[2].partition("; else")[0])
        == paths
    )
    try:
        assert shlex.split(agent_commands.start_command(text, "0" * 64, text))[:2] == [text, "-I"]
    except ValueError:
        assert not agent_commands.NONCE.fullmatch(text)
    else:
        assert "/" not in text
    if ID_PATTERN.fullmatch(text):
        assert shlex.quote(text) == text


def _environment(draw: Random) -> dict[str, str]:
    env = dict(ENVIRONMENT)
    for name in draw.sample(sorted(env), k=draw.choice((1, 1, 2, 3))):
        env[name] = draw.choice(
            (spoilt_text(draw, env[name]), draw.choice(HOSTILE), str(draw.choice((0, -1, 1e9, math.nan, math.inf))))
        )
    return {name: text.replace("\0", "").encode("utf-8", "replace").decode() for name, text in env.items()}


def _read_settings(env: Mapping[str, str]) -> None:
    with patch.dict(os.environ, env, clear=True):
        try:
            read = environment.load()
            policy = read.policy()
        except SettingsError as error:
            if not error.problems:
                raise
            return
    for field in fields(policy):
        value = getattr(policy, field.name)
        assert not isinstance(value, float) or 0 <= value < math.inf, field.name
    assert ID_PATTERN.fullmatch(policy.fleet_id)
    _sound(policy.pools)


def _sound(pools: tuple[Pool, ...]) -> None:
    for pool in pools:
        assert ID_PATTERN.fullmatch(pool.name)
        assert 0 < pool.idle_timeout_s <= 7 * 86_400
        assert not pool.max_active or pool.min_active <= pool.max_active
        assert pool.offers
        assert 1 <= pool.gpu_count <= 8


@cache
def _file() -> Path:
    return Path(tempfile.mkdtemp()) / "pools.toml"


@cache
def _default_pool() -> Pool:
    return Settings(_env_file=None).default_pool()  # type: ignore[call-arg]


def _read_pools(content: bytes) -> None:
    _file().write_bytes(content)
    try:
        pools, types = read_pools(_file(), _default_pool())
    except SettingsError as error:
        if not error.problems:
            raise
        return
    _sound(pools)
    assert all(kind.max_attempts is None or 1 <= kind.max_attempts <= 100 for kind in types)
    assert all(kind.timeout_s is None or 0 < kind.timeout_s <= 30 * 86_400 for kind in types)


@cache
def _key() -> tuple[str, str]:
    key = asyncssh.generate_private_key("ssh-ed25519")
    return key.export_private_key().decode(), key.export_public_key().decode()


def _read_key(given: tuple[str, str]) -> None:
    try:
        found = login_pair(*given)
    except BadKey as error:
        if not error.cause:
            raise
        return
    assert found.private.key.public_data == asyncssh.import_private_key(_key()[0]).public_data


def _keys(draw: Random) -> tuple[str, str]:
    private, public = _key()
    return (spoilt_text(draw, private), public) if draw.random() < 0.5 else (private, spoilt_text(draw, public))


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _write_log(given: tuple[str, Any]) -> None:
    for out in (io.StringIO(), _Terminal()):
        our_logging.configure("INFO", (), out)
        structlog.get_logger().info("pod_created", message=given[0], worker=given[0], evidence=given[1])
        logging.getLogger("other").info("%s", given[0])
        said = out.getvalue()
        if out.isatty():
            harmless(_without_colours(said))
        else:
            first, second = (json.loads(line) for line in said.removesuffix("\n").split("\n"))
            assert first["worker"] == redact(given[0])
            assert second["level"] == "info"
            harmless(said)


def _without_colours(text: str) -> str:
    for code in ("0", "1", "2", "31", "32", "33", "34", "35", "36", "37"):
        text = text.replace(f"\x1b[{code}m", "")
    return text


def _write_table(row: Mapping[str, Any]) -> None:
    output, out = Output(), _Terminal()
    output.out = Console(file=out, width=120, no_color=True, markup=False, emoji=False, force_terminal=False)
    now = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
    output.out.print(workers([row], output, now))
    harmless(out.getvalue())
    harmless(plain(str(row)))
    assert "\n" not in one_line(row["waiting_for"])


def _row(draw: Random) -> dict[str, Any]:
    named = draw.sample(["waiting_for", "pod_id", "gpu_type", "state_reason", "failure_code", "pool"], k=2)
    return {**ROW, **{name: spoilt_text(draw, str(ROW[name])) for name in named}}


def _show_log(content: bytes) -> None:
    for as_json in (False, True):
        output, out = Output(), io.StringIO()
        output.json = as_json
        reader = Reader(None, None, "gpu-1", ("agent", "handler"))  # type: ignore[arg-type]
        printer = LogPrinter(output, ["gpu-1", "gpu-2"])
        with redirect_stdout(out):
            for line in reader._split("handler", content, None, end=True):
                printer.show(line)
        harmless(out.getvalue())
        if as_json:
            lines = [json.loads(line)["line"] for line in out.getvalue().splitlines()]
            text = content.decode("utf-8", "replace")
            whole = [line.rstrip("\r") for line in text.removesuffix("\n").split("\n")]
            assert lines == [redact(line) for line in whole] or not content


def _ship(content: bytes) -> None:
    digest, packed = pieces.compress(content)
    assert pieces.digest_of(packed) == digest
    assert not content or pieces.digest_of(content) is None or content[:2] == b"\x1f\x8b"


def _refuse(given: tuple[str, str]) -> None:
    assert isinstance(refusal(given[0], given[1], given[1]), PortError)


def _text_of(name: str) -> Callable[[Random], bytes]:
    text = TEXTS[name]
    return lambda draw: spoilt_text(draw, text).encode("utf-8", "replace")


def _bytes_of(content: bytes) -> Callable[[Random], bytes]:
    return lambda draw: spoilt_bytes(draw, content)


def _error(draw: Random) -> tuple[int, str]:
    return draw.choice((400, 401, 402, 403, 404, 408, 429, 500, 502, 599)), spoilt_text(draw, draw.choice(HOSTILE))


def _word(draw: Random) -> str:
    text = spoilt_text(draw, draw.choice((NONCE, "python3", "gpu-20261121_120000-0a1b2c3d")))
    return text.replace("\0", "")[:2_000]  # no argument of a program can hold a NUL


def _record(draw: Random) -> tuple[str, Any]:
    return spoilt_text(draw, "gpu-1"), spoilt(draw, REPLIES["pod"])


TEXTS = {
    "looks": LAST_LOOK,
    "pools": POOLS,
    "answers": '{"pid": 4711, "start_time": "1", "code_sha256": "00"}',
}
TARGETS = [
    Target("replies", _reply, _read_reply, 12_000),
    Target("provider errors", _error, _read_error, 2_000),
    Target("provider log events", _bytes_of(b' {"message": "pulling image", "level": "info"}'), _read_event, 2_000),
    Target("platform probes", _bytes_of(PLATFORM_OUTPUT), _read_probe, 1_500),
    Target("gpu probes", _bytes_of(GPU_OUTPUT), _read_probe, 1_500),
    Target("last looks", _text_of("looks"), _read_look, 2_000),
    Target("agents' answers", _text_of("answers"), _read_agent, 2_000),
    Target("shell words", _word, _in_a_shell, 1_000),
    Target("settings", _environment, _read_settings, 300),
    Target("pools files", _text_of("pools"), _read_pools, 400),
    Target("ssh keys", _keys, _read_key, 300),
    Target("log records", _record, _write_log, 300),
    Target("tables", _row, _write_table, 150),
    Target("lines of logs", _bytes_of(b"\x1b[32mok\x1b[0m step 1/10\r step 2/10\n" * 3), _show_log, 500),
    Target("log bytes", lambda draw: spoilt_bytes(draw, draw.randbytes(200)), _ship, 500),
    Target("sqlstates", lambda draw: (spoilt_text(draw, "OR001")[:100], spoilt_text(draw, "text")), _refuse, 1_000),
]

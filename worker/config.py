"""The configuration of one launch (config.json), and its run directory."""

from __future__ import annotations

import contextlib
import json
import os

from . import protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

AGENT_FILE, LOCK_FILE, DONE_FILE, STOPPED_FILE = (
    "agent.json",
    "agent.lock",
    "done.json",
    "stopped",
)  # of a launch
BIRTH_FILE = "birth.json"  # the boot id and the OOM counter when the agent began
REQUIRED = ("worker_id", "nonce", "api_url", "token")


class BadConfig(Exception):
    """The configuration cannot be used. The text names the setting and never contains a value."""


class Config:
    """The settings of one launch."""

    def __init__(self, given: dict[str, Any]) -> None:
        missing = [name for name in REQUIRED if not isinstance(given.get(name), str) or not given[name]]
        if missing:
            raise BadConfig(f"the configuration lacks {', '.join(missing)}")
        if not given["api_url"].startswith(("http://", "https://")):
            raise BadConfig("api_url must begin with http:// or https://")
        self.worker_id: str = given["worker_id"]
        self.nonce: str = given["nonce"]
        self.api_url: str = given["api_url"].rstrip("/")
        self.api_key: str | None = given.get("api_key")  # public: Supabase uses it to select the project
        self.token: str = given["token"]  # each renewal replaces the token and the key, so callers must not keep a copy
        self.renewal_key: str | None = given.get("renewal_key")  # decrypts the next token; None: no renewal
        self.handlers: dict[str, str] = dict(given.get("handlers") or {})
        self.keep_processes: set[str] = set(given.get("keep_processes") or ())  # task types
        self.user_code: str | None = given.get("user_code")
        self.python: str = given.get("python") or "python3"
        self.setup_command: str | None = given.get("setup_command")
        self.start_command: str | None = given.get("start_command")
        self.heartbeat_s = float(given.get("heartbeat_s") or 20)
        self.lease_s = float(given.get("lease_s") or 60)
        self.deadman_s = float(given.get("deadman_s") or 900)
        self.claim_wait_s = float(given["claim_wait_s"] if given.get("claim_wait_s") is not None else 20)
        self.batch = max(1, int(given.get("batch") or 1))
        self.default_timeout_s = float(given.get("default_timeout_s") or 3600)
        self.env: dict[str, str] = {str(name): str(value) for name, value in (given.get("env") or {}).items()}
        self.store_probe: dict[str, Any] | None = given.get("store_probe")  # {put, headers, content, get}
        self.system_root: str = given.get("system_root") or "/"  # prefix of /sys, /proc and /etc; tests set it
        self.monitor_s = float(given.get("monitor_s") or 15)  # between readings of the pod; tests set it


def parse(text: str) -> Config:
    """Parse config.json. Raises BadConfig."""
    try:
        given = json.loads(text)
    except ValueError as error:
        raise BadConfig(f"the configuration is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise BadConfig("the configuration is not a JSON object")
    try:
        return Config(given)
    except (TypeError, ValueError) as error:
        raise BadConfig(f"the configuration has a setting of the wrong type: {error}") from None


class RunDir:
    """The directory of one launch. Its path is absolute, because handlers change the current directory."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)

    def at(self, *parts: str) -> str:
        return os.path.join(self.path, *parts)

    def log(self, stream: str) -> str:
        return self.at("logs", f"{stream}.log")

    def record_unanswered(self, now: float) -> None:
        """Record a call without an answer: the orchestrator may ask over SSH whether this agent gets no answer.

        The file is overwritten in place, which needs no room on the disk.
        """
        with contextlib.suppress(OSError):
            file = os.open(self.at(protocol.UNANSWERED), os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.write(file, b"%010d" % now)
            finally:
                os.close(file)

    def write(self, name: str, content: str) -> None:
        """Write a file atomically with mode 0600."""
        path = self.at(name)
        try:
            fd = os.open(f"{path}.tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                file.write(content)
            os.replace(f"{path}.tmp", path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(f"{path}.tmp")
            raise

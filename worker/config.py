"""config.json of one launch, read once."""

from __future__ import annotations

import contextlib
import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

AGENT_FILE, LOCK_FILE, DONE_FILE, STOPPED_FILE = "agent.json", "agent.lock", "done.json", "stopped"  # of a launch
REQUIRED = ("worker_id", "nonce", "api_url", "token")


class BadConfig(Exception):
    """The configuration cannot be used; the text says what is wrong, never with a value."""


class Config:
    """The settings of one launch; the defaults are those of spec/lifecycle.md."""

    def __init__(self, given: dict[str, Any]) -> None:
        missing = [name for name in REQUIRED if not isinstance(given.get(name), str) or not given[name]]
        if missing:
            raise BadConfig(f"the configuration lacks {', '.join(missing)}")
        if not given["api_url"].startswith(("http://", "https://")):
            raise BadConfig("api_url must begin with http:// or https://")
        self.worker_id: str = given["worker_id"]
        self.nonce: str = given["nonce"]
        self.api_url: str = given["api_url"].rstrip("/")
        self.api_key: str | None = given.get("api_key")  # public: which project is meant, where that must be said
        self.token: str = given["token"]  # replaced by each renewal, as is the key: whoever calls reads it anew
        self.renewal_key: str | None = given.get("renewal_key")  # opens the next token; None: this one is not renewed
        self.handlers: dict[str, str] = dict(given.get("handlers") or {})
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
        self.system_root: str = given.get("system_root") or "/"  # where /sys and /proc are read from; tests set it


def parse(text: str) -> Config:
    """Raises BadConfig."""
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
    """Where the things of one launch lie; absolute, because handlers change directory."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)

    def at(self, *parts: str) -> str:
        return os.path.join(self.path, *parts)

    def log(self, stream: str) -> str:
        return self.at("logs", f"{stream}.log")

    def write(self, name: str, content: str) -> None:
        """Write a file whole, 0600: a reader finds all of it or none."""
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

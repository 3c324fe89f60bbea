"""logs/agent.log: one JSON object per line. Each line is one append, so every prefix of the file is readable."""

from __future__ import annotations

import json
import os
import time

from .redaction import KnownSecrets
from .secret_values import secrets_in, secrets_of
from .texts import shortened, storable

TYPE_CHECKING = False  # typing is not imported on the pod: it would take a tenth of the start-up time
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

MAX_LINE = 64_000  # characters of one line of the log
MAX_TEXT = 8_000  # characters of one text in a failure report


class Journal:
    """Appends events. `clean` removes secrets from every text first."""

    def __init__(self, path: str, secrets: Iterable[str]) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._lost = 0  # lines that were lost because of a full disk; the next written line reports them
        self._end_of_torn = b""  # ends a line that was written only in part
        self.secrets = KnownSecrets(secrets)

    def log(self, event: str, **facts: Any) -> None:
        now = time.time()
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"
        # Each text by itself, so that the line stays JSON.
        facts = {name: shortened(fact, MAX_TEXT) if isinstance(fact, str) else fact for name, fact in facts.items()}
        if self._lost:
            facts["lines_lost"] = self._lost
        line = json.dumps({"at": at, "event": event, **facts}, default=str)
        data = self._end_of_torn + self.clean(line, limit=MAX_LINE).encode() + b"\n"
        try:
            taken = os.write(self._fd, data)
        except OSError:
            taken = 0
        if taken == len(data):
            self._lost, self._end_of_torn = 0, b""
        else:
            self._lost += 1  # an agent that cannot write its log can still complete its tasks
            self._end_of_torn = b"\n" if taken else self._end_of_torn

    def hide(self, token: str) -> None:
        """Redact a renewed token too."""
        self.secrets.renew(token)

    def clean(self, text: str, limit: int = MAX_TEXT) -> str:
        """Return the text without secrets and control characters. Its middle is cut if it exceeds `limit`."""
        text = self.secrets.clean_text(text)
        return shortened(storable(text), limit)

    def clean_result(self, value: Any) -> Any:
        """Return a handler's complete result without secrets. Over PostgREST, no later stage redacts it."""
        if isinstance(value, str):
            return self.secrets.clean_text(value)
        if isinstance(value, dict):
            cleaned: dict[Any, Any] = {}
            for key, content in value.items():
                name = self.clean_result(key)
                cleaned[f"{name} {len(cleaned)}" if name in cleaned else name] = self.clean_result(content)
            return cleaned
        return [self.clean_result(item) for item in value] if isinstance(value, list) else value


def secret_values(token: str, env: dict[str, str], *commands: str | None) -> list[str]:
    """Return all secrets: the token, those among the variables, and those in the commands."""
    return [token, *secrets_of(env), *secrets_in("\n".join(filter(None, commands)))]

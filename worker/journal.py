"""logs/agent.log: one JSON object per line. Each line is one append, so every prefix of the file is readable."""

from __future__ import annotations

import json
import os
import re
import time

TYPE_CHECKING = False  # typing is not imported on the pod: it would take a tenth of the start-up time
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

MAX_LINE = 64_000  # characters of one line of the log
MAX_TEXT = 8_000  # characters of one text in a failure report
SECRET_WORDS = ("TOKEN", "SECRET", "PASSWORD", "KEY", "CREDENTIAL")
MIN_SECRET = 6  # characters; a shorter value would also redact ordinary words


class Journal:
    """Appends events. `clean` removes secrets from every text first."""

    def __init__(self, path: str, secrets: Iterable[str]) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._lost = 0  # lines that were lost because of a full disk; the next written line reports them
        self._end_of_torn = b""  # ends a line that was written only in part
        self._secrets = sorted({text for text in secrets if len(text) >= MIN_SECRET}, key=len, reverse=True)
        self._renewed: tuple[str, ...] = ()

    def log(self, event: str, **facts: Any) -> None:
        now = time.time()
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"
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
        """Redact a renewed token too. The previous token stays redacted, because it is still valid for a while."""
        self._renewed = (token, *self._renewed[:1])

    def clean(self, text: str, limit: int = MAX_TEXT) -> str:
        """Return the text without secrets, NULs and lone surrogates. Its middle is cut if it exceeds `limit`."""
        text = self._without_secrets(text)
        text = text.encode("utf-8", "replace").decode().replace("\0", "�")
        if len(text) > limit:
            cut = f"\n[… {len(text) - limit} characters left out …]\n"
            text = text[: limit // 4] + cut + text[-(limit - limit // 4) :]
        return text

    def clean_result(self, value: Any) -> Any:
        """Return a handler's complete result without secrets. Over PostgREST, no later stage redacts it."""
        if isinstance(value, str):
            return self._without_secrets(value)
        if isinstance(value, dict):
            return {self.clean_result(key): self.clean_result(content) for key, content in value.items()}
        return [self.clean_result(item) for item in value] if isinstance(value, list) else value

    def _without_secrets(self, text: str) -> str:
        for secret in (*self._renewed, *self._secrets):
            text = text.replace(secret, "[redacted]")
        return text


def secret_values(token: str, env: dict[str, str], *commands: str | None) -> list[str]:
    """Return all secrets: the token, settings with a secret's name, passwords in the commands' URLs."""
    named = [value for name, value in env.items() if any(word in name.upper() for word in SECRET_WORDS)]
    return [token, *named, *re.findall(r"://[^\s/:@]*:([^\s/@]+)@", "\n".join(filter(None, commands)))]

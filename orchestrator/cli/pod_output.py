"""Output of a command on a pod: shown as it comes, or captured up to a bound. A terminal gets no control characters."""

import codecs
from typing import IO

from orchestrator.observability.redaction import plain, redact

CAPTURED_BYTES = 1 << 20
LINE_CHARACTERS = 8_192  # a longer line is shown in pieces


class Shown:
    """Writes to a stream: to a terminal whole lines without control characters, otherwise the bytes as they are."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._line = ""
        self._to_terminal = stream.isatty()

    def __call__(self, part: bytes) -> None:
        """Write the next bytes."""
        if not self._to_terminal:
            self._stream.flush()
            self._stream.buffer.write(part)  # type: ignore[attr-defined]  # stdout and stderr are text over bytes
            self._stream.buffer.flush()  # type: ignore[attr-defined]
            return
        *whole, self._line = (self._line + self._decoder.decode(part)).replace("\r\n", "\n").split("\n")
        for line in whole:
            self._write(f"{line}\n")
        while len(self._line) > LINE_CHARACTERS:
            self._write(self._line[:LINE_CHARACTERS])
            self._line = self._line[LINE_CHARACTERS:]
        self._stream.flush()

    def end(self) -> str:
        """Write an incomplete last line."""
        if self._line:
            self._write(f"{self._line}\n")
            self._stream.flush()
        return ""

    def _write(self, text: str) -> None:
        self._stream.write(redact(plain(text)))


class Captured:
    """Keeps the first CAPTURED_BYTES."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self.truncated = False

    def __call__(self, part: bytes) -> None:
        """Take the next bytes; what is beyond the bound is read and dropped."""
        room = CAPTURED_BYTES - len(self._kept)
        self._kept += part[:room]
        self.truncated |= len(part) > room

    def end(self) -> str:
        """Return the text."""
        return self._kept.decode("utf-8", "replace")

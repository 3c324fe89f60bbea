"""Compares the code on the disk with the code that was sent, at each start of a handler host (guards U2 and U42)."""

from __future__ import annotations

import hashlib
import os
import re
import time
import zipfile

from .findings import Found

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .config import Config


class CodeChanged(OSError):
    """The code is not the one that was sent."""


class CodeCheck:
    """The expected sha256 of each file. Files that handlers add are not checked."""

    def __init__(self, config: Config, pyz: str) -> None:
        self._pyz, self._sha = pyz, config.user_code
        self._unpacked = os.path.join(os.path.dirname(pyz), f"user-{config.user_code}")
        self._may_build = config.setup_command is not None  # the handler runs in the unpacked code, and may change it
        self._expected: dict[str, str] | None = None

    def findings(self) -> list[Found]:
        """Return a finding if the content of a file is not as expected."""
        named = re.fullmatch(r"agent-([0-9a-f]{64})\.pyz", os.path.basename(self._pyz))
        if named and _sha256(self._pyz) != named[1]:
            return [Found("CODE_CHANGED", time.monotonic(), f"{os.path.basename(self._pyz)} was changed")]
        if self._sha is None:
            return []
        if self._expected is None:
            self._expected = self._as_sent()
        changed = sorted(name for name, sha in self._expected.items() if self._on_disk(name) != sha)
        if not changed:
            return []
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        return [Found("CODE_CHANGED", time.monotonic(), f"{changed[0]}{more} in {self._unpacked} was changed")]

    def _as_sent(self) -> dict[str, str]:
        with zipfile.ZipFile(f"{self._unpacked}.zip") as archive:
            names = [entry.filename for entry in archive.infolist() if not entry.is_dir()]
            if self._may_build:
                return {name: self._on_disk(name) for name in names}
            return {name: hashlib.sha256(archive.read(name)).hexdigest() for name in names}

    def _on_disk(self, name: str) -> str:
        return _sha256(os.path.join(self._unpacked, name))


def _sha256(path: str) -> str:
    """Return the sha256 of a file; "" if it cannot be read."""
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                digest.update(block)
    except OSError:
        return ""
    return digest.hexdigest()

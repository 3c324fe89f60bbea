"""The user's code on the pod: user-<sha256>.zip, unpacked once into the directory of the archive."""

from __future__ import annotations

import os


def unpack(code_dir: str, sha: str | None) -> str | None:
    """Unpack the user's code if necessary, and return its directory. None if there is no user code."""
    if sha is None:
        return None
    target = os.path.join(code_dir, f"user-{sha}")
    if os.path.isdir(target):
        return target
    import shutil  # noqa: PLC0415 needed once per pod
    import tempfile  # noqa: PLC0415
    import zipfile  # noqa: PLC0415

    fresh = tempfile.mkdtemp(prefix="unpacking-", dir=code_dir)
    try:
        with zipfile.ZipFile(os.path.join(code_dir, f"user-{sha}.zip")) as archive:
            for entry in archive.infolist():
                path = archive.extract(entry, fresh)
                if entry.external_attr >> 16 & 0o111 and not entry.is_dir():
                    os.chmod(path, 0o755)  # noqa: S103 zipfile drops the mode, and a cmd: handler must be executable
        os.rename(fresh, target)
    except OSError:
        shutil.rmtree(fresh, ignore_errors=True)  # a partial copy would keep space of a full disk
        if not os.path.isdir(target):  # otherwise another process has unpacked it first
            raise
    return target

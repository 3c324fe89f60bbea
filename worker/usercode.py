"""The user's code on the pod: user-<sha256>.zip unpacked beside itself, once, by whoever needs it first."""

from __future__ import annotations

import os


def unpack(code_dir: str, sha: str | None) -> str | None:
    """The directory with the user's code, unpacked if it was not; None when there is no user code."""
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
                    os.chmod(path, 0o755)  # noqa: S103 zipfile forgets it, and a cmd: handler must stay executable
        os.rename(fresh, target)
    except OSError:
        shutil.rmtree(fresh, ignore_errors=True)  # half of it on a full disk is room that others need
        if not os.path.isdir(target):  # otherwise another process was quicker
            raise
    return target

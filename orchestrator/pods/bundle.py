"""The files for a pod: the agent as one .pyz, the user's code as one .zip. The same input gives the same bytes."""

import hashlib
import io
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path

import worker
from orchestrator.config.errors import SettingProblem, SettingsError
from orchestrator.observability.logger import LazyLogger

MAX_CODE_BYTES = 50 << 20  # of user code, unpacked
SMALLER = "keep models and data out of WORKER_CODE_DIR, and fetch them in the handler or the set-up command"
AGENT_PACKAGE = "orchestrator_worker"  # its name on the pod, where the user may have a module `worker`
SKIPPED_DIRECTORIES = {"__pycache__", ".git"}
EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest date of a zip file
log = LazyLogger()
MAIN = f"import sys\n\nfrom {AGENT_PACKAGE}.__main__ import main\n\nif __name__ == '__main__':\n    sys.exit(main())\n"


class BadCode(SettingsError):
    """The directory WORKER_CODE_DIR cannot be sent."""

    def __init__(self, why: str, fix: str) -> None:
        super().__init__([SettingProblem("WORKER_CODE_DIR cannot be used", why, fix)])


@dataclass(frozen=True, slots=True)
class Bundle:
    """The content and SHA-256 (hex) of both files. `code` is None without user code."""

    agent: bytes
    agent_sha: str
    code: bytes | None
    code_sha: str | None


def build_bundle(code_dir: Path | None) -> Bundle:
    """Build the agent of this version and the user's code. Raises BadCode."""
    agent = _agent()
    code = _user_code(code_dir) if code_dir is not None else None
    return Bundle(agent, _sha256(agent), code, _sha256(code) if code is not None else None)


def _agent() -> bytes:
    source = Path(worker.__file__).resolve().parent
    files = [("__main__.py", MAIN.encode(), False)]
    files += [(f"{AGENT_PACKAGE}/{path.name}", path.read_bytes(), False) for path in sorted(source.glob("*.py"))]
    return _zip(files)


def _user_code(root: Path) -> bytes:
    if not root.is_dir():
        raise BadCode(f"{root} is not a directory", "give the directory that holds the handlers")
    files: list[tuple[str, bytes, bool]] = []
    size = 0
    for folder, names, leaves in os.walk(root):
        names[:] = sorted(set(names) - SKIPPED_DIRECTORIES)
        for path in (Path(folder) / leaf for leaf in sorted(leaves)):
            if path.suffix == ".pyc" or not path.is_file():
                continue
            size += path.stat().st_size
            if size > MAX_CODE_BYTES:
                most = f"{MAX_CODE_BYTES >> 20} MB (counted up to {path.relative_to(root)})"
                raise BadCode(f"the code in {root} is larger than {most}", SMALLER)
            name = path.relative_to(root).as_posix()
            files.append((name, _runnable(name, path.read_bytes()), os.access(path, os.X_OK)))
    return _zip(sorted(files))


def _runnable(name: str, content: bytes) -> bytes:
    """Return a script with Unix line ends: a shell would read the CR of a Windows checkout as text (guard U26)."""
    if (name.endswith(".sh") or content.startswith(b"#!")) and b"\r\n" in content:
        log.warning("script_converted", file=name, message=f"{name} had CR LF line ends; it is sent with LF")
        return content.replace(b"\r\n", b"\n")
    return content


def _zip(files: list[tuple[str, bytes, bool]]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name, content, executable in files:
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.create_system = 3  # Unix on every platform, so that the mode below is used
            entry.external_attr = (0o100755 if executable else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    return target.getvalue()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()

"""The files for a pod: the agent as one .pyz, the user's code as one .zip. The same input gives the same bytes."""

import hashlib
import io
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import worker
from orchestrator.config.code_files import CodeFile, code_files
from orchestrator.config.settings import Settings
from orchestrator.observability.logger import LazyLogger

AGENT_PACKAGE = "orchestrator_worker"  # its name on the pod, where the user may have a module `worker`
EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest date of a zip file
log = LazyLogger()
# PYTHONPATH comes before the standard library: a file queue.py there must not replace a module that the agent imports.
MAIN = f"""import os
import sys

OWN, LIBRARY = sys.path[0], os.path.dirname(os.__file__)
sys.path.sort(key=lambda path: path != OWN and ("-packages" in path or not path.startswith(LIBRARY)))

from {AGENT_PACKAGE}.__main__ import main

if __name__ == '__main__':
    sys.exit(main())
"""


@dataclass(frozen=True, slots=True)
class Bundle:
    """The content and SHA-256 (hex) of both files. `code` is None without user code."""

    agent: bytes
    agent_sha: str
    code: bytes | None
    code_sha: str | None


def bundle_of(settings: Settings) -> Bundle:
    """Build what the pods of these settings get. Raises BadCode, also for a file with one of the settings' secrets."""
    return build_bundle(settings.worker_code_dir, settings.secrets())


def build_bundle(code_dir: Path | None, secrets: Iterable[str] = ()) -> Bundle:
    """Build the agent of this version and the user's code. Raises BadCode, also for a file with one of the secrets."""
    agent = _agent()
    code = None
    if code_dir is not None:
        files = code_files(code_dir, secrets).files.values()
        code = _zip([CodeFile(file.name, _runnable(file.name, file.content), file.is_executable) for file in files])
    return Bundle(agent, _sha256(agent), code, _sha256(code) if code is not None else None)


def _agent() -> bytes:
    source = Path(worker.__file__).resolve().parent
    files = [CodeFile("__main__.py", MAIN.encode(), is_executable=False)]
    files += [
        CodeFile(f"{AGENT_PACKAGE}/{path.name}", path.read_bytes(), is_executable=False)
        for path in sorted(source.glob("*.py"))
    ]
    return _zip(files)


def _runnable(name: str, content: bytes) -> bytes:
    """Return a script with Unix line ends: a shell would read the CR of a Windows checkout as text (guard U26)."""
    if (name.endswith(".sh") or content.startswith(b"#!")) and b"\r\n" in content:
        log.warning("script_converted", file=name, message=f"{name} had CR LF line ends; it is sent with LF")
        return content.replace(b"\r\n", b"\n")
    return content


def _zip(files: list[CodeFile]) -> bytes:
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

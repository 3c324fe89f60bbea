"""The user's code on the pod: user-<sha256>.zip, unpacked once into the directory of the archive.

In the handler host, its directory comes after the standard library: a file queue.py of the user's replaces no module
that the host or a library imports. It comes before PYTHONPATH and before installed packages. A handler in such a file
is loaded by its path, under another name.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import sys
from types import ModuleType


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


def add_to_path(code_dir: str | None) -> None:
    """Let this process, and Python programs that it starts, import the user's code. The archive of the agent goes."""
    library = [path for path in sys.path if _is_library(path)]
    others = [path for path in sys.path[1:] if path not in library]
    sys.path[:] = [*library, *([code_dir] if code_dir else ()), *others]
    if code_dir:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [code_dir, os.environ.get("PYTHONPATH")]))


def load(code_dir: str | None, name: str) -> ModuleType:
    """Import the module of a handler: of the user's code if it has one of this name, else any."""
    top, _, rest = name.partition(".")
    own = importlib.machinery.PathFinder.find_spec(top, [code_dir]) if code_dir else None
    if own is None or own.origin is None or _origin_of(top) == own.origin:
        return importlib.import_module(name)
    alias = f"own_{top}"
    if alias not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            alias, own.origin, submodule_search_locations=own.submodule_search_locations
        )
        assert spec is not None  # noqa: S101 for the type checker: the file was found
        assert spec.loader is not None  # noqa: S101
        module = importlib.util.module_from_spec(spec)
        sys.modules[alias] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[alias]
            raise
    return importlib.import_module(f"{alias}.{rest}" if rest else alias)


def _origin_of(name: str) -> str | None:
    """Return the file that `import name` loads or has loaded."""
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # a module that says nothing of where it is from
        return None
    return spec.origin if spec else None


def places(code_dir: str | None, handler: str) -> list[str]:
    """Return the files, and the folders with a slash at the end, that contain the code of a loaded handler."""
    found = [os.path.join(os.path.realpath(code_dir), "")] if code_dir else []
    file = getattr(sys.modules.get(handler.partition(":")[0].partition(".")[0]), "__file__", None)
    if file:
        is_package = os.path.basename(file).startswith("__init__.")
        found.append(os.path.realpath(os.path.dirname(file)) + os.sep if is_package else os.path.realpath(file))
    return found


def is_library(module: object) -> bool:
    """Whether an entry of sys.modules, which may be any object, is a module of Python's own."""
    if not isinstance(module, ModuleType):
        return False
    origin = getattr(vars(module).get("__spec__"), "origin", None)
    return origin in {"built-in", "frozen"} or (isinstance(origin, str) and _is_library(origin))


def _is_library(path: str) -> bool:
    """Whether an entry of sys.path is a part of the standard library."""
    library = os.path.dirname(os.__file__)
    archive = os.path.join(os.path.dirname(library), "python{}{}.zip".format(*sys.version_info))
    is_inside = path == library or path.startswith(library + os.sep)
    return path == archive or (is_inside and "-packages" not in path)

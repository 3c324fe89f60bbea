"""Functions and classes of the standard library, as they were: a handler may replace them.

All modules of the library that are loaded are looked at, and the classes of those that the host itself uses. A changed
number or list is no patch: modules keep caches.
"""

from __future__ import annotations

import sys
import types

from .usercode import is_library

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

WITH_CLASSES = (
    "base64", "contextlib", "datetime", "hashlib", "http.client", "importlib", "io", "json", "json.decoder",
    "json.encoder", "locale", "logging", "os", "pathlib", "posixpath", "queue", "random", "re", "select", "shutil",
    "signal", "socket", "ssl", "struct", "subprocess", "tempfile", "threading", "time", "traceback", "warnings",
)  # fmt: skip
FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, classmethod, staticmethod, property, type)
MISSING = object()
ELSEWHERE = ("__main__", "builtins", "sys")  # process_state.py and state_parts.py have these


class Patches:
    """The present functions and classes of these modules, and the functions of the classes."""

    def __init__(self) -> None:
        # The name of a module or class, itself, its functions by name, and a class's other names.
        self._saved: list[tuple[str, Any, dict[str, Any], set[str] | None]] = []
        for name, module in sys.modules.copy().items():
            if name in ELSEWHERE or not is_library(module):
                continue
            self._save(name, module)
            for inner, value in vars(module).items() if name in WITH_CLASSES else ():
                if isinstance(value, type) and value.__module__ == name:
                    self._save(f"{name}.{inner}", value)

    def _save(self, name: str, owner: Any) -> None:
        own = {key: value for key, value in vars(owner).items() if isinstance(value, FUNCTIONS)}
        names = set(vars(owner)) if isinstance(owner, type) else None  # a module gets further ones by itself
        self._saved.append((name, owner, own, names))

    def restore(self) -> dict[str, None]:
        """Put back what was replaced, and return the names."""
        changed: dict[str, None] = {}
        for name, owner, saved, names in self._saved:
            now = vars(owner)
            for key, value in saved.items():
                if now.get(key, MISSING) is not value:
                    changed[f"{name}.{key}"] = None
                    setattr(owner, key, value)
            if names is not None and len(now) > len(names):
                for key in [key for key in now if key not in names and _replaces(now[key])]:
                    changed[f"{name}.{key}"] = None  # in the place of an inherited one
                    delattr(owner, key)
        return changed


def _replaces(value: Any) -> bool:
    return callable(value) or isinstance(value, FUNCTIONS)

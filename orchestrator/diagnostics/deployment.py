"""The code that is checked out here, and Railway's variables about the deployment."""

import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
GIT_S = 5.0  # the fields of one call of git
RAILWAY = ("SERVICE_NAME", "ENVIRONMENT_NAME", "DEPLOYMENT_ID", "GIT_COMMIT_SHA", "PUBLIC_DOMAIN")


def deployment(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the report's `deployment_verification`, without the part of the database."""
    railway = {name.lower(): given[f"RAILWAY_{name}"] for name in RAILWAY if given.get(f"RAILWAY_{name}")}
    return {"git_status": _git(), "railway_status": railway or "not on Railway"}


def _git() -> dict[str, Any] | str:
    until = time.monotonic() + GIT_S

    def asked(*arguments: str) -> str:
        left_s = max(0.0, until - time.monotonic())
        command = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(command, capture_output=True, timeout=left_s, check=True, text=True).stdout.strip()

    try:
        changed = asked("--no-optional-locks", "status", "--porcelain", "--untracked-files=no").splitlines()
        return {
            "commit": asked("rev-parse", "HEAD"),
            "branch": asked("rev-parse", "--abbrev-ref", "HEAD"),
            "message": " ".join(asked("log", "-1", "--format=%s").split())[:200],
            "changed_files": len(changed),
        }
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown: {type(error).__name__}"

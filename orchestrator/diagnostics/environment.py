"""The report's view of the environment. Of secrets it shows only that they are set."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

CRITICAL = ("RUNPOD_API_KEY", "RUNPOD_SSH_PUBLIC_KEY", "RUNPOD_SSH_PRIVATE_KEY")
SUPABASE = ("SUPABASE_URL", "SUPABASE_SERVICE_ROLE_KEY")
IMPORTANT = (
    "RUNPOD_GPU_TYPE",
    "RUNPOD_WORKER_IMAGE",
    "MAX_ACTIVE_GPUS",
    "MIN_ACTIVE_GPUS",
    "GPU_IDLE_TIMEOUT_SEC",
    "TASKS_PER_GPU_THRESHOLD",
    "RUNPOD_STORAGE_NAME",
)
AWS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "S3_ENDPOINT_URL", "S3_BUCKET", "S3_PREFIX")
SECRET = ("KEY", "SECRET", "TOKEN", "PASSWORD", "DATABASE_URL")
SHOWN = ("RUNPOD_SSH_PUBLIC_KEY", "AWS_ACCESS_KEY_ID")  # named like secrets, but harmless
NEVER = ("RUNPOD_SSH_PRIVATE_KEY",)  # no option shows these


def environment(
    given: Mapping[str, str], problems: Iterable[Sequence[str]] = (), *, sensitive: bool = False
) -> dict[str, Any]:
    """Return the report's `environment`. `problems`: (what, why, fix) of unusable settings."""
    critical = (*_database(given), *CRITICAL)
    runpod = sorted(name for name in given if name.startswith("RUNPOD_"))
    return {
        "critical": {name: shown(name, given.get(name), sensitive=sensitive) for name in critical},
        "important": {name: shown(name, given.get(name), sensitive=sensitive) for name in IMPORTANT},
        "aws": {name: shown(name, given.get(name), sensitive=sensitive) for name in AWS},
        "all_runpod": {name: shown(name, given[name], sensitive=sensitive) for name in runpod},
        "database": "DATABASE_URL" if given.get("DATABASE_URL") else "SUPABASE_URL",  # as in wiring.open_db
        "missing_critical": [name for name in critical if not given.get(name)],
        "missing_important": [name for name in IMPORTANT if not given.get(name)],
        "problems": [dict(zip(("what", "why", "fix"), problem, strict=True)) for problem in problems],
    }


def shown(name: str, value: str | None, *, sensitive: bool) -> str:
    """Return a value as the report shows it."""
    if not value:
        return "not set"
    secret = any(word in name for word in SECRET) and name not in SHOWN
    if name in NEVER or (secret and not sensitive):
        return f"set ({len(value)} characters)"
    return value


def _database(given: Mapping[str, str]) -> tuple[str, ...]:
    """Return the settings of the database that is used, as config/validation.py requires them."""
    by_api = not given.get("DATABASE_URL") and any(given.get(name) for name in SUPABASE)
    return SUPABASE if by_api else ("DATABASE_URL",)

"""`orchestrator doctor`: every part asked whether it works, with what, why and fix; nothing is changed.

findings.py   what a check found; running them side by side under deadlines
database.py   the database, its schema, its pooler, who leads
provider.py   RunPod: the key, money, stock, pods that nobody stands for
doors.py      the SSH key pair, the bucket (one object of its own, put and deleted), the workers' URL, clocks
"""

from collections.abc import Mapping, Sequence
from functools import partial

from orchestrator.config.environment import usable
from orchestrator.config.errors import Problem
from orchestrator.config.settings import Settings
from orchestrator.diagnostics.doctor import connectivity, database, provider
from orchestrator.diagnostics.doctor.findings import Check, Finding, Section, counts, examine

__all__ = ["SECTIONS", "Finding", "counts", "diagnose"]
SECTIONS: Mapping[str, str] = {
    "settings": "the environment: what is missing, misspelt, unusable or contradictory",
    "database": "it answers, its schema is this version's, its functions can be called, what kind of pooler",
    "leader": "who leads this fleet",
    "runpod": "the API key, the balance, stock of what would be rented",
    "pods": "pods without a row, rows without a pod",
    "ssh": "both halves of the key pair, what was done to their text, whether they belong together",
    "s3": "an object put, read back and deleted",
    "clock": "this machine's clock against the database, the bucket and RunPod",
    "gateway": "the secret that signs workers' tokens, tried at the URL by which pods will call",
}


async def diagnose(only: Sequence[str] = ()) -> list[Finding]:
    """What is found in these sections, or in all, and settings that cannot be used in any case. Raises nothing."""
    settings, problems = usable()
    checks: dict[str, Check] = {
        "settings": partial(_settings, settings, problems),
        "database": partial(database.database, settings),
        "leader": partial(database.leader, settings),
        "runpod": partial(provider.runpod, settings),
        "pods": partial(provider.pods, settings),
        "ssh": partial(connectivity.ssh, settings),
        "s3": partial(connectivity.s3, settings),
        "clock": partial(connectivity.clock, settings),
        "gateway": partial(connectivity.gateway, settings),
    }
    asked = {*only, "settings"} if only and problems else set(only or checks)
    return await examine({name: check for name, check in checks.items() if name in asked})


async def _settings(settings: Settings, problems: Sequence[Problem], section: Section) -> None:
    """What reading the environment said; what is missing is said by the section that needs it."""
    section.problems(problems)
    if not problems:
        pools = ", ".join(f"{pool.name} (at most {pool.max_active})" for pool in settings.policy().pools)
        section.ok("every setting can be used", f"fleet {settings.fleet_id}; pools: {pools}")

"""`orchestrator doctor`: checks every part, with what, why and fix. It changes nothing but one object of its own.

findings.py      what a check found; runs the checks at the same time, each with a deadline
database.py      the database, its schema, its pooler, the leader
provider.py      RunPod: the key, the balance, stock, volumes, pods without a row
code.py          what of WORKER_CODE_DIR is sent to pods
connectivity.py  the SSH key pair, the bucket (one object, put and deleted), the workers' URL, clocks
"""

from collections.abc import Mapping, Sequence
from functools import partial

from orchestrator.config.doubtful import doubtful, is_floating
from orchestrator.config.effective import DEFAULT, digest, effective
from orchestrator.config.environment import unread, usable
from orchestrator.config.errors import SettingProblem
from orchestrator.config.settings import Settings
from orchestrator.config.validation import require, unusable_at_start
from orchestrator.core.images import has_digest
from orchestrator.diagnostics.doctor import code, connectivity, database, provider
from orchestrator.diagnostics.doctor.findings import FAULTS, Check, Finding, Section, counts, examine

__all__ = ["FAULTS", "SECTIONS", "Finding", "counts", "diagnose"]
VALUE_CHARS = 80
ALSO_IN = {"shell": "ssh", "gateway": "gateway"}  # the parts of settings that another section checks, too
SECTIONS: Mapping[str, str] = {
    "settings": "misspelt, unusable or contradictory variables; handlers; images",
    "code": "what of WORKER_CODE_DIR is sent to pods, with sizes, and what is not sent",
    "database": "the connection, the version, the schema, the functions, the pooler",
    "leader": "the orchestrator that leads this fleet",
    "runpod": "the API key, the balance, the stock of each pool, network volumes, registry credentials",
    "pods": "pods without a row, rows without a pod",
    "ssh": "both halves of the key pair, and whether they belong together",
    "s3": "an object put, read back and deleted",
    "clock": "this machine's clock, compared with the database, S3 and RunPod",
    "gateway": "the secret that signs worker tokens, tried at the URL that pods call",
}


async def diagnose(only: Sequence[str] = ()) -> list[Finding]:
    """Return the findings of these sections, or of all. Settings that cannot be used are always shown."""
    settings, problems = usable()
    parts = [part for part, name in ALSO_IN.items() if only and name not in only]
    checks: dict[str, Check] = {
        "settings": partial(_settings, settings, problems, parts),
        "code": partial(code.code, settings),
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


async def _settings(
    settings: Settings, problems: Sequence[SettingProblem], parts: Sequence[str], section: Section
) -> None:
    """Show what is wrong with the variables that are set. The section that needs a missing one names it.

    `parts`: names in ALSO_IN whose own section is not shown.
    """
    section.problems(problems)
    for one in unread(settings):
        if not one.is_misspelt:
            section.warn(*one.problem)
    if problems:
        return
    if refused := unusable_at_start(settings, *parts):
        section.problems(refused)
        return
    for doubt in doubtful(settings):
        section.warn(*doubt)
    require(settings, "handlers")
    pools = ", ".join(f"{pool.name} (at most {pool.max_active})" for pool in settings.policy().pools)
    section.ok("every setting can be used", f"fleet {settings.fleet_id}; pools: {pools}")
    _configuration(settings, section)


def _configuration(settings: Settings, section: Section) -> None:
    """What is in effect and differs from the defaults, its source, and one hash of everything."""
    values = effective(settings)
    changed = [f"{one.name}={one.value[:VALUE_CHARS]} ({one.source})" for one in values if one.source != DEFAULT]
    section.ok(f"the configuration has the hash {digest(values)}", "; ".join(changed) or "all values are defaults")
    for pool in settings.policy().pools:
        if not (has_digest(pool.image) or is_floating(pool.image)):
            why = f"{pool.image}: its tag may name another image tomorrow"
            section.note(f"pool {pool.name}: its image is named by a tag", why, "name it by digest: image@sha256:…")

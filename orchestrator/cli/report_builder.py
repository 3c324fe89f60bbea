"""Builds the report of `diagnose` and `health`: asks its sources (report_sources.py), and adds what is wrong."""

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING

from orchestrator.cli.output import Output
from orchestrator.cli.progress import Progress, counting
from orchestrator.cli.report_sources import ReportSources
from orchestrator.cli.session import utcnow
from orchestrator.cli.worker_report import concerning
from orchestrator.core.clusters.rows import ClusterRow
from orchestrator.core.model import ID_PATTERN
from orchestrator.core.places import bucket_place
from orchestrator.diagnostics.collect import LIMITS, Part, ReportLimits
from orchestrator.diagnostics.conditions import is_healthy
from orchestrator.diagnostics.environment import environment
from orchestrator.diagnostics.fact_sources import of_report
from orchestrator.diagnostics.first_cause import of_fleet
from orchestrator.diagnostics.rules import conditions
from orchestrator.errors import BAD_ARGUMENT, Failure
from orchestrator.ports import DatabaseHalf

if TYPE_CHECKING:
    from orchestrator.config.settings import Settings

NO_SETTINGS = {"error": "not asked: the settings cannot be used"}


async def gathered(
    output: Output,
    *,
    only: str | None = None,
    deep: bool = True,
    sensitive: bool = False,
    limits: ReportLimits = LIMITS,
) -> Part:
    """Return the report on this fleet, or on one worker. Not `deep`: without pods, logs, network and deployment.

    It is complete within `limits.whole_s`: a part that did not answer in time contains an error instead.
    """
    from orchestrator.config.environment import as_given, load
    from orchestrator.config.errors import SettingsError

    if only and not ID_PATTERN.fullmatch(only):
        raise Failure(BAD_ARGUMENT, why=f"{only!r} is not a worker id")
    given = as_given()
    problems: Sequence[Sequence[str]] = ()
    settings: Settings | None = None
    try:
        settings = load()
    except SettingsError as error:
        problems = error.problems
    what = "asking every part of the fleet" if deep and settings else None
    with counting(output, what, limits.whole_s) as progress:
        return await report_on(
            settings, given, progress, problems=problems, only=only, deep=deep, sensitive=sensitive, limits=limits
        )


async def report_on(
    settings: "Settings | None",
    given: Mapping[str, str],
    progress: Progress,
    *,
    problems: Sequence[Sequence[str]] = (),
    only: str | None = None,
    deep: bool = True,
    sensitive: bool = False,
    limits: ReportLimits = LIMITS,
) -> Part:
    """The same for settings that are loaded; `given` is the environment that they come from."""
    report: Part = {
        "timestamp": utcnow().isoformat(),
        "environment": environment(given, problems, sensitive=sensitive)
        | {
            "ssh_keys": _keys(settings),
            "bucket_place": settings and bucket_place(settings.s3_endpoint_url, settings.aws_region),
        },
        "database_state": NO_SETTINGS,
        "runpod_state": NO_SETTINGS,
        "workers": {},
        "orchestrator_analysis": NO_SETTINGS,
        "network_tests": {},
        "deployment_verification": {},
    }
    half: DatabaseHalf | None = None
    handled: Sequence[str] = ()
    clusters: Sequence[ClusterRow] = ()
    if settings is not None:
        async with AsyncExitStack() as stack:
            sources = ReportSources(settings, stack, only, limits, progress)
            await sources.fill(report, given, deep=deep)
            half, handled, clusters = sources.half, settings.policy().handled, sources.clusters
    found = conditions(of_report(report, half, handled, clusters, about_one=bool(only)))
    if only:  # by a part of an id; without the database, no worker is known
        found = concerning(found, next(iter(report["workers"]), only))
    report["missing_critical"] = report["environment"]["missing_critical"]
    report["recommendations"] = [one.as_json() for one in found]
    report["healthy"] = is_healthy(found)
    report["first_cause"] = (cause := of_fleet(report["recommendations"])) and asdict(cause)
    return report


def _keys(settings: "Settings | None") -> Part:
    """Return whether the key pair can be used, and why not."""
    if settings is None or settings.runpod_ssh_private_key is None or not settings.runpod_ssh_public_key:
        return {"usable": False, "cause": "no_private_key", "error": "not compared: one of the two is not set"}
    private, public = settings.runpod_ssh_private_key.get_secret_value(), settings.runpod_ssh_public_key
    from orchestrator.config import plain_key_pair

    if usual := plain_key_pair.fingerprint(private, public):
        return {"usable": True, "type": plain_key_pair.TYPE.decode(), "fingerprint": usual}
    from orchestrator.config.ssh_keys import BadKey

    try:
        key = settings.login_pair().private.key
    except BadKey as error:
        return {"usable": False, "cause": error.cause, "error": error.mangling, "fix": error.fix}
    return {"usable": True, "type": key.get_algorithm(), "fingerprint": key.get_fingerprint()}

"""The result of a check, and how checks run: at the same time, each with its own deadline."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.config.errors import SettingProblem, SettingsError
from orchestrator.diagnostics.advice import without
from orchestrator.diagnostics.condition_kinds import HIGH
from orchestrator.diagnostics.conditions import Condition
from orchestrator.observability.redaction import redact
from orchestrator.ports import PortError

Status = Literal["ok", "note", "warn", "fail", "skip"]
ORDER: tuple[Status, ...] = ("ok", "note", "warn", "fail", "skip")
FAULTS: frozenset[Status] = frozenset(("warn", "fail"))
DEADLINE_S = 20.0  # of one section, with its connections
# What to look at if a section gets no answer, or its fix was to run it again.
REMEDIES: Mapping[str, str] = {
    "settings": "correct the variables that it names; docs/settings.md describes each",
    "code": "see that WORKER_CODE_DIR can be read, and is on a disk that answers",
    "database": "see that the server runs, that this machine reaches it, and who holds locks: pg_stat_activity",
    "leader": "see the section `database`, then the log of the orchestrator",
    "runpod": "see RunPod's status page, RUNPOD_API_KEY, and the proxy of this machine",
    "pods": "see RunPod's status page, RUNPOD_API_KEY, and the proxy of this machine",
    "ssh": "set RUNPOD_SSH_PRIVATE_KEY and RUNPOD_SSH_PUBLIC_KEY to the two halves of one key pair",
    "s3": "check S3_ENDPOINT_URL, S3_BUCKET, AWS_REGION, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, and the proxy",
    "clock": "set this machine's clock: timedatectl set-ntp true",
    "gateway": "see that WORKER_API_URL is reached from here: its DNS name, its certificate, the platform's proxy",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check."""

    section: str
    status: Status
    what: str
    why: str = ""
    fix: str = ""


class Section:
    """Collects the results of one section's checks."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.findings: list[Finding] = []

    def ok(self, what: str, why: str = "") -> None:
        """Record that it works as it should."""
        self._add("ok", what, why, "")

    def note(self, what: str, why: str, fix: str) -> None:
        """Record a fact that is no fault, and could be better."""
        self._add("note", what, why, fix)

    def warn(self, what: str, why: str, fix: str) -> None:
        """Record that it works, but with a limit or a risk."""
        self._add("warn", what, why, fix)

    def fail(self, what: str, why: str, fix: str) -> None:
        """Record that it does not work."""
        self._add("fail", what, why, fix)

    def skip(self, what: str, why: str) -> None:
        """Record that it could not be checked."""
        self._add("skip", what, why, "")

    def problems(self, problems: Sequence[SettingProblem]) -> None:
        """Record settings that are unusable or missing."""
        for what, why, fix in problems:
            self.fail(what, why, fix)

    def conditions(self, found: Iterable[Condition]) -> None:
        """Record conditions that `health` shows too."""
        for one in found:
            (self.fail if one.severity == HIGH else self.warn)(one.text, one.evidence, one.fix)

    def _add(self, status: Status, what: str, why: str, fix: str) -> None:
        if fix:
            fix = without(fix, "doctor", *(f"doctor {name}" for name in REMEDIES), instead=REMEDIES[self.name])
        what, why, fix = (" ".join(redact(text).split()) for text in (what, why, fix))
        self.findings.append(Finding(self.name, status, what, why, fix))


Check = Callable[[Section], Awaitable[None]]


async def examine(checks: Mapping[str, Check], deadline_s: float = DEADLINE_S) -> list[Finding]:
    """Return all findings in the order of the checks. An exception of a check becomes a finding."""
    sections = [Section(name) for name in checks]
    await asyncio.gather(*(_one(section, checks[section.name], deadline_s) for section in sections))
    return [finding for section in sections for finding in section.findings]


def counts(findings: Sequence[Finding]) -> dict[Status, int]:
    """Return the number of findings of each status."""
    counted = Counter(finding.status for finding in findings)
    return {status: counted[status] for status in ORDER}


async def _one(section: Section, check: Check, deadline_s: float) -> None:
    try:
        async with asyncio.timeout(deadline_s):
            await check(section)
    except TimeoutError:
        section.fail("no answer in time", f"the checks took more than {deadline_s:.0f} s", REMEDIES[section.name])
    except SettingsError as error:
        section.problems(error.problems)
    except PortError as error:
        section.fail("no clear answer", f"{type(error).__name__}: {error}", REMEDIES[section.name])
    except Exception as error:  # noqa: BLE001  a bug in one check must not hide the findings of the others
        section.fail("this check broke", f"{type(error).__name__}: {error}", "report this with the output of --json")

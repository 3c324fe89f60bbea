"""What a check found, and how checks are run: side by side, each under its own deadline, none in another's way."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.config.errors import Problem, SettingsError
from orchestrator.observability.redaction import redact
from orchestrator.ports import PortError

Status = Literal["ok", "warn", "fail", "skip"]
ORDER: tuple[Status, ...] = ("ok", "warn", "fail", "skip")
DEADLINE_S = 20.0  # of one section, connecting included
REPEAT = "python -m orchestrator doctor"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the answer."""

    section: str
    status: Status
    what: str
    why: str = ""
    fix: str = ""


class Section:
    """Collects what one section's checks find."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.findings: list[Finding] = []

    def ok(self, what: str, why: str = "") -> None:
        """It is as it should be."""
        self._add("ok", what, why, "")

    def warn(self, what: str, why: str, fix: str) -> None:
        """It works, and may not for long, or not as it could."""
        self._add("warn", what, why, fix)

    def fail(self, what: str, why: str, fix: str) -> None:
        """It does not work."""
        self._add("fail", what, why, fix)

    def skip(self, what: str, why: str) -> None:
        """It could not be asked."""
        self._add("skip", what, why, "")

    def problems(self, problems: Sequence[Problem]) -> None:
        """Settings that cannot be used, or are missing."""
        for what, why, fix in problems:
            self.fail(what, why, fix)

    def _add(self, status: Status, what: str, why: str, fix: str) -> None:
        what, why, fix = (" ".join(redact(text).split()) for text in (what, why, fix))
        self.findings.append(Finding(self.name, status, what, why, fix))


Check = Callable[[Section], Awaitable[None]]


async def examine(checks: Mapping[str, Check], deadline_s: float = DEADLINE_S) -> list[Finding]:
    """All findings, in the checks' order; whatever a check raises is a finding too."""
    sections = [Section(name) for name in checks]
    await asyncio.gather(*(_one(section, checks[section.name], deadline_s) for section in sections))
    return [finding for section in sections for finding in section.findings]


def counts(findings: Sequence[Finding]) -> dict[Status, int]:
    """How many of each kind."""
    counted = Counter(finding.status for finding in findings)
    return {status: counted[status] for status in ORDER}


async def _one(section: Section, check: Check, deadline_s: float) -> None:
    try:
        async with asyncio.timeout(deadline_s):
            await check(section)
    except TimeoutError:
        section.fail("no answer in time", f"the checks took more than {deadline_s:.0f} s", f"{REPEAT} {section.name}")
    except SettingsError as error:
        section.problems(error.problems)
    except PortError as error:
        section.fail("no clear answer", f"{type(error).__name__}: {error}", f"{REPEAT} {section.name}")
    except Exception as error:  # noqa: BLE001  one check's bug must not hide what the others find
        section.fail("this check broke", f"{type(error).__name__}: {error}", "report this with the output of --json")

"""Which conditions become messages, and when: `checked(...)`, a pure function of the conditions and of what is known.

A condition becomes an alert if it makes the fleet UNHEALTHY or has a rule in ops/alerts.yml. An alert opens when it has
lasted for the time of its kind, as the rule does; a backlog counts when its oldest task has waited for half an hour.
An alert ends when it has been absent for CLEAR_S, so that a condition that comes and goes is one alert.
In quiet hours only what spends money without control is sent. Other messages wait; nothing is dropped.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, time
from typing import Any
from zoneinfo import ZoneInfo

from orchestrator.core import moments
from orchestrator.core.plurals import counted
from orchestrator.diagnostics.condition_kinds import HIGH, ConditionKind, Impact
from orchestrator.diagnostics.conditions import Condition
from orchestrator.observability.redaction import plain, redact

AFTER_S = {str(kind): kind.row.after_s for kind in ConditionKind}
CLEAR_S = 120.0
MOST = 200  # alerts that are kept
TEXT_CHARS = 500
NAMED = 10  # alerts in a summary


@dataclass(frozen=True, slots=True)
class QuietHours:
    """A daily span in a time zone; it may include midnight."""

    begin: time
    end: time
    zone: ZoneInfo

    def include(self, now: datetime) -> bool:
        """Whether a moment is in it."""
        here = now.astimezone(self.zone).time()
        if self.begin <= self.end:
            return self.begin <= here < self.end
        return here >= self.begin or here < self.end


@dataclass(frozen=True, slots=True)
class AlertPolicy:
    """The settings of the messages."""

    fleet: str
    max_per_hour: int
    quiet: QuietHours | None = None


@dataclass(frozen=True, slots=True)
class Alert:
    """One condition over time. The texts are those of the last time it was seen."""

    kind: str
    subject: str
    severity: str
    text: str
    evidence: str
    fix: str
    docs: str
    spends: bool  # money without control
    since: datetime
    seen_at: datetime
    opened_at: datetime | None = None  # when its message was written

    @classmethod
    def of(cls, found: Condition, now: datetime) -> "Alert":
        """Return the alert of a condition that is seen for the first time."""
        urgent = found.severity == HIGH
        return cls(
            str(found.kind), _clean(found.subject, 200), found.severity, _clean(found.text), _clean(found.evidence),
            _clean(found.fix), found.kind.anchor, urgent and bool(found.impact & Impact.MONEY), now, now,
        )  # fmt: skip

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "Alert":
        """Decode a row of `fleet_alerts`."""
        texts = {name: row[name] for name in ("kind", "subject", "severity", "text", "evidence", "fix", "docs")}
        since, seen_at = (moments.moment(row[name]) for name in ("since", "seen_at"))
        opened_at = moments.moment(row["opened_at"]) if row["opened_at"] else None
        return cls(**texts, spends=row["spends"], since=since, seen_at=seen_at, opened_at=opened_at)

    def as_row(self) -> dict[str, Any]:
        """Encode it for `fleet_note_alerts`."""
        shown = {name: getattr(self, name) for name in type(self).__dataclass_fields__}
        return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in shown.items()}


@dataclass(frozen=True, slots=True)
class Checked:
    """The alerts from now on, and the messages that follow."""

    alerts: Sequence[Alert]
    messages: Sequence[Mapping[str, Any]]  # {dedup_key, body}


def checked(
    found: Iterable[Condition], known: Iterable[Alert], policy: AlertPolicy, now: datetime, *, sent_1h: int
) -> Checked:
    """Compare the conditions found now with the known alerts."""
    alerts = _merged(found, known, now)
    quiet = policy.quiet is not None and policy.quiet.include(now)
    room, kept, late = max(0, policy.max_per_hour - sent_1h), [], []
    messages: list[Mapping[str, Any]] = []
    for one in sorted(alerts, key=lambda one: (one.severity != HIGH, not one.spends, one.since, one.kind, one.subject)):
        event = _due(one, now)
        if event is None:
            if one.opened_at or (now - one.seen_at).total_seconds() < CLEAR_S:
                kept.append(one)
        elif quiet and not one.spends:
            kept.append(one)
        elif len(messages) < room:
            messages.append(_message(event, one, policy, now))
            kept += [replace(one, opened_at=now)] if event == "opened" else []
        else:
            late.append(one)
    if late and not (quiet and not any(one.spends for one in late)):
        messages.append(_summary(late, policy, now))
    return Checked([*kept, *late][:MOST], messages)


def _merged(found: Iterable[Condition], known: Iterable[Alert], now: datetime) -> list[Alert]:
    """Update what is known.

    Of conditions with the same kind and subject, the first one is reported: a faulty machine often has several
    findings.
    """
    alerts, seen = {(one.kind, one.subject): one for one in known}, set[tuple[str, str]]()
    for condition in found:
        if (condition.severity != HIGH and condition.kind.row.alert is None) or not _counts(condition, now):
            continue
        fresh = Alert.of(condition, now)
        if (fresh.kind, fresh.subject) in seen:
            continue
        seen.add((fresh.kind, fresh.subject))
        before = alerts.get((fresh.kind, fresh.subject))
        if before is not None:
            fresh = replace(fresh, since=before.since, opened_at=before.opened_at)
        alerts[fresh.kind, fresh.subject] = fresh
    return list(alerts.values())


def _counts(one: Condition, now: datetime) -> bool:
    """Whether the condition has lasted for as long as its rule requires."""
    waits_s = one.kind.row.waits_s
    return not waits_s or (one.since is not None and (now - one.since).total_seconds() >= waits_s)


def _due(one: Alert, now: datetime) -> str | None:
    """Return the message that is due for the alert, if there is one."""
    absent_s = (now - one.seen_at).total_seconds()
    if one.opened_at is not None:
        return "resolved" if absent_s >= CLEAR_S else None
    lasts_s = (now - one.since).total_seconds()
    after_s = AFTER_S.get(one.kind)  # None: a kind of another version, which is not found by this one
    return "opened" if not absent_s and after_s is not None and lasts_s >= after_s else None


def _message(event: str, one: Alert, policy: AlertPolicy, now: datetime) -> Mapping[str, Any]:
    facts = {"event": event, "fleet": policy.fleet, "at": now.isoformat(), "since": one.since.isoformat()}
    names = ("kind", "subject", "severity", "text", "evidence", "fix", "docs")
    body = facts | {name: getattr(one, name) for name in names}
    return {"dedup_key": f"{one.kind} {one.subject} {one.since.isoformat()} {event}", "body": body}


def _summary(late: Sequence[Alert], policy: AlertPolicy, now: datetime) -> Mapping[str, Any]:
    """One message in an hour of the clock for all that exceed the maximum. They follow one by one when they may."""
    texts = "; ".join(one.text for one in late[:NAMED])
    waiting = counted(len(late), "more message waits", "more messages wait")
    body = {
        "event": "summary", "fleet": policy.fleet, "at": now.isoformat(), "severity": late[0].severity,
        "text": _clean(f"{waiting}, because ALERT_MAX_PER_HOUR is reached: {texts}", 2_000),
        "fix": "python -m orchestrator health",
    }  # fmt: skip
    return {"dedup_key": f"summary {now:%Y-%m-%dT%H}", "body": body}


def _clean(text: str, most: int = TEXT_CHARS) -> str:
    """Without secrets and control characters, on one line."""
    return " ".join(plain(redact(text)).split())[:most]

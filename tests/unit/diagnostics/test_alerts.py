"""When a condition becomes a message: its time, duplicates, the end, quiet hours, the maximum, and the formats."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pydantic import SecretStr, TypeAdapter, ValidationError

from orchestrator.adapters.alert_sender import AlertSender
from orchestrator.config.types import AlertUrl, QuietTimes
from orchestrator.diagnostics.alerts import Alert, AlertPolicy, QuietHours, checked
from orchestrator.diagnostics.condition_kinds import ConditionKind, Impact
from orchestrator.diagnostics.conditions import Condition

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
NIGHT = QuietHours(time(22), time(7), ZoneInfo("UTC"))
POLICY = AlertPolicy("fleet", max_per_hour=10)
REFUSED = {"pool": "default", "code": "X", "means": "m", "fix": "f"}
HALTED = Condition(ConditionKind.HALTED, "default", REFUSED, "e", Impact.WAIT)
ORPHANS = Condition(ConditionKind.PODS_WITHOUT_ROWS, detail={"count": 1, "cost": "$2.00/h"}, impact=Impact.MONEY)
UNTOLD = Condition(ConditionKind.DEAR_DAY, detail={"usd": 3.0, "usual_usd": 1.0})  # neither urgent nor with a rule
WAITING = {"pool": "default", "count": 3, "oldest": "1 h", "fix": "f"}  # of a backlog
LAGGING = Condition(ConditionKind.LOGS_LATE, "w", {"worker": "w", "why": "y"})  # a warning with a rule


class Watch:
    """Checks at chosen moments, each with what the one before left."""

    def __init__(self, policy: AlertPolicy = POLICY, begin: datetime = NOON) -> None:
        self.policy, self.begin = policy, begin
        self.alerts: Sequence[Alert] = ()
        self.written: list[datetime] = []
        self.keys: set[str] = set()

    def at(self, seconds: float, *found: Condition) -> list[Mapping[str, Any]]:
        """The messages that are written at a moment."""
        now = self.begin + timedelta(seconds=seconds)
        sent_1h = sum(now - at < timedelta(hours=1) for at in self.written)
        made = checked(found, self.alerts, self.policy, now, sent_1h=sent_1h)
        self.alerts = [Alert.from_row(one.as_row()) for one in made.alerts]  # as the database returns them
        fresh = [one for one in made.messages if one["dedup_key"] not in self.keys]
        self.keys |= {one["dedup_key"] for one in fresh}
        self.written += [now] * len(fresh)
        return [one["body"] for one in fresh]

    def events(self, seconds: float, *found: Condition) -> list[str]:
        """What is written, in short."""
        return [f"{body['event']} {body.get('kind', '')}".strip() for body in self.at(seconds, *found)]


def test_a_lasting_condition_is_reported_once() -> None:
    """Each kind has its delay; a warning without a rule is never sent."""
    watch = Watch()
    assert watch.events(0, HALTED, LAGGING, UNTOLD) == []
    assert watch.events(119, HALTED, LAGGING, UNTOLD) == []
    assert watch.events(121, HALTED, LAGGING, UNTOLD) == ["opened halted"]
    assert watch.events(135, HALTED, LAGGING, UNTOLD) == []
    assert watch.events(601, HALTED, LAGGING, UNTOLD) == ["opened logs_late"]
    assert watch.events(3_600, HALTED, LAGGING, UNTOLD) == []


@pytest.mark.parametrize("impact", [Impact.NONE, Impact.WAIT])
def test_a_backlog_is_reported_when_a_task_has_waited_as_long_as_its_rule_requires(impact: Impact) -> None:
    """Half an hour, and five minutes more. A queue whose tasks wait for less is not sent, however long it is."""

    def backlog(oldest: datetime | None) -> Condition:
        return Condition(ConditionKind.BACKLOG, "default", WAITING, "e", impact, oldest)

    watch, full = Watch(), Watch()
    for second in range(0, 2_160, 60):
        assert full.events(second, backlog(NOON + timedelta(seconds=second - 1_700))) == []
        expected = ["opened backlog"] if second == 2_100 else []
        assert watch.events(second, backlog(NOON)) == expected
    assert full.events(2_160, backlog(None)) == []


def test_an_alert_of_a_kind_that_this_version_does_not_know_ends() -> None:
    """A later version has written it, and was rolled back."""
    watch = Watch()
    watch.at(0, HALTED)
    watch.alerts = [replace(one, kind="of_a_later_version") for one in watch.alerts]
    assert watch.events(0) == []
    assert watch.events(121) == []
    assert watch.alerts == []


def test_the_end_is_sent_when_the_condition_does_not_return() -> None:
    """A condition that flaps is one alert; one that was never sent has no end to send."""
    watch = Watch()
    for second in (0, 60, 121):
        watch.at(second, HALTED)
    assert watch.events(160) == []
    assert watch.events(230, HALTED) == []
    assert watch.events(349) == []
    assert watch.events(351) == ["resolved halted"]
    assert watch.alerts == []
    watch.at(1_000, HALTED)
    assert watch.events(1_200) == []
    assert watch.alerts == []


def test_a_flapping_condition_is_one_message() -> None:
    """Short gaps do not start its time again."""
    watch = Watch()
    assert [watch.events(second, *([HALTED] if second % 40 == 0 else [])) for second in range(0, 140, 20)][-1] == [
        "opened halted"
    ]


def test_the_same_kind_is_sent_for_each_subject() -> None:
    """Two pools are two alerts."""
    other = Condition(HALTED.kind, "second", HALTED.detail, impact=Impact.WAIT)
    watch = Watch()
    watch.at(0, HALTED, other)
    assert [body["subject"] for body in watch.at(121, HALTED, other)] == ["default", "second"]


def test_several_findings_of_one_machine_are_one_message() -> None:
    """A pod that reports everything it can does not use up the messages of others."""
    found = [
        Condition(ConditionKind.MACHINE_FAULT, "w", {"worker": "w", "means": code, "code": code, "fix": "f"})
        for code in ("XID_79", "GPU_LOST", "GPU_COUNT_DROPPED")
    ]
    watch = Watch()
    watch.at(0, *found)
    assert ["XID_79" in body["text"] for body in watch.at(121, *found)] == [True]
    assert watch.at(180, *found[1:]) == []


def test_quiet_hours_hold_back_alerts_that_cost_no_money() -> None:
    """Held messages follow in the morning; a condition that has ended by then is not sent."""
    watch = Watch(AlertPolicy("fleet", 10, NIGHT), NOON.replace(hour=23))
    gone = Condition(ConditionKind.SOLD_OUT, "p", {"pool": "p"}, impact=Impact.WAIT)
    watch.at(0, HALTED, ORPHANS, gone)
    assert watch.events(301, HALTED, ORPHANS, gone) == ["opened pods_without_rows"]
    assert watch.events(7 * 3600, HALTED, ORPHANS) == []
    assert watch.events(8 * 3600 + 1, HALTED, ORPHANS) == ["opened halted"]


@pytest.mark.parametrize(
    ("hour", "zone", "quiet"),
    [(23, "UTC", True), (6, "UTC", True), (7, "UTC", False), (12, "UTC", False), (21, "Europe/Berlin", True)],
)
def test_quiet_hours_include_midnight_and_know_zones(hour: int, zone: str, *, quiet: bool) -> None:
    """In November, Berlin is an hour ahead of UTC."""
    assert QuietHours(time(22), time(7), ZoneInfo(zone)).include(NOON.replace(hour=hour)) is quiet


def test_the_maximum_per_hour_ends_in_one_summary() -> None:
    """The worst come first; the others follow in the next hour, if they last."""
    many = [Condition(HALTED.kind, f"p{n}", HALTED.detail, impact=Impact.WAIT) for n in range(5)]
    watch = Watch(AlertPolicy("fleet", 2))
    watch.at(0, *many, ORPHANS)
    assert watch.events(301, *many, ORPHANS) == ["opened pods_without_rows", "opened halted", "summary"]
    assert watch.events(360, *many, ORPHANS) == []
    later = watch.events(301 + 3_600, *many, ORPHANS)
    assert later == ["opened halted", "opened halted", "summary"]


def test_messages_contain_nothing_secret_or_unprintable() -> None:
    """Evidence quotes other programs."""
    evil = "x\x1b[31m\nBearer abcdefghijklmnop" + "y" * 9_000
    watch = Watch()
    found = Condition(HALTED.kind, "default", HALTED.detail, evil, Impact.WAIT)
    watch.at(0, found)
    (body,) = watch.at(121, found)
    assert "abcdefghijklmnop" not in body["evidence"]
    assert body["evidence"].isprintable()
    assert len(body["evidence"]) <= 500


def test_the_url_decides_the_format() -> None:
    """Slack and Discord have their own; the output of a pod cannot mention a user."""
    body = {"event": "opened", "fleet": "f", "severity": "HIGH", "text": "<!channel> @everyone & more", "fix": "do"}
    body["evidence"] = "# [log in](https://example.com)"
    slack = AlertSender("https://hooks.slack.com/services/a/b/c").form("1", body)
    assert slack == {
        "text": "ALERT [HIGH] fleet f (id 1)\n&lt;!channel&gt; @everyone &amp; more\n"
        "# [log in](https://example.com)\nfix: do",
    }
    discord = AlertSender("https://discord.com/api/webhooks/1/x").form("1", body)
    assert discord["allowed_mentions"] == {"parse": []}
    assert discord["content"].startswith(r"ALERT \[HIGH\]")
    assert r"\# \[log in\](https://example.com)" in discord["content"], "no link with a text of its own"
    other = AlertSender("https://alerts.example.com/slack.com").form("1", body)
    assert other == {"schema_version": 1, "id": "1", **body}


@pytest.mark.parametrize("url", ["https://a.example.com/x?token=y", "http://127.0.0.1:9/x", "http://localhost/x"])
def test_an_address_is_encrypted_or_here(url: str) -> None:
    """The URL contains a token."""
    assert TypeAdapter(AlertUrl).validate_python(SecretStr(url)).get_secret_value() == url


@pytest.mark.parametrize("url", ["http://a.example.com/x", "ftp://a/x", "https://", "https://u:p@a.example.com/x", "x"])
def test_another_address_is_refused_without_being_quoted(url: str) -> None:
    """The error must not contain it."""
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(AlertUrl).validate_python(SecretStr(url))
    assert "example" not in str(refused.value)


def test_quiet_times_are_spelled_with_or_without_a_zone() -> None:
    """As in the docs."""
    adapter = TypeAdapter(QuietTimes)
    assert adapter.validate_python("22:00-07:30") == (time(22), time(7, 30), "UTC")
    assert adapter.validate_python("22:00-07:30 Europe/Berlin") == (time(22), time(7, 30), "Europe/Berlin")
    for bad in ("22-7", "22:00-25:00", "22:00-22:00", "22:00-07:00 Nowhere/Land", "22:00-07:00 ../etc/passwd"):
        with pytest.raises(ValidationError):
            adapter.validate_python(bad)

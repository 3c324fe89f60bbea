"""docs/health.md and the alerts show the table of conditions; `python -m tests.unit.diagnostics.test_health_page`."""

import re
from pathlib import Path

import yaml

from orchestrator.diagnostics.condition_kinds import ConditionKind, Impact

ROOT = Path(__file__).resolve().parents[3]
PAGE, ALERTS = ROOT / "docs" / "health.md", ROOT / "ops" / "alerts.yml"
BEGIN, END = "<!-- table of conditions: begin -->\n", "<!-- table of conditions: end -->\n"
IMPACTS = {Impact.WAIT: "ready tasks wait", Impact.LOSS: "a running task is lost", Impact.MONEY: "money is spent"}
FACT = re.compile(r"\$?\{\w+(?::[^|}]*\|(?P<many>[^}]*))?[^}]*\}")


def table() -> str:
    """The rows of all kinds, in their order."""
    lines = ["| condition | what is shown | UNHEALTHY if | alert, after |", "|---|---|---|---|"]
    for kind in ConditionKind:
        impacts = " or ".join(words for impact, words in IMPACTS.items() if impact & kind.row.unhealthy)
        text = FACT.sub(_fact, kind.row.text).replace("|", "\\|")
        lines.append(f'| <a id="{kind}"></a>`{kind}` | {text} | {impacts or "–"} | {_alert(kind)} |')
    return "\n".join(lines) + "\n"


def _fact(found: re.Match[str]) -> str:
    """A fact of some condition; if it is a number with its noun, the noun for several."""
    return f"… {found['many']}" if found["many"] else "…"


def _alert(kind: ConditionKind) -> str:
    return f"{kind.row.alert}, {(kind.row.waits_s + kind.row.after_s) / 60:.0f} min" if kind.row.alert else "–"


def test_the_page_has_the_table_of_the_code() -> None:
    """Both are one table."""
    _, _, rest = PAGE.read_text().partition(BEGIN)
    assert rest.partition(END)[0] == table()


def test_every_alert_that_a_condition_names_exists() -> None:
    """An alert is what `health` shows."""
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    alerts = {rule["alert"]: rule["expr"] for rule in rules}
    assert {kind.row.alert for kind in ConditionKind if kind.row.alert} <= alerts.keys()
    for kinds, name in ((re.findall(r'kind="(\w+)"', expr), name) for name, expr in alerts.items()):
        assert [ConditionKind(kind).row.alert for kind in kinds] == [name] * len(kinds)


def test_a_rule_and_a_message_wait_for_the_same_time() -> None:
    """The table of conditions has it. A rule about how long a task has waited adds that time to its `for`."""
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    waits_s = {rule["alert"]: int(rule["for"].removesuffix("m")) * 60 for rule in rules if "for" in rule}
    for rule in rules:
        if oldest := re.search(r"orchestrator_queue_oldest_seconds\) > (\d+)", rule["expr"]):
            waits_s[rule["alert"]] += int(oldest[1])
    told = {(kind, kind.row.alert): kind.row.waits_s + kind.row.after_s for kind in ConditionKind if kind.row.alert}
    assert told == {(kind, alert): waits_s[alert] for kind, alert in told}


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + table() + END + rest.partition(END)[2])

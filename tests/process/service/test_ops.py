"""The dashboard and the alerts ask for what /metrics says."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client import Counter, Histogram

from orchestrator.observability.metrics import Metrics

OPS = Path(__file__).resolve().parents[3] / "ops"
DASHBOARD = json.loads((OPS / "grafana-dashboard.json").read_text())
RULES = [rule for group in yaml.safe_load((OPS / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
ALERTS = [rule["expr"] for rule in RULES]


def said() -> dict[str, tuple[str, ...]]:
    """Every series that can be shown -> its labels."""
    series: dict[str, tuple[str, ...]] = {"orchestrator_process_resident_memory_bytes": ()}
    for one in vars(Metrics()).values():
        if not hasattr(one, "_labelnames"):
            continue
        if isinstance(one, Counter):
            series[f"{one._name}_total"] = one._labelnames
        elif isinstance(one, Histogram):
            series |= {f"{one._name}_{end}": (*one._labelnames, "le") for end in ("bucket", "sum", "count")}
        else:
            series[one._name] = one._labelnames
    return series


def selectors(expression: Any) -> Iterator[Any]:
    """The vector selectors of a parsed query, at any depth."""
    if isinstance(expression, promql_parser.VectorSelector):
        yield expression
    for name in ("lhs", "rhs", "expr", "vector_selector", "args"):
        part = getattr(expression, name, None)
        for one in part if isinstance(part, list) else [part] if part is not None else []:
            yield from selectors(one)


@pytest.mark.parametrize("query", [*QUERIES, *ALERTS])
def test_every_query_is_about_metrics_that_exist(query: str) -> None:
    """It parses, and names series and labels of ours."""
    known = said()
    found = list(selectors(promql_parser.parse(query)))
    assert found
    for selector in found:
        assert selector.name in known, selector.name
        assert {matcher.name for matcher in selector.matchers.matchers} <= set(known[selector.name])


def test_a_query_about_nothing_is_noticed() -> None:
    """The check above can fail."""
    (selector,) = selectors(promql_parser.parse("sum(rate(orchestrator_nothing_total[5m])) > 1"))
    assert selector.name not in said()


def test_the_dashboard_can_be_imported() -> None:
    """What Grafana demands: a title, a schema version, panels with an id and a place of their own, a data source."""
    assert DASHBOARD["title"]
    assert DASHBOARD["schemaVersion"] >= 36
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) >= 12
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    assert {panel["datasource"]["uid"] for panel in panels} == {"${datasource}"}
    assert [variable["name"] for variable in DASHBOARD["templating"]["list"]] == ["datasource"]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_it_means_and_how_bad_it_is(rule: dict[str, Any]) -> None:
    """Who is woken reads a sentence."""
    assert rule["labels"]["severity"] in {"page", "warn", "info"}
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["description"].endswith(".")


def test_no_label_names_a_worker_or_a_task() -> None:
    """The number of series does not grow with what the fleet has been through."""
    labels = {label for names in said().values() for label in names}
    assert not labels & {"worker", "worker_id", "task", "task_id", "pod", "pod_id", "machine", "nonce", "attempt"}

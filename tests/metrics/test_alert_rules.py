"""Alert rules and dashboard query existing metrics, and every alert is documented."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from kandev.metrics import CATALOGUE, Metric
from tests.docs.documents import rows, text_of
from tests.services import ROOT

EXAMPLES = ROOT / "docs" / "examples"
SECTION = "Figures, logs and alerts"
FUNCTIONS = {
    *("sum", "by", "rate", "increase", "histogram_quantile", "time", "vector", "le", "and", "or", "up", "job"),
    *(label for metric in CATALOGUE.values() for label in metric.labels),
}


def series_of(metric: Metric) -> list[str]:
    """The names of a metric's series, as used in queries."""
    endings = ("_bucket", "_count", "_sum") if metric.kind == "histogram" else ("",)
    return [metric.name + ending for ending in endings]


SERIES: dict[str, Metric] = {name: metric for metric in CATALOGUE.values() for name in series_of(metric)}


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load((EXAMPLES / "alerts.yaml").read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


def recorded() -> set[str]:
    return {rule["record"] for rule in rules() if "record" in rule}


def dashboard() -> dict[str, Any]:
    board: dict[str, Any] = json.loads((EXAMPLES / "dashboard.json").read_text())
    return board


def queries() -> Iterator[tuple[str, str]]:
    """Yield (name, query) for everything that queries a metric."""
    for rule in rules():
        yield rule.get("alert") or rule["record"], rule["expr"]
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", target["expr"]


RECORDED = r"\w+:[\w:]+"
"""The name of a series that a rule records."""


def labels_of(metric: Metric) -> set[str]:
    """The labels of a metric's series."""
    return {*metric.labels, "le"} if metric.kind == "histogram" else set(metric.labels)


def mistakes(query: str) -> Iterator[str]:
    """Yield the mistakes in a query."""
    if any(query.count(left) != query.count(right) for left, right in ("()", "[]", "{}")):
        yield "a bracket is open"
    plain = re.sub(r'"[^"]*"|\[[^\]]*\]', "", query)
    yield from (f"{name} is not recorded" for name in set(re.findall(RECORDED, plain)) - recorded())
    plain = re.sub(RECORDED, "", plain)
    for word in re.findall(r"[a-zA-Z_]\w*", plain):
        if word not in SERIES and word not in FUNCTIONS:
            yield f"there is no {word}"
    for name, matchers in re.findall(r"(\w+)\{([^}]*)\}", query):
        for label in re.findall(r"(\w+)\s*[=!]", re.sub(r'"[^"]*"', "", matchers)):
            if name in SERIES and label not in labels_of(SERIES[name]):
                yield f"{name} has no {label}"
    for labels, inside in re.findall(r"by \(([^)]*)\) \((.*?)\[", query):
        found = next((SERIES[word] for word in re.findall(r"\w+", inside) if word in SERIES), None)
        for label in re.split(r",\s*", labels):
            if found and label not in labels_of(found):
                yield f"{found.name} has no {label}"


@pytest.mark.parametrize(("name", "query"), list(queries()), ids=[name for name, _ in queries()])
def test_query_uses_existing_series_and_labels(name: str, query: str) -> None:
    assert list(mistakes(query)) == []


@pytest.mark.parametrize(
    "query",
    [
        "kandev_gone > 0",
        'kandev_sessions{colour="red"}',
        "rate(kandev_sessions[5m]",
        "sum by (state) (rate(kandev_tokens_total[5m]))",
        "kandev:unheard_of:ratio > 1",
    ],
)
def test_query_for_an_unknown_series_is_detected(query: str) -> None:
    assert list(mistakes(query))


def test_every_metric_is_used_by_an_alert_or_the_dashboard() -> None:
    queried = {SERIES[word].name for _, query in queries() for word in re.findall(r"\w+", query) if word in SERIES}
    assert set(CATALOGUE) - queried == set()


def test_rate_and_increase_are_applied_only_to_counters() -> None:
    for name, query in queries():
        for metric in re.findall(r"(?:rate|increase)\((\w+)", query):
            assert SERIES[metric].kind != "gauge", name


def test_every_alert_is_described_and_documented() -> None:
    documented = rows("operate/watching.md", SECTION)
    names = [rule["alert"] for rule in alerts()]
    assert len(set(names)) == len(names)
    assert set(names) == {name for name in documented if name.startswith("Kandev")}
    for rule in alerts():
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"]["summary"] and rule["annotations"]["description"]
        assert re.fullmatch(r"\d+[smhd]", rule.get("for", "1m"))
        for label in re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])):
            assert re.search(rf"\b{label}\b", rule["expr"]) or any(
                label in metric.labels for name, metric in SERIES.items() if name in rule["expr"]
            )


def test_every_metric_is_documented_with_its_labels() -> None:
    documented = rows("operate/watching.md", SECTION)
    assert {name for name in documented if name.startswith("kandev_")} == set(CATALOGUE)
    for name, metric in CATALOGUE.items():
        assert all(f"`{label}`" in documented[name] for label in metric.labels), name
    assert "docs/examples/alerts.yaml" in text_of("operate/watching.md") or "examples/alerts.yaml" in text_of(
        "operate/watching.md"
    )


def test_dashboard_panels_do_not_overlap() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) == len({panel["title"] for panel in panels})
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells, panel["title"]
        taken |= cells

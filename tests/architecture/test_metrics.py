"""Metrics, their page and the dashboard name each other, and nothing else."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import ProcessCollector

from prefeed.kubernetes.operator.counts import METRICS as OF_OPERATOR
from prefeed.server.metrics import METRICS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "metrics.md"
DASHBOARD = ROOT / "deploy" / "grafana" / "prefeed.json"
ROW = re.compile(r"^\| `(?P<name>\w+)` \| (?P<kind>\w+) \| (?P<unit>\w+) \| (?P<labels>.+?) \| (?P<help>.+) \|$", re.M)
NAME = re.compile(r"\b(?:prefeed|process)_\w+")
UNITS = {"bytes", "seconds", "ratio", "objects"}
OWN = {metric.name for metric in (*METRICS, *OF_OPERATOR)}


def of_process() -> set[str]:
    kinds = {"counter": "_total", "gauge": ""}
    return {family.name + kinds[family.type] for family in ProcessCollector(registry=None).collect()}


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return found


def expressions() -> list[str]:
    return [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]


def test_the_page_has_every_metric_and_no_other() -> None:
    rows = [row["name"] for row in ROW.finditer(PAGE.read_text())]
    assert rows[: len(METRICS)] == [metric.name for metric in METRICS]
    assert rows[-len(OF_OPERATOR) :] == [metric.name for metric in OF_OPERATOR]
    assert set(rows[len(METRICS) : -len(OF_OPERATOR)]) == of_process()


@pytest.mark.parametrize("metric", [*METRICS, *OF_OPERATOR], ids=lambda metric: metric.name)
def test_the_page_says_what_the_code_says(metric) -> None:
    row = next(row for row in ROW.finditer(PAGE.read_text()) if row["name"] == metric.name)
    assert (row["kind"], row["help"]) == (metric.kind, metric.help)
    assert tuple(re.findall(r"`(\w+)`", row["labels"])) == metric.labels
    unit = metric.name.removesuffix("_total").rpartition("_")[2]
    assert row["unit"] == (unit if unit in UNITS else "1")


@pytest.mark.parametrize("metric", [*METRICS, *OF_OPERATOR], ids=lambda metric: metric.name)
def test_names_follow_the_conventions(metric) -> None:
    assert re.fullmatch(r"prefeed_[a-z_]+", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert metric.help.endswith(".")
    assert "|" not in metric.help
    assert not re.search(r"_(ms|kb|mb|gb|percent|count|milliseconds)(_|$)", metric.name)


def test_metrics_named_anywhere_in_the_docs_exist() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = {
        name for page in pages for name in re.findall(r"\bprefeed_\w+_(?:total|bytes|seconds)\b", page.read_text())
    }
    assert named <= OWN


def test_the_dashboard_asks_only_for_what_exists() -> None:
    named = {name for expression in expressions() for name in NAME.findall(expression)}
    queries = {v["definition"] for v in dashboard()["templating"]["list"] if v["type"] == "query"}
    named |= {name for query in queries for name in NAME.findall(query)}
    assert named <= OWN | of_process()
    assert len(named) > 15


def test_the_dashboard_uses_labels_that_exist() -> None:
    labels = {metric.name: {*metric.labels, "instance", "job"} for metric in METRICS}
    for expression in expressions():
        for name, selector in re.findall(r"(prefeed_\w+)\{([^}]*)\}", expression):
            assert set(re.findall(r"(\w+)(?:=~|!=|=)", selector)) <= labels[name], expression
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            used = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert used <= {"instance"}.union(*(labels.get(n, set()) for n in NAME.findall(target["expr"])))


def test_every_expression_is_of_the_chosen_nodes() -> None:
    for expression in expressions():
        assert expression.count("instance=~") == len(NAME.findall(expression)), expression


def test_panels_have_numbers_of_their_own_and_do_not_overlap() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({panel["title"] for panel in panels}) == len(panels)
    for first, second in combinations((panel["gridPos"] for panel in panels), 2):
        beside = first["x"] + first["w"] <= second["x"] or second["x"] + second["w"] <= first["x"]
        above = first["y"] + first["h"] <= second["y"] or second["y"] + second["h"] <= first["y"]
        assert beside or above, (first, second)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)


def test_whether_a_job_waits_comes_first_and_the_source_can_be_chosen() -> None:
    first = dashboard()["panels"][0]
    assert "prefeed_last_epoch_waited_seconds" in first["targets"][0]["expr"]
    assert [variable["name"] for variable in dashboard()["templating"]["list"]] == ["datasource", "job", "instance"]
    assert all(panel["datasource"]["uid"] == "${datasource}" for panel in dashboard()["panels"])
    assert all(panel["description"] for panel in dashboard()["panels"])


def test_what_is_divided_has_the_labels_of_what_it_is_divided_by() -> None:
    """``a / (a + on (instance) b)`` shows nothing: the sum keeps ``instance`` alone, and ``a`` has more."""
    for expression in expressions():
        assert not re.search(r"/ \(.*\bon \(", expression), expression


def test_parentheses_are_closed() -> None:
    for expression in expressions():
        for opening, closing in ("()", "[]", "{}"):
            assert expression.count(opening) == expression.count(closing), expression

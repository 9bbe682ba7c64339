"""What is drawn and alerted on are metrics that exist, and each alert has its line."""

import json
import re
from pathlib import Path

import yaml

CHECKOUT = Path(__file__).parents[2]
PAGE = (CHECKOUT / "docs" / "metrics.md").read_text(encoding="utf-8")
KNOWN = set(re.findall(r"`(paramfleet_\w+)`", PAGE))
ALERTS = yaml.safe_load(
    (CHECKOUT / "deploy" / "prometheus" / "alerts.yaml").read_text(encoding="utf-8")
)
NAME = re.compile(r"paramfleet_\w+")


def test_every_alert_asks_for_metrics_that_exist() -> None:
    rules = [rule for group in ALERTS["groups"] for rule in group["rules"]]

    unknown = {name for rule in rules for name in NAME.findall(rule["expr"])} - KNOWN

    assert rules
    assert not unknown


def test_every_alert_has_its_line_in_the_runbook() -> None:
    runbook = (CHECKOUT / "docs" / "operations.md").read_text(encoding="utf-8")
    names = [rule["alert"] for group in ALERTS["groups"] for rule in group["rules"]]

    assert [name for name in names if f"| {name} |" not in runbook] == []


def test_every_panel_draws_metrics_that_exist() -> None:
    dashboard = json.loads(
        (CHECKOUT / "deploy" / "grafana" / "dashboard.json").read_text(encoding="utf-8")
    )
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]

    unknown = {name for query in queries for name in NAME.findall(query)} - KNOWN

    assert len(queries) >= 10
    assert not unknown

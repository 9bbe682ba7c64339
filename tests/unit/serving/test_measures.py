"""The page of metrics has those of the server."""

import re
from pathlib import Path

from paramfleet_serving.measures import Measures
from paramfleet_shared.telemetry.logs_and_metrics import MetricRegistry

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


def test_the_page_of_metrics_has_them_all() -> None:
    registry = MetricRegistry()
    Measures(registry)
    kinds = re.findall(r"# TYPE (\w+) (\w+)", registry.render().decode())
    ours = {name for name, _ in kinds if not name.endswith("_created")}

    listed = re.findall(r"\| serving \| `(\w+)`", PAGE.read_text(encoding="utf-8"))

    assert sorted(listed) == sorted(ours)

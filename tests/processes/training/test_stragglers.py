"""A job names the worker that holds it up, and by what, while it trains."""

from typing import Any

import pytest

from paramfleet_shared.testing.patience import LATE_S

pytestmark = [pytest.mark.processes, pytest.mark.slow]

NAMED_WITHIN_S = 10 + LATE_S


@pytest.mark.parametrize(
    ("slow", "mode", "cause"),
    [
        ("--slow_data_ms=60", "sync", "data"),
        ("--slow_compute_ms=60", "async", "compute"),
        ("--slow_network_ms=40", "sync", "network"),
    ],
)
def test_a_straggler_is_named_with_its_cause(
    jobs: Any, slow: str, mode: str, cause: str
) -> None:
    running = jobs.start("train_long.py", "--mode", mode, "--asks", slow, servers=1)
    for rank in (0, 1):
        running.wait_for(f"worker{rank}", "training as")
    admin = running.admin()

    status = admin.wait(lambda said: said["straggler"], within_s=NAMED_WITHIN_S)

    assert (status["straggler"]["rank"], status["straggler"]["cause"]) == (1, cause)
    assert status["straggler"]["words"] == status["workers"][1]["lag_reason"]
    assert any(event["kind"] == "straggler.named" for event in admin.get("events"))
    admin.post("end")
    ended = running.end()
    assert ended.codes == dict.fromkeys(running.pids, 0), ended.story()

"""What a worker tells of itself."""

import asyncio
import json
import urllib.request
from typing import Any

import pytest
import torch

from paramfleet.api.reporting import ReportError, Reporting
from paramfleet.config.roles import RoleMaker
from paramfleet.session.session import Session
from paramfleet.session.worker_metrics import Progress
from paramfleet_shared.discovery.records import Member
from paramfleet_shared.settings.config import JobSettings
from paramfleet_shared.testing.clock import FakeClock

MEMBER = Member(
    role="worker", index=3, incarnation=2, endpoint="", admin="", host="h", pid=1, nonce="n"
)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_before_the_first_report_nothing_is_made_up(clock: FakeClock) -> None:
    facts = Progress(clock, lambda: None).facts()

    assert facts == {
        "at": "before its first step",
        "step": 0, "loss": None, "examples_per_s": None, "staleness": 0, "mode": None,
        "sent_bytes": 0, "received_bytes": 0, "metrics": {}, "calls": {},
    }  # fmt: skip


async def test_a_report_gives_loss_and_rate(clock: FakeClock) -> None:
    progress = Progress(clock, lambda: None)

    progress.report(loss=0.5, examples=10)
    await clock.advance(2.0)
    progress.report(loss=0.25, examples=10)

    assert progress.facts()["loss"] == 0.25
    assert progress.facts()["examples_per_s"] == 5.0


def test_a_report_may_say_how_many_steps_there_will_be() -> None:
    session = Session()
    session.init(RoleMaker(distributed=False))

    Reporting(session).report(loss=0.5, examples=10, total_steps=500, auc=0.7)
    Reporting(session).report(loss=0.4, examples=10)

    facts = session.progress.facts()
    assert facts["total_steps"] == 500
    assert facts["metrics"] == {"auc": 0.7}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"total_steps": 1e308}, r"total_steps=1e\+308\): must be a number from 0 to 9"),
        ({"total_steps": float("nan")}, "total_steps=nan"),
        ({"total_steps": -1}, "total_steps=-1"),
        ({"examples": -1}, "examples=-1"),
        ({"examples": float("inf")}, "examples=inf"),
    ],
)
def test_a_report_of_what_can_not_be_is_refused_and_changes_nothing(
    given: dict[str, Any], named: str
) -> None:
    session = Session()
    session.init(RoleMaker(distributed=False))
    before = session.progress.facts()

    with pytest.raises(ReportError, match=named):
        Reporting(session).report(**{"loss": 0.5, "examples": 10, **given})

    assert session.progress.facts() == before


async def test_the_admin_address_tells_the_place_and_the_progress(clock: FakeClock) -> None:
    session = Session()
    session.init(RoleMaker(distributed=False))
    model = torch.nn.Linear(2, 1)
    optimizer = session.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    progress = Progress(clock, lambda: MEMBER)
    progress.watch(optimizer)
    optimizer.minimize(model(torch.ones(1, 2)).sum())
    progress.report(loss=0.5, examples=10, metrics={"auc": 0.75})
    admin = progress.admin(JobSettings(admin_open_reading=True))
    port = await admin.start("127.0.0.1", 0)

    async def get(path: str) -> str:
        url = f"http://127.0.0.1:{port}{path}"
        return await asyncio.to_thread(lambda: urllib.request.urlopen(url).read().decode())

    try:
        status, ready = json.loads(await get("/status")), json.loads(await get("/readyz"))
        metrics = await get("/metrics")
    finally:
        await admin.close()

    assert (status["role"], status["rank"], status["incarnation"]) == ("worker", 3, 2)
    assert (status["step"], status["loss"], status["mode"]) == (1, 0.5, "local")
    assert ready == {"ready": True, "reason": "training"}
    assert status["metrics"] == {"auc": 0.75}
    assert 'paramfleet_worker_reported{name="auc"} 0.75' in metrics
    assert "paramfleet_worker_step 1.0" in metrics
    assert "paramfleet_worker_examples_total 10.0" in metrics

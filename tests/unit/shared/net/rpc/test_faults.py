"""Where no fault is planned, everything arrives."""

from paramfleet_shared.net.rpc.faults import NO_FAULTS, Verdict
from paramfleet_shared.testing.faults import FaultPlan, Fired


async def test_no_faults_deliver_everything() -> None:
    assert NO_FAULTS.on_request("push") is Verdict.DELIVER
    assert await NO_FAULTS.on_reply("push") is Verdict.DELIVER


async def test_a_plan_counts_each_operation_and_each_side_for_itself() -> None:
    plan = FaultPlan().drop_request(of="push", nth=2).drop_reply(of="pull")

    assert [plan.on_request("push") for _ in range(3)] == [
        Verdict.DELIVER,
        Verdict.DROP,
        Verdict.DELIVER,
    ]
    assert await plan.on_reply("push") is Verdict.DELIVER
    assert plan.on_request("pull") is Verdict.DELIVER
    assert await plan.on_reply("pull") is Verdict.DROP
    assert plan.fired == [Fired("drop_request", "push", 2), Fired("drop_reply", "pull", 1)]

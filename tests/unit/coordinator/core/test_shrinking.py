"""From which step on a lost worker of sync takes no part."""

from typing import Any

from paramfleet_coordinator.core.absent.losses import Losses
from paramfleet_coordinator.core.absent.shrinking import end_of, shrinks
from paramfleet_shared.discovery.records import JobRecord, Lost, MemberKey

LOST = Lost(index=2, incarnation=3, reason="killed")


def said(*ends: int, incarnation: int = 3) -> dict[MemberKey, dict[str, Any]]:
    return {
        ("pserver", index): {"stopped": [[1, 1, 99], [2, incarnation, end]]}
        for index, end in enumerate(ends)
    }


def test_it_is_the_greatest_step_before_which_a_pserver_knows_all_parts_to_be_there() -> None:
    assert end_of(LOST, said(7, 8, 7), server_num=3) == 8


def test_nothing_is_decided_before_every_pserver_has_stopped_taking_what_it_sends() -> None:
    assert end_of(LOST, said(7, 8), server_num=3) is None
    assert end_of(LOST, said(7, 8, 9, incarnation=2), server_num=3) is None
    assert end_of(LOST, {}, server_num=0) is None


def test_the_strategy_is_what_the_pservers_were_told() -> None:
    assert shrinks({("pserver", 0): {"on_worker_loss": "shrink"}})
    assert not shrinks({("pserver", 0): {"on_worker_loss": "wait"}, ("pserver", 1): {}})
    assert not shrinks({("worker", 0): {"on_worker_loss": "shrink"}})


def test_what_is_agreed_on_is_in_the_record_and_outlives_the_coordinator() -> None:
    losses = Losses()
    losses.note(LOST)
    agreed = losses.agree(LOST, 8)
    record = JobRecord(state="training", lost=losses.record, shrinks=True)
    fields = {name: text.encode() for name, text in record.to_fields().items()}

    again = JobRecord.from_fields(fields)

    assert again == record
    other = Losses()
    other.resume([LOST])
    other.resume([agreed])
    other.resume([LOST])
    assert other.record == (agreed,)

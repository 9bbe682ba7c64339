"""What the staleness gate needs of recovery."""

from tests.recovery.groups.gate import Gate
from tests.recovery.protocol import LEAD


def test_a_lost_join_would_let_others_lead_too_far() -> None:
    gate = Gate()
    gate.join(0)
    lost_the_join = gate.copied()
    gate.join(1)

    assert not gate.admits(0, LEAD + 1)
    assert lost_the_join.admits(0, LEAD + 1)  # so a join is durable before its first step


def test_a_begin_closes_the_gap_between_the_levels_of_groups() -> None:
    gate = Gate()
    gate.join(0)

    gate.finish(0, 3, 3)
    assert gate.next_step(0) == 0

    gate.finish(0, 0, 2)
    assert gate.next_step(0) == 4

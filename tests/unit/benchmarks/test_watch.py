"""What is read of the machine during a round."""

import pytest

from watch import MachineWatch, steal_of


def test_steal_is_a_share_of_the_ticks() -> None:
    user, nice, system, idle, waiting, irq, soft, steal, guest = 40, 5, 5, 40, 0, 0, 0, 10, 30

    ticks = [user, nice, system, idle, waiting, irq, soft, steal, guest]

    assert steal_of(ticks) == pytest.approx(0.1)  # what guests use is in user already


@pytest.mark.parametrize("ticks", [[], [1, 2, 3], [0] * 10])
def test_without_ticks_nothing_was_stolen(ticks: list[int]) -> None:
    assert steal_of(ticks) == 0.0


def test_a_round_has_its_conditions() -> None:
    watch = MachineWatch()

    watch.begin()
    watch.look()
    met = watch.end()

    assert 0.0 <= met.steal <= 1.0
    assert 0.0 <= met.waiting < 1.0
    assert met.reference_s > 0.0


def test_a_machine_without_affinity_is_watched_all_the_same() -> None:
    watch = MachineWatch(())

    watch.begin()

    assert watch.end().reference_s > 0.0

"""Which pservers are asked for rows on disk, and how often the others are asked again."""

from paramfleet.training.modes.prefetching.tiers import AGAIN_S, Tiers


def test_all_are_asked_first_without_ids() -> None:
    tiers = Tiers(2)

    assert tiers.servers("t") == []
    assert tiers.is_due("t", 0.0)


def test_who_has_rows_on_disk_is_asked_for_them_until_it_has_none() -> None:
    tiers = Tiers(2)
    tiers.note("t", 0, 5.0, has=True)
    tiers.note("t", 1, 5.0, has=True)
    assert tiers.servers("t") == [0, 1]
    assert not tiers.is_due("t", 1e9)

    tiers.note("t", 0, 6.0, has=False)

    assert tiers.servers("t") == [1]
    assert tiers.servers("other") == []


def test_who_has_none_is_asked_again_after_a_while() -> None:
    tiers = Tiers(1)
    tiers.note("t", 0, 100.0, has=False)

    assert not tiers.is_due("t", 100.0 + AGAIN_S / 2)
    assert tiers.is_due("t", 100.0 + AGAIN_S)
    tiers.note("t", 0, 100.0 + AGAIN_S, has=False)
    assert not tiers.is_due("t", 101.0 + AGAIN_S)

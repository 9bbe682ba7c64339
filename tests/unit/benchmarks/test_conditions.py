"""Which rounds count, and which headlines hold."""

import pytest

from conditions import Conditions, Headline, findings_of, reasons, refusal, spread_of

FREE = Conditions(steal=0.0, reference_s=0.02, waiting=0.01)


def test_rounds_on_a_free_machine_count() -> None:
    assert reasons([FREE] * 6) == [None] * 6


@pytest.mark.parametrize(
    ("met", "why"),
    [
        (FREE._replace(steal=0.05), "hypervisor"),
        (FREE._replace(waiting=0.5, reference_s=0.02), "waited"),
        (FREE._replace(reference_s=0.026), "1.25 times its median"),
    ],
)
def test_a_round_in_which_the_machine_was_taken_does_not_count(
    met: Conditions, why: str
) -> None:
    *others, found = reasons([FREE] * 4 + [met])

    assert others == [None] * 4
    assert found is not None
    assert why in found


def test_a_machine_that_is_taken_all_the_time_lets_no_round_count() -> None:
    """The median is slow then, too: what the loop waits is held against its own time."""
    taken = Conditions(steal=0.0, reference_s=0.04, waiting=0.5)

    assert None not in reasons([taken] * 6)


def test_what_is_allowed_still_counts() -> None:
    edge = Conditions(steal=0.03, reference_s=0.025, waiting=0.2)

    assert reasons([FREE, FREE, edge]) == [None] * 3


def test_no_rounds_have_no_reasons() -> None:
    assert reasons([]) == []


def test_a_spread_leaves_out_the_slowest_and_the_fastest_tenth() -> None:
    ten = [1.0] * 9 + [5.0]

    assert spread_of([2.0, 2.0, 2.0]) == 0.0
    assert spread_of([*ten, 1.0]) == 0.0
    assert spread_of([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(3.2 / 3)
    assert spread_of([7.0]) == 0.0


def test_a_spread_around_nothing_has_no_end() -> None:
    assert spread_of([-1.0, 0.0, 1.0]) == float("inf")
    assert spread_of([0.0, 0.0]) == 0.0


def test_a_headline_needs_rounds_and_their_agreement() -> None:
    assert refusal(Headline([2.0, 2.1, 2.2, 2.0, 2.1], 5)) is None
    assert refusal(Headline([2.0] * 4, 4)) == "rounds that count: 4, at least 5 are needed"
    why = refusal(Headline([4.1, 2.1, 1.75, 3.0, 2.5], 5))
    assert why == "its spread over 5 rounds is 0.71, and at most 0.33 is allowed"


def test_no_round_that_counts_refuses_what_all_of_them_show() -> None:
    assert refusal(Headline([2.0] * 9, 0, None, "it rained")) == (
        "rounds that count: 0, at least 5 are needed; in others it rained"
    )


def test_refused_headlines_are_none_and_named_with_their_spread() -> None:
    found = findings_of(
        {
            "holds": Headline([2.0, 2.1, 2.2, 2.0, 2.1], 5),
            "refused": Headline([1.0, 9.0], 2),
            "not_measured": None,
        }
    )

    assert found.summary == {"holds": 2.1, "refused": None, "not_measured": None}
    assert found.spread == {"holds": (2.1, 2.0, 2.2), "refused": (5.0, 1.0, 9.0)}
    assert found.refused == {"refused": "rounds that count: 2, at least 5 are needed"}


def test_a_quantile_holds_if_both_halves_of_the_rounds_agree_on_it() -> None:
    wide = [1.0, 1.1, 2.0, 2.1, 4.0, 3.9, 9.0, 9.5]
    apart = [1.0, 9.0, 1.1, 9.1, 1.2, 9.2]

    assert Headline(wide, 8, 0.5).figure == pytest.approx(3.0)
    assert Headline(wide, 8, 1.0).figure == 9.5
    assert refusal(Headline(wide, 8, 0.99)) is None
    why = refusal(Headline(apart, 6, 0.99))
    assert why is not None
    assert "every other round" in why
    assert refusal(Headline(wide, 4, 0.99)) is not None

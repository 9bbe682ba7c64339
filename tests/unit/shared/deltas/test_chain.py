"""Which change may follow which."""

import pytest

from paramfleet_shared.deltas.chain import Chain, Link
from paramfleet_shared.deltas.errors import (
    ChangeForkedError,
    ChangeOrderError,
    ChangeRepeatedError,
    OtherStreamError,
)


def test_the_next_change_passes_and_moves_the_place() -> None:
    chain = Chain("a", 4, "four")
    link = Link("a", 5, "four")

    chain.check(link, path="there")
    assert chain.number == 4
    chain.advance(link, "five")

    assert (chain.number, chain.digest) == (5, "five")
    chain.check(Link("a", 6, "five"), path="there")


@pytest.mark.parametrize(
    ("link", "kind"),
    [
        (Link("b", 5, "four"), OtherStreamError),
        (Link("a", 4, "four"), ChangeRepeatedError),
        (Link("a", 1, "four"), ChangeRepeatedError),
        (Link("a", 6, "four"), ChangeOrderError),
        (Link("a", 5, "other"), ChangeForkedError),
    ],
)
def test_any_other_is_refused_by_name(link: Link, kind: type[Exception]) -> None:
    chain = Chain("a", 4, "four")

    with pytest.raises(kind, match="there"):
        chain.check(link, path="there")

    assert (chain.number, chain.digest) == (4, "four")

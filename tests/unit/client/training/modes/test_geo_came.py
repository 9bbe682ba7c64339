"""Which rows a GEO worker knows to be all of a pserver's, after it began anew."""

from collections.abc import Sequence

import numpy as np

from paramfleet.training.modes.geo.came import RowsThatCame
from paramfleet_shared.values.replies import TERM_REPLIES


def note(
    came: RowsThatCame, batch: int, ids: Sequence[int], *, more: bool = False, server: int = 0
) -> None:
    came.note(server, "rows", batch, np.array(ids, np.int64), more=more)


def taken(came: RowsThatCame, table: str = "rows") -> dict[int, list[int]]:
    return {server: ids.tolist() for server, ids in came.take(table).items()}


def test_while_a_pserver_goes_on_nothing_is_told_of_what_didnt_come() -> None:
    came = RowsThatCame()
    for batch in (1, 2, 9, TERM_REPLIES // 3):
        note(came, batch, [batch])
    assert taken(came) == {}


def test_all_replies_since_a_pserver_began_anew_are_counted_together() -> None:
    came = RowsThatCame()
    note(came, 5000, [1, 2])
    note(came, 5 + TERM_REPLIES, [3], more=True)  # it went back behind what it had said
    assert taken(came) == {}
    note(came, 6 + TERM_REPLIES, [4], more=True)
    note(came, 7 + TERM_REPLIES, [])
    assert taken(came, "others") == {}
    assert taken(came) == {0: [3, 4]}
    note(came, 8 + TERM_REPLIES, [5])
    assert taken(came) == {}


def test_one_that_begins_anew_again_sends_all_again() -> None:
    came = RowsThatCame()
    note(came, 1, [])
    note(came, 1 + TERM_REPLIES, [3], more=True)
    note(came, 1 + 2 * TERM_REPLIES, [4])
    note(came, 1 + TERM_REPLIES, [7], server=1)  # the first that is heard of it
    assert taken(came) == {0: [4]}
    note(came, 1 + 4 * TERM_REPLIES, [5])  # nothing was heard of a term between
    note(came, 2 + 5 * TERM_REPLIES, [6])
    assert taken(came) == {0: [6]}

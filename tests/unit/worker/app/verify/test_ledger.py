"""What the program of a run takes from answers."""

import numpy as np
import pytest

from paramfleet.transport.outbox import Outbox
from paramfleet.transport.requests import Read, ReadPlan
from paramfleet_shared.discovery.placement import Placement
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.tables.rows.batch import RowIds
from paramfleet_worker.app.verify.ledger import Answers

ONE = Placement(endpoints=("a",), num_shards=1, terms=(1,))


def test_a_lead_is_not_measured_in_steps_that_began_before_a_recovery() -> None:
    """A step's turn is asked for at the end of the one before, where dense values come, too."""
    answers = Answers()
    ends = []
    for terms in ([1], [1, 1], [1, 2], [2], [2], [2, 3], [3], [3]):
        for term in terms:
            answers.take(3, term, {"rows": 7})
        ends.append(answers.take_new_term())

    assert ends == [False, False, True, True, False, True, True, False]


def test_a_version_may_fall_with_another_process_alone() -> None:
    answers = Answers()
    for term, version in ((1, 5), (1, 6), (2, 4), (2, 5), (2, 4)):
        answers.take(0, term, {"rows": version})

    assert answers.fallen == ["pserver 0 term 2, table 'rows': 4 after 5"]


def test_answers_to_pulls_alone_and_behind_a_push_are_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Outbox, "note", Outbox.note)  # as it is again at the end
    answers, outbox = Answers(), Outbox(ONE)
    answers.watch()
    rows = RowIds(np.array([7], np.int64), np.array([0, 1], np.int64))
    plan = ReadPlan([Read(table="rows", rows=rows, dim=4), Read(table="flat", size=8)], ONE)
    push = Message(fields={"sequence": 1, "parts": [{"table": "flat"}]})

    def answer(asked: Message, term: int, versions: list[int]) -> bool:
        outbox.begin_term(0, term)
        return outbox.note(0, term, asked, Message(fields={"versions": versions}))

    (pull,), (step,) = plan.messages(rank=0, min_step=0), plan.behind([push])
    assert answer(pull, 1, [5, 2])
    assert answer(push, 1, [1])
    assert answer(step, 1, [5, 1])
    assert answers.fallen == ["pserver 0 term 1, table 'flat': 1 after 2"]
    assert not answers.take_new_term()
    assert answer(pull, 2, [1, 1])
    assert answers.take_new_term()

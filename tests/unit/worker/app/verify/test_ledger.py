"""What the program of a run takes from answers."""

import numpy as np
import pytest

from paramfleet.transport.outbox import Outbox
from paramfleet.transport.owner import Owner
from paramfleet.transport.requests import Author, Read, ReadPlan
from paramfleet_shared.discovery.placement import Placement
from paramfleet_shared.net.rpc.client import Channel
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.tables.rows.batch import RowIds
from paramfleet_worker.app.verify.ledger import Answers

ONE = Placement(endpoints=("a",), num_shards=1, terms=(1,))
ROWS = RowIds(np.array([7], np.int64), np.array([0, 1], np.int64))
PLAN = ReadPlan([Read(table="rows", rows=ROWS, dim=4), Read(table="flat", size=8)], ONE)


def pull() -> Message:
    (message,) = PLAN.messages(rank=0, min_step=0)
    return message


def answer(*versions: int) -> Message:
    return Message(fields={"versions": list(versions)})


def ask(answers: Answers, term: int, asked: Message, *versions: int) -> None:
    answers.send(0, term, asked)
    answers.take(0, term, asked, answer(*versions))


def test_a_lead_is_not_measured_in_steps_that_began_before_a_recovery() -> None:
    """A step's turn is asked for at the end of the one before, where dense values come, too."""
    answers = Answers()
    ends = []
    for terms in ([1], [1, 1], [1, 2], [2], [2], [2, 3], [3], [3]):
        for term in terms:
            ask(answers, term, pull(), 7, 7)
        ends.append(answers.take_new_term())

    assert ends == [False, False, True, True, False, True, True, False]


def test_a_version_may_fall_with_another_process_alone() -> None:
    answers = Answers()
    for term, version in ((1, 5), (1, 6), (2, 4), (2, 5), (2, 4)):
        ask(answers, term, pull(), version, 9)

    assert answers.fallen == ["pserver 0 term 2, table 'rows': 4 after 5"]


def test_answers_that_overtake_each_other_are_no_fall() -> None:
    answers = Answers()
    first, second = pull(), pull()
    answers.send(0, 1, first)
    answers.send(0, 1, second)
    answers.take(0, 1, second, answer(6, 1))
    answers.take(0, 1, first, answer(5, 1))
    assert answers.fallen == []

    ask(answers, 1, pull(), 5, 1)
    assert answers.fallen == ["pserver 0 term 1, table 'rows': 5 after 6"]


def test_a_pull_behind_a_push_is_one_and_a_push_is_none() -> None:
    answers = Answers()
    push = Message(fields={"sequence": 1, "parts": [{"table": "flat"}]})
    (step,) = PLAN.behind([push])

    ask(answers, 1, pull(), 5, 2)
    ask(answers, 1, push, 1)
    ask(answers, 1, step, 5, 1)

    assert answers.fallen == ["pserver 0 term 1, table 'flat': 1 after 2"]


def test_what_a_worker_asks_and_takes_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("addressed", "note"):
        monkeypatch.setattr(Owner, name, getattr(Owner, name))  # as it is again at the end
    answers = Answers()
    answers.watch()
    clock = SystemClock()
    owner = Owner(
        0,
        Channel("127.0.0.1:1", peer="pserver 0", clock=clock),
        outbox=Outbox(ONE),
        author=Author(rank=0, incarnation=1),
        locate=no_placement,
        clock=clock,
        call_timeout_s=1.0,
        patience_s=1.0,
    )
    for versions in ((5, 2), (4, 2)):
        asked = owner.addressed(pull())
        assert owner.note(asked, answer(*versions))

    assert answers.fallen == ["pserver 0 term 1, table 'rows': 4 after 5"]


async def no_placement() -> None:
    """Return that there is none."""

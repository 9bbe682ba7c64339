"""A job's status as text."""

from typing import Any

from paramfleet_worker.core.board import board, rows_of

WORKER: dict[str, Any] = {
    "rank": 0, "step": 1234, "samples_per_s": 5120.0, "loss": 0.4321, "staleness": 0,
    "split": {"data": 0.1, "pull": 0.2, "compute": 0.5, "push": 0.1, "barrier": 0.1},
    "lag_reason": "",
}  # fmt: skip
STATUS: dict[str, Any] = {
    "job": "demo",
    "state": "training",
    "mode": "sync",
    "samples_per_s": 9000.0,
    "loss": 0.5,
    "workers": [WORKER, {**WORKER, "rank": 1, "loss": None, "lag_reason": "its data is slow"}],
    "servers": [{"index": 0, "rows": 10, "bytes": 400, "request_ms": None, "last_seen_s": 0.1}],
    "barriers": [{"name": "fleet.finish", "generation": 1, "arrived": [0], "missing": [1]}],
    "straggler": {"rank": 1, "cause": "data", "words": "worker 1 is behind"},
}


def test_the_board_tells_the_job_its_members_and_who_lags() -> None:
    lines = board(STATUS)

    assert lines[0] == "demo: training, sync, 9,000 examples/s, loss 0.5"
    assert "dd<<<<##########>>.." in lines[3]
    assert lines[4].endswith("its data is slow")
    assert "barrier fleet.finish: waiting for 1" in lines
    assert lines[-1] == "worker 1 is behind"
    assert board({**STATUS, "straggler": None})[-1] == "no worker is behind"


def test_the_board_says_that_a_server_is_waited_for() -> None:
    lost = {**STATUS["servers"][0], "index": 1, "waits_s": 41.5}

    lines = board({**STATUS, "servers": [*STATUS["servers"], lost]})

    assert "server 1 is lost; the job waits 41.5 s more for it" in lines


def test_the_board_says_that_a_disk_takes_no_change() -> None:
    full = {**STATUS["servers"][0], "disk_fault": "[Errno 28] No space left on device"}

    lines = board({**STATUS, "servers": [full]})

    assert any("server 0: its disk takes no change ([Errno 28]" in line for line in lines)


def test_the_board_says_which_data_is_waited_for_however_long_its_name_is() -> None:
    file = f"{'/a/long/folder' * 20}/20260102/0010/data.done"
    days = {"day": "20260102", "pass": 3, "state": "waiting for data", "waited_s": 75}
    waiting = [{**each, "by_days": {**days, "waits_for": file}} for each in STATUS["workers"]]
    training = [{**each, "by_days": {**days, "state": "training"}} for each in waiting]

    told = [line for line in board({**STATUS, "workers": waiting}) if "data.done" in line]

    assert len(told) == 1, "once for all workers"
    assert told[0].startswith("day 20260102, pass 3: waits for data (75 s): ...")
    assert told[0].endswith("/20260102/0010/data.done")
    assert len(told[0]) == 120
    assert not any("waits" in line for line in board({**STATUS, "workers": training}))


def test_the_board_keeps_to_the_width() -> None:
    assert max(map(len, board(STATUS, width=30))) == 30


def test_the_board_tells_how_many_processes_are_asked_for_but_not_there() -> None:
    process = {"index": 0, "host": "here", "groups": [0], "follows": [], "draining": False}
    plan: dict[str, Any] = {
        "wanted": 3,
        "processes": [{**process, "alive": True}, {**process, "index": 1, "alive": False}],
        "groups": [],
        "unprotected": [],
    }

    assert "3 processes are asked for, 1 are there" in board({**STATUS, "plan": plan})
    plan["wanted"] = 1
    assert not any("asked for" in line for line in board({**STATUS, "plan": plan}))


def test_before_the_training_nothing_is_made_up() -> None:
    empty = {**STATUS, "mode": None, "loss": None, "workers": [], "servers": [], "barriers": []}

    assert board(empty)[0] == "demo: training, no mode yet, 9,000 examples/s, loss -"


def test_numbers_stand_to_the_right_and_words_to_the_left() -> None:
    items = [{"name": "deep", "rows": 12345}, {"name": "w", "rows": 1}]

    assert rows_of(items, ("name", "rows")) == ["name    rows", "deep  12,345", "w          1"]
    assert rows_of([], ("name",)) == ["name"]

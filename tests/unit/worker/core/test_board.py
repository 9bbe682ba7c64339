"""A job's status as text."""

from typing import Any

from paramfleet_worker.core.board import board, rows_of, tables_of

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
    assert lines[2] == "workers"
    assert "dd<<<<##########>>.." in lines[4]
    assert lines[5].endswith("its data is slow")
    assert "pservers" in lines
    legend = [line for line in lines if line.startswith(("staleness: ", "rows: "))]
    assert len(legend) == 2
    assert max(map(len, legend)) < 80, "as wide as a terminal at least"
    assert "barrier fleet.finish: waiting for 1" in lines
    assert lines[-1] == "worker 1 is behind"
    assert board({**STATUS, "straggler": None})[-1] == "no worker is behind"


def test_where_no_worker_waits_for_another_the_board_tells_how_far_they_are_apart() -> None:
    ahead, done = {**WORKER, "step": 2_334}, {**WORKER, "step": 1, "done": True}
    geo = {
        **STATUS,
        "mode": "geo",
        "straggler": None,
        "settings": {"k_steps": 100},
        "workers": [WORKER, ahead, done],
    }

    assert board(geo)[-1] == (
        "geo: workers don't wait; the first is 1,100 steps ahead of the last (k_steps = 100)"
    )
    assert board({**geo, "mode": "async"})[-1].endswith("1,100 steps ahead of the last")
    assert board({**geo, "workers": [WORKER]})[-1].startswith("barrier "), "nothing to compare"


def test_dense_parameters_are_no_tables() -> None:
    shard = {"shard": 3, "server": 0, "rows": 2, "bytes": 8, "pulled": 5, "pushed": 4}
    ads = {"name": "ads", "kind": "sparse", "tier": "memory", "rows": 2, "shards": [shard]}
    dense = {"name": "tower", "kind": "dense", "rows": 1234, "bytes": 4936, "shards": []}

    lines = tables_of([ads, dense])

    (apart,) = [n for n, line in enumerate(lines) if line == "dense parameters"]
    assert "ads" in lines[1]
    assert lines[apart + 1].split()[:2] == ["name", "values"]
    assert "1,234" in lines[apart + 2]
    assert lines[-1].split()[:2] == ["ads", "3"]
    assert "dense parameters" not in tables_of([ads])


def test_tables_tell_how_many_rows_are_in_memory_and_on_disk_where_some_are() -> None:
    ads = {"name": "ads", "tier": "memory", "rows": 20, "shards": []}
    ads |= {"rows_in_memory": 20, "rows_on_disk": 0}
    users = {**ads, "name": "users", "rows": 7000, "tier": "memory+disk"}
    users |= {"rows_in_memory": 1500, "rows_on_disk": 5500}

    lines = tables_of([ads, users])

    assert lines[0].split()[:7] == ["name", "tier", "rows", "in", "memory", "on", "disk"]
    assert lines[1].split()[:5] == ["ads", "memory", "20", "20", "0"]
    assert lines[2].split()[:5] == ["users", "memory+disk", "7,000", "1,500", "5,500"]
    assert "rows: in memory and on disk together, of all pservers" in lines
    without = tables_of([ads])
    assert "on disk" not in "\n".join(without)
    for each in (lines, without):
        legend = [line for line in each if line.startswith(("rows: ", "bytes: ", "refused: "))]
        assert len(legend) == 2 + (each is lines)
        assert max(map(len, legend)) < 80, "as wide as a terminal at least"


def test_the_board_says_that_a_server_is_waited_for() -> None:
    lost = {**STATUS["servers"][0], "index": 1, "waits_s": 41.5}

    lines = board({**STATUS, "servers": [*STATUS["servers"], lost]})

    assert "pserver 1 is lost; the job waits 41.5 s more for it" in lines


def test_the_board_says_how_far_a_server_is_that_restores_its_tables() -> None:
    def told(**restoring: int) -> tuple[str, list[str]]:
        progress = {
            "snapshot_bytes": 0,
            "of_snapshot_bytes": 0,
            "commands": 0,
            "of_commands": 0,
        }
        server = {**STATUS["servers"][0], "state": "restoring", "rows": None, "bytes": None}
        lines = board({**STATUS, "servers": [{**server, "restoring": progress | restoring}]})
        row = lines.index("pservers") + 2
        return lines[row], [line for line in lines if line.startswith("pserver 0 restores")]

    assert told()[0].split()[:6] == ["0", "restoring", "-", "-", "-", "-"]
    assert told()[1] == ["pserver 0 restores its tables: it begins"]
    reading = told(snapshot_bytes=21_000_000, of_snapshot_bytes=47_100_000, of_commands=9)
    assert reading[1] == [
        "pserver 0 restores its tables: 21.0 of 47.1 MB of the snapshot are read"
    ]
    replaying = told(snapshot_bytes=7, of_snapshot_bytes=7, commands=1200, of_commands=3000)
    assert replaying[1] == [
        "pserver 0 restores its tables: 1,200 of 3,000 commands of the log are executed again"
    ]


def test_the_board_says_that_a_disk_takes_no_change() -> None:
    full = {**STATUS["servers"][0], "disk_fault": "[Errno 28] No space left on device"}

    lines = board({**STATUS, "servers": [full]})

    assert any("pserver 0: its disk takes no change ([Errno 28]" in line for line in lines)


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

    lines = board({**STATUS, "plan": plan})
    assert "3 pservers are requested, 1 are running" in lines
    assert lines.index("groups") < lines.index("pservers"), "as `paramfleet scale` counts them"
    plan["wanted"] = 1
    assert not any("are requested" in line for line in board({**STATUS, "plan": plan}))


def test_before_the_training_nothing_is_made_up() -> None:
    empty = {**STATUS, "mode": None, "loss": None, "workers": [], "servers": [], "barriers": []}

    assert board(empty)[0] == "demo: training, no mode yet, 9,000 examples/s, loss -"


def test_numbers_stand_to_the_right_and_words_to_the_left() -> None:
    items = [{"name": "deep", "rows": 12345}, {"name": "w", "rows": 1}]

    assert rows_of(items, ("name", "rows")) == ["name    rows", "deep  12,345", "w          1"]
    assert rows_of([], ("name",)) == ["name"]

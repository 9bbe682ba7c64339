"""What is seen of a job, told from what its registry held second by second."""

from dataclasses import replace
from typing import Any

import pytest

from paramfleet_coordinator.core.readings import PHASES
from paramfleet_coordinator.core.view import MAX_EVENTS, MAX_FRAMES, JobView, restoring_of
from paramfleet_shared.discovery.records import Member, Snapshot


def member(role: str, index: int, incarnation: int = 1) -> Member:
    return Member(
        role=role, index=index, incarnation=incarnation, endpoint="", admin="", host="h", pid=7
    )


def worker(second: float, *, data_ms: float = 1.0, steps_per_s: int = 100) -> dict[str, Any]:
    steps = int(second * steps_per_s)
    seconds = dict.fromkeys(PHASES, 0.002 * steps)
    seconds |= {"data": data_ms * steps / 1e3, "pause": 0.0, "barrier": 0.0, "wait": 0.0}
    times = {"at": 50 + second, "steps": steps, "examples": 8 * steps, "phase": "data"}
    return {"step": steps, "loss": 0.5, "times": {**times, "seconds": seconds}, "calls": {}}


def server(second: float) -> dict[str, Any]:
    return {
        "uptime_s": second,
        "mode": "async",
        "tables": [{"name": "deep", "rows": 10, "bytes": 400}],
        "service": {"pull": [100 * second, 0.2 * second], "save": [1, 9.0]},
    }


def snapshot(second: float, *, slow_ms: float = 1.0, **more: Any) -> Snapshot:
    members = [member("worker", 0), member("worker", 1), member("pserver", 0)]
    facts = {
        ("worker", 0): worker(second),
        ("worker", 1): worker(second, data_ms=slow_ms, steps_per_s=25),
        ("pserver", 0): server(second),
    }
    return Snapshot(members={each.key: each for each in members}, facts=facts, **more)


def watched(seconds: int, *, slow_ms: float = 1.0, view: JobView | None = None) -> JobView:
    view = view or JobView()
    for second in range(seconds):
        view.observe(snapshot(float(second), slow_ms=slow_ms), now=float(second))
    return view


def test_members_come_and_go_as_events() -> None:
    view = JobView()
    view.observe(snapshot(0.0), now=0.0)
    view.observe(snapshot(1.0, ends={("worker", 1): "done"}), now=1.0)
    view.observe(snapshot(2.0, ends={("worker", 1): "left"}), now=2.0)

    assert [(event["number"], event["words"]) for event in view.events()] == [
        (1, "pserver 0 joined: process 7 on h"),
        (2, "worker 0 joined: process 7 on h"),
        (3, "worker 1 joined: process 7 on h"),
        (4, "worker 1 has finished"),
        (5, "worker 1 has left"),
    ]
    assert [event["kind"] for event in view.events(after=3)] == ["worker.done", "worker.left"]


def test_a_straggler_is_named_within_seconds_and_forgotten_when_it_recovers() -> None:
    view = watched(4, slow_ms=30.0)

    assert view.straggler is not None
    assert (view.straggler["rank"], view.straggler["cause"]) == (1, "data")
    assert view.events()[-1]["kind"] == "straggler.named"
    assert view.lag_reason(1) == view.straggler["words"]
    for second in range(4, 12):
        both = {("worker", rank): worker(float(second)) for rank in (0, 1)}
        members = {("worker", rank): member("worker", rank) for rank in (0, 1)}
        view.observe(Snapshot(members=members, facts=both), now=float(second))
    assert view.events()[-1]["kind"] == "straggler.gone"
    assert view.history()["workers"]["1"][-1]["split"]["data"] < 0.2


def test_samples_of_workers_and_servers_are_kept() -> None:
    history = watched(5).history()

    assert [sample["at_s"] for sample in history["workers"]["0"]] == [1.0, 2.0, 3.0, 4.0]
    assert history["servers"]["0"][-1] == {
        "at_s": 4.0, "requests_per_s": 100.0, "request_ms": 2.0, "rows": 10, "bytes": 400,
    }  # fmt: skip
    assert watched(5).latest(0)["steps_per_s"] == 100.0
    assert watched(5).latest_of_server(0)["rows"] == 10
    assert watched(1).latest(0) == {}
    assert JobView().latest_of_server(0) == {}


def test_the_rows_of_a_server_that_restores_them_are_not_known() -> None:
    view = watched(5)
    rows = len(view.history()["tables"])
    progress = {"snapshot_bytes": 1, "of_snapshot_bytes": 2, "commands": 0, "of_commands": 3}
    for second in range(3):  # another process, whose time begins anew
        facts = {"uptime_s": float(second), "tables": [], "restoring": progress}
        view.observe(Snapshot(facts={("pserver", 0): facts}), now=5.0 + second)

    assert view.latest_of_server(0)["at_s"] == 7.0
    assert view.latest_of_server(0)["rows"] is None
    assert view.latest_of_server(0)["bytes"] is None
    assert len(view.history()["tables"]) == rows, "a curve that falls to 0 would be wrong"


def test_frames_are_what_changed_and_can_be_taken_up_again() -> None:
    view = watched(5)

    frames = view.frames(after=3)

    assert frames is not None
    assert [frame["number"] for frame in frames] == [4, 5]
    assert set(frames[0]["workers"]) == {"0", "1"}
    assert view.frames(after=view.newest_frame) == []
    assert view.frames(after=99) is None
    for second in range(5, 5 + 2 * MAX_FRAMES):
        view.observe(snapshot(float(second)), now=float(second))
    assert view.frames(after=3) is None
    assert len(view.frames(after=view.newest_frame - MAX_FRAMES) or []) == MAX_FRAMES


def test_events_are_bounded() -> None:
    view = JobView()
    for number in range(2 * MAX_EVENTS):
        view.note("test", "something", now=float(number))

    assert len(view.events()) == MAX_EVENTS


def test_a_checkpoint_is_told_once_and_its_failure_too() -> None:
    view = JobView()
    done = {
        "number": 1,
        "dirname": "kept/one",
        "seconds": 0.5,
        "error": "",
        "consistent": True,
        "reason": "",
        "paused_s": 0.25,
    }
    for second, said in ((0.0, done), (1.0, done), (2.0, {**done, "error": "disk full"})):
        facts = {("worker", 0): {**worker(second), "checkpoint": said}}
        view.observe(Snapshot(facts=facts), now=second)

    assert [event["kind"] for event in view.events()] == [
        "checkpoint.written",
        "checkpoint.failed",
    ]
    assert "disk full" in view.events()[-1]["words"]
    assert "pushes waited 0.25 s" in view.events()[0]["words"]
    assert "consistent" not in view.events()[0]["words"]
    assert view.checkpoint["error"] == "disk full"

    torn = {**done, "number": 2, "consistent": False, "reason": "a push is missing"}
    facts = {("worker", 0): {**worker(3.0), "checkpoint": torn}}
    view.observe(Snapshot(facts=facts), now=3.0)
    assert "not a consistent cut: a push is missing" in view.events()[-1]["words"]


def test_periodic_checkpoints_are_told_beside_those_by_command() -> None:
    view = JobView()
    done = {"dirname": "kept/000001-step-9", "seconds": 0.5, "error": "", "paused_s": 0.0}
    facts = {
        ("worker", 0): {**worker(0.0), "periodic_checkpoint": {**done, "consistent": True}}
    }
    view.observe(Snapshot(facts=facts), now=0.0)

    assert [event["kind"] for event in view.events()] == ["checkpoint.written"]
    assert view.checkpoint == {}
    assert view.periodic_checkpoint["dirname"] == "kept/000001-step-9"


@pytest.mark.parametrize(
    ("told", "kind", "words"),
    [
        ({"rows": {"b": 0, "a": 7}}, "shrink.done", "rows went: 7 of a, 0 of b"),
        ({"rows": {}, "dry_run": True}, "shrink.done", "rows would go: none"),
        ({"error": "no table 'x'"}, "shrink.failed", "rows were not removed: no table 'x'"),
    ],
)
def test_rows_that_went_by_command_are_told(told: Any, kind: str, words: str) -> None:
    view = JobView()
    facts = {("worker", 0): {**worker(0.0), "shrink": {"number": 1, **told}}}
    for _ in range(2):
        view.observe(Snapshot(facts=facts), now=0.0)

    (event,) = view.events()
    assert (event["kind"], event["words"]) == (kind, words)
    assert view.shrink["number"] == 1


def test_a_load_is_told_when_it_has_ended() -> None:
    view = JobView()
    told = {"number": 1, "dirname": "/kept/one", "error": "", "state": "waiting"}

    def observe(**more: object) -> None:
        facts = {("worker", 0): {**worker(0.0), "load": {**told, **more}}}
        view.observe(Snapshot(facts=facts), now=0.0)

    observe()
    assert view.load == told
    assert view.events() == []

    observe(state="loaded", seconds=0.5, step=7)
    observe(state="loaded", seconds=0.5, step=7)
    observe(number=2, state="failed", error="no manifest")

    assert [event["kind"] for event in view.events()] == ["load.ended", "load.failed"]
    words = [event["words"] for event in view.events()]
    assert words[0] == "the checkpoint /kept/one is loaded, in 0.5 s: step 7"
    assert "was not loaded: no manifest" in words[1]
    assert view.load["number"] == 2


def test_a_disk_that_takes_no_change_is_told_once_and_its_end_too() -> None:
    view = JobView()
    for second, fault in enumerate([None, "no space", "no space", None, None]):
        facts = {**server(float(second)), "log": {"fault": fault}}
        seen = replace(snapshot(float(second)), facts={("pserver", 0): facts})
        view.observe(seen, now=float(second))

    told = [each for each in view.events() if each["kind"].startswith("server.disk")]
    assert [(each["kind"], each["at_s"]) for each in told] == [
        ("server.disk_refuses", 1.0),
        ("server.disk_takes", 3.0),
    ]
    assert "server 0" in told[0]["words"]
    assert told[0]["words"].endswith("no space")


def test_a_server_that_has_not_moved_on_makes_no_sample() -> None:
    view = watched(2)
    count = len(view.history()["servers"]["0"])
    view.observe(snapshot(1.0), now=2.0)
    view.observe(Snapshot(facts={("pserver", 0): {"state": "loading"}}), now=3.0)

    assert len(view.history()["servers"]["0"]) == count


def test_in_sync_a_servers_pulls_wait_and_do_not_count() -> None:
    view = JobView()
    for second in range(3):
        facts = {**server(float(second)), "mode": "sync"}
        facts["service"] = {
            "pull": [10 * second, 9.0 * second],
            "push": [5 * second, 0.005 * second],
        }
        view.observe(Snapshot(facts={("pserver", 0): facts}), now=float(second))

    assert view.latest_of_server(0)["request_ms"] == 1.0


def test_a_worker_that_waits_for_data_is_told_with_the_file_that_it_waits_for() -> None:
    view = JobView()
    days = {"state": "waiting for data", "waits_for": "/data/20260102/0010/done"}
    for second in range(4):
        said = worker(0.0)
        said["times"] |= {"at": 50 + second, "phase": "wait"}
        said["times"]["seconds"] |= {"wait": float(second)}
        facts = {("worker", 0): said | {"by_days": days}, ("worker", 1): said | {"by_days": 7}}
        members = {key: member(*key) for key in facts}
        view.observe(Snapshot(members=members, facts=facts), now=float(second))

    assert view.lag_reason(0) == "waits for data: /data/20260102/0010/done"
    assert view.lag_reason(1) == "waits for data", "it says nothing that can be read"


def test_a_step_that_a_guard_found_out_of_range_is_an_event() -> None:
    view = JobView()
    for second, outside in enumerate([0, 1, 1, 4, None]):
        said = worker(float(second))
        guard = {"outside": outside, "skipped": outside, "last": f"step {outside} skipped: why"}
        facts = {("worker", 0): said, ("worker", 1): said | {"guard": guard}}
        shown = replace(snapshot(float(second)), facts=facts)
        view.observe(shown, now=float(second))

    told = [event["words"] for event in view.events() if event["kind"] == "worker.outside"]
    assert told == [
        "worker 1: step 1 skipped: why",
        "worker 1: step 4 skipped: why; and 2 more steps",
    ]


def test_the_growth_of_the_largest_tables_is_kept_over_all_servers() -> None:
    view = JobView()
    for second in range(3):
        tables = [{"name": f"t{n}", "rows": 10 * n + second, "bytes": 1} for n in range(12)]
        facts = {("pserver", i): server(float(second)) | {"tables": tables} for i in (0, 1)}
        view.observe(Snapshot(members={}, facts=facts), now=float(second))

    samples = view.history()["tables"]
    assert [sample["at_s"] for sample in samples] == [0, 1, 2]
    assert list(samples[-1]["rows"]) == [f"t{n}" for n in range(11, 3, -1)]
    assert samples[-1]["rows"]["t11"] == 2 * 112
    frames = view.frames(after=0)
    assert frames is not None
    assert frames[-1]["tables"] == samples[-1]


@pytest.mark.parametrize("said", [{}, {"snapshot_bytes": "many"}, {"commands": -1}, {"x": 1}])
def test_what_a_pserver_says_of_a_restore_is_taken_as_counts(said: dict[str, Any]) -> None:
    names = ("snapshot_bytes", "of_snapshot_bytes", "commands", "of_commands")
    assert restoring_of({"restoring": said}) == dict.fromkeys(names, 0)
    assert restoring_of({"restoring": "soon"}) is None

"""What a launcher decides, in every phase and after every event."""

import itertools
import signal
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramfleet_worker.core.events import (
    Action,
    Consult,
    Dismiss,
    Event,
    Excuse,
    Exited,
    FailureRecord,
    Finish,
    Interrupted,
    Lose,
    MembersLeft,
    ProcessName,
    RecordRead,
    Report,
    Restart,
    Review,
    Reviewed,
    Signal,
    Start,
    Tick,
    Wanted,
    WatchMembers,
    describe_exit,
)
from paramfleet_worker.core.supervisor import Phase, Supervisor

REDIS = ProcessName("redis", 0)
COORDINATOR = ProcessName("coordinator", 0)
SERVER = ProcessName("pserver", 0)
ADA, BOB = ProcessName("worker", 0), ProcessName("worker", 1)
CAL = ProcessName("worker", 2)  # on another machine
ALL = (REDIS, COORDINATOR, SERVER, ADA, BOB)
MEMBERS = (COORDINATOR, SERVER, ADA, BOB)


def launched(*, alone: bool = True, registry: ProcessName | None = REDIS) -> Supervisor:
    names = ALL if registry is not None else MEMBERS
    return Supervisor(names, registry=registry, alone=alone, groups=4)


def all_end(supervisor: Supervisor, names: Iterable[ProcessName], code: int) -> list[Action]:
    """Return what to do after the last of them ended."""
    actions: list[Action] = []
    for name in names:
        actions = supervisor.handle(Exited(name, code), 10.2)
    return actions


def elastic() -> Supervisor:
    return Supervisor(ALL, registry=REDIS, alone=True, elastic=True)


def test_an_elastic_job_goes_on_without_a_worker_and_ends_with_zero() -> None:
    supervisor = elastic()

    lost = supervisor.handle(Exited(BOB, -9), 1.0)
    end = all_end(supervisor, (ADA, SERVER, COORDINATOR, REDIS), 0)

    assert lost == [Lose(BOB, "was killed by SIGKILL")]
    assert end == [Finish(0)]


@pytest.mark.parametrize("registry", [REDIS, None])
def test_a_registry_that_stopped_answering_is_blamed_and_not_who_gave_up_because_of_it(
    registry: ProcessName | None,
) -> None:
    supervisor = launched(registry=registry)
    supervisor.handle(Exited(ADA, 1), 10.0)

    told = supervisor.handle(RecordRead(None, 61.0), 10.1) or supervisor.handle(Tick(), 10.5)

    how = "(hasn't answered for 61 s; worker 0 exited with code 1)"
    assert told[0] == Report(REDIS, how, local=registry is not None)
    assert all_end(supervisor, ALL if registry else MEMBERS, -15) == [Finish(1)]


def test_a_process_that_was_killed_is_blamed_though_the_registry_does_not_answer() -> None:
    supervisor = launched()
    supervisor.handle(Exited(ADA, -9), 10.0)

    told = supervisor.handle(RecordRead(None, 61.0), 10.1)

    assert told[0] == Report(ADA, "was killed by SIGKILL", local=True)


def test_an_elastic_job_whose_last_worker_dies_after_another_ended_well_ends_well() -> None:
    supervisor = elastic()

    supervisor.handle(Exited(ADA, 0), 1.0)
    lost = supervisor.handle(Exited(BOB, 3), 2.0)

    assert lost == [Lose(BOB, "exited with code 3")]
    assert supervisor.phase is Phase.SETTLING
    assert supervisor.handle(Tick(), 60.0) == [], "the coordinator still waits for it"


def test_an_elastic_job_that_has_lost_every_worker_has_failed() -> None:
    supervisor = elastic()

    supervisor.handle(Exited(BOB, -9), 1.0)

    assert supervisor.handle(Exited(ADA, 7), 2.0) == [Consult(ADA, "exited with code 7")]


def test_an_elastic_job_does_without_a_worker_only_after_its_restarts() -> None:
    supervisor = Supervisor(
        ALL, registry=REDIS, alone=True, elastic=True, restarts=1, restarted={"worker"}
    )

    assert supervisor.handle(Exited(BOB, -9), 1.0) == [Review(BOB)]
    supervisor.handle(Reviewed(BOB, None, finished=False), 1.0)
    assert supervisor.handle(Tick(), 1.1) == [Restart(BOB, "was killed by SIGKILL", 1, 1)]
    supervisor.handle(Exited(BOB, 3), 2.0)
    lost = supervisor.handle(Reviewed(BOB, None, finished=False), 2.0)
    assert lost == [Lose(BOB, "exited with code 3")]

    supervisor.handle(Exited(ADA, 3), 3.0)
    assert supervisor.handle(Reviewed(ADA, None, finished=False), 3.0) == []
    assert supervisor.handle(Tick(), 3.1) == [Restart(ADA, "exited with code 3", 1, 1)]
    supervisor.handle(Exited(ADA, 3), 4.0)
    ended = supervisor.handle(Reviewed(ADA, None, finished=False), 4.0)
    assert ended == [Consult(ADA, "exited with code 3")]


def test_a_first_death_after_an_elastic_job_has_finished_fails_nothing() -> None:
    supervisor = Supervisor(
        ALL, registry=REDIS, alone=True, elastic=True, restarts=1, restarted={"worker"}
    )
    supervisor.handle(Exited(ADA, 0), 1.0)
    supervisor.handle(Exited(BOB, -9), 1.0)

    lost = supervisor.handle(Reviewed(BOB, None, finished=True), 1.1)

    assert lost == [Lose(BOB, "was killed by SIGKILL")]


@pytest.mark.parametrize("name", [SERVER, COORDINATOR])
def test_an_elastic_job_needs_all_but_its_workers(name: ProcessName) -> None:
    assert elastic().handle(Exited(name, 1), 1.0) == [Consult(name, "exited with code 1")]


def test_a_job_whose_processes_all_end_well_ends_with_zero() -> None:
    supervisor = launched()

    for name in (ADA, BOB, SERVER):
        assert supervisor.handle(Exited(name, 0), 1.0) == []
    last = supervisor.handle(Exited(COORDINATOR, 0), 2.0)
    end = supervisor.handle(Exited(REDIS, 0), 2.1)

    assert last == [Signal((REDIS,), signal.SIGTERM)]
    assert end == [Finish(0)]


def test_a_worker_that_ends_early_and_well_leaves_the_others_alone() -> None:
    supervisor = launched()

    assert supervisor.handle(Exited(BOB, 0), 1.0) == []
    assert supervisor.handle(Tick(), 500.0) == []
    assert supervisor.phase is Phase.RUNNING


@pytest.mark.parametrize(
    ("code", "how", "exit_code"),
    [(7, "exited with code 7", 7), (-9, "was killed by SIGKILL", 137)],
)
def test_the_first_death_is_reported_and_stops_the_others(
    code: int, how: str, exit_code: int
) -> None:
    supervisor = launched()

    asked = supervisor.handle(Exited(BOB, code), 10.0)
    told = supervisor.handle(RecordRead(None), 10.01)

    assert asked == [Consult(BOB, how)]
    assert told == [
        Report(BOB, how, local=True),
        Signal((COORDINATOR, SERVER, ADA), signal.SIGTERM),
    ]
    last = all_end(supervisor, (ADA, SERVER, COORDINATOR), -15)
    assert last == [Signal((REDIS,), signal.SIGTERM)]
    assert supervisor.handle(Exited(REDIS, 0), 10.2) == [Finish(exit_code)]


def test_whoever_ignores_sigterm_is_killed_two_seconds_after_the_death() -> None:
    supervisor = launched()
    supervisor.handle(Exited(BOB, 1), 10.0)
    supervisor.handle(RecordRead(None), 10.4)
    supervisor.handle(Exited(COORDINATOR, -15), 10.5)

    assert supervisor.next_tick() == 12.0
    assert supervisor.handle(Tick(), 11.99) == []
    assert supervisor.handle(Tick(), 12.0) == [Signal((SERVER, ADA), signal.SIGKILL)]


def test_a_redis_that_ignores_sigterm_is_killed_within_three_seconds_too() -> None:
    supervisor = launched()
    supervisor.handle(Interrupted(signal.SIGTERM), 10.0)
    for name in MEMBERS:
        supervisor.handle(Exited(name, -15), 10.1)

    assert supervisor.next_tick() == 12.6
    assert supervisor.handle(Tick(), 12.6) == [Signal((REDIS,), signal.SIGKILL)]
    assert supervisor.next_tick() is None
    assert supervisor.handle(Exited(REDIS, -9), 12.7) == [Finish(143)]


def test_the_cause_is_the_member_that_the_job_record_names() -> None:
    supervisor = launched(alone=False, registry=None)

    supervisor.handle(Exited(ADA, 1), 10.0)
    told = supervisor.handle(RecordRead(FailureRecord(CAL, "its lease expired")), 10.1)

    assert told[0] == Report(CAL, "(its lease expired)", local=False)
    assert all_end(supervisor, (BOB, SERVER, COORDINATOR), -15) == [Finish(1)]


def test_a_named_process_of_our_own_gets_half_a_second_for_its_last_words() -> None:
    supervisor = launched()
    supervisor.handle(Exited(ADA, 1), 10.0)

    assert supervisor.handle(RecordRead(FailureRecord(BOB, "ValueError")), 10.1) == []
    told = supervisor.handle(Exited(BOB, 3), 10.2)

    assert told[0] == Report(BOB, "exited with code 3", local=True, reason="ValueError")


def test_a_named_process_that_hangs_is_reported_with_the_reason_of_the_record() -> None:
    supervisor = launched()
    supervisor.handle(Exited(ADA, 1), 10.0)
    supervisor.handle(RecordRead(FailureRecord(BOB, "its lease expired")), 10.1)

    told = supervisor.handle(Tick(), 10.5)

    assert told[0] == Report(BOB, "(its lease expired)", local=True)
    assert Signal((COORDINATOR, SERVER, BOB), signal.SIGTERM) in told


@pytest.mark.parametrize(
    ("said", "reason"),
    [("GradientError: nan", "GradientError: nan"), ("exited with code 1", "")],
)
def test_the_record_says_why_the_first_one_exited(said: str, reason: str) -> None:
    supervisor = launched()
    supervisor.handle(Exited(BOB, 1), 10.0)

    told = supervisor.handle(RecordRead(FailureRecord(BOB, said)), 10.1)

    assert told[0] == Report(BOB, "exited with code 1", local=True, reason=reason)


def test_a_record_that_names_a_process_that_was_killed_adds_nothing() -> None:
    supervisor = launched()
    supervisor.handle(Exited(BOB, -9), 10.0)

    told = supervisor.handle(RecordRead(FailureRecord(BOB, "its lease expired")), 10.1)

    assert told[0] == Report(BOB, "was killed by SIGKILL", local=True)


def test_a_registry_that_does_not_answer_holds_nobody_up() -> None:
    supervisor = launched()
    supervisor.handle(Exited(BOB, 7), 10.0)

    assert supervisor.next_tick() == 10.5
    assert supervisor.handle(Tick(), 10.4) == []
    assert supervisor.handle(Tick(), 10.5)[0] == Report(BOB, "exited with code 7", local=True)
    assert supervisor.handle(RecordRead(FailureRecord(CAL, "too late")), 10.6) == []


def test_our_redis_must_not_end_before_the_job_even_with_zero() -> None:
    supervisor = launched()

    told = supervisor.handle(Exited(REDIS, 0), 10.0)

    assert told == [
        Report(REDIS, "exited with code 0", local=True),
        Signal((COORDINATOR, SERVER, ADA, BOB), signal.SIGTERM),
    ]
    assert all_end(supervisor, MEMBERS, -15) == [Finish(1)]


def test_servers_that_outstay_the_last_worker_are_a_failure() -> None:
    supervisor = launched()
    for name in (ADA, BOB):
        supervisor.handle(Exited(name, 0), 10.0)

    assert supervisor.next_tick() == 40.0
    assert supervisor.handle(Tick(), 39.0) == []
    told = supervisor.handle(Tick(), 40.0)

    assert told[0] == Report(
        SERVER,
        "was still running 30 s after the last worker ended: does the script call "
        "fleet.init(), in pservers run_server(), and in workers init_worker() and "
        "stop_worker()?",
        local=True,
    )
    assert told[1] == Signal((COORDINATOR, SERVER), signal.SIGTERM)


def test_servers_of_a_larger_job_stay_for_the_workers_of_other_machines() -> None:
    supervisor = launched(alone=False)
    for name in (ADA, BOB):
        supervisor.handle(Exited(name, 0), 10.0)

    assert supervisor.next_tick() is None
    assert supervisor.handle(Tick(), 500.0) == []


def test_our_redis_stays_until_the_members_of_other_machines_have_left() -> None:
    supervisor = launched(alone=False)
    for name in (ADA, BOB, SERVER):
        supervisor.handle(Exited(name, 0), 10.0)

    assert supervisor.handle(Exited(COORDINATOR, 0), 11.0) == [WatchMembers()]
    assert supervisor.handle(Tick(), 20.0) == []
    assert supervisor.handle(MembersLeft(), 21.0) == [Signal((REDIS,), signal.SIGTERM)]
    assert supervisor.handle(Exited(REDIS, 0), 21.1) == [Finish(0)]


def test_our_redis_does_not_wait_for_ever() -> None:
    supervisor = launched(alone=False)
    for name in MEMBERS:
        supervisor.handle(Exited(name, 0), 10.0)

    assert supervisor.next_tick() == 40.0
    assert supervisor.handle(Tick(), 40.0) == [Signal((REDIS,), signal.SIGTERM)]


def test_after_a_failure_our_redis_stays_two_seconds_for_other_machines_to_read_why() -> None:
    supervisor = launched(alone=False)
    supervisor.handle(Exited(BOB, 1), 10.0)
    supervisor.handle(RecordRead(None), 10.1)
    for name in (ADA, SERVER, COORDINATOR):
        assert supervisor.handle(Exited(name, -15), 10.2) == []

    assert supervisor.next_tick() == 12.0
    assert supervisor.handle(Tick(), 12.0) == [Signal((REDIS,), signal.SIGTERM)]


def test_ctrl_c_stops_everyone_and_a_second_one_at_once() -> None:
    supervisor = launched()

    first = supervisor.handle(Interrupted(signal.SIGINT), 10.0)
    second = supervisor.handle(Interrupted(signal.SIGINT), 10.1)

    assert first == [Signal((COORDINATOR, SERVER, ADA, BOB), signal.SIGTERM)]
    assert second == [Signal((COORDINATOR, SERVER, REDIS, ADA, BOB), signal.SIGKILL)]
    assert all_end(supervisor, ALL, -9) == [Finish(130)]


def test_ctrl_c_on_one_of_several_machines_tells_the_job() -> None:
    supervisor = launched(alone=False, registry=None)

    told = supervisor.handle(Interrupted(signal.SIGINT), 10.0)
    stopped = supervisor.handle(RecordRead(None), 10.1)

    assert told == [Consult(ADA, "its launcher was stopped by SIGINT")]
    assert stopped == [Signal(MEMBERS, signal.SIGTERM)]
    assert all_end(supervisor, MEMBERS, -15) == [Finish(130)]


@pytest.mark.parametrize(
    "event", [Interrupted(signal.SIGINT), RecordRead(FailureRecord(BOB, "lost")), Tick()]
)
def test_telling_the_job_of_ctrl_c_takes_half_a_second_at_most(event: Event) -> None:
    supervisor = launched(alone=False, registry=None)
    supervisor.handle(Interrupted(signal.SIGINT), 10.0)

    assert supervisor.next_tick() == 10.5
    assert supervisor.handle(event, 10.5) == [Signal(MEMBERS, signal.SIGTERM)]


def test_ctrl_c_while_the_cause_is_sought_reports_what_is_known() -> None:
    supervisor = launched()
    supervisor.handle(Exited(BOB, 7), 10.0)

    told = supervisor.handle(Interrupted(signal.SIGINT), 10.1)

    assert told[0] == Report(BOB, "exited with code 7", local=True)


def test_a_signal_without_a_name_is_described_by_its_number() -> None:
    assert describe_exit(-64) == "was killed by SIGRTMAX"
    assert describe_exit(-50) == "was killed by signal 50"


KILLED = "was killed by SIGKILL"


def kept(
    *, alone: bool = True, names: Iterable[ProcessName] = ALL, restarts: int = 3
) -> Supervisor:
    """Return the supervisor of a job whose pservers have their training on a disk."""
    return Supervisor(names, registry=REDIS, alone=alone, restarts=restarts)


def die(supervisor: Supervisor, name: ProcessName, at: float) -> list[Action]:
    """Return what follows when a process was killed and the job goes on."""
    if name == REDIS:
        return supervisor.handle(Exited(name, -9), at)
    assert supervisor.handle(Exited(name, -9), at) == [Review(name)]
    return supervisor.handle(Reviewed(name), at)


@pytest.mark.parametrize("name", [SERVER, COORDINATOR, REDIS])
def test_what_dies_at_once_is_started_again_with_more_and_more_delay(name: ProcessName) -> None:
    supervisor, at = kept(restarts=7), 10.0
    delays_s = []

    for number in range(1, 8):
        assert die(supervisor, name, at) == []
        assert name not in supervisor.alive
        due = supervisor.next_tick()
        assert due is not None
        assert supervisor.handle(Tick(), due - 0.01) == []
        assert supervisor.handle(Tick(), due) == [Restart(name, KILLED, number, 7)]
        assert name in supervisor.alive
        assert supervisor.phase is Phase.RUNNING
        delays_s.append(round(due - at, 3))
        at = due + 0.05

    assert delays_s == [0.1, 0.15, 0.35, 0.75, 1.55, 1.95, 1.95]
    assert supervisor.next_tick() is None


def test_what_has_lived_for_seconds_is_started_again_at_once() -> None:
    supervisor, at = kept(restarts=7), 10.0

    for _ in range(7):
        die(supervisor, SERVER, at)
        due = supervisor.next_tick()
        assert due is not None
        assert due == pytest.approx(at + 0.1)
        supervisor.handle(Tick(), due)
        at = due + 2.0


def restarted_coordinator(*, alone: bool = True) -> Supervisor:
    """Return the supervisor of a job whose coordinator was started again at 10.1."""
    supervisor = kept(alone=alone)
    die(supervisor, COORDINATOR, 10.0)
    supervisor.handle(Tick(), 10.1)
    return supervisor


@pytest.mark.parametrize("is_late", [False, True])
def test_a_job_whose_coordinator_may_have_forgotten_its_end_ends_well(is_late: bool) -> None:
    supervisor = kept() if is_late else restarted_coordinator()
    all_end(supervisor, [ADA, BOB], 0)
    assert supervisor.phase is Phase.SETTLING
    if is_late:  # it had decided that the job has finished, and was killed then
        die(supervisor, COORDINATOR, 10.4)
        supervisor.handle(Tick(), 10.5)
    assert supervisor.next_tick() == pytest.approx(10.2 + 15.0)

    actions = supervisor.handle(Tick(), 25.2)

    assert actions[0] == Dismiss((SERVER, COORDINATOR))
    assert Signal((COORDINATOR, SERVER), signal.SIGTERM) in actions
    supervisor.handle(Exited(SERVER, -15), 25.3)
    supervisor.handle(Exited(COORDINATOR, -15), 25.3)
    assert supervisor.handle(Exited(REDIS, 0), 25.4) == [Finish(0)]


def test_a_coordinator_that_was_started_again_waits_for_nobody_in_vain() -> None:
    supervisor = restarted_coordinator()

    all_end(supervisor, [ADA, BOB, SERVER], 0)

    assert supervisor.next_tick() == pytest.approx(10.2 + 2.0)
    assert supervisor.handle(Tick(), 12.3)[0] == Dismiss((COORDINATOR,))


def test_what_dies_too_often_in_a_row_ends_the_job_by_name() -> None:
    supervisor = kept(restarts=1)
    die(supervisor, SERVER, 10.0)
    supervisor.handle(Tick(), 10.1)

    asked = die(supervisor, SERVER, 30.0)
    told = supervisor.handle(RecordRead(None), 30.1)

    assert asked == [Consult(SERVER, KILLED)]
    assert told[0] == Report(SERVER, KILLED, local=True)


def test_a_registry_that_dies_too_often_ends_the_job_at_once() -> None:
    supervisor = kept(restarts=1)
    die(supervisor, REDIS, 10.0)
    supervisor.handle(Tick(), 10.1)

    assert die(supervisor, REDIS, 11.0)[0] == Report(REDIS, KILLED, local=True)


def test_a_process_that_was_killed_after_twenty_seconds_begins_a_new_count() -> None:
    supervisor = kept(restarts=1)
    for at in (10.0, 30.2):
        die(supervisor, SERVER, at)
        assert supervisor.handle(Tick(), at + 0.1) == [Restart(SERVER, KILLED, 1, 1)]


def test_a_process_that_ends_by_the_same_error_again_ends_the_job() -> None:
    supervisor = kept(restarts=1)
    for at in (10.0, 611.0):
        assert supervisor.handle(Exited(SERVER, 1), at) == [Review(SERVER)]
        assert supervisor.handle(Reviewed(SERVER), at) == []
        assert supervisor.handle(Tick(), at + 0.1) == [
            Restart(SERVER, "exited with code 1", 1, 1)
        ]

    assert supervisor.handle(Exited(SERVER, 1), 1000.0) == [Review(SERVER)]
    assert supervisor.handle(Reviewed(SERVER), 1000.0) == [
        Consult(SERVER, "exited with code 1")
    ]


@pytest.mark.parametrize("name", [SERVER, COORDINATOR])
def test_what_ends_because_the_job_failed_is_not_started_again(name: ProcessName) -> None:
    supervisor = kept(alone=False)

    supervisor.handle(Exited(name, 1), 10.0)
    asked = supervisor.handle(Reviewed(name, FailureRecord(CAL, "lost")), 10.1)
    told = supervisor.handle(RecordRead(FailureRecord(CAL, "lost")), 10.2)

    assert asked == [Consult(name, "exited with code 1")]
    assert told[0] == Report(CAL, "(lost)", local=False)


def test_what_dies_when_the_job_has_finished_is_no_failure() -> None:
    supervisor = kept()
    all_end(supervisor, (ADA, BOB), 0)

    assert supervisor.handle(Exited(SERVER, -9), 10.3) == [Review(SERVER)]
    assert supervisor.handle(Reviewed(SERVER, finished=True), 10.4) == []
    assert supervisor.handle(Exited(COORDINATOR, 1), 10.5) == [Review(COORDINATOR)]
    end = supervisor.handle(Reviewed(COORDINATOR, finished=True), 10.6)

    assert end == [Signal((REDIS,), signal.SIGTERM)]
    assert supervisor.handle(Exited(REDIS, 0), 10.7) == [Finish(0)]


def test_a_coordinator_that_dies_before_it_has_ended_the_job_comes_back_for_that() -> None:
    supervisor = kept()
    all_end(supervisor, (ADA, BOB), 0)

    die(supervisor, COORDINATOR, 11.0)

    assert supervisor.next_tick() == 11.1
    assert supervisor.handle(Tick(), 11.1) == [Restart(COORDINATOR, KILLED, 1, 3)]
    assert supervisor.next_tick() == 25.2, "all must have ended by then"


def test_a_machine_whose_only_process_waits_for_its_restart_goes_on() -> None:
    supervisor = Supervisor([SERVER, ADA], registry=None, alone=False, restarts=3)
    supervisor.handle(Exited(SERVER, -9), 10.0)

    assert supervisor.handle(Exited(ADA, 0), 10.0) == []
    assert supervisor.phase is Phase.RUNNING
    supervisor.handle(Reviewed(SERVER), 10.1)

    assert supervisor.handle(Tick(), 10.3) == [Restart(SERVER, KILLED, 1, 3)]


def with_workers(names: Iterable[ProcessName] = ALL, restarts: int = 3) -> Supervisor:
    return Supervisor(
        names,
        registry=REDIS if REDIS in names else None,
        alone=True,
        restarts=restarts,
        restarted=frozenset({"worker"}),
    )


def test_a_worker_that_died_is_started_again_where_workers_return() -> None:
    supervisor = with_workers()

    assert die(supervisor, ADA, 10.0) == []
    assert supervisor.handle(Exited(BOB, 0), 10.05) == []
    assert supervisor.phase is Phase.RUNNING, "it isn't over before the other has come back"
    assert supervisor.handle(Tick(), 10.1) == [Restart(ADA, KILLED, 1, 3)]
    supervisor.handle(Exited(ADA, 0), 11.0)
    assert supervisor.phase.name == "SETTLING"


def test_a_worker_that_dies_too_often_in_a_row_ends_the_job_with_its_log() -> None:
    supervisor = with_workers(restarts=1)
    die(supervisor, ADA, 10.0)
    supervisor.handle(Tick(), 10.1)

    asked = die(supervisor, ADA, 12.0)
    told = supervisor.handle(RecordRead(None), 12.1)

    assert asked == [Consult(ADA, KILLED)]
    assert told[0] == Report(ADA, KILLED, local=True)


def test_only_the_roles_that_are_named_are_started_again() -> None:
    supervisor = with_workers()

    assert supervisor.handle(Exited(SERVER, -9), 10.0) == [Consult(SERVER, KILLED)]


def test_nothing_is_started_again_once_the_job_ends() -> None:
    supervisor = kept()
    die(supervisor, SERVER, 10.0)

    stop = supervisor.handle(Interrupted(signal.SIGINT), 10.05)

    assert stop == [Signal((COORDINATOR, ADA, BOB), signal.SIGTERM)]
    assert supervisor.handle(Tick(), 10.2) == []
    assert supervisor.handle(Reviewed(SERVER), 10.2) == []


def test_an_answer_that_comes_when_the_job_ends_changes_nothing() -> None:
    supervisor = kept()
    supervisor.handle(Exited(SERVER, -9), 10.0)
    supervisor.handle(Exited(ADA, 1), 10.1)

    assert supervisor.handle(Reviewed(SERVER), 10.2) == []
    assert supervisor.phase is Phase.BLAMING


def test_an_interrupt_while_the_only_process_is_down_ends_the_launch() -> None:
    supervisor = Supervisor([SERVER], registry=None, alone=False, restarts=3)
    supervisor.handle(Exited(SERVER, -9), 10.0)

    supervisor.handle(Interrupted(signal.SIGTERM), 10.1)

    assert supervisor.handle(RecordRead(None), 10.2) == [Finish(143)]


@pytest.mark.parametrize("name", [ADA, ProcessName("pserver", 0)])
def test_workers_and_jobs_without_restarts_fail_as_ever(name: ProcessName) -> None:
    supervisor = kept(restarts=0 if name == SERVER else 3)

    assert supervisor.handle(Exited(name, 3), 10.0) == [Consult(name, "exited with code 3")]


def test_a_pserver_that_ends_well_is_not_started_again() -> None:
    assert kept().handle(Exited(SERVER, 0), 10.0) == []


def in_running(supervisor: Supervisor) -> None:
    assert supervisor.phase is Phase.RUNNING


def in_settling(supervisor: Supervisor) -> None:
    for name in (ADA, BOB):
        supervisor.handle(Exited(name, 0), 0.0)


def in_parting(supervisor: Supervisor) -> None:
    for name in MEMBERS:
        supervisor.handle(Exited(name, 0), 0.0)


def in_blaming(supervisor: Supervisor) -> None:
    supervisor.handle(Exited(BOB, 1), 0.0)


def in_ending(supervisor: Supervisor) -> None:
    supervisor.handle(Interrupted(signal.SIGTERM), 0.0)


def in_ended(supervisor: Supervisor) -> None:
    in_ending(supervisor)
    for name in ALL:
        supervisor.handle(Exited(name, -15), 0.0)


EVENTS: tuple[Event, ...] = (
    Exited(SERVER, 0),
    Exited(SERVER, 1),
    Exited(REDIS, 0),
    RecordRead(None),
    RecordRead(FailureRecord(CAL, "lost")),
    MembersLeft(),
    Interrupted(signal.SIGINT),
    Tick(),
)

AFTER: dict[tuple[Callable[[Supervisor], None], bool], tuple[Phase, list[Phase]]] = {
    # (how to get there, alone): where it is, and the phase after each of EVENTS
    (in_running, True): (
        Phase.RUNNING,
        [
            Phase.RUNNING, Phase.BLAMING, Phase.ENDING, Phase.RUNNING, Phase.RUNNING,
            Phase.RUNNING, Phase.ENDING, Phase.RUNNING,
        ],
    ),
    (in_settling, True): (
        Phase.SETTLING,
        [
            Phase.SETTLING, Phase.BLAMING, Phase.ENDING, Phase.SETTLING, Phase.SETTLING,
            Phase.SETTLING, Phase.ENDING, Phase.ENDING,
        ],
    ),
    (in_parting, False): (
        Phase.PARTING,
        [
            Phase.PARTING, Phase.BLAMING, Phase.ENDED, Phase.PARTING, Phase.PARTING,
            Phase.ENDING, Phase.BLAMING, Phase.ENDING,
        ],
    ),
    (in_blaming, True): (
        Phase.BLAMING,
        [
            Phase.BLAMING, Phase.BLAMING, Phase.BLAMING, Phase.ENDING, Phase.ENDING,
            Phase.BLAMING, Phase.ENDING, Phase.ENDING,
        ],
    ),
    (in_ending, True): (Phase.ENDING, [Phase.ENDING] * 8),
    (in_ended, True): (Phase.ENDED, [Phase.ENDED] * 8),
}  # fmt: skip


@pytest.mark.parametrize(
    ("reach", "alone", "number"),
    [(reach, alone, n) for (reach, alone), n in itertools.product(AFTER, range(len(EVENTS)))],
)
def test_every_event_in_every_phase_leads_where_the_table_says(
    reach: Callable[[Supervisor], None], alone: bool, number: int
) -> None:
    start, after = AFTER[reach, alone]
    supervisor = launched(alone=alone)
    reach(supervisor)
    assert supervisor.phase is start
    event = EVENTS[number]
    due = supervisor.next_tick() or 0.0

    supervisor.handle(event, due if isinstance(event, Tick) else 0.0)

    assert supervisor.phase is after[number]


TROUBLE = (Phase.BLAMING, Phase.ENDING)

OCCURRENCES = st.one_of(
    st.just(RecordRead(None)),
    st.just(RecordRead(FailureRecord(BOB, "lost"))),
    st.just(RecordRead(FailureRecord(CAL, "lost"))),
    st.just(MembersLeft()),
    st.just(Interrupted(signal.SIGINT)),
    st.builds(Exited, st.sampled_from(ALL), st.sampled_from([0, 0, 1, -9])),
)


@given(events=st.lists(OCCURRENCES, max_size=12), alone=st.booleans(), own_redis=st.booleans())
def test_after_any_history_sigkill_reaches_everyone_within_three_seconds_of_the_trouble(
    events: list[Event], alone: bool, own_redis: bool
) -> None:
    supervisor = launched(alone=alone, registry=REDIS if own_redis else None)
    actions = []
    for event in events:
        if not isinstance(event, Exited) or event.name in supervisor.alive:
            actions += supervisor.handle(event, 0.0)

    while supervisor.phase in TROUBLE and (due := supervisor.next_tick()) is not None:
        assert due <= 2.6
        actions += supervisor.handle(Tick(), due)  # from here on only SIGKILL ends a process
    for name in sorted(supervisor.alive) if supervisor.phase in TROUBLE else ():
        assert any(
            isinstance(a, Signal) and a.signal == signal.SIGKILL and name in a.names
            for a in actions
        )
        actions += supervisor.handle(Exited(name, -9), 2.7)

    assert supervisor.phase not in TROUBLE
    finishes = [action for action in actions if isinstance(action, Finish)]
    assert len(finishes) == (supervisor.phase is Phase.ENDED)
    assert sum(isinstance(action, Report) for action in actions) <= 1


def test_pservers_that_are_wanted_and_absent_are_started() -> None:
    supervisor = launched()

    assert supervisor.handle(Wanted(3), 1.0) == [
        Start(ProcessName("pserver", 1)),
        Start(ProcessName("pserver", 2)),
    ]
    assert supervisor.handle(Wanted(3), 1.5) == []
    assert supervisor.handle(Exited(ProcessName("pserver", 2), 0), 2.0) == []
    assert supervisor.handle(Wanted(2), 2.5) == []
    assert supervisor.handle(Wanted(3), 3.0) == [Start(ProcessName("pserver", 2))]


def test_no_more_pservers_are_started_than_there_are_groups() -> None:
    supervisor = launched()

    started = supervisor.handle(Wanted(10**9), 1.0)

    assert started == [Start(ProcessName("pserver", index)) for index in (1, 2, 3)]


def test_a_pserver_that_is_being_restarted_is_not_started_twice() -> None:
    supervisor = Supervisor(ALL, registry=REDIS, alone=True, restarts=3, groups=4)
    assert supervisor.handle(Exited(SERVER, -9), 1.0) == [Review(SERVER)]

    assert supervisor.handle(Wanted(1), 1.0) == []


def test_nothing_is_started_once_the_job_ends() -> None:
    supervisor = launched()
    supervisor.handle(Interrupted(signal.SIGTERM), 1.0)

    assert supervisor.handle(Wanted(3), 1.1) == []


@pytest.mark.parametrize(
    ("code", "how"), [(1, "exited with code 1"), (-9, "was killed by SIGKILL")]
)
def test_a_script_that_fails_after_the_training_fails_the_launch(code: int, how: str) -> None:
    supervisor = with_workers()
    supervisor.handle(Exited(BOB, 0), 10.0)
    assert supervisor.handle(Exited(ADA, code), 10.2) == [Review(ADA)]

    asked = supervisor.handle(Reviewed(ADA, finished=True), 10.3)
    said = supervisor.handle(RecordRead(None), 10.4)

    assert asked == [Consult(ADA, how)]
    assert said[0] == Report(ADA, how, local=True)


@pytest.mark.parametrize(
    ("code", "how"), [(1, "exited with code 1"), (-9, "was killed by SIGKILL")]
)
def test_a_worker_that_was_started_again_too_late_for_the_job_fails_nothing(
    code: int, how: str
) -> None:
    supervisor = with_workers()
    die(supervisor, ADA, 10.0)
    assert supervisor.handle(Tick(), 10.5) == [Restart(ADA, "was killed by SIGKILL", 1, 3)]
    supervisor.handle(Exited(BOB, 0), 11.0)

    assert supervisor.handle(Exited(ADA, code), 11.2) == [Review(ADA)]
    assert supervisor.handle(Reviewed(ADA, finished=True), 11.3) == [Excuse(ADA, how)]
    end = all_end(supervisor, (SERVER, COORDINATOR), 0)

    assert end == [Signal((REDIS,), signal.SIGTERM)]

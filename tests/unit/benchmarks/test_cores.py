"""Which cores a process gets, and that it gets them."""

import os
import subprocess
import sys
import threading

import pytest

from cores import (
    USABLE,
    cores_of,
    cores_of_worker,
    pin_process,
    pinned,
    thread_on,
)
from paramfleet_shared.system.processes.keeping import tied

linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is pinned")

TELL = "import os; print(*sorted(os.sched_getaffinity(0)))"


@pytest.mark.parametrize(
    ("usable", "server", "client"),
    [
        ((), (), ()),
        ((3,), (3,), (3,)),
        ((0, 1), (0,), (1,)),
        ((2, 5, 7), (2,), (5, 7)),
        ((0, 1, 2, 3), (0, 1), (2, 3)),
    ],
)
def test_servers_and_clients_share_no_core_where_there_are_two(
    usable: tuple[int, ...], server: tuple[int, ...], client: tuple[int, ...]
) -> None:
    assert cores_of("server", usable) == server
    assert cores_of("client", usable) == client


def test_workers_have_a_core_each_in_turns() -> None:
    assert [cores_of_worker(index, (2, 5)) for index in range(3)] == [(2,), (5,), (2,)]
    assert cores_of_worker(0, ()) == ()


@linux
def test_a_command_runs_on_its_cores_from_the_start() -> None:
    last = USABLE[-1:]

    reported = subprocess.check_output(
        tied(pinned([sys.executable, "-c", TELL], last)), text=True
    )

    assert reported.split() == [str(last[0])]


def test_a_command_without_cores_is_as_it_was() -> None:
    assert pinned(["serve", "now"], ()) == ["serve", "now"]


@linux
def test_a_command_runs_even_where_there_are_no_such_cores() -> None:
    reported = subprocess.check_output(
        tied(pinned([sys.executable, "-c", TELL], (1_000_000,))), text=True
    )

    assert reported.split() == [str(core) for core in USABLE]


@linux
def test_a_command_that_is_not_there_says_so() -> None:
    ended = subprocess.run(
        tied(pinned(["no-such-command"], USABLE)), capture_output=True, text=True, check=False
    )

    assert ended.returncode == 1
    assert "can't run no-such-command" in ended.stderr


@linux
def test_all_threads_of_a_process_are_pinned() -> None:
    ended = threading.Event()
    cores: list[set[int]] = []
    begun = threading.Barrier(2)

    def stay() -> None:
        begun.wait()
        ended.wait()
        cores.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=stay)
    thread.start()
    begun.wait()
    try:
        pin_process(os.getpid(), USABLE[:1])
        cores.append(os.sched_getaffinity(0))
    finally:
        ended.set()
        thread.join()
        pin_process(os.getpid(), USABLE)

    assert cores == [set(USABLE[:1])] * 2
    assert os.sched_getaffinity(0) == set(USABLE)


@linux
def test_a_process_that_has_ended_is_left_alone() -> None:
    process = subprocess.Popen(tied([sys.executable, "-c", ""]))
    process.wait()

    pin_process(process.pid, USABLE)

    assert os.sched_getaffinity(0) == set(USABLE)


@linux
def test_a_thread_has_its_cores_again_afterwards() -> None:
    with thread_on(USABLE[-1:]):
        assert os.sched_getaffinity(0) == set(USABLE[-1:])

    assert os.sched_getaffinity(0) == set(USABLE)

"""Under the launcher, a process of any role is killed, or stopped, while the job trains."""

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import pytest

from paramfleet_shared.system.processes.keeping import tied
from paramfleet_shared.testing.patience import LATE_S

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.forked]

SCRIPT = Path(__file__).parent / "scripts" / "train_long.py"
WITHIN_S = 5 + LATE_S
END_WITHIN_S = 100.0
"""Where no time is promised: less than for ever."""


class Launched:
    """``paramfleet launch`` with all its output in one file."""

    def __init__(
        self, folder: Path, *args: str, options: Sequence[str] = (), script: Path = SCRIPT
    ) -> None:
        self.mark = f"--mark={uuid.uuid4().hex}"
        sizes = ["--server_num=1", "--worker_num=2"]
        command = [sys.executable, "-m", "paramfleet_worker", "launch", *sizes]
        self._path = folder / "launch.out"
        self._file: IO[bytes] = self._path.open("wb")
        self.process = subprocess.Popen(
            tied([*command, *options, str(script), *args, self.mark]),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=self._file,
            stderr=self._file,
            start_new_session=True,
        )
        self.all: set[int] = set()
        """Processes of the job, as they were found."""

    @property
    def text(self) -> str:
        return self._path.read_text(errors="replace")

    @property
    def said(self) -> list[str]:
        """Return the launcher's own lines."""
        return re.findall(r"^\[launcher\] (.*)$", self.text, re.MULTILINE)

    @property
    def failures(self) -> list[str]:
        return [line for line in self.said if line.startswith("the job failed")]

    def wait_for(self, *texts: str, times: int = 1) -> None:
        deadline = time.perf_counter() + 100
        while missing := [text for text in texts if self.text.count(text) < times]:
            assert self.process.poll() is None, self.text
            assert time.perf_counter() < deadline, f"{missing}:\n{self.text}"
            select.select([], [], [], 0.02)

    def find(self, role: str) -> int:
        """Note every process of the job; return the one of a role: ``worker 1``, ``redis``."""
        self.all = set(descendants(self.process.pid))
        name = {"coordinator 0": "paramfleet_coordinator", "redis 0": "redis-server"}.get(role)
        if name is None:
            (said,) = re.findall(rf"^\[{role}\] pid=(\d+)$", self.text, re.MULTILINE)
            return int(said)
        (found,) = [pid for pid in self.all if name in " ".join(words_of(pid, "cmdline"))]
        return found

    def end(self, within_s: float = WITHIN_S) -> int:
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"not within {within_s:g} s:\n{self.text}")

    def survivors(self) -> list[int]:
        """Return which processes are left: those found before, and any with our mark."""
        marked = [pid for pid in all_pids() if self.mark in words_of(pid, "cmdline")]
        return [*(pid for pid in self.all if not ends(pid, 1.0)), *marked]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(WITHIN_S)
        self._file.close()


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launched]]:
    started: list[Launched] = []

    def run(*args: str, **more: Any) -> Launched:
        started.append(Launched(tmp_path, *args, **more))
        return started[-1]

    yield run
    for each in started:
        each.close()


@pytest.mark.parametrize("mode", ["sync", "async", "geo"])
def test_the_last_line_says_which_error_ended_the_first_worker(
    launch: Callable[..., Launched], mode: str
) -> None:
    bad = SCRIPT.with_name("train_bad.py")
    launched = launch(f"--mode={mode}", "--nan=row", "--uncaught", script=bad)

    assert launched.end(END_WITHIN_S) == 1

    last = launched.said[-1]
    assert last.startswith("the job failed: worker 1 exited with code 1 (GradientError: "), last
    assert launched.failures[-1] == last


@pytest.mark.parametrize("mode", ["sync", "async", "geo"])
@pytest.mark.parametrize("role", ["coordinator 0", "pserver 0", "worker 1", "redis 0"])
def test_a_killed_process_is_named_first_and_nothing_is_left(
    launch: Any, role: str, mode: str
) -> None:
    launched = launch("--mode", mode)
    launched.wait_for("training as 0", "training as 1")
    victim = launched.find(role)
    assert len(launched.all) >= 5

    os.kill(victim, signal.SIGKILL)
    code = launched.end()

    assert code == 128 + signal.SIGKILL
    assert launched.failures[0].startswith(f"the job failed: {role} was killed by SIGKILL")
    assert launched.survivors() == []


@pytest.mark.forked(False)
def test_a_killed_worker_of_an_elastic_job_is_lost_without_a_wait(
    launch: Any, tmp_path: Path
) -> None:
    enough = tmp_path / "enough"
    args = ("--mode", "async", "--until", str(enough))
    launched = launch(*args, options=["--elastic"])
    launched.wait_for("training as 0", "training as 1")

    os.kill(launched.find("worker 1"), signal.SIGKILL)

    launched.wait_for("worker.lost index=1 incarnation=1 reason='was killed by SIGKILL'")
    enough.touch()
    assert launched.end(END_WITHIN_S) == 0, launched.text
    assert launched.survivors() == []


def test_workers_of_an_elastic_job_are_restarted_also_the_last_one(
    launch: Any, tmp_path: Path
) -> None:
    enough = tmp_path / "enough"
    options = ["--elastic", "--max_restarts=2"]
    args = ("--mode", "geo", "--until", str(enough))
    launched = launch(*args, options=options)
    launched.wait_for("training as 0", "training as 1")

    for victim in [launched.find(f"worker {rank}") for rank in (1, 0)]:
        os.kill(victim, signal.SIGKILL)
    launched.wait_for("training as 0", "training as 1", times=2)
    enough.touch()

    assert launched.end(END_WITHIN_S) == 0, launched.text
    for rank in (0, 1):
        again = f"worker {rank} was killed by SIGKILL; starting it again, 1 of 2"
        assert again in launched.said
        assert f"worker.lost index={rank} incarnation=1" in launched.text
    assert launched.survivors() == []


def test_a_script_that_raises_is_shown_with_its_last_lines(launch: Any) -> None:
    launched = launch("--raise_at", "6")

    code = launched.end(END_WITHIN_S)

    assert code == 1
    assert launched.failures[0].startswith("the job failed: worker 1 ")
    shown = launched.said[launched.said.index(launched.failures[0]) :]
    assert any("ZeroDivisionError: the script's own mistake" in line for line in shown)


LEASE_TTL_S = 3.0
"""A busy machine takes a heartbeat of half a second's period for a second and more."""


@pytest.fixture
def short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARAMFLEET_LEASE_TTL_S", str(LEASE_TTL_S))
    monkeypatch.setenv("PARAMFLEET_LEASE_RENEW_S", "0.2")
    monkeypatch.setenv("PARAMFLEET_ADMIN_OPEN_READING", "true")


def status_of(launched: Launched) -> dict[str, Any]:
    found = re.search(r"coordinator\.serving .*admin=(\S+)", launched.text)
    assert found, launched.text
    with urllib.request.urlopen(f"{found[1]}/status", timeout=30) as answer:
        status = json.loads(answer.read())
    assert isinstance(status, dict)
    return status


def member_of(launched: Launched, role: str, index: int) -> dict[str, Any]:
    (found,) = [
        member
        for member in status_of(launched)["members"]
        if (member["role"], member["index"]) == (role, index)
    ]
    assert isinstance(found, dict)
    return found


def until(holds: Callable[[], bool], *, within_s: float, launched: Launched) -> None:
    deadline = time.perf_counter() + within_s
    while not holds():
        assert launched.process.poll() is None, launched.text
        assert time.perf_counter() < deadline, launched.text
        time.sleep(0.05)  # noqa: TID251 -- polls a process


@pytest.mark.usefixtures("short_lease")
@pytest.mark.parametrize(
    ("mode", "roles"),
    [
        ("sync", ["pserver 0", "coordinator 0", "redis 0", "launcher 0"]),
        ("async", ["worker 1"]),
    ],
)
def test_who_stood_still_for_two_leases_goes_on_and_costs_nobody_the_job(
    launch: Any, tmp_path: Path, mode: str, roles: list[str]
) -> None:
    enough = tmp_path / "enough"
    launched = launch("--mode", mode, "--until", str(enough))
    launched.wait_for("training as 0", "training as 1")

    for role in roles:
        if role in {"pserver 0", "worker 1"}:
            freeze_member(launched, role)
        else:
            freeze(launched, role)
            time.sleep(LEASE_TTL_S)  # noqa: TID251 -- who is blamed for it would be by now
        assert launched.failures == [], role
    enough.touch()

    assert launched.end(END_WITHIN_S) == 0, launched.text
    assert launched.failures == []
    learned = re.findall(r"left with (\[.*\])", launched.text)
    assert len(learned) == 2
    if mode == "sync":
        assert learned[0] == learned[1]


def freeze(launched: Launched, role: str) -> None:
    """Let a process that is no member stand still for two leases."""
    frozen = launched.process.pid if role == "launcher 0" else launched.find(role)
    os.kill(frozen, signal.SIGSTOP)
    time.sleep(2 * LEASE_TTL_S)  # noqa: TID251 -- the freeze itself
    os.kill(frozen, signal.SIGCONT)


def freeze_member(launched: Launched, role: str) -> None:
    """Let a member stand still for two leases; it is named silent, and then no longer."""
    name, index = role.split()
    frozen = launched.find(role)
    os.kill(frozen, signal.SIGSTOP)
    frozen_at = time.perf_counter()
    until(
        lambda: member_of(launched, name, int(index))["silent_s"] is not None,
        within_s=4 * LEASE_TTL_S + LATE_S,
        launched=launched,
    )
    launched.wait_for(f"member.silent role={name} index={index}")
    left_s = 2 * LEASE_TTL_S - (time.perf_counter() - frozen_at)
    time.sleep(max(0.0, left_s))  # noqa: TID251 -- the freeze itself
    os.kill(frozen, signal.SIGCONT)
    until(
        lambda: member_of(launched, name, int(index))["silent_s"] is None,
        within_s=10 + LATE_S,
        launched=launched,
    )


@pytest.mark.usefixtures("short_lease")
def test_a_frozen_process_that_is_killed_is_named_at_once(launch: Any) -> None:
    launched = launch()
    launched.wait_for("training as 0", "training as 1")
    frozen = launched.find("worker 1")
    os.kill(frozen, signal.SIGSTOP)
    launched.wait_for("member.silent role=worker index=1")

    os.kill(frozen, signal.SIGKILL)

    assert launched.end() == 128 + signal.SIGKILL
    assert launched.failures[0].startswith("the job failed: worker 1 was killed by SIGKILL")


@pytest.mark.usefixtures("short_lease")
@pytest.mark.parametrize(
    ("role", "words"), [("coordinator 0", "gone for "), ("redis 0", "hasn't answered for ")]
)
def test_who_stays_away_for_long_is_blamed_and_not_who_gave_up_because_of_it(
    launch: Any, monkeypatch: pytest.MonkeyPatch, role: str, words: str
) -> None:
    monkeypatch.setenv("PARAMFLEET_OUTAGE_GRACE_S", "6")
    launched = launch()
    launched.wait_for("training as 0", "training as 1")

    os.kill(launched.find(role), signal.SIGSTOP)

    assert launched.end(END_WITHIN_S) == 1, launched.text
    assert launched.failures[0].startswith(f"the job failed: {role} ({words}"), (
        launched.failures
    )
    assert launched.survivors() == []


@pytest.mark.usefixtures("short_lease")
@pytest.mark.parametrize("role", ["pserver 0", "worker 1"])
def test_a_process_that_stands_still_for_longer_than_its_grace_is_blamed_itself(
    launch: Any, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    monkeypatch.setenv("PARAMFLEET_COORDINATOR__SERVER_GRACE_S", "5")
    monkeypatch.setenv("PARAMFLEET_COORDINATOR__WORKER_GRACE_S", "5")
    launched = launch()
    launched.wait_for("training as 0", "training as 1")

    os.kill(launched.find(role), signal.SIGSTOP)

    assert launched.end(END_WITHIN_S) == 1, launched.text
    assert launched.failures[0].startswith(f"the job failed: {role} (")
    assert "its launcher sees it alive" in launched.failures[0]
    assert launched.survivors() == []


@pytest.mark.usefixtures("short_lease")
@pytest.mark.parametrize("mode", ["async", "geo"])
def test_a_data_folder_put_back_to_an_older_copy_while_all_workers_are_dead_is_named(
    launch: Any, tmp_path: Path, mode: str
) -> None:
    """No worker is left that knows which changes were on the disk."""
    options = [f"--data-dir={tmp_path / 'data'}", "--max-restarts=9"]
    launched = launch("--mode", mode, options=options)
    launched.wait_for("training as 0", "training as 1")
    (folder,) = (tmp_path / "data").glob("*/pserver-0")
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    far = durable_position(launched) + 500  # in many heartbeats, which say so
    until(lambda: durable_position(launched) > far, within_s=LATE_S, launched=launched)

    os.kill(launched.process.pid, signal.SIGSTOP)  # it starts nobody again for now
    for role in ("worker 0", "worker 1", "pserver 0"):
        os.kill(launched.find(role), signal.SIGKILL)
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
    os.kill(launched.process.pid, signal.SIGCONT)

    assert launched.end(END_WITHIN_S) == 1, launched.text
    assert "pserver 0" in launched.failures[0]
    assert "its data folder is an older copy" in launched.failures[0]
    assert launched.survivors() == []


def durable_position(launched: Launched) -> int:
    """Return how far pserver 0's changes are on its disk."""
    admin = member_of(launched, "pserver", 0)["admin"]
    with urllib.request.urlopen(f"http://{admin}/status", timeout=30) as answer:
        log = json.loads(answer.read())["log"]
    return int(log["durable_position"])


def descendants(pid: int) -> Iterator[int]:
    for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        yield int(word)
        yield from descendants(int(word))


def all_pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def words_of(pid: int, name: str) -> list[str]:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="replace").split("\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []


def ends(pid: int, within_s: float) -> bool:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], within_s)[0])
    finally:
        os.close(descriptor)

"""Jobs with a data folder: what dies is started again, and the job goes on."""

import contextlib
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.forked]

SHORT = {"PARAMFLEET_LEASE_TTL_S": "1.5"}
OPTIONS = ("--server_num=2", "--worker_num=1", "--data-dir=data")

BODY = """
    import fcntl
    from pathlib import Path

    own = {
        name: os.environ.pop(f"PARAMFLEET_PSERVER__{name}", "")
        for name in ("DATA_DIR", "DURABILITY", "INDEX")
    }

    async def live():
        from paramfleet_shared.system.clock import SystemClock
        from paramfleet_shared.settings.config import JobSettings, read_environment, resolve
        from paramfleet_shared.discovery.session import JobSession

        environment = read_environment()
        settings = resolve(JobSettings, section="", arguments={}, environment=environment).value
        folder, index, keeps = Path(own["DATA_DIR"]), rank, {}
        endpoint = f"{settings.host}:{os.environ['PADDLE_PORT']}" if role == "pserver" else ""
        if role == "pserver":
            index = int(own["INDEX"])
            folder = folder / f"pserver-{index}"
            folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(folder, os.O_RDONLY)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = folder / "run"
            run = int(held.read_text()) if held.exists() else 0
            keeps = {"durable": True, "holds_run": run}
        session = await JobSession.join(
            settings, role=role, index=index, endpoint=endpoint, admin="",
            clock=SystemClock(), **keeps,
        )
        if role == "pserver":
            held.write_text(str(session.run_id))
        say(f"incarnation {session.member.incarnation}")
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(session.run())
                await session.wait_placement()
                say(f"waiting pid={os.getpid()}")
                if role == "worker":
                    await train(session)
                    await session.mark_done()
        finally:
            await session.leave()

    async def train(session):
        while await asyncio.to_thread(os.path.exists, "wait"):
            await asyncio.sleep(0.05)
        await session.barrier("end")
        placement = await session.read_placement()
        say(f"terms {placement.terms}")

    if role == "pserver" and os.path.exists(f"broken-{own['INDEX']}"):
        sys.exit(7)
    asyncio.run(live())
    """


def begun(launch: Callable[..., Any], tmp_path: Path, *more: str) -> Any:
    """Return a job that trains until there is no file ``wait``."""
    (tmp_path / "wait").touch()
    launched = launch(BODY, *OPTIONS, *more, environment=SHORT)
    launched.wait_all("worker 0", "pserver 0", "pserver 1")
    return launched


def child_of(launched: Any, program: str) -> int:
    pid = launched.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return next(int(c) for c in children if program in Path(f"/proc/{c}/cmdline").read_text())


def test_a_pserver_that_is_killed_comes_back_and_the_job_ends_well(
    launch: Callable[..., Any], tmp_path: Path
) -> None:
    launched = begun(launch, tmp_path)

    os.kill(launched.pids["pserver 1"], signal.SIGKILL)
    launched.read_until("[pserver 1] incarnation 2")
    (tmp_path / "wait").unlink()
    code = launched.read_to_end()

    assert code == 0, launched.text
    assert "pserver 1 was killed by SIGKILL; starting it again, 1 of 3" in launched.said
    assert "[worker 0] terms (1, 2)\n" in launched.lines
    log = (tmp_path / "log" / "serverlog.1").read_text()
    assert "incarnation 1\n" in log
    assert "incarnation 2\n" in log
    assert launched.survivors(0.0) == []


@pytest.mark.parametrize(
    ("role", "program"), [("coordinator", "paramfleet_coordinator"), ("redis", "redis-server")]
)
def test_the_coordinator_and_the_own_redis_come_back(
    launch: Callable[..., Any], tmp_path: Path, role: str, program: str
) -> None:
    launched = begun(launch, tmp_path)

    os.kill(child_of(launched, program), signal.SIGKILL)
    launched.read_until(f"{role} 0 was killed by SIGKILL; starting it again, 1 of 3")
    (tmp_path / "wait").unlink()
    code = launched.read_to_end()

    assert code == 0, launched.text
    assert "[worker 0] terms (1, 1)\n" in launched.lines
    assert launched.survivors(0.0) == []


def test_who_takes_a_dead_coordinators_port_is_not_shown_the_token(
    launch: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "wait").touch()
    environment = {**SHORT, "PARAMFLEET_RUNTIME_DIR": str(tmp_path / "runtime")}
    launched = launch(BODY, *OPTIONS, environment=environment)
    launched.wait_all("worker 0", "pserver 0", "pserver 1")
    launched.read_until("the job's page")
    (file,) = (tmp_path / "runtime").glob("*/admin.url")
    url = file.read_text()

    os.kill(child_of(launched, "paramfleet_coordinator"), signal.SIGKILL)
    launched.read_until("coordinator 0 was killed by SIGKILL; starting it again, 1 of 3")
    at = int(url.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", at)) as taken:
        left = file.read_text() if file.exists() else ""
        launched.lines.clear()
        launched.read_until("the job's page")
        requests = received(taken)
    found = file.read_text()
    (tmp_path / "wait").unlink()
    code = launched.read_to_end()

    assert requests == []
    assert url not in {left, found}
    assert code == 0, launched.text


def received(listener: socket.socket) -> list[bytes]:
    """Return what each connection to a listener has sent."""
    listener.setblocking(False)
    requests = []
    with contextlib.suppress(BlockingIOError):
        while True:
            taken, _ = listener.accept()
            with taken:
                taken.settimeout(5.0)
                requests.append(taken.recv(4096))
    return requests


def test_one_that_dies_again_and_again_ends_the_job_by_name(
    launch: Callable[..., Any], tmp_path: Path
) -> None:
    launched = begun(launch, tmp_path, "--max-restarts=2")
    (tmp_path / "broken-0").touch()

    os.kill(launched.pids["pserver 0"], signal.SIGKILL)
    code = launched.read_to_end()

    assert code == 7, launched.text
    assert "pserver 0 was killed by SIGKILL; starting it again, 1 of 2" in launched.said
    assert "pserver 0 exited with code 7; starting it again, 2 of 2" in launched.said
    assert launched.said[-1] == "the job failed: pserver 0 exited with code 7"
    assert f"the last lines of {tmp_path}/log/serverlog.0:" in launched.said
    assert launched.survivors(0.0) == []


def test_a_job_that_fails_starts_nothing_again(
    launch: Callable[..., Any], tmp_path: Path
) -> None:
    launched = begun(launch, tmp_path)

    os.kill(launched.pids["worker 0"], signal.SIGKILL)

    assert launched.read_to_end() == 137
    assert launched.said[-1] == "the job failed: worker 0 was killed by SIGKILL"
    assert "starting it again" not in launched.text


LEDGER = Path(__file__).parents[1] / "training" / "scripts" / "train_returned.py"


def test_a_later_launch_of_the_same_name_begins_anew(
    launch: Callable[..., Any], tmp_path: Path
) -> None:
    body = f"import runpy; runpy.run_path({str(LEDGER)!r}, run_name='__main__')"
    options = ("--server_num=2", "--worker_num=1", "--data-dir=data", "--job=same")
    first = launch(body, *options, words=("--steps=1000000",))
    first.read_until("worker.trains")
    first.process.kill()
    first.process.wait()

    later = launch(body, *options, words=("--steps=60",))

    assert later.read_to_end() == 0, later.text
    assert "pserver.recovered" not in later.text
    assert f'"dense": {[60.0] * 64}' in later.stdout


SERVED = """
    import torch
    import paramfleet as fleet

    say("script runs")
    fleet.init()
    if fleet.is_server():
        {more}
        fleet.init_server()
        fleet.run_server(checkpoint_dirs=[{folder!r}])
        raise SystemExit(0)
    table = fleet.nn.Embedding(0, 4, initializer=fleet.nn.constant(0.0))
    model = fleet.distributed_model(table)
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = True
    strategy.a_sync_configs = {{"async_rate": "full", "fresh_steps": 0}}
    optimizer = fleet.distributed_optimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), strategy
    )
    fleet.init_worker()
    ids = torch.arange(64)
    for step in range(40):
        optimizer.minimize(-model(ids).sum())
        say(f"step {{step}}")
        while step >= 20 and os.path.exists("wait"):
            threading.Event().wait(0.05)
    say(f"rows {{model(ids).unique().tolist()}}")
    fleet.save_persistables({folder!r} + "/saved")
    fleet.stop_worker()
"""


def served(launch: Callable[..., Any], tmp_path: Path, more: str) -> Any:
    """Return a job that has trained, and waits at step 20 until there is no file ``wait``.

    Its checkpoints are below ``work`` and, as its script says, below ``saves``.
    """
    work, saves = tmp_path / "work", tmp_path / "saves"
    work.mkdir()
    saves.mkdir()
    (tmp_path / "wait").touch()
    body = SERVED.format(more=more, folder=str(saves))
    launched = launch(body, *OPTIONS, f"--checkpoint-dirs={work}", words=())
    launched.read_until("[worker 0] step 20")
    return launched


def comes_back(launch: Callable[..., Any], tmp_path: Path, more: str) -> tuple[Any, str]:
    """Kill a pserver once; return the job and the log of the pserver's two processes.

    Args:
        launch: Launches a script.
        tmp_path: For files.
        more: What a server's script does first.
    """
    launched = served(launch, tmp_path, more)

    os.kill(pid_of(launched, 1), signal.SIGKILL)
    launched.read_until("pserver 1 was killed by SIGKILL; starting it again, 1 of 3")
    (tmp_path / "wait").unlink()
    code = launched.read_to_end()

    assert code == 0, launched.text
    (back,) = [line for line in launched.said if line.startswith("pserver 1 is back")]
    told = r"pserver 1 is back after \d+\.\d s: restored \d+ rows(, \d+ commands of the log)?"
    assert re.fullmatch(told, back)
    log = (tmp_path / "log" / "serverlog.1").read_text()
    assert log.count("pserver.serving") == 2, log
    assert log.count("pserver.recovered") == 1, log
    assert "[worker 0] rows [40.0]\n" in launched.lines, "no push is lost or doubled"
    saved = tmp_path / "saves" / "saved" / "manifest.json"
    assert saved.is_file(), "both processes may save where the script says"
    return launched, log


@pytest.mark.forked(False)
@pytest.mark.skipif(sys.platform != "linux", reason="the script is needed elsewhere")
def test_a_pserver_comes_back_without_the_script(
    launch: Callable[..., Any], tmp_path: Path
) -> None:
    launched, log = comes_back(launch, tmp_path, "os.environ['TORCH_LOGS'] = ''")

    assert log.count("script runs") == 1, log
    assert list(launched.cwd.glob("**/pserver-1.json")) == []


def test_a_pserver_comes_back_with_the_script_that_has_changed_the_environment(
    launch: Callable[..., Any], tmp_path: Path
) -> None:
    more = "os.environ['PARAMFLEET_PSERVER__MAX_TABLES'] = '7'"
    _, log = comes_back(launch, tmp_path, more)

    assert log.count("script runs") == 2, log
    assert "PARAMFLEET_PSERVER__MAX_TABLES" in log, "it says why"


@pytest.mark.forked(False)
@pytest.mark.skipif(sys.platform != "linux", reason="the script is needed elsewhere")
def test_after_one_has_died_the_next_death_finds_a_process_that_has_imported_all(
    launch: Callable[..., Any], tmp_path: Path
) -> None:
    launched = served(launch, tmp_path, "")
    assert standbys_of(launched) == [], "none waits where nothing has died"

    os.kill(pid_of(launched, 1), signal.SIGKILL)
    launched.read_until("pserver 1 was killed by SIGKILL; starting it again, 1 of 3")
    waits = threading.Event()
    while not (standby := standbys_of(launched)):  # ends with the test's time
        waits.wait(0.05)
    os.kill(pid_of(launched, 0), signal.SIGKILL)
    launched.read_until("pserver 0 was killed by SIGKILL; starting it again, 1 of 3")
    (tmp_path / "wait").unlink()
    code = launched.read_to_end()

    assert code == 0, launched.text
    assert pid_of(launched, 0) == standby[0]
    assert "[worker 0] rows [40.0]\n" in launched.lines, "no push is lost or doubled"
    assert standbys_of(launched) == []


def standbys_of(launched: Any) -> list[int]:
    """Return the processes that wait for a death; none once the launcher has ended."""
    pid = launched.process.pid
    with contextlib.suppress(OSError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(c) for c in children if "standby" in Path(f"/proc/{c}/cmdline").read_text()]
    return []


def pid_of(launched: Any, server: int) -> int:
    """Return the newest process of a pserver, as its log has it."""
    said = rf"^\[pserver {server}\] .* pserver\.started pid=(\d+) "
    return int(re.findall(said, launched.text, re.MULTILINE)[-1])

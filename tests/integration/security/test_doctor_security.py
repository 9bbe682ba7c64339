"""``paramfleet doctor --security`` on real files, sockets and Redis servers."""

import asyncio
import json
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from paramfleet_coordinator.app import Coordinator
from paramfleet_coordinator.config import CoordinatorSettings
from paramfleet_shared.discovery.redis.embedded import EmbeddedRedis
from paramfleet_shared.files.job_folder import JobFacts, JobFolder, runtime_dir, write_private
from paramfleet_shared.net.secret import new_secret
from paramfleet_shared.settings.config import resolve
from paramfleet_shared.system.clock import SystemClock
from paramfleet_worker.__main__ import main
from paramfleet_worker.process.admin_token import prepare_admin_token
from paramfleet_worker.process.probes.security import look_at_path

pytestmark = pytest.mark.slow


@pytest.fixture
def seen() -> Iterator[Path]:
    """Return a folder that every user may look into; pytest's own are hidden."""
    folder = Path(tempfile.mkdtemp(prefix="paramfleet-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, redis_url: str, tmp_path: Path) -> None:
    for name in list(os.environ):  # noqa: TID251 -- what the command reads
        if name.startswith(("PARAMFLEET_", "PADDLE_", "TRAINING_ROLE")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PARAMFLEET_REDIS", redis_url)
    monkeypatch.setenv("PARAMFLEET_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.chdir(tmp_path)


def run(*words: str, role: str = "coordinator") -> tuple[int, dict[str, str]]:
    """Return the exit code and what was found: the problem by the name."""
    words = ("doctor", "--security", "--json", "--role", role, *words)
    result = CliRunner().invoke(main, words)
    assert result.exit_code in {0, 1}, result.output
    said: dict[str, Any] = json.loads(result.stdout)
    assert said["ok"] == (result.exit_code == 0)
    return result.exit_code, {each["name"]: each["problem"] for each in said["findings"]}


async def test_settings_without_proof_and_a_redis_that_takes_anybody_are_found(
    plain_redis: Callable[..., Awaitable[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    redis = await plain_redis()
    monkeypatch.setenv("PARAMFLEET_REDIS", redis.place)

    code, found = await asyncio.to_thread(run)

    assert code == 1
    assert "neither a secret nor certificates" in found["no-proof"]
    assert "every user of this machine without a password" in found["redis-open"]
    assert "CONFIG and MODULE" in found["redis-open"]


def test_settings_that_open_a_job_to_a_network_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PARAMFLEET_SECRET", new_secret())
    monkeypatch.setenv("PARAMFLEET_COORDINATOR__BIND", "0.0.0.0")
    monkeypatch.setenv("PARAMFLEET_ADMIN_OPEN_READING", "true")

    found = run()[1]

    assert {"admin-cleartext", "data-cleartext", "reading-open"} <= found.keys()
    assert "no-proof" not in found
    monkeypatch.setenv("PARAMFLEET_INSECURE", "true")
    assert "insecure" in run()[1]


def test_files_that_others_can_reach_are_found(
    seen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, mode in (("secret", 0o644), ("tokens", 0o646)):
        (seen / name).write_text(new_secret() if name == "secret" else "")
        (seen / name).chmod(mode)
    for name in ("checkpoints", "log"):
        (seen / name).mkdir()
        (seen / name).chmod(0o777)
    (seen / "log" / "workerlog.0").write_text("")
    monkeypatch.setenv("PARAMFLEET_SECRET_FILE", str(seen / "secret"))
    monkeypatch.setenv("PARAMFLEET_TOKENS_FILE", str(seen / "tokens"))

    words = ("--checkpoints", str(seen / "checkpoints"), "--logs", str(seen / "log"))
    code, found = run(*words)

    assert code == 1
    assert {"secret-readable", "tokens-writable", "checkpoints-writable"} <= found.keys()
    assert "log-readable" in found
    seen.chmod(0o700)
    assert not {name for name in run(*words)[1] if name.partition("-")[0] != "redis"}


def test_a_file_below_a_folder_of_ones_own_is_hidden(seen: Path) -> None:
    path = seen / "file"
    path.write_text("")
    path.chmod(0o666)

    shown = look_at_path("log", path)
    seen.chmod(0o700)
    hidden = look_at_path("log", path)

    assert shown is not None
    assert hidden is not None
    assert (shown.readable_by_others, shown.writable_by_others) == (True, True)
    assert (hidden.readable_by_others, hidden.writable_by_others) == (False, False)
    assert look_at_path("log", seen / "none") is None


@pytest.mark.parametrize("is_open", [False, True])
async def test_a_running_job_is_found_and_asked_how_it_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_open: bool
) -> None:
    redis = EmbeddedRedis(tmp_path, clock=SystemClock(), password="right")
    await redis.start()
    monkeypatch.delenv("PARAMFLEET_REDIS")
    folder = JobFolder.claim(runtime_dir(str(tmp_path / "runtime")), "flights")
    facts = JobFacts(job="flights", launch="l", redis=redis.url, pid=os.getpid())
    folder.write_facts(facts)
    write_private(folder.secret_file, new_secret().encode())
    prepare_admin_token(folder)
    arguments = {
        "job": "flights", "redis": redis.url, "secret": folder.secret_file.read_text(),
        "tokens_file": str(folder.tokens_file),
        "admin_open_reading": is_open, "insecure": is_open,
    }  # fmt: skip
    resolved = resolve(
        CoordinatorSettings, section="coordinator", arguments=arguments, environment={}
    )
    async with asyncio.timeout(40), asyncio.TaskGroup() as group:
        serving = group.create_task(Coordinator(resolved, clock=SystemClock()).serve())
        told = await asyncio.to_thread(run, "--job", "flights")
        while "not-looked-at" in told[1]:  # until it serves
            told = await asyncio.to_thread(run, "--job", "flights")
        serving.cancel()
    folder.close()
    redis.stop()

    opened = {"insecure", "reading-open"}
    assert told[1].keys() & opened == (opened if is_open else set())
    assert not {"no-proof", "redis-open", "redis-dangerous"} & told[1].keys()
    assert told[0] == (1 if is_open else 0)

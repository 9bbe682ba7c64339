"""Who may read and steer a job that was launched on this machine, and how."""

import contextlib
import json
import os
import pty
import re
import shutil
import subprocess
import sys
import textwrap
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paramfleet_shared.checkpoint.cuts import Cut
from paramfleet_shared.checkpoint.manifest import Manifest, write_manifest
from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.processes.keeping import tied

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.forked]

BODY = """
    async def train(session):
        await session.publish({"mode": "async", "step": 1})
        await opened(os.environ["ENOUGH"])

    take_part(train if role == "worker" else None)
    """
LOCAL = ("--server_num=1", "--worker_num=1")


class Steered:
    """Jobs of one test, and the command line that steers them."""

    def __init__(self, launch: Callable[..., Any], folder: Path) -> None:
        self._launch = launch
        self.enough = folder / "enough"
        os.mkfifo(self.enough)
        self.runtime = folder / "runtime"
        self.environment = {
            "ENOUGH": str(self.enough),
            "PARAMFLEET_RUNTIME_DIR": str(self.runtime),
        }

    def start(self, *options: str, body: str = BODY, **more: Any) -> Any:
        launched = self._launch(body, *LOCAL, *options, environment=self.environment, **more)
        launched.read_until("waiting pid=", "the job's page")
        return launched

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        inherited = read_environment()
        for name in ("PARAMFLEET_JOB", "PARAMFLEET_REDIS"):
            inherited.pop(name, None)
        return subprocess.run(
            tied([sys.executable, "-m", "paramfleet_worker", *words]),
            env={**inherited, **self.environment},
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
        )

    def until_done(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Repeat a command while the job isn't training as yet."""
        done = self.command(*words)
        while "refused" in done.stderr:
            done = self.command(*words)
        return done

    def end(self, *launched: Any) -> None:
        self.enough.write_text("enough")
        assert [each.read_to_end() for each in launched] == [0] * len(launched)


@pytest.fixture
def steered(launch: Callable[..., Any], tmp_path: Path) -> Steered:
    return Steered(launch, tmp_path)


def test_who_launched_a_job_steers_it_without_any_option_and_the_audit_says_who(
    steered: Steered,
) -> None:
    launched = steered.start("--job=flights")
    token = (steered.runtime / "flights" / "admin.token").read_text()

    paused = steered.until_done("pause")
    status = steered.command("status", "--job", "flights")
    audit = json.loads(steered.command("audit", "--json").stdout)
    steered.end(launched)

    assert (paused.returncode, paused.stdout) == (0, "paused\n"), paused.stderr
    assert "paused" in status.stdout, status.stderr
    (entry,) = audit
    assert re.fullmatch(r"token launcher-of-\S+", entry["who"])
    assert "anonymous" not in json.dumps(audit)
    assert token not in launched.text
    assert all(token not in path.read_text() for path in (launched.cwd / "log").iterdir())
    assert not (steered.runtime / "flights").exists(), "the token ends with the job"


def test_a_job_that_is_ended_by_command_says_so_and_at_which_step(steered: Steered) -> None:
    saved = '"saved": {"folder": "/saved/7", "step": 2}'
    body = BODY.replace('"step": 1', f'"step": 3, "total_steps": 10, {saved}')
    launched = steered.start("--job=flights", body=body)

    ended = steered.until_done("end")
    steered.end(launched)

    assert (ended.returncode, ended.stdout) == (0, "job flights ends\n"), ended.stderr
    last = (
        r"ended by `paramfleet end` after \d:\d\d: step 3 of 10, staleness 0, async; logs in .*"
    )
    assert re.fullmatch(last, launched.said[-1]), launched.said[-1]
    newest = (
        "newest checkpoint: /saved/7 (step 2); go on with: paramfleet launch --resume /saved/7 "
    )
    assert launched.said[-2].startswith(newest)


def test_a_job_that_has_saved_nothing_names_the_checkpoint_that_it_began_from(
    steered: Steered, tmp_path: Path
) -> None:
    first = tmp_path / "saved" / "first"
    first.mkdir(parents=True)
    write_manifest(first, Manifest(tables=(), files=(), cut=Cut(consistent=True)))
    steered.environment["PARAMFLEET_WORKER__VISUAL_PATH"] = str(tmp_path / "visual")
    launched = steered.start("--resume=saved")

    steered.until_done("end")
    steered.end(launched)

    told = (
        f"no checkpoint saved yet; the job began from {first}; with the same "
        "PARAMFLEET_WORKER__VISUAL_PATH, go on with: paramfleet launch --resume "
        f"{first} --server_num=1 "
    )
    assert launched.said[-2].startswith(told), launched.text


def test_of_two_jobs_one_must_be_named(steered: Steered) -> None:
    launched = [steered.start(f"--job={job}") for job in ("flights", "clicks")]

    unnamed = steered.command("status")
    named = steered.command("status", "--job", "clicks", "--json")
    steered.end(*launched)

    assert unnamed.returncode == 1
    assert "2 jobs of this user run here: clicks, flights" in unnamed.stderr
    assert "--job" in unnamed.stderr
    assert json.loads(named.stdout)["job"] == "clicks", named.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="no setpriv on PATH")
def test_another_user_of_the_machine_reads_nothing_and_changes_nothing(
    steered: Steered,
) -> None:
    launched = steered.start("--job=flights")
    url = (steered.runtime / "flights" / "admin.url").read_text()
    become = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]

    def ask(path: str, *more: str) -> tuple[int, str]:
        words = ["curl", "-sS", "-m5", "-w", " %{http_code}", *more, f"{url}{path}"]
        done = subprocess.run([*become, *words], capture_output=True, text=True, check=True)
        text, _, status = done.stdout.rpartition(" ")
        return int(status), text

    reading = {path: ask(path) for path in ("/status", "/metrics", "/config", "/api/v1/status")}
    json_head = "Content-Type: application/json"
    pausing = ask("/api/v1/pause", "-X", "POST", "-H", json_head, "-d", "{}")
    health = ask("/healthz")
    files = ("admin.token", "tokens", "job.json", "admin.url")
    looks = [
        subprocess.run([*become, "cat", str(steered.runtime / "flights" / name)], check=False)
        for name in files
    ]
    state = json.loads(steered.command("status", "--json").stdout)["state"]
    steered.end(launched)

    assert {status for status, _ in reading.values()} == {401}
    assert pausing[0] == 401
    assert "flights" not in pausing[1] + "".join(text for _, text in reading.values())
    assert health[0] == 200
    assert all(each.returncode != 0 for each in looks)
    assert state != "paused"


@pytest.mark.forked(False)
def test_a_terminal_is_shown_a_link_that_opens_the_page_once(
    steered: Steered, preamble: str
) -> None:
    script = steered.enough.with_name("train.py")
    script.write_text(preamble + textwrap.dedent(BODY))
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "paramfleet_worker", "launch", *LOCAL, str(script)]
    environment = {**read_environment(), **steered.environment, "NO_COLOR": "1"}
    with subprocess.Popen(
        tied(command), cwd=script.parent, env=environment, stderr=end
    ) as process:
        os.close(end)
        said = ""
        while "#code=" not in said.rpartition("\n")[0]:
            said += os.read(terminal, 4096).decode()
        link = re.search(r"(http://127\.0\.0\.1:\d+)/#code=([\w-]{43}) ", said)
        assert link is not None
        first, second = (log_in(link[1], link[2]) for _ in range(2))
        steered.enough.write_text("enough")
        with contextlib.suppress(OSError):  # how a terminal says that nobody writes to it
            while os.read(terminal, 4096):
                pass
        assert process.wait() == 0
    os.close(terminal)

    assert (first, second) == (200, 401)
    assert said.count("#code=") == 1


def log_in(url: str, code: str) -> int:
    request = urllib.request.Request(
        f"{url}/api/v1/login",
        data=json.dumps({"code": code}).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code


def test_what_is_no_terminal_is_shown_no_code_because_it_may_be_kept(steered: Steered) -> None:
    launched = steered.start("--job=flights")
    page = next(line for line in launched.said if "the job's page" in line)
    link = steered.command("page")
    steered.end(launched)

    assert "#code=" not in launched.text
    assert "`paramfleet page --job flights` prints a link" in page
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/#code=[\w-]{43}\n", link.stdout), link.stderr

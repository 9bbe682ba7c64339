"""Whole jobs of real processes: Redis, a coordinator, pservers and workers."""

import contextlib
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from paramfleet_shared.net.tokens import new_token
from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_shared.testing.secrets import SECRET

HERE = Path(__file__).parent


class Programs:
    """Starts a job's processes, as forks (see ``paramfleet_worker.process.prepared``)."""

    def __init__(self) -> None:
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.local_results: dict[tuple[str, ...], dict[str, Any]] = {}
        """By words: what a script without a job has printed last."""
        self.job_results: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        """By sizes and words: what the workers of a job have printed last."""

    def start(self, argv: list[str], env: dict[str, str], log: Path) -> int:
        inherited = read_environment()
        for name in ("TRAINING_ROLE", "PADDLE_TRAINER_ID"):
            inherited.pop(name, None)
        with log.open("wb") as output:
            process = subprocess.Popen(
                tied([sys.executable, *argv]),
                env={**inherited, "OMP_NUM_THREADS": "1", **env},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self._processes[process.pid] = process
        return process.pid

    def wait(self, pid: int) -> int:
        return self._processes.pop(pid).wait()


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a job ended: exit codes, what each process said, each worker's last JSON line."""

    codes: dict[str, int]
    logs: dict[str, str]

    @property
    def results(self) -> list[dict[str, Any]]:
        assert set(self.codes.values()) == {0}, self.story()
        workers = sorted(name for name in self.logs if name.startswith("worker"))
        return [_last_json(self.logs[name]) for name in workers]

    def last_json(self, name: str) -> dict[str, Any]:
        """Return what a process said last as JSON."""
        return _last_json(self.logs[name])

    def story(self) -> str:
        tails = {name: text[-2500:] for name, text in self.logs.items()}
        return f"{self.codes}\n" + "\n".join(f"--- {n}\n{t}" for n, t in tails.items())


def _last_json(text: str) -> dict[str, Any]:
    found = json.loads([line for line in text.splitlines() if line.startswith("{")][-1])
    assert isinstance(found, dict)
    return found


class Running:
    """A job's processes, started one by one and watched through logs and pidfds."""

    def __init__(
        self,
        programs: Programs,
        env: dict[str, str],
        folder: Path,
        *,
        workers: int,
        servers: int,
    ) -> None:
        self._programs = programs
        self._env = {**env, "PADDLE_TRAINERS_NUM": str(workers)}
        self.folder = folder
        self.num_workers = workers
        self.num_servers = servers
        self.ports = free_ports(servers)
        self.pids: dict[str, int] = {}
        self._codes: dict[str, int] = {}

    @property
    def job(self) -> str:
        return self._env["PARAMFLEET_JOB"]

    @property
    def redis(self) -> str:
        return self._env["PARAMFLEET_REDIS"]

    @property
    def token(self) -> str:
        """Return the token of the job's admin."""
        return (self.folder.parent / f"{self.folder.name}.admin.token").read_text()

    @property
    def heads(self) -> dict[str, str]:
        """Return the headers that show the token."""
        return {"Authorization": f"Bearer {self.token}"}

    def start_coordinator(self, *, name: str = "coordinator") -> None:
        sizes = [f"--worker_num={self.num_workers}", f"--server_num={self.num_servers}"]
        self._start(name, ["-m", "paramfleet_coordinator", *sizes], {})

    def start_pserver(self, index: int, script: str, *args: str, name: str = "") -> None:
        role = {
            "TRAINING_ROLE": "PSERVER",
            "POD_IP": "127.0.0.1",
            "PADDLE_PORT": str(self.ports[index]),
            "PADDLE_PSERVERS_IP_PORT_LIST": self._endpoints,
        }
        self._start(name or f"pserver{index}", [_script(script), *args], role)

    def start_worker(self, index: int | None, script: str, *args: str, name: str = "") -> None:
        """Start a worker; None lets the coordinator give the rank."""
        role = {"TRAINING_ROLE": "TRAINER", "PADDLE_PSERVERS_IP_PORT_LIST": self._endpoints}
        if index is not None:
            role["PADDLE_TRAINER_ID"] = str(index)
        self._start(name or f"worker{index}", [_script(script), *args], role)

    def start_all(self, script: str, *args: str) -> None:
        self.start_coordinator()
        for index in range(self.num_servers):
            self.start_pserver(index, script, *args)
        for index in range(self.num_workers):
            self.start_worker(index, script, *args)

    def log(self, name: str) -> str:
        return (self.folder / name).read_text(errors="replace")

    def wait_for(self, name: str, text: str, *, times: int = 1, within_s: float = 60.0) -> None:
        """Wait until a process has said ``text`` so many times."""
        deadline = time.perf_counter() + within_s
        while True:
            ended = name in self._codes or ends(self.pids[name], 0.02)
            if self.log(name).count(text) >= times:
                return
            assert not ended, f"{name} ended without {text!r}:\n{self.log(name)}"
            assert time.perf_counter() < deadline, f"no {text!r}:\n{self.log(name)}"

    def story(self) -> str:
        """Return the end of every log."""
        return "\n".join(f"--- {name}\n{self.log(name)[-2000:]}" for name in self.pids)

    def send(self, name: str, number: signal.Signals) -> None:
        os.kill(self.pids[name], number)

    def code(self, name: str, *, within_s: float = 60.0) -> int:
        """Wait for the end of one process."""
        if name not in self._codes:
            assert ends(self.pids[name], within_s), f"{name} still runs:\n{self.story()}"
            self._codes[name] = self._programs.wait(self.pids[name])
        return self._codes[name]

    def end(self, *, within_s: float = 180.0) -> Ended:
        """Wait for the end of every process."""
        deadline = time.perf_counter() + within_s
        for name in self.pids:
            self.code(name, within_s=max(0.0, deadline - time.perf_counter()))
        logs = {path.name: self.log(path.name) for path in self.folder.iterdir()}
        return Ended(codes=dict(self._codes), logs=logs)

    def admin(self) -> "AdminClient":
        """Return a client of the coordinator's admin API."""
        return AdminClient(self)

    def close(self) -> None:
        """Kill what still runs."""
        for name, pid in self.pids.items():
            if name not in self._codes:
                os.kill(pid, signal.SIGKILL)
                self.code(name)

    @property
    def _endpoints(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def _start(self, name: str, argv: list[str], role: dict[str, str]) -> None:
        log = self.folder / name
        log.touch()
        self.pids[name] = self._programs.start(argv, {**self._env, **role}, log)


class AdminClient:
    """Calls one coordinator's admin API."""

    def __init__(self, running: Any) -> None:
        self.heads = running.heads
        with redis.Redis.from_url(running.redis) as client:
            record = client.hget(f"paramfleet:{running.job}:coordinator", "record")
        self.url = f"http://{json.loads(record)['admin']}"

    def get(self, path: str) -> Any:
        request = urllib.request.Request(f"{self.url}/api/v1/{path}", headers=self.heads)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())

    def post(self, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
        request = urllib.request.Request(
            f"{self.url}/api/v1/{path}",
            data=json.dumps(body or {}).encode(),
            headers={**self.heads, "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code, json.loads(refusal.read())

    def wait(self, holds: Callable[[dict[str, Any]], Any], within_s: float = 45.0) -> Any:
        """Read the status until it tells; return it."""
        deadline = time.perf_counter() + within_s
        while True:
            status = self.get("status")
            if holds(status):
                return status
            assert time.perf_counter() < deadline, status
            time.sleep(0.05)  # noqa: TID251 - between two looks

    def steps(self, *ranks: int) -> list[int]:
        """Return the steps of these workers, or of all, once each is known to have taken one.

        A worker that was killed may never have reported one.
        """

        def of(workers: list[dict[str, Any]]) -> list[int | None]:
            return [
                worker["step"] for worker in workers if not ranks or worker["rank"] in ranks
            ]

        known = self.wait(lambda status: None not in of(status["workers"]))
        return [step for step in of(known["workers"]) if step is not None]


class JobRunner:
    """Runs a script as every role of a job, and waits for all of them."""

    def __init__(self, programs: Programs, redis_url: str, job: str, folder: Path) -> None:
        self.programs = programs
        self._redis_url = redis_url
        self._job = job
        self._folder = folder
        self._running: list[Running] = []

    def local(self, script: str, *args: str) -> dict[str, Any]:
        """Run the script alone, without a job."""
        log = self._folder / "local.log"
        pid = self.programs.start([_script(script), *args], {}, log)
        code = self.programs.wait(pid)
        text = log.read_text()
        assert code == 0, text
        return _last_json(text)

    def local_once(self, script: str, *args: str) -> dict[str, Any]:
        """Return what ``local`` does; tests that run the same words share one run."""
        known = self.programs.local_results
        if (script, *args) not in known:
            known[script, *args] = self.local(script, *args)
        return known[script, *args]

    def new(self, *, workers: int = 2, servers: int = 2, **env: str) -> Running:
        """Return a job whose processes the test starts."""
        number = len(self._running) + 1
        folder = self._folder / f"run{number}"
        folder.mkdir()
        token, entry = new_token("admin", "tests")
        (self._folder / f"run{number}.admin.token").write_text(token)
        tokens = self._folder / f"run{number}.tokens"
        tokens.write_text(entry.to_line())
        env = {
            "PARAMFLEET_TOKENS_FILE": str(tokens),
            "PARAMFLEET_JOB": f"{self._job}-{number}",
            "PARAMFLEET_REDIS": self._redis_url,
            "PARAMFLEET_SECRET": SECRET,
            "PARAMFLEET_JOIN_TIMEOUT_S": "60",
            "PARAMFLEET_LEASE_TTL_S": "30",  # nine processes may share two cores
            "PARAMFLEET_LEASE_RENEW_S": "0.2",  # how soon members see what was decided
            "PARAMFLEET_CHECKPOINT_DIRS": str(self._folder.resolve()),
            **env,
        }
        running = Running(self.programs, env, folder, workers=workers, servers=servers)
        self._running.append(running)
        return running

    def start(
        self, script: str, *args: str, workers: int = 2, servers: int = 2, **env: str
    ) -> Running:
        """Start every process of a job at once."""
        running = self.new(workers=workers, servers=servers, **env)
        running.start_all(script, *args)
        return running

    def run(
        self, script: str, *args: str, workers: int = 2, servers: int = 2, **env: str
    ) -> Ended:
        """Run a job to its end."""
        running = self.start(script, *args, workers=workers, servers=servers, **env)
        return running.end()

    def run_once(
        self, script: str, *args: str, workers: int = 2, servers: int = 2
    ) -> list[dict[str, Any]]:
        """Return what workers of such a job found; tests that ask for the same share one run.

        For jobs without faults, whose numbers are the same each time.
        """
        known, key = self.programs.job_results, (workers, servers, script, *args)
        if key not in known:
            known[key] = self.run(script, *args, workers=workers, servers=servers).results
        return known[key]

    def close(self) -> None:
        for running in self._running:
            running.close()


def _script(name: str) -> str:
    return str(HERE / "scripts" / name)


def ends(pid: int, within_s: float) -> bool:
    """Wait for the end of a process that needn't be our child."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], within_s)[0])
    finally:
        os.close(descriptor)


def ports_of_this_process() -> Iterator[int]:
    """Yield ports from 20,000 to 31,999, again and again, that are this process's alone."""
    number = int(read_environment().get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    own = range(20_000 + 1_500 * (number % 8), 21_500 + 1_500 * (number % 8))
    first = random.randrange(len(own))
    while True:
        yield from own[first:]
        yield from own[:first]


PORTS = ports_of_this_process()


def free_ports(num: int) -> list[int]:
    """Return so many different ports that nobody has."""
    ports: set[int] = set()
    while len(ports) < num:
        ports.add(free_port())
    return list(ports)


def free_port() -> int:
    """Return a port that nobody has, below those that the system gives to outgoing calls.

    It is used later: each process of pytest has ports of its own, and gives none twice soon.
    """
    while True:
        port = next(PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@pytest.fixture(scope="session")
def programs() -> Programs:
    return Programs()


@pytest.fixture
def jobs(
    programs: Programs, redis_url: str, job_name: str, tmp_path: Path
) -> Iterator[JobRunner]:
    runner = JobRunner(programs, redis_url, job_name, tmp_path)
    yield runner
    runner.close()

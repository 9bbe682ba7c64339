"""Whole jobs of real processes: Redis, a coordinator, pservers and workers."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from paramfleet_shared.config import read_environment

HERE = Path(__file__).parent


class Zygote:
    """The process that forks the processes of jobs; see ``zygote.py``."""

    def __init__(self) -> None:
        env = {**read_environment(), "OMP_NUM_THREADS": "1"}
        for name in ("TRAINING_ROLE", "PADDLE_TRAINER_ID"):
            env.pop(name, None)
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "zygote.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )
        self._answer()

    def start(self, argv: list[str], env: dict[str, str], log: Path) -> int:
        pid = self.ask({"start": {"argv": argv, "env": env, "log": str(log)}})["pid"]
        assert isinstance(pid, int)
        return pid

    def wait(self, pid: int) -> int:
        code = self.ask({"wait": pid})["code"]
        assert isinstance(code, int)
        return code

    def ask(self, command: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=20)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the zygote died"
        answer = json.loads(line)
        assert isinstance(answer, dict)
        return answer


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

    def story(self) -> str:
        tails = {name: text[-2500:] for name, text in self.logs.items()}
        return f"{self.codes}\n" + "\n".join(f"--- {n}\n{t}" for n, t in tails.items())


def _last_json(text: str) -> dict[str, Any]:
    found = json.loads([line for line in text.splitlines() if line.startswith("{")][-1])
    assert isinstance(found, dict)
    return found


class JobRunner:
    """Runs a script as every role of a job, and waits for all of them."""

    def __init__(self, zygote: Zygote, redis_url: str, job: str, folder: Path) -> None:
        self.zygote = zygote
        self._redis_url = redis_url
        self._job = job
        self._folder = folder
        self._runs = 0

    def local(self, script: str, *args: str) -> dict[str, Any]:
        """Run the script alone, without a job."""
        log = self._folder / "local.log"
        pid = self.zygote.start([str(HERE / "scripts" / script), *args], {}, log)
        code = self.zygote.wait(pid)
        text = log.read_text()
        assert code == 0, text
        return _last_json(text)

    def start(
        self, script: str, *args: str, workers: int = 2, servers: int = 2
    ) -> tuple[dict[str, int], Path]:
        """Start a job; return its processes by name, and the folder of their logs."""
        self._runs += 1
        folder = self._folder / f"run{self._runs}"
        folder.mkdir()
        env = {
            "PARAMFLEET_JOB": f"{self._job}-{self._runs}",
            "PARAMFLEET_REDIS": self._redis_url,
            "PARAMFLEET_JOIN_TIMEOUT_S": "30",
            "PADDLE_TRAINERS_NUM": str(workers),
        }
        sizes = [f"--worker_num={workers}", f"--server_num={servers}"]
        pids = {
            "coordinator": self.zygote.start(
                ["coordinator", *sizes], env, folder / "coordinator"
            )
        }
        path = str(HERE / "scripts" / script)
        ports = [_free_port() for _ in range(servers)]
        endpoints = ",".join(f"127.0.0.1:{port}" for port in ports)
        for index, port in enumerate(ports):
            role = {
                "TRAINING_ROLE": "PSERVER",
                "POD_IP": "127.0.0.1",
                "PADDLE_PORT": str(port),
                "PADDLE_PSERVERS_IP_PORT_LIST": endpoints,
            }
            name = f"pserver{index}"
            pids[name] = self.zygote.start([path, *args], {**env, **role}, folder / name)
        for index in range(workers):
            role = {
                "TRAINING_ROLE": "TRAINER",
                "PADDLE_TRAINER_ID": str(index),
                "PADDLE_PSERVERS_IP_PORT_LIST": endpoints,
            }
            name = f"worker{index}"
            pids[name] = self.zygote.start([path, *args], {**env, **role}, folder / name)
        return pids, folder

    def end(self, pids: dict[str, int], folder: Path) -> Ended:
        """Wait until every process has ended."""
        codes = {name: self.zygote.wait(pid) for name, pid in pids.items()}
        logs = {path.name: path.read_text(errors="replace") for path in folder.iterdir()}
        return Ended(codes=codes, logs=logs)

    def run(self, script: str, *args: str, workers: int = 2, servers: int = 2) -> Ended:
        """Run a job to its end."""
        return self.end(*self.start(script, *args, workers=workers, servers=servers))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        assert isinstance(port, int)
        return port


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    made = Zygote()
    yield made
    made.close()


@pytest.fixture
def jobs(zygote: Zygote, redis_url: str, job_name: str, tmp_path: Path) -> JobRunner:
    return JobRunner(zygote, redis_url, job_name, tmp_path)

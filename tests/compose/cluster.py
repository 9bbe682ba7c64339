"""Train wide and deep on the cluster of ``deploy/compose``, and hurt it meanwhile.

    python tests/compose/cluster.py --mode geo --workers 4 --servers 2

Expects the images that ``run.sh`` builds. Progress goes to standard error; the last line on
standard output is the result as JSON.
"""

import argparse
import contextlib
import json
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.testing.machine import MachineRecord
from paramfleet_shared.testing.patience import Patience

COMPOSE = Path(__file__).parents[2] / "deploy" / "compose" / "compose.yaml"
POLL_S = 0.5
PAUSE_S = 10

TRIES, AGAIN_AFTER_S = 3, 1.0
"""How often the engine is asked to do something that it refuses."""

STILL_S = 90
"""Without any progress of the cluster a wait is given up, whatever it waits for."""

STARTING_STILL_S = 400
"""The same while containers start: they import all anew, and compile kernels, if need be."""

ENDING_STILL_S = 600
"""The same when the training has ended: workers evaluate, and take no steps."""

MOST_S = 1800
"""No single wait lasts longer, whatever goes on meanwhile."""

SIGNALS = {"pause": "STOP", "unpause": "CONT"}
"""What does to all processes of a container what the engine would do to the container."""

LISTENING = "0A"
"""A socket's state, as the kernel writes it in /proc/net/tcp."""

MORE_SERVERS, FEWER_SERVERS = 4, 3
"""Pservers in the middle of the training, which begins with fewer than the first of these."""

LEAST_AUC = 0.78
"""Wide and deep reaches 0.81 on the flights after two epochs in one process, and loses of it
when it goes on; at a tenth of its rate it is between 0.79 and 0.81 from 12 epochs to 50."""

ENDLESS = "--epochs 1000 --lr 0.005 --cache_dir /checkpoints"
"""Until an operator ends it. Later workers find the prepared rows that the first ones left."""

STARTING_CPUS = 0.5
TRAINING_CPUS = 0.15
"""Cores of a worker that starts, and of one that trains while the cluster is hurt: some steps a
second show that it goes on, and leave the machine to what else runs."""

FREEZING_CPUS = 2.0
"""Cores of a worker that is about to be paused: a thread that has used up its share of a
period doesn't reach the point where the kernel stops it, and the engine gives up soon."""


class ClusterError(Exception):
    """The cluster didn't do what was expected of it."""


def say(what: str) -> None:
    """Write a line of progress."""
    sys.stderr.write(f"[{time.perf_counter() - STARTED:4.0f}s] cluster: {what}\n")


STARTED = time.perf_counter()


class Cluster:
    """One Compose project.

    Args:
        project: Its name.
        variables: Those of the Compose file.
    """

    def __init__(self, project: str, variables: Mapping[str, str]) -> None:
        self._project = project
        self._environment = {**read_environment(), **variables}
        self._admin = f"https://127.0.0.1:{variables['ADMIN_PORT']}"
        self._token = ""
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._tls.check_hostname = False  # certificates stand for roles

    def be_admin(self) -> None:
        """Take the job's authority and the admin's token, as the admin service has them."""
        cat = ("run", "--rm", "--no-deps", "-T", "--entrypoint", "cat", "admin")
        self._tls.load_verify_locations(cadata=self.compose(*cat, "/certs/ca.crt"))
        self._token = self.compose(*cat, "/certs/admin.token").strip()

    def compose(self, *words: str) -> str:
        """Run ``docker compose`` and return what it printed."""
        command = ["docker", "compose", "-p", self._project, "-f", str(COMPOSE), *words]
        return run(command, environment=self._environment)

    def containers(self, service: str) -> list[str]:
        """Return the ids of a service's containers, stopped ones too, in no order."""
        return self.compose("ps", "-a", "-q", service).split()

    def states(self) -> list[dict[str, Any]]:
        """Return how each container is, stopped ones too."""
        containers = self.compose("ps", "-a", "-q").split()
        return json.loads(run(["docker", "inspect", *containers])) if containers else []

    def are_healthy(self) -> bool:
        """Return whether each container runs well, or has ended so."""
        states = {state_of(each["State"]) for each in self.states()}
        good = {("running", 0, "healthy"), ("running", 0, None), ("exited", 0, None)}
        return bool(states) and states <= good

    def progress(self) -> object:
        """Return what differs as long as the cluster goes on: containers, members, steps."""
        with contextlib.suppress(ClusterError):  # one may vanish meanwhile
            containers = [
                (each["Id"], each["RestartCount"], *state_of(each["State"]))
                for each in self.states()
            ]
            members = self.status().get("members", [])
            facts = [
                (each["alive"], each["done"], each["facts"].get("step")) for each in members
            ]
            return sorted(containers), facts
        return None

    def wait_until(self, what: str, holds: Callable[[], object], *, still_s: float) -> None:
        """Wait for something, as long as the cluster makes progress.

        Args:
            what: Completes "waiting until".
            holds: Whether it has come.
            still_s: Seconds without progress after which it is given up.

        Raises:
            ClusterError: if it doesn't come.
        """
        say(f"waiting until {what}")
        now = time.perf_counter()
        patience = Patience(still_s=still_s, most_s=MOST_S, now=now)
        look_at = now
        while not holds():
            now = time.perf_counter()
            if now >= look_at:
                if why := patience.look(self.progress(), now=now):
                    message = f"{why} until {what}"
                    raise ClusterError(message)
                look_at = now + still_s / 20
            threading.Event().wait(POLL_S)

    def address(self, container: str) -> str:
        """Return a container's address in the job's network."""
        (facts,) = json.loads(run(["docker", "inspect", container]))
        networks = facts["NetworkSettings"]["Networks"]
        found: str = networks[f"{self._project}_cluster"]["IPAddress"]
        return found

    def exit_codes(self, service: str) -> list[int | None]:
        """Return how the containers of a service ended; None for one that runs."""
        states = [
            json.loads(run(["docker", "inspect", "-f", "{{json .State}}", container]))
            for container in self.containers(service)
        ]
        return [None if state["Running"] else state["ExitCode"] for state in states]

    def status(self, path: str = "/status") -> dict[str, Any]:
        """Return the job's status; empty while the coordinator doesn't answer."""
        request = urllib.request.Request(
            f"{self._admin}{path}", headers={"Authorization": f"Bearer {self._token}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=2, context=self._tls) as answer:
                status: dict[str, Any] = json.load(answer)
                return status
        except OSError:
            return {}

    def hosting(self) -> list[int]:
        """Return how many groups each pserver has that lives; empty while any group moves."""
        plan = self.status("/api/v1/status").get("plan") or {"moving": True}
        if plan["moving"] is not None or any(each["owner"] is None for each in plan["groups"]):
            return []
        return sorted(len(each["groups"]) for each in plan["processes"] if each["alive"])

    def all_workers(self) -> list[dict[str, Any]]:
        """Return what the job says of every worker that it ever had, by rank."""
        members = self.status().get("members", [])
        workers = [member for member in members if member["role"] == "worker"]
        return sorted(workers, key=lambda worker: int(worker["index"]))

    def workers(self) -> list[dict[str, Any]]:
        """Return what the job says of the workers that train."""
        return [each for each in self.all_workers() if each["alive"] and not each["done"]]

    def steps(self) -> int:
        """Return the steps of all workers together."""
        return sum(worker["facts"].get("step", 0) for worker in self.workers())

    def listeners(self, container: str) -> list[int]:
        """Return the ports on which a container can be reached, in order."""
        kernel = run(["docker", "exec", container, "cat", "/proc/net/tcp", "/proc/net/tcp6"])
        ports = set()
        for words in map(str.split, kernel.splitlines()):
            address, _, port = words[1].rpartition(":")
            if words[3] == LISTENING and not address.endswith("7F"):  # 127.x, written backwards
                ports.add(int(port, 16))
        return sorted(ports)

    def knock(self, addresses: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return what each address answers to a stranger in the job's network."""
        script = Path(__file__).with_name("knock.py").read_text()
        python = ("run", "--rm", "--no-deps", "-T", "--entrypoint", "python3", "admin")
        answers: dict[str, dict[str, str]] = json.loads(
            self.compose(*python, "-I", "-S", "-c", script, *addresses)
        )
        return answers

    def ask(self, *words: str) -> Any:
        """Return what a ``paramfleet`` command of the admin service prints as JSON."""
        run_admin = ("run", "--rm", "--no-deps", "-T", "admin")
        return json.loads(self.compose(*run_admin, *words, "--json"))

    def scale(self, *, workers: int, pservers: int) -> None:
        """Have so many workers and pservers."""
        sizes = ("--scale", f"worker={workers}", "--scale", f"pserver={pservers}")
        quietly = ("--no-build", "--no-recreate", "--no-deps")
        self.compose("up", "-d", *quietly, *sizes, "worker", "pserver")

    def limit(self, cpus: float, *containers: str) -> None:
        """Give these containers so many cores each; without any, all workers."""
        run(["docker", "update", f"--cpus={cpus}", *(containers or self.containers("worker"))])

    def logs(self, *services: str) -> str:
        """Return what the containers wrote."""
        return self.compose("logs", "--no-color", "--no-log-prefix", *services)


def run(command: Sequence[str], *, environment: Mapping[str, str] | None = None) -> str:
    """Return a command's output.

    Raises:
        ClusterError: if it fails; with the last lines that it wrote.
    """
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        last = "\n".join(done.stderr.splitlines()[-30:])
        message = f"{' '.join(command)} ended with {done.returncode}:\n{last}"
        raise ClusterError(message)
    return done.stdout


def state_of(state: Mapping[str, Any]) -> tuple[str, int, str | None]:
    """Return a container's status, exit code, and health; None where it has no check."""
    health = state.get("Health")
    return state["Status"], state["ExitCode"], health and health["Status"]


def act(fault: str, container: str, *options: str) -> None:
    """Do something to a container; if the engine refuses it, again, and then by a signal.

    Args:
        fault: The engine's command, as ``pause``.
        container: The container's id.
        options: The command's.

    Raises:
        ClusterError: if there is no way to do it.
    """
    for left in reversed(range(TRIES)):
        try:
            run(["docker", fault, *options, container])
        except ClusterError as error:
            say(f"the engine refuses, {left} tries left: {error}")
            if not left and fault not in SIGNALS:
                raise
            threading.Event().wait(AGAIN_AFTER_S)
        else:
            return
    signal = f"kill -{SIGNALS[fault]} -1"  # all but init and the shell itself
    run(["docker", "exec", container, "sh", "-c", signal])
    say(f"sent SIG{SIGNALS[fault]} instead")


def hurt(cluster: Cluster, *, num_workers: int) -> None:
    """Kill a worker and a pserver and start them again, pause a worker, restart the others.

    Meanwhile more workers and pservers come, and leave.
    """
    by_address = {cluster.address(c): c for c in cluster.containers("worker")}
    cluster.wait_until(
        "all workers train",
        lambda: (
            len(cluster.workers()) == num_workers
            and all(worker["facts"].get("step", 0) for worker in cluster.workers())
        ),
        still_s=STARTING_STILL_S,
    )
    cluster.limit(TRAINING_CPUS)
    ranks = {w["index"]: by_address[w["host"]] for w in cluster.workers()}
    killed = ranks[num_workers - 1]
    going_on(cluster, f"worker {num_workers - 1} was killed", "kill", killed)
    cluster.limit(STARTING_CPUS, killed)
    act("start", killed)
    cluster.limit(FREEZING_CPUS, ranks[1])
    going_on(cluster, "worker 1 was paused", "pause", ranks[1])
    threading.Event().wait(PAUSE_S)
    act("unpause", ranks[1])
    cluster.limit(TRAINING_CPUS, ranks[1])
    cluster.wait_until(
        "worker 1 goes on after its pause",
        lambda: any(w["index"] == 1 and w["last_seen_s"] < 2 for w in cluster.workers()),
        still_s=STILL_S,
    )
    cluster.scale(workers=num_workers + 1, pservers=MORE_SERVERS)
    cluster.wait_until(
        "a worker more trains",
        lambda: len(cluster.workers()) == num_workers + 1,
        still_s=STARTING_STILL_S,
    )
    cluster.wait_until(
        "each new pserver has a group",
        lambda: cluster.hosting() == [1] * MORE_SERVERS,
        still_s=STILL_S,
    )
    cluster.limit(TRAINING_CPUS)
    cluster.scale(workers=num_workers, pservers=FEWER_SERVERS)
    cluster.wait_until(
        "the worker has left in good order",
        lambda: any(worker["done"] for worker in cluster.all_workers()),
        still_s=STILL_S,
    )
    cluster.wait_until(
        "the other pservers have the groups of the one that left",
        lambda: cluster.hosting() == [1] * (FEWER_SERVERS - 1) + [2],
        still_s=STILL_S,
    )
    server = cluster.containers("pserver")[0]
    act("kill", server)
    going_on(cluster, "a pserver was killed, and is started again", "start", server)
    for service in ("redis", "coordinator"):
        (container,) = cluster.containers(service)
        going_on(cluster, f"{service} was restarted", "restart", container, "-t", "2")


def going_on(cluster: Cluster, what: str, fault: str, container: str, *options: str) -> None:
    """Do something to a container, and see that steps are taken after it."""
    act(fault, container, *options)
    say(what)
    before = 0

    def has_moved() -> bool:
        nonlocal before
        now = cluster.steps()
        before = before or now
        return now > before > 0

    cluster.wait_until("steps are taken", has_moved, still_s=STILL_S)


def look_at_ports(cluster: Cluster) -> None:
    """See that a stranger in the job's network gets nothing but health.

    Raises:
        ClusterError: naming the address that gives more.
    """
    of_groups = {"pserver": MORE_SERVERS}  # each has a port of its own
    ports = {"redis": 1, "coordinator": 2, "pserver": 1, "worker": 1}
    addresses = []
    for service, num in ports.items():
        containers = cluster.containers(service)
        found = [
            f"{cluster.address(container)}:{port}"
            for container in containers
            for port in cluster.listeners(container)
        ]
        expected = num * len(containers) + of_groups.get(service, 0)
        if len(found) != expected:
            message = f"{service} listens on {found}: expected {expected} ports"
            raise ClusterError(message)
        addresses += found
    answers = cluster.knock(addresses)
    given = {
        address: told
        for address, told in answers.items()
        if "200" in {told["http /healthz"], told["http /status"], told["https /status"]}
    }
    if given:
        message = f"a stranger is told more than health: {given}"
        raise ClusterError(message)
    healthy = [told for told in answers.values() if told["https /healthz"] == "200"]
    say(f"{len(addresses)} ports, {len(healthy)} of which tell a stranger that they are well")


def result_of(logs: str) -> dict[str, Any]:
    """Return the result that worker 0 printed.

    Raises:
        ClusterError: if it printed none.
    """
    for line in reversed(logs.splitlines()):
        if line.startswith("{") and '"test_auc"' in line:
            found: dict[str, Any] = json.loads(line)
            return found
    message = "worker 0 printed no result"
    raise ClusterError(message)


def train(cluster: Cluster, asked: argparse.Namespace) -> dict[str, Any]:
    """Bring the cluster up, train, and return the result.

    Raises:
        ClusterError: if anything goes otherwise than it should.
    """
    scale = ("--scale", f"worker={asked.workers}", "--scale", f"pserver={asked.servers}")
    quietly = ("--no-build", "--pull", "never", "--quiet-pull")
    cluster.compose("up", "-d", *quietly, *scale)
    cluster.wait_until(
        "every container is healthy", cluster.are_healthy, still_s=STARTING_STILL_S
    )
    cluster.be_admin()
    look_at_ports(cluster)
    if cluster.ask("status")["job"] != f"test-{asked.mode}":
        message = "the admin service asks another job"
        raise ClusterError(message)
    if not asked.unhurt:
        hurt(cluster, num_workers=asked.workers)
        cluster.limit(STARTING_CPUS)
        cluster.ask("end")
    cluster.wait_until(
        "every worker has ended",
        lambda: None not in cluster.exit_codes("worker"),
        still_s=ENDING_STILL_S,
    )
    cluster.wait_until(
        "coordinator and pservers have ended",
        lambda: None not in cluster.exit_codes("coordinator") + cluster.exit_codes("pserver"),
        still_s=STILL_S,
    )
    for service in ("worker", "pserver", "coordinator"):
        codes = cluster.exit_codes(service)
        if any(codes):
            message = f"{service} containers ended with {codes}"
            raise ClusterError(message)
    result = result_of(cluster.logs("worker"))
    if result["test_auc"] < LEAST_AUC:
        message = f"test AUC {result['test_auc']:.4f}, less than {LEAST_AUC}"
        raise ClusterError(message)
    return result


def main() -> int:
    """Return 0 after a run as it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=["async", "geo"], default="geo")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--servers", type=int, default=2, help="to begin with, at most 4")
    parser.add_argument("--unhurt", action="store_true", help="Only train.")
    asked = parser.parse_args()
    variables = {
        "ADMIN_PORT": "7101",
        "ARGS": "" if asked.unhurt else ENDLESS,
        "MODE": asked.mode,
        "PARAMFLEET_JOB": f"test-{asked.mode}",
        "HOSTING": "planned",
        "SERVER_GROUPS": str(MORE_SERVERS),
        "SERVER_PROCESSES": str(asked.servers),
        "REDIS_IMAGE": "paramfleet-base:local",
        "WORKER_CPUS": str(STARTING_CPUS),
    }
    cluster = Cluster(f"paramfleet-test-{asked.mode}", variables)
    machine = MachineRecord()
    try:
        result = train(cluster, asked)
    except ClusterError as error:
        sys.stderr.write(cluster.compose("ps", "-a"))
        sys.stderr.write(cluster.logs("--tail", "40"))
        say(f"the machine: {machine.report()}")
        say(f"FAILED: {error}")
        return 1
    finally:
        cluster.compose("down", "-v", "--remove-orphans", "-t", "2")
    told = {
        "workers": asked.workers,
        "servers": asked.servers,
        "mode": asked.mode,
        "test_auc": round(result["test_auc"], 4),
        "seconds": round(time.perf_counter() - STARTED, 1),
        "training_seconds": round(result["seconds"], 1),
    }
    print(json.dumps(told), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Calls over our HTTP/2 beside bare TCP and others: ``python benchmarks/transport.py``.

Each stack has one server process and one client process on loopback, and answers the
same bytes with the same bytes: nothing is looked up or computed. See README.md beside
this file.
"""

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from conditions import Headline
from cores import cores_of
from harness import Suite, run_script, suite_of
from paramfleet_shared.net.secret import new_secret
from paramfleet_shared.settings.config import read_environment
from paramfleet_worker.core.environment import runtime_environment
from peer.children import Child, cpu_s, start_child
from rounds import Rounds, Turn, least_rounds
from wires.cases import CASES, DIAL

BUDGET_S = 70.0

STACKS = ("raw", "ours", "grpc_aio", "grpc_sync", "http1")
"""Each a module of ``wires``."""

LOADS = (("small", 1), ("small", 32), ("medium", 1), ("medium", 8), ("pull", 1), ("push", 1))
"""Cases, and calls in flight."""

SECRET_LOADS = (("small", 1), (DIAL, 1))
"""Those that are set beside the same without the job's secret."""

TLS_LOADS = (("pull", 1),)
SECURITY = ("tls", "mutual_tls")

SLOWNESS = {"raw": 0.5, "ours": 1.0, "grpc_aio": 6.0, "grpc_sync": 6.0, "http1": 4.0}
"""How many times fewer calls a burst has, so that bursts take alike long."""

NEEDED = {"grpc_aio": "grpc", "grpc_sync": "grpc"}
"""The modules without which a stack can't be measured."""

METHOD = (
    "Every stack answers a request of fixed size with an answer of fixed size: small is "
    "64 B each way, medium 64 KiB, pull 0.8 MB and 6.4 MB, push 7 MB and 64 B. 'raw' is "
    "uvloop TCP with a length before each message, received straight into an array; "
    "'ours' is Channel.call to a handler of RpcServer, with messages, deadlines and errors, "
    "through TCP as all others. The server has one core and the client the other. "
    "A round runs a burst of every stack for every load; a ratio is the time of raw's call "
    "divided by the stack's, of one round: 1 is as fast as the limit, and above 1 faster; "
    "'_cpu' is the same of the processor time of both processes. Under TLS the limit "
    "is raw TCP under the same TLS, with the same certificates. 'secret' is ours where both "
    "ends prove the job's secret; 'dial' is a new connection with one small call on it."
)


class Burst(NamedTuple):
    """What one turn measures."""

    stack: str
    security: str
    case: str
    in_flight: int


class Missing(Exception):  # noqa: N818 (a reason, which the method's text gives)
    """A stack that cannot be measured here."""


def measure(*, budget_s: float = BUDGET_S) -> Suite:
    """Measure all stacks that are installed, for about ``budget_s`` seconds."""
    return asyncio.run(_measure(budget_s))


async def _measure(budget_s: float) -> Suite:
    with tempfile.TemporaryDirectory(prefix="transport-") as name:
        async with AsyncExitStack() as stack:
            wires = Wires(Path(name), stack)
            missing = await wires.start_all()
            bursts = list(_bursts(wires.clients))
            names = {str(burst): burst for burst in bursts}
            rounds = Rounds(list(names), budget_s=budget_s, least=least_rounds(budget_s))
            for turn in rounds.turns:
                rounds.figures[turn].append(await wires.run(names[turn]))
    return suite_of(
        "transport",
        rows=[_row(burst, rounds) for burst in bursts],
        headlines=_headlines(rounds),
        method=" ".join([METHOD, *missing]),
        turns={"transport": rounds.turns},
    )


class Wires:
    """The processes of all stacks.

    Args:
        folder: For logs and certificates.
        stack: Ends the processes.
    """

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self.clients: dict[tuple[str, str], Child] = {}
        """By stack and security."""
        self._servers: dict[tuple[str, str], Child] = {}
        self._folder = folder
        self._stack = stack
        inherited = read_environment()
        added = runtime_environment(inherited, num_cores=2, num_local_roles=2)
        self._environment = {**inherited, **added}

    async def start_all(self) -> list[str]:
        """Start what can be started; return why the others cannot."""
        missing = []
        for name in STACKS:
            needed = NEEDED.get(name)
            if needed is not None and find_spec(needed) is None:
                missing.append(f"{name} needs {needed}, which is not installed.")
                continue
            await self._start(name, "plain", {})
        await self._start("ours", "secret", {"secret": new_secret()})
        try:
            certificate = _make_certificate(self._folder)
        except Missing as error:
            return [*missing, f"{error}"]
        for security in SECURITY:
            options = {**certificate, "mutual": security == "mutual_tls"}
            for name in ("raw", "ours"):
                await self._start(name, security, options)
        return missing

    async def run(self, burst: Burst) -> Turn:
        """Run a burst, and return what a call took."""
        stack = burst.stack, burst.security
        pids = [self.clients[stack].pid, self._servers[stack].pid]
        before_s = sum(map(cpu_s, pids))
        seconds, num_calls = await self.clients[stack].ask(
            "burst",
            case=burst.case,
            in_flight=burst.in_flight,
            slowness=SLOWNESS[burst.stack],
        )
        return Turn(1 / seconds, (sum(map(cpu_s, pids)) - before_s) / num_calls)

    async def _start(self, name: str, security: str, options: Mapping[str, Any]) -> None:
        server = await self._process(name, security, "serve", dict(options))
        port = await server.ask("port")
        client = await self._process(name, security, "drive", {**options, "port": port})
        self._servers[name, security] = server
        self.clients[name, security] = client

    async def _process(
        self, name: str, security: str, act: str, options: dict[str, Any]
    ) -> Child:
        arguments = ["-m", "wires.process", name, act, json.dumps(options)]
        cores = cores_of("server" if act == "serve" else "client")
        child = await start_child(
            f"{name}-{security}-{act}", arguments, self._environment, self._folder, cores
        )
        self._stack.push_async_callback(child.end)
        return child


def _make_certificate(folder: Path) -> dict[str, str]:
    openssl = shutil.which("openssl")
    if openssl is None:
        raise Missing("TLS was not measured: no openssl to make a certificate with.")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        [
            openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
            "-nodes", "-keyout", str(key), "-out", str(certificate), "-days", "2",
            "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1",
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return {"certificate": str(certificate), "key": str(key)}


def _bursts(clients: Mapping[tuple[str, str], Child]) -> Iterator[Burst]:
    """Yield every stack's burst of a load beside each other."""
    for case, in_flight in SECRET_LOADS:
        yield Burst("ours", "secret", case, in_flight)
    for name in ("raw", "ours"):
        yield Burst(name, "plain", DIAL, 1)
    for loads, securities in ((LOADS, ("plain",)), (TLS_LOADS, SECURITY)):
        for case, in_flight in loads:
            for security in securities:
                for name in STACKS:
                    if (name, security) in clients:
                        yield Burst(name, security, case, in_flight)


def _limit_of(burst: Burst) -> Burst:
    beside = burst._replace(stack="raw")
    return beside._replace(security="plain") if burst.security == "secret" else beside


def _row(burst: Burst, rounds: Rounds) -> dict[str, Any]:
    name, limit = str(burst), str(_limit_of(burst))
    rate = rounds.figure(name).median
    return {
        "case": burst.case,
        "in_flight": burst.in_flight,
        "security": burst.security,
        "stack": burst.stack,
        "us_per_call": 1e6 / rate,
        "cpu_us_per_call": 1e6 * rounds.cpu_s(name),
        "calls_per_s": rate,
        "GB_per_s": CASES["small" if burst.case == DIAL else burst.case].moved_bytes
        * rate
        / 1e9,
        "vs_raw": rounds.ratio(name, limit),
        "vs_raw_cpu": rounds.cpu_ratio(name, limit),
    }


def _headlines(rounds: Rounds) -> dict[str, Headline | None]:
    headlines: dict[str, Headline | None] = {}

    def add(name: str, burst: Burst, other: Burst) -> None:
        pair = str(burst), str(other)
        measured = rounds.figures.keys() >= set(pair)
        headlines[name] = rounds.headline(*pair) if measured else None
        headlines[f"{name}_cpu"] = rounds.cpu_headline(*pair) if measured else None

    for name, burst in {
        "transport_pull_vs_raw_tcp": Burst("ours", "plain", "pull", 1),
        "transport_push_vs_raw_tcp": Burst("ours", "plain", "push", 1),
        "small_call_vs_raw_tcp": Burst("ours", "plain", "small", 1),
        "small_calls_32_in_flight_vs_raw_tcp": Burst("ours", "plain", "small", 32),
        "medium_call_vs_raw_tcp": Burst("ours", "plain", "medium", 1),
        "tls_pull_vs_raw_tls": Burst("ours", "tls", "pull", 1),
        "mutual_tls_pull_vs_raw_tls": Burst("ours", "mutual_tls", "pull", 1),
    }.items():
        add(name, burst, _limit_of(burst))
    for name, case in {
        "small_call_with_secret_vs_without": "small",
        "connection_with_secret_vs_without": DIAL,
    }.items():
        ours = Burst("ours", "secret", case, 1)
        add(name, ours, ours._replace(security="plain"))
    return headlines


if __name__ == "__main__":
    sys.exit(run_script(measure, description=__doc__ or "", budget_s=BUDGET_S))

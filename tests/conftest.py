"""What tests of every folder may ask for."""

import asyncio
import os
import signal
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import hypothesis
import pytest
from typing_extensions import override

from paramfleet_shared.discovery.redis.embedded import EmbeddedRedis
from paramfleet_shared.net.tls import MemberName, Tls, TlsFiles
from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.system.gc_tuning import freeze
from paramfleet_shared.system.processes.tether import tie
from paramfleet_shared.testing.machine import MachineRecord

# How long an example takes says how busy the machine is, and nothing of the code.
hypothesis.settings.register_profile(
    "untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("untimed")


# What a shell may have set for jobs of its own; tests expect settings that nobody has set.
OF_JOBS = ("PARAMFLEET_", "PADDLE_", "TRAINING_ROLE", "POD_IP")
KEPT = frozenset({"PARAMFLEET_DATA", "PARAMFLEET_PADDLEREC"})

NEEDS_QUIET = ("processes", "slow_machine")
"""Marks of tests that a busy machine may break: a failure says what the machine did."""

RECORD = pytest.StashKey[MachineRecord]()


def pytest_configure(config: pytest.Config) -> None:
    """Keep nothing that our starter left to us, and end with it if it distributes the tests."""
    _take_signals()
    for name in read_environment():
        if name.startswith(OF_JOBS) and name not in KEPT:
            del os.environ[name]  # noqa: TID251 - what every test reads
    if hasattr(config, "workerinput"):  # pytest-xdist started us
        tie(os.getppid())


def _take_signals() -> None:
    """Take what ends processes, also where our starter ignored it: children inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):  # nohup ignores the latter
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Begin to record what the machine does during a test that needs a quiet one."""
    if any(item.get_closest_marker(name) for name in NEEDS_QUIET):
        item.stash[RECORD] = MachineRecord()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Say of such a test that fails what the machine did meanwhile."""
    report = yield
    if report.failed and (record := item.stash.get(RECORD, None)) is not None:
        report.sections.append(("The machine during this test", record.report()))
    return report


def pytest_collection_finish() -> None:
    """Exempt modules and collected tests from every search for garbage in a test."""
    freeze()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRedis]:
    """Return a real redis-server that lives as long as the test session."""
    server = EmbeddedRedis(tmp_path_factory.mktemp("redis"), clock=SystemClock())
    asyncio.run(server.start())
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def redis_url(redis_server: EmbeddedRedis) -> str:
    """Return the address that jobs of the session's redis-server have."""
    return redis_server.url


@pytest.fixture
def job_name() -> str:
    """Return a job name no other test uses."""
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    """Return a redis-server of this test alone, not started; it forgets all at a restart."""
    server = EmbeddedRedis(tmp_path, clock=SystemClock())
    try:
        yield server
    finally:
        server.stop()


class PlainRedis(EmbeddedRedis):
    """A Redis as many a machine has one: without users, and with a password or none."""

    def __init__(self, folder: Path, *, password: str = "") -> None:
        super().__init__(folder, clock=SystemClock(), bind="127.0.0.1")
        self._asks = password

    @property
    def place(self) -> str:
        """Return its address, without a password."""
        return f"redis://127.0.0.1:{self.port}/0"

    @override
    def _config(self, port: int) -> str:
        lines = super()._config(port).splitlines()
        own = [line for line in lines if not line.startswith("user ")]
        asks = [f"requirepass {self._asks}"] if self._asks else []
        return "\n".join([*own, *asks, ""])

    @override
    async def _prepare(self) -> None:
        """Leave it as it is."""


@pytest.fixture
async def plain_redis(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[PlainRedis]]]:
    """Return a function that starts a Redis that we wouldn't start so."""
    started: list[PlainRedis] = []

    async def start(*, password: str = "") -> PlainRedis:
        started.append(PlainRedis(tmp_path, password=password))
        await started[-1].start()
        return started[-1]

    yield start
    for redis in started:
        redis.stop()


@pytest.fixture
def data_dir() -> Path:
    """The folder with real data that is not part of the checkout."""
    named = read_environment().get("PARAMFLEET_DATA")
    folder = Path(named) if named else Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no data in {folder}; set PARAMFLEET_DATA")
    return folder


class Certificates:
    """Certificates of made-up jobs, in files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def issue(
        self,
        role: str,
        *,
        job: str = "flights",
        age_days: float = 0,
        days: float = 30,
        authority: str = "ours",
    ) -> TlsFiles:
        from paramfleet_worker.process.certificates import Authority  # noqa: PLC0415 -- slow

        folder = self.folder / authority
        maker = Authority(folder, now=datetime.now(UTC) - timedelta(days=age_days))
        maker.init(job)
        maker.issue(MemberName(job, role), hosts=["127.0.0.1", "localhost"], days=days)
        return TlsFiles(
            ca=folder / "ca.crt", cert=folder / f"{role}.crt", key=folder / f"{role}.key"
        )

    def tls(self, role: str, *, job: str = "flights", authority: str = "ours") -> Tls:
        return Tls(self.issue(role, job=job, authority=authority), job=job)


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    """Makes certificates; ``folder/ours`` is their authority."""
    return Certificates(tmp_path / "certificates")

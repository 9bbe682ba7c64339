"""A job on a Redis that lets in nobody but its users, with no more rights than they need.

Only since Redis 7 may a user read keys that it can't write.
"""

import re
import subprocess
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from typing_extensions import override

from paramfleet_shared.discovery.errors import NoRedisError, RedisRefusedError
from paramfleet_shared.discovery.job_registry import JobRegistry
from paramfleet_shared.discovery.records import Failure, JobRecord, JobSizes, Member
from paramfleet_shared.discovery.redis import scripts
from paramfleet_shared.discovery.redis.access_list import COMMANDS, READ_ONLY_SINCE
from paramfleet_shared.discovery.redis.embedded import EmbeddedRedis
from paramfleet_shared.discovery.redis.scripts import Keys
from paramfleet_shared.discovery.redis.serving import find_redis_server
from paramfleet_shared.discovery.redis.store import RedisStore, store_of
from paramfleet_shared.discovery.registry import CoordinatorRecord, Registry
from paramfleet_shared.settings.config import JobSettings
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_worker.app.commands.certs import certs

SIZES = JobSizes(worker_num=1, server_num=1, num_shards=4)
WHERE = CoordinatorRecord(endpoint="h:1", admin="h:2", host="h", pid=9)
ADA = Member(
    role="worker", index=0, incarnation=0, endpoint="", admin="", host="h", pid=1, nonce="ada"
)
KEYS = Keys("flights")
JOB = KEYS.of_decisions(1)


def redis_version() -> int:
    said = subprocess.run(
        tied([str(find_redis_server()), "--version"]),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    match = re.search(r"v=(\d+)\.", said)
    assert match is not None, said
    return int(match[1])


IS_NEW = redis_version() >= READ_ONLY_SINCE
since_7 = pytest.mark.skipif(
    not IS_NEW, reason="Redis before 7 can't tell reading from writing"
)


class GuardedRedis(EmbeddedRedis):
    """A redis-server with the access list of a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, clock=SystemClock())
        self.folder = folder

    @override
    def _config(self, port: int) -> str:
        lines = super()._config(port).splitlines()
        own = [line for line in lines if not line.startswith("user ")]
        return "\n".join([*own, f'aclfile "{self.folder / "redis.acl"}"', ""])

    @override
    async def _prepare(self) -> None:
        """Leave the scripts to the job, as this list allows."""


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[GuardedRedis]:
    old = () if IS_NEW else ("--before-redis-7",)
    words = ["redis-acl", "--dir", str(tmp_path), "--job", "flights", *old]
    made = CliRunner().invoke(certs, words)
    assert made.exit_code == 0, made.output
    redis = GuardedRedis(tmp_path)
    await redis.start()
    yield redis
    redis.stop()


@pytest.fixture
async def store_for(guarded: GuardedRedis) -> AsyncIterator[Callable[[str], RedisStore]]:
    opened: list[RedisStore] = []

    def open_store(user: str) -> RedisStore:
        path = guarded.folder / f"redis.{user}.password"
        password = path.read_text() if path.exists() else ""
        settings = JobSettings(
            job="flights", redis=guarded.url, redis_user=user, redis_password=password
        )
        opened.append(store_of(settings, clock=SystemClock(), timeout_s=5.0))
        return opened[-1]

    yield open_store
    for store in opened:
        await store.close()


async def test_a_member_is_kept_with_every_digit_of_its_run(
    store_for: Callable[[str], RedisStore],
) -> None:
    job_registry = JobRegistry(
        store_for("coordinator"), job="flights", record=WHERE, lease_ttl_s=60.0
    )
    assert await job_registry.try_claim() is None
    job_registry.epoch = 1
    await job_registry.write_job(JobRecord(state="waiting", sizes=SIZES))
    bob = replace(ADA, role="pserver", holds_run=(1 << 53) - 1)

    incarnations = [await job_registry.register(replace(bob, nonce=each)) for each in "ab"]

    assert incarnations == [1, 2]
    found = (await job_registry.tick()).members
    assert list(found.values()) == [replace(bob, nonce="b", incarnation=2)]


async def test_members_and_coordinator_may_do_what_a_job_needs(
    store_for: Callable[[str], RedisStore],
) -> None:
    job_registry = JobRegistry(
        store_for("coordinator"), job="flights", record=WHERE, lease_ttl_s=60.0
    )
    registry = Registry(store_for("worker"), job="flights")
    servers = Registry(store_for("pserver"), job="flights")

    assert await job_registry.try_claim() is None
    job_registry.epoch = 1
    await job_registry.write_job(JobRecord(state="waiting", sizes=SIZES))
    ada = replace(ADA, incarnation=await job_registry.register(ADA))
    bob = replace(ADA, role="pserver", nonce="bob")
    bob = replace(bob, incarnation=await job_registry.register(bob))
    await registry.ping()
    view = await registry.beat(ada, epoch=1, end="done", facts='{"step": 1}')
    await registry.put(ada, epoch=1, use="1:x", payload=b"payload")
    await servers.beat(bob, epoch=1)
    waiting = JobRecord(state="waiting", sizes=SIZES)
    await servers.restore(bob, epoch=1, record=waiting, passed={})
    await registry.restore(ada, epoch=1, record=waiting, passed={"a": 2})
    await job_registry.arrive("b", 1, 0)
    snapshot = await job_registry.tick()
    await servers.fail(bob, epoch=1, reason="tired")
    told = await registry.read_job(1)
    await job_registry.read_arrivals()
    assert await job_registry.keep_audit(0, ['{"number": 1}'])
    assert await job_registry.read_audit() == [b'{"number": 1}']
    await job_registry.resign()

    assert told is not None
    assert (told.state, told.failure) == (
        "failed",
        Failure(role="pserver", index=0, reason="tired"),
    )
    assert view.has_coordinator
    assert (snapshot.known, [*snapshot.passed]) == (waiting, [{}, {"a": 2}])
    assert set(snapshot.members) == {("worker", 0), ("pserver", 0)}
    assert await registry.find_coordinator() is None
    assert await registry.read_payloads(epoch=1, use="1:x") == {0: b"payload"}


@pytest.mark.parametrize(
    "words",
    [
        ("FLUSHALL",),
        ("CONFIG", "SET", "requirepass", "mine"),
        ("ACL", "SETUSER", "worker", "+@all"),
        ("KEYS", "*"),
        ("DEL", "paramfleet:flights:epoch"),
        ("GET", "paramfleet:clicks:epoch"),
        ("EVAL", "return redis.call('GET', KEYS[1])", 1, "paramfleet:clicks:epoch"),
        ("PUBLISH", "paramfleet:flights:x", "y"),
    ],
)
async def test_a_worker_may_do_nothing_else(
    store_for: Callable[[str], RedisStore], words: tuple[str | int, ...]
) -> None:
    with pytest.raises(RedisRefusedError):
        await store_for("worker").command(*words)


@since_7
@pytest.mark.parametrize("user", ["worker", "pserver"])
@pytest.mark.parametrize(
    "words",
    [
        ("HSET", JOB, "plan", "{}"),
        ("HSETNX", JOB, "placement", "{}"),
        ("HDEL", JOB, "plan"),
        ("HINCRBY", JOB, "run_id", 1),
        ("SET", JOB, "gone"),
        ("PEXPIRE", JOB, 1),
        ("HSET", KEYS.of_job("coordinator"), "record", "{}"),
        ("PEXPIRE", KEYS.of_job("coordinator"), 1),
        ("HSET", KEYS.of_run(1)[8], "start", "{}"),
        ("SET", KEYS.of_run(1, "barrier:1:start")[-1], "gone"),
        ("SET", KEYS.of_job("audit"), "gone"),
    ],
)
async def test_members_read_what_the_coordinator_decides_and_never_write_it(
    store_for: Callable[[str], RedisStore], user: str, words: tuple[str | int, ...]
) -> None:
    job_registry = JobRegistry(
        store_for("coordinator"), job="flights", record=WHERE, lease_ttl_s=60.0
    )
    assert await job_registry.try_claim() is None
    job_registry.epoch = 1
    written = await job_registry.write_job(
        JobRecord(state="waiting", sizes=SIZES, plan={"version": 1})
    )
    own = store_for(user)

    with pytest.raises(RedisRefusedError):
        await own.command(*words)

    members = Registry(own, job="flights")
    assert await members.read_job(1) == written
    assert await members.find_coordinator() == WHERE


@since_7
@pytest.mark.parametrize("user", ["worker", "pserver"])
async def test_no_script_of_a_member_writes_a_plan(
    store_for: Callable[[str], RedisStore], user: str
) -> None:
    own, mine = store_for(user), "redis.call('HSET', {}, 'plan', 'mine') return {{}}"

    with pytest.raises(RedisRefusedError):
        await own.run(mine.format("KEYS[1]"), [JOB], [])
    with pytest.raises(NoRedisError, match="can't access at least one of the keys"):
        await own.run(mine.format("ARGV[1]"), [], [JOB])

    assert await store_for("coordinator").command("EXISTS", JOB) == 0


@since_7
async def test_a_pserver_writes_no_payload_of_workers(
    store_for: Callable[[str], RedisStore],
) -> None:
    bob = replace(ADA, role="pserver", incarnation=1)

    with pytest.raises(RedisRefusedError):
        await Registry(store_for("pserver"), job="flights").put(
            bob, epoch=1, use="1:x", payload=b"mine"
        )


async def test_nobody_gets_in_without_a_password(
    guarded: GuardedRedis, store_for: Callable[[str], RedisStore]
) -> None:
    bare = RedisStore(guarded.url, clock=SystemClock(), timeout_s=5.0)

    with pytest.raises(RedisRefusedError):
        await bare.command("PING")
    await bare.close()
    with pytest.raises(RedisRefusedError):
        await store_for("default").command("GET", "paramfleet:flights:epoch")


def test_what_scripts_call_is_in_the_coordinator_s_rights() -> None:
    source = Path(str(scripts.__file__)).read_text(encoding="utf-8")

    called = {name.lower() for name in re.findall(r"redis\.call\('([A-Z]+)'", source)}

    assert called
    assert called <= set(COMMANDS["coordinator"])


def test_passwords_are_kept_and_the_list_holds_their_hashes_alone(tmp_path: Path) -> None:
    words = ["redis-acl", "--dir", str(tmp_path), "--job", "flights"]
    CliRunner().invoke(certs, words)
    before = {path.name: path.read_text() for path in tmp_path.iterdir()}

    made = CliRunner().invoke(certs, words)

    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before
    passwords = [text for name, text in before.items() if name.endswith(".password")]
    assert len(set(passwords)) == 3
    assert not any(text in before["redis.acl"] + made.output for text in passwords)

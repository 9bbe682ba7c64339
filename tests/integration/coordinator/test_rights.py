"""Whom the coordinator serves what, by the role of a caller's certificate."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from paramfleet_coordinator.access import RIGHTS
from paramfleet_shared.discovery.errors import OtherHostingError
from paramfleet_shared.discovery.redis.store import RedisStore
from paramfleet_shared.discovery.registry import Registry
from paramfleet_shared.net.rights import OperationRefusedError
from paramfleet_shared.net.rpc.client import Channel
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.testing.patience import LATE_S

pytestmark = pytest.mark.slow

JOIN = {"endpoint": "", "admin": "", "host": "h", "pid": 1, "nonce": "n"}
PLANNING = ("plan", "set_eligible", "cancel_move", "drain_process")


@pytest.fixture
async def channel_of(
    stage: Any, redis_url: str, job_name: str, certificates: Any
) -> AsyncIterator[Callable[[str], Channel]]:
    """Return the way to a coordinator that serves TLS, with a certificate of a role."""
    opened: list[Channel] = []
    roles = ("coordinator", "pserver", "worker")
    tls = {role: certificates.tls(role, job=job_name) for role in roles}
    folder = str(certificates.folder / "ours")
    async with stage(redis_url, job_name) as job:
        job.coordinator(tls_dir=folder)
        await job.join("pserver", 0, tls_dir=folder)
        store = RedisStore(redis_url, clock=SystemClock(), timeout_s=2.0)
        coordinator = await Registry(store, job=job_name).find_coordinator()
        await store.close()
        assert coordinator is not None

        def channel(role: str) -> Channel:
            own = tls[role].expects("coordinator")
            opened.append(
                Channel(coordinator.endpoint, peer="coordinator", clock=SystemClock(), tls=own)
            )
            return opened[-1]

        yield channel
        for each in opened:
            await each.close()


async def test_each_operation_is_refused_to_every_role_that_it_does_not_name(
    channel_of: Callable[[str], Channel],
) -> None:
    channels = {role: channel_of(role) for role in ("pserver", "worker")}
    refused = []

    for operation, allowed in RIGHTS.items():
        for role in sorted(channels.keys() - allowed):
            with pytest.raises(OperationRefusedError, match=f"certificate of {role}") as error:
                await channels[role].call(operation, Message(), timeout_s=LATE_S)
            refused.append((role, error.value.operation))
            assert error.value.allowed == " or ".join(sorted(allowed))

    assert refused == [("pserver", "barrier"), *(("worker", each) for each in PLANNING)]


@pytest.mark.parametrize("operation", PLANNING)
async def test_a_pserver_may_ask_what_its_processes_ask(
    channel_of: Callable[[str], Channel], job_name: str, operation: str
) -> None:
    fields = {"job": job_name, "process": "0.1"}

    with pytest.raises(OtherHostingError):  # this job's groups aren't planned
        await channel_of("pserver").call(operation, Message(fields=fields), timeout_s=LATE_S)


@pytest.mark.parametrize(
    ("role", "claims", "needed"),
    [
        ("worker", "pserver", "pserver"),
        ("worker", "process", "pserver"),
        ("pserver", "worker", "worker"),
    ],
)
async def test_nobody_joins_as_what_its_certificate_does_not_say(
    channel_of: Callable[[str], Channel], job_name: str, role: str, claims: str, needed: str
) -> None:
    fields = {"job": job_name, "role": claims, "index": 0, **JOIN}

    with pytest.raises(OperationRefusedError, match=f"join as {claims}") as refused:
        await channel_of(role).call("join", Message(fields=fields), timeout_s=LATE_S)

    assert (refused.value.role, refused.value.allowed) == (role, needed)


async def test_a_worker_that_names_a_process_gets_no_group_by_it(
    channel_of: Callable[[str], Channel], job_name: str
) -> None:
    fields = {"job": job_name, "role": "worker", "index": 0, "process": "0.1", **JOIN}

    with pytest.raises(MalformedMessageError, match=r"join\.process"):
        await channel_of("worker").call("join", Message(fields=fields), timeout_s=LATE_S)

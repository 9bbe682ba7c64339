"""Whom a pserver serves what, by the role of a caller's certificate."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from paramfleet_pserver.api.access import ACTING, RIGHTS
from paramfleet_pserver.api.routes import OPERATIONS
from paramfleet_pserver.config import PServerSettings
from paramfleet_pserver.core.service import ServiceTimes
from paramfleet_pserver.following.serving import FOLLOWING
from paramfleet_pserver.hosting.group import GroupParts, HostedGroup
from paramfleet_pserver.tables.owners import Owners
from paramfleet_shared.net.rights import OperationRefusedError
from paramfleet_shared.net.rpc.client import Channel
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.testing.patience import LATE_S

CLOCK = SystemClock()


@pytest.fixture
async def endpoint(certificates: Any) -> AsyncIterator[str]:
    """Return where a group serves TLS; nobody has given it a place in a job."""
    certificates.issue("pserver")
    settings = PServerSettings(job="flights", tls_dir=str(certificates.folder / "ours"))
    owners = Owners(1)
    parts = GroupParts(
        settings=settings,
        clock=CLOCK,
        owners=owners,
        service=ServiceTimes(CLOCK.monotonic),
        tracing=None,
    )
    group = HostedGroup(parts, index=0, describe=lambda _: {})
    yield f"127.0.0.1:{await group.server.start('127.0.0.1')}"
    await group.server.close()
    await owners.close()


def test_every_operation_names_its_roles() -> None:
    assert set(RIGHTS) == set(OPERATIONS)
    assert {each for each, allowed in RIGHTS.items() if allowed == {"pserver"}} == {*FOLLOWING}
    assert all(RIGHTS[operation] == {"worker"} for operation in (*ACTING, "pull", "load"))


@pytest.mark.parametrize("role", ["worker", "pserver", "coordinator"])
async def test_each_operation_is_refused_to_every_role_that_it_does_not_name(
    endpoint: str, certificates: Any, role: str
) -> None:
    tls = certificates.tls(role).expects("pserver")
    channel = Channel(endpoint, peer="pserver 0", clock=CLOCK, tls=tls)
    forbidden = [each for each in OPERATIONS if role not in RIGHTS[each]]

    for operation in forbidden:
        with pytest.raises(OperationRefusedError, match=f"certificate of {role}") as refused:
            await channel.call(operation, Message(), timeout_s=LATE_S)
        assert refused.value.operation == operation
        assert refused.value.allowed == " or ".join(sorted(RIGHTS[operation]))

    await channel.close()
    assert len(forbidden) >= len(FOLLOWING)

"""The workers of a collective job find each other, or know who is missing."""

import socket

import pytest
from torch import distributed

from paramfleet.config.roles import Rendezvous, RoleMaker
from paramfleet.config.settings import WorkerSettings
from paramfleet.training.collective.errors import PeersLostError, RendezvousError
from paramfleet.training.collective.world import World
from paramfleet_shared.system.clock import SystemClock


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def world(rank: int, size: int, *, port: int = 0) -> World:
    place = Rendezvous(host="127.0.0.1", port=port, keeps_store=rank == 0)
    role = RoleMaker(
        distributed=True, collective=True, index=rank, worker_num=size, rendezvous=place
    )
    return World(role, WorkerSettings(join_timeout_s=0.5), SystemClock())


@pytest.mark.slow
def test_who_does_not_come_to_the_start_is_named(free_port: int) -> None:
    with pytest.raises(RendezvousError, match=r"rendezvous with workers 1, 2 of 3: gave up"):
        world(0, 3, port=free_port)

    assert not distributed.is_initialized()


@pytest.mark.slow
def test_a_rendezvous_address_that_is_not_there_is_named(free_port: int) -> None:
    where = f"worker 0 of 3 at 127.0.0.1:{free_port}"
    with pytest.raises(RendezvousError, match=where) as caught:
        world(1, 3, port=free_port)

    assert caught.value.facts["operation"] == "rendezvous"
    assert caught.value.facts["waited_s"] > 0


def test_what_the_backend_raises_names_operation_and_peer() -> None:
    alone = World(
        RoleMaker(distributed=False, collective=True), WorkerSettings(), SystemClock()
    )
    try:
        with (
            pytest.raises(PeersLostError, match=r"the all-reduce.*Connection closed by peer"),
            alone.together("the all-reduce"),
        ):
            raise RuntimeError("[pair.cc] Connection closed by peer [127.0.0.1]:1")
        with pytest.raises(RuntimeError, match="shapes"), alone.together("the all-reduce"):
            raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    finally:
        alone.close()

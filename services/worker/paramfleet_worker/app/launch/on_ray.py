"""``paramfleet launch --on ray``: the processes of a job as actors of a Ray cluster.

Ray says where each process runs and watches its node. All else is as on one machine: the
processes find each other through Redis, the supervisor decides what an end means, and the
launcher shows their lines and keeps their logs.
"""

import asyncio
import contextlib
import importlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from typing_extensions import override

from paramfleet_shared.errors import ContractError, UnavailableError
from paramfleet_shared.settings.config import Resolved
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.system.processes.keeping import Keeper
from paramfleet_worker.app.launch.launcher import Launcher
from paramfleet_worker.app.launch.naming import launch_of
from paramfleet_worker.app.launch.planning import COORDINATOR, REDIS, LaunchPlan, redis_to_start
from paramfleet_worker.app.launch.preparing import prepared_launch
from paramfleet_worker.config import LaunchSettings
from paramfleet_worker.core.environment import JobFacts
from paramfleet_worker.core.events import ProcessName
from paramfleet_worker.core.supervisor import Supervisor
from paramfleet_worker.core.topology import Endpoint, Host, Topology, parse_redis
from paramfleet_worker.process.addresses import hosts_of_this_machine
from paramfleet_worker.process.children.ray_child import RayChild
from paramfleet_worker.process.children.ray_hand import Hand
from paramfleet_worker.process.terminal.console import Console

__all__ = ["RayCapacityError", "RayMissingError", "RayRedisError", "launch_on_ray"]

PLACED_WITHIN_S = 120.0
"""How long Ray may take to find room, and to start what it needs there."""

CARRIED = ("PARAMFLEET_", "PADDLE_", "OTEL_", "NUMBA_", "PYTHON", "TRAINING_ROLE", "POD_IP")
"""Variables of the launcher's environment that a process gets; the rest are its node's."""


class RayMissingError(ContractError):
    """A launch on Ray is asked for, and Ray isn't installed."""

    code = "contract.ray_missing"
    reason: str
    sentence = "--on ray needs Ray ({reason}): pip install 'paramfleet[ray]'"


class RayCapacityError(UnavailableError):
    """Ray finds no room for the job."""

    code = "unavailable.ray_capacity"
    cpus: float
    gpus: float
    available: str
    waited_s: float
    sentence = (
        "Ray found no resources for the job in {waited_s:.0f} s: it needs {cpus:g} CPUs and "
        "{gpus:g} GPUs, and the cluster has {available}; lower --ray_cpus or the numbers of "
        "processes"
    )


class RayRedisError(ContractError):
    """The job spans nodes, and its Redis would be reached from one alone."""

    code = "contract.ray_redis"
    hosts: Sequence[str]

    @override
    def describe(self) -> str:
        hosts = ", ".join(self.hosts)
        return f"the job runs on {hosts}: --redis must name one that all of them reach"


async def launch_on_ray(
    resolved: Resolved[LaunchSettings],
    *,
    script: tuple[str, ...],
    environment: Mapping[str, str],
    console: Console,
) -> int:
    """Run a job on the Ray cluster of ``RAY_ADDRESS``, of this machine, or of its own.

    Returns:
        The exit code: 0 only if every process ended with 0.

    Raises:
        RayMissingError: if Ray isn't installed.
        RayCapacityError: if there is no room in two minutes.
        RayRedisError: if ``--redis`` must say where all nodes find one.
        TopologyError: if ``--redis`` isn't an address.
        OSError: if a log can't be written.
    """
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError as error:
        raise RayMissingError(reason=str(error)) from error
    settings = resolved.value
    names = _names_of(settings)
    is_own = environment.get("RAY_ADDRESS") == "local"
    async with _hands(ray, names, settings, is_own=is_own) as hands:
        places = {
            name: Endpoint(Host(host), port)
            for name, (host, port) in zip(
                names, await _places(ray, list(hands.values()), settings), strict=True
            )
        }
        hosts = {place.host for place in places.values()}
        if not settings.redis and hosts != {ray.util.get_node_ip_address()}:
            raise RayRedisError(hosts=sorted(hosts))
        plan = _plan(settings, places=places, script=script)
        with prepared_launch(resolved, plan, environment) as prepared:
            launcher = _RayLauncher(prepared, console=console, clock=SystemClock())
            launcher.hands = hands
            return await launcher.run()


def _names_of(settings: LaunchSettings) -> list[ProcessName]:
    servers, workers = settings.process_num or 1, settings.worker_num or 1
    return [
        COORDINATOR,
        *(ProcessName("pserver", index) for index in range(servers)),
        *(ProcessName("worker", index) for index in range(workers)),
    ]


@asynccontextmanager
async def _hands(
    ray: Any, names: Sequence[ProcessName], settings: LaunchSettings, *, is_own: bool
) -> AsyncIterator[dict[ProcessName, Any]]:
    """Have an actor for each process; they end with this, and what they have started."""
    more = {"include_dashboard": False} if is_own else {}
    await asyncio.to_thread(ray.init, log_to_driver=False, logging_level="ERROR", **more)
    hands: dict[ProcessName, Any] = {}
    try:
        actor = ray.remote(Hand)
        for name in names:
            hands[name] = actor.options(
                name=None,
                num_cpus=0 if name == COORDINATOR else settings.ray_cpus,
                num_gpus=settings.ray_gpus if name.role == "worker" else 0,
                max_restarts=0,
                scheduling_strategy="SPREAD",
            ).remote()
        yield hands
    finally:
        for hand in hands.values():
            with contextlib.suppress(ray.exceptions.RayError):  # it may be gone already
                ray.kill(hand)
        await asyncio.to_thread(ray.shutdown)


async def _places(
    ray: Any, hands: Sequence[Any], settings: LaunchSettings
) -> list[tuple[str, int]]:
    try:
        async with asyncio.timeout(PLACED_WITHIN_S):
            return list(await asyncio.gather(*(hand.place.remote() for hand in hands)))
    except TimeoutError as error:
        workers = settings.worker_num or 1
        resources = ray.cluster_resources()
        raise RayCapacityError(
            cpus=settings.ray_cpus * (workers + (settings.process_num or 1)),
            gpus=settings.ray_gpus * workers,
            available=f"{resources.get('CPU', 0):g} CPUs, {resources.get('GPU', 0):g} GPUs",
            waited_s=PLACED_WITHIN_S,
        ) from error


def _plan(
    settings: LaunchSettings,
    *,
    places: Mapping[ProcessName, Endpoint],
    script: tuple[str, ...],
) -> LaunchPlan:
    topology = Topology(
        servers=tuple(place for name, place in places.items() if name.role == "pserver"),
        workers=tuple(place for name, place in places.items() if name.role == "worker"),
        coordinator=places[COORDINATOR],
    )
    facts = JobFacts(
        job=settings.job,
        redis=settings.redis,
        topology=topology,
        log_dir=str(settings.log_dir.absolute()),
        launch=launch_of(settings),
    )
    address = parse_redis(settings.redis) if settings.redis else None
    mine = frozenset() if address is None else hosts_of_this_machine({address.host}, own=None)
    redis = redis_to_start(address, mine)
    return LaunchPlan(
        facts=facts,
        names=tuple(places),
        redis=redis,
        script=script,
        elastic=settings.elastic,
        chaos=settings.chaos,
        on_ray=True,
        checkpoint_dirs=settings.checkpoint_dirs,
    )


class _RayLauncher(Launcher):
    """A launcher whose members are on Ray; its Redis, if it starts one, is here."""

    hands: Mapping[ProcessName, Any]
    """The actor of each member; set before ``run``."""

    @override
    def _start(
        self,
        name: ProcessName,
        command: Sequence[str],
        environment: Mapping[str, str],
        keeper: Keeper,
        *,
        append: bool = False,
    ) -> None:
        if name == REDIS:
            super()._start(name, command, environment, keeper, append=append)
            return
        own = self._environment
        given = {
            variable: value
            for variable, value in environment.items()
            if variable.startswith(CARRIED) or (variable not in own and variable[:4] != "OMP_")
        }
        self._children[name] = RayChild(
            name,
            hand=self.hands[name],
            words=command[1:],
            given=given,
            log=self._plan.log_of(name),
            console=self._console,
        )

    @override
    async def _supervise(self, supervisor: Supervisor) -> int:
        async with asyncio.TaskGroup() as group:
            far = [child for child in self._children.values() if isinstance(child, RayChild)]
            followers = [group.create_task(child.follow(self._reap)) for child in far]
            code = await super()._supervise(supervisor)
            for follower in followers:
                follower.cancel()
        return code

"""The launcher at work: starts the processes of a plan and carries out the supervisor's word.

Order of start: the signal handlers, the keeper, the tables' kernels where this machine
lacks them, what processes share, Redis and its first answer, then coordinator, pservers and
workers, each as soon as it may (``sharing.py``); they find each other in any order. Order of
the end: every process but Redis, Redis, the keeper. ``Launcher.run`` returns when all that it
started has ended.
"""

import asyncio
import contextlib
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from paramfleet_shared.discovery.errors import NoRedisError, OtherLaunchError
from paramfleet_shared.discovery.redis.openness import look_for_openness
from paramfleet_shared.discovery.redis.serving import find_redis_server, require_access_lists
from paramfleet_shared.discovery.registry import field_of
from paramfleet_shared.files.kept_arguments import kept_arguments
from paramfleet_shared.net.rpc.tasks import TaskSet
from paramfleet_shared.settings.failpoints import LIFE
from paramfleet_shared.system.clock import Clock
from paramfleet_shared.system.open_files import raise_open_files
from paramfleet_shared.system.processes.ending import VARIABLE as ENDINGS
from paramfleet_shared.system.processes.keeping import Keeper
from paramfleet_worker.app.launch.naming import job_settings_of
from paramfleet_worker.app.launch.own_redis import OwnRedis
from paramfleet_worker.app.launch.planning import COORDINATOR, REDIS
from paramfleet_worker.app.launch.preparing import PreparedLaunch
from paramfleet_worker.app.launch.reporting.telling import LAST_OUTPUT_WITHIN_S, Telling
from paramfleet_worker.app.launch.sharing import Sharing
from paramfleet_worker.core.events import (
    Consult,
    Dismiss,
    Event,
    Excuse,
    Exited,
    Finish,
    Interrupted,
    Lose,
    MembersLeft,
    ProcessName,
    RecordRead,
    Report,
    Restart,
    Review,
    Reviewed,
    Signal,
    Start,
    Tick,
    Wanted,
    WatchMembers,
    describe_exit,
)
from paramfleet_worker.core.supervisor import Supervisor
from paramfleet_worker.core.topology import parse_redis
from paramfleet_worker.process.children.child import Child
from paramfleet_worker.process.children.standby import Standby
from paramfleet_worker.process.probes.speaking import require_redis
from paramfleet_worker.process.terminal.console import Console
from paramfleet_worker.storage import JobRecords

if TYPE_CHECKING:
    from paramfleet_worker.process.children.ray_child import RayChild

__all__ = ["Launcher"]

REDIS_READY_WITHIN_S = 10.0

COMPILE_POLL_S = 0.05
"""Seconds between two looks at whether the kernels are compiled."""

COMPILING_TOLD_S = 10.0
"""Seconds between two lines that say how far that is."""

ARGUMENTS_FILE = "PARAMFLEET_PSERVER__ARGUMENTS_FILE"
"""Variable of the setting of that name."""

SETTINGS_FILE = "PARAMFLEET_CONFIG"

STANDBY_AFTER_S = 3.0
"""Seconds from a restart until the next one is prepared: first the job is to go on."""

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Launcher:
    """One run of ``paramfleet launch``. Belongs to the main thread's event loop.

    Args:
        prepared: What to start, and what it needs.
        console: Where their lines are shown.
        clock: Measures the time limits of the end.
    """

    def __init__(
        self,
        prepared: PreparedLaunch,
        *,
        console: Console,
        clock: Clock,
    ) -> None:
        plan = prepared.plan
        self._prepared = prepared
        self._plan = plan
        self._environment = prepared.environment
        self._console = console
        self._clock = clock
        self._lives: Counter[ProcessName] = Counter()
        self._children: dict[ProcessName, Child | RayChild] = {}
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._telling: Telling
        self._keeper: Keeper
        self._standby: Standby
        self._redis: OwnRedis
        self._sharing = Sharing(prepared, clock)
        self._lease = job_settings_of(prepared.environment)
        self._records = JobRecords(
            prepared.job,
            writer=field_of(plan.names[0].role, plan.names[0].index),
            clock=clock,
            launch=plan.facts.launch,
            lease_ttl_s=self._lease.lease_ttl_s,
            scales=self._scales,
        )
        self._has_ended = asyncio.Event()
        """Set when a process has ended, which the job's coordinator is to know at once."""
        self._gone: list[ProcessName] = []
        """Who has ended and is started no more, though the job goes on."""

    async def run(self) -> int:
        """Start everything and stay until all has ended.

        Returns:
            The exit code: 0 only if every process ended with 0.

        Raises:
            NoRedisServerError: if Redis must be started and there is no ``redis-server``.
            OldRedisServerError: if the one there is has no access lists.
            NotRedisError: if something else has the address of the job's Redis.
            NoRedisThereError: if nothing has, and it is another machine's.
            OtherLaunchError: if another launch runs the job.
            OSError: if a log can't be written or a process can't be started.
        """
        files = raise_open_files()  # Redis and the members inherit it
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._signals())
            self._telling = Telling(self._prepared, self._console, self._clock)
            stack.callback(self._telling.close)
            self._telling.begin(files)
            keeper = self._keeper = Keeper()
            stack.callback(keeper.close)
            self._standby = Standby("paramfleet_pserver", keeper)
            stack.callback(self._standby.close)
            stack.callback(self._close)
            stack.callback(self._sharing.close)
            try:
                await self._compile()
                self._sharing.begin(self._console.say)
                if await self._start_redis(keeper):
                    await self._records.note_past()
                    await self._take_name()
                    await self._start_members(keeper)
                supervisor = Supervisor(
                    self._children,
                    registry=REDIS if self._plan.redis is not None else None,
                    alone=self._plan.alone,
                    elastic=self._plan.elastic,
                    restarts=self._plan.restarts,
                    restarted=self._plan.restarted,
                    groups=self._plan.groups,
                )
                return await self._supervise(supervisor)
            finally:
                await self._records.withdraw()
                await self._records.close()

    # -- the start

    async def _take_name(self) -> None:
        """Take the job's name for this launch before anything is started that could use it.

        A Redis that isn't there yet, as on another machine, has no other launch in it.

        Raises:
            OtherLaunchError: if another launch runs the job.
        """
        with contextlib.suppress(NoRedisError):
            await self._records.begin()

    async def _compile(self) -> None:
        """Compile the kernels once, where every member would; an interrupt ends it."""
        from paramfleet_shared.tables.kernels.basics.readiness import (  # noqa: PLC0415 -- slow
            COMPILING,
            compiling,
            is_cold,
            num_kept,
        )

        if is_cold():
            self._console.tell(COMPILING)
            if kept := num_kept():
                self._console.tell(f"{kept} kernels were compiled by an earlier start")
            began = told = self._clock.monotonic()
            with compiling() as process:
                while self._events.empty() and process.poll() is None:
                    await self._clock.sleep(COMPILE_POLL_S)
                    if (now := self._clock.monotonic()) - told >= COMPILING_TOLD_S:
                        told = now
                        self._console.tell(
                            f"compiling: {num_kept()} kernels after {now - began:.0f} s"
                        )
                if process.poll() == 0:
                    took = f"{self._clock.monotonic() - began:.0f} s"
                    self._console.tell(
                        f"the table kernels are compiled, after {took}; later starts don't "
                        "compile them"
                    )
                elif process.poll() is not None:
                    self._console.say("the table kernels aren't compiled: each process does it")

    async def _start_redis(self, keeper: Keeper) -> bool:
        """Start our Redis, if it is ours, and wait for its answer.

        Returns:
            False if it ended, or an interrupt came, instead.

        Raises:
            NotRedisError: if something else has its address.
            NoRedisThereError: if nothing has, and this machine can't start it.
        """
        if self._plan.redis is None:
            await self._require_redis()
            if not self._events.empty():
                return False
            openness = await look_for_openness(self._prepared.job)
            for warning in openness.warnings():
                self._console.say(f"warning: {warning}")
            return self._events.empty()
        program = find_redis_server()
        require_access_lists(program)
        if not self._plan.redis.socket and self._plan.alone:
            where = f"{self._plan.redis.host} port {self._plan.redis.port}"
            self._console.tell(
                f"no Redis listens at {where}: starting one there for this job alone (without "
                "--redis it needs no port)"
            )
        redis = self._redis = OwnRedis(self._prepared)
        self._start(REDIS, redis.command(program), self._environment, keeper)
        await self._wait_redis(redis, lambda: not self._events.empty())
        return self._events.empty()

    async def _require_redis(self) -> None:
        """Look whether the Redis that isn't ours is one; an interrupt ends it.

        Raises:
            NotRedisError: if something else has its address.
            NoRedisThereError: if nothing has, and no other machine's launcher may start it.
        """
        address = parse_redis(self._plan.facts.redis)
        if address is None:
            return
        question = asyncio.get_running_loop().create_task(
            require_redis(address.host, address.port, may_come=not self._plan.alone)
        )
        while self._events.empty() and not question.done():
            await self._clock.sleep(0.01)
        if question.done():
            question.result()
        question.cancel()

    async def _wait_redis(self, redis: OwnRedis, is_over: Callable[[], bool]) -> None:
        """Return when our Redis answers, or its start is over; kill it if that takes long."""
        started = self._clock.monotonic()
        while not is_over() and not await redis.is_ready():
            if self._clock.monotonic() - started > REDIS_READY_WITHIN_S:
                self._children[REDIS].send(signal.SIGKILL)
            await self._clock.sleep(0.01)

    async def _start_members(self, keeper: Keeper) -> None:
        self._telling.members()
        for name in self._plan.names:
            await self._sharing.wait(name, lambda: not self._events.empty(), self._keep_name)
            self._start_member(name, keeper)
        self._sharing.all_started()

    async def _keep_name(self) -> None:
        """Renew which processes run, while others aren't started yet."""
        running = self._children.items()
        alive = {field_of(n.role, n.index): each.pid for n, each in running if not each.ended}
        await self._records.vouch(alive)

    def _start_member(self, name: ProcessName, keeper: Keeper, *, append: bool = False) -> None:
        environment = self._plan.environment_of(name, self._environment)
        self._lives[name] += 1
        environment[LIFE] = str(self._lives[name])  # failpoints are of one life
        environment[ENDINGS] = str(self._prepared.folder.endings)
        if name == ProcessName("worker", 0):
            environment |= self._console.terminal_environment()
        command = self._plan.command_of(name, self._environment)
        if name.role == "pserver" and self._plan.keeps_arguments:
            kept = self._prepared.folder.arguments_file(name.index)
            environment[ARGUMENTS_FILE] = str(kept)
            if append and (arguments := kept_arguments(kept)) is not None:
                command = self._plan.command_of_server(arguments)
                environment.pop(SETTINGS_FILE, None)  # the script's server doesn't read it
        self._start(name, command, environment, keeper, append=append)

    def _start(
        self,
        name: ProcessName,
        command: Sequence[str],
        environment: Mapping[str, str],
        keeper: Keeper,
        *,
        append: bool = False,
    ) -> None:
        self._children[name] = Child(
            name,
            command,
            environment=environment,
            log=self._plan.log_of(name),
            console=self._console,
            keeper=keeper,
            append=append,
            standby=self._standby,
            imports=self._sharing.imports_of(name),
            endings=self._prepared.folder.endings,
        )

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        stops = [
            number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN
        ]
        for number in stops:
            loop.add_signal_handler(number, self._events.put_nowait, Interrupted(number))
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        try:
            yield
        finally:
            for number in (*stops, signal.SIGCHLD):
                loop.remove_signal_handler(number)

    def _reap(self) -> None:
        """Queue an event for every process that has ended since the last call."""
        for name, child in self._children.items():
            if not child.ended and (code := child.poll()) is not None:
                if name == COORDINATOR:
                    self._telling.end_page()
                self._telling.note_end(name)
                self._events.put_nowait(Exited(name, code))

    # -- the middle and the end

    async def _supervise(self, supervisor: Supervisor) -> int:
        async with asyncio.TaskGroup() as group:
            beside = TaskSet(group)
            _ = beside.start(self._vouch(supervisor), name="vouch")
            _ = beside.start(self._show_page(), name="show_page")
            _ = beside.start(self._telling.watch(), name="telling")
            code = None
            while code is None:
                event = await self._next_event(supervisor.next_tick())
                for action in supervisor.handle(event, self._clock.monotonic()):
                    match action:
                        case Finish():
                            code = action.code
                        case Consult() | Review() | WatchMembers():
                            _ = beside.start(self._ask(action), name="ask")
                        case Lose():
                            self._console.let_go(action.name)
                            how = f"{action.name.label} {action.how}"
                            self._console.say(f"{how}; the job goes on without it")
                            _ = beside.start(self._report_lost(action), name="report_lost")
                        case Restart():
                            await self._restart(action)
                            _ = beside.start(self._introduce(action.name), name="introduce")
                        case Report() | Signal() | Start() | Dismiss() | Excuse():
                            await self._carry_out(action, supervisor)
            await beside.close()
        await self._say_end(code)
        return code

    async def _say_end(self, code: int) -> None:
        """Say how the job ended, when all output has come."""
        for child in self._children.values():
            await child.drained(LAST_OUTPUT_WITHIN_S)
        if self._plan.redis is None:  # else it has ended, and was asked before
            await self._note_published()
        self._telling.last_words(code)

    async def _show_page(self) -> None:
        """Show where the coordinator's page is, if it runs here."""
        if COORDINATOR in self._children:
            await self._telling.page(self._records, self._children[COORDINATOR])

    def _add(self, name: ProcessName) -> None:
        """Start one more process, as an operator has asked for."""
        self._console.say(f"starting {name.label}, as requested")
        former = self._children.get(name)
        if former is not None:
            former.close()
        self._start_member(name, self._keeper, append=former is not None)

    async def _restart(self, again: Restart) -> None:
        """Start a process again, and report it."""
        name = again.name
        number = f"{again.number} of {again.most}"
        self._console.say(f"{name.label} {again.how}; starting it again, {number}")
        former = self._children[name]
        await former.drained(LAST_OUTPUT_WITHIN_S)
        former.close()
        self._console.let_go(name)
        if name != REDIS:
            self._start_member(name, self._keeper, append=True)
            return
        command = self._redis.command(find_redis_server())
        self._start(REDIS, command, self._environment, self._keeper, append=True)

    async def _introduce(self, name: ProcessName) -> None:
        """Do what a process needs that was started again."""
        child = self._children[name]
        if name == COORDINATOR:
            await self._show_page()
        elif name == REDIS:
            await self._wait_redis(self._redis, lambda: child.ended)
        elif name.role == "pserver" and self._plan.keeps_arguments and isinstance(child, Child):
            await self._clock.sleep(STANDBY_AFTER_S)
            with contextlib.suppress(OSError):  # the next one is started as the first was
                self._standby.start(self._plan.environment_of(name, self._environment))

    async def _vouch(self, supervisor: Supervisor) -> None:
        """Renew periodically which processes run, until it is cancelled."""
        said = ""
        while True:
            alive = {
                field_of(name.role, name.index): self._children[name].pid
                for name in supervisor.alive
            }
            gone = [field_of(name.role, name.index) for name in self._gone]
            other = await self._records.vouch(alive, gone=gone)
            if other and other != said:
                error = OtherLaunchError(job=self._plan.facts.job, holder=other)
                self._console.say(str(error))
            said = other or said
            if self._scales:
                wanted = await self._records.wanted_processes()
                if wanted:
                    self._events.put_nowait(Wanted(wanted))
            self._has_ended.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._lease.lease_renew_s):
                    await self._has_ended.wait()

    @property
    def _scales(self) -> bool:
        """Return whether this launcher starts processes as they are wanted."""
        return bool(self._plan.groups) and self._plan.alone

    async def _next_event(self, due: float | None) -> Event:
        wait_s = None if due is None else max(0.0, due - self._clock.monotonic())
        try:
            async with asyncio.timeout(wait_s):
                event = await self._events.get()
        except TimeoutError:
            return Tick()
        if isinstance(event, Exited):
            self._telling.look()
            if event.name.role == "worker":
                await self._note_published()
            if self._plan.groups:
                self._has_ended.set()
        return event

    async def _note_published(self) -> None:
        """Note what the workers published last: a look at the coordinator may come too late."""
        if not self._records.silent_s:
            self._telling.note_published(await self._records.published())

    async def _ask(self, question: Consult | Review | WatchMembers) -> None:
        """Carry a question to the registry, and its answer back."""
        if isinstance(question, Review):
            failure, finished = await self._records.standing()
            child = self._children[question.name]
            if question.name.role == "worker" and failure is None and not finished:
                how = describe_exit(child.poll() or 0)
                await self._records.lose(question.name, child.pid, how)
            shrinks = await self._records.shrinks()
            self._events.put_nowait(Reviewed(question.name, failure, finished, shrinks))
            return
        if isinstance(question, Consult):
            silent_s = self._records.silent_s
            if silent_s >= self._lease.lease_ttl_s:  # the registry wouldn't answer
                self._events.put_nowait(RecordRead(None, silent_s))
                return
            record = await self._records.failure_or(question.name, question.reason)
            self._events.put_nowait(RecordRead(record))
        else:
            await self._records.wait_members_left()
            self._events.put_nowait(MembersLeft())

    async def _report_lost(self, lost: Lose) -> None:
        self._gone.append(lost.name)  # the registry may forget what is written below
        pid = self._children[lost.name].pid
        await self._records.lose(lost.name, pid, lost.how, is_final=True)

    async def _carry_out(
        self, action: Report | Signal | Start | Dismiss | Excuse, supervisor: Supervisor
    ) -> None:
        match action:
            case Excuse():
                self._console.let_go(action.name)
                self._telling.excuse(action)
            case Dismiss():
                self._telling.dismiss(action)
            case Start():
                self._add(action.name)
            case Signal():
                for name in action.names:
                    self._children[name].send(action.signal)
            case Report():
                child = self._children[action.name] if action.local else None
                alive = len(supervisor.alive)
                await self._telling.report(action, child, num_alive=alive)

    def _close(self) -> None:
        for child in self._children.values():
            child.close()

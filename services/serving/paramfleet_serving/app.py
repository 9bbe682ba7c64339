"""The server's life.

Start order: the address, whose ``/readyz`` says that nothing is served as yet; the kernels; the
source, without an end. It serves while there is a version, whatever happens to the source, and
ends with SIGTERM or SIGINT.
"""

import asyncio
import contextlib
import logging
import os
import signal
import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, final

import uvloop
from typing_extensions import override

from paramfleet_serving.api.routes import Api, in_json
from paramfleet_serving.config import ServingSettings
from paramfleet_serving.following.folder import FolderSource
from paramfleet_serving.following.follower import Follower, FollowRules
from paramfleet_serving.following.missing import absent_job, reason_to_wait
from paramfleet_serving.following.source import Source
from paramfleet_serving.measures import Measures
from paramfleet_serving.store.warming import load_kernels
from paramfleet_shared.errors import ContractError
from paramfleet_shared.errors.serving import NoVersionError
from paramfleet_shared.files.addresses import place_of
from paramfleet_shared.net.access import gate_of
from paramfleet_shared.net.admin import AdminLimits, AdminServer
from paramfleet_shared.net.rpc.endpoint import join_endpoint
from paramfleet_shared.net.secret import MIN_SECRET_LENGTH, open_warnings
from paramfleet_shared.net.tls import MEMBER_ROLES, tls_of
from paramfleet_shared.settings.config import Resolved, read_environment
from paramfleet_shared.system.clock import Clock, SystemClock
from paramfleet_shared.system.gc_tuning import freeze, keep_tidy
from paramfleet_shared.system.open_files import raise_open_files
from paramfleet_shared.system.process_names import name_process
from paramfleet_shared.tables.kernels.basics.readiness import COMPILING, compiling, is_cold
from paramfleet_shared.telemetry.logs_and_metrics import MetricRegistry, setup_logging

__all__ = ["ClosedServerError", "StreamServer", "run"]

log = logging.getLogger(__name__)

_MEASURE_PERIOD_S = 0.5
_COMPILE_POLL_S = 0.05


class ClosedServerError(ContractError):
    """Nobody could ask the server: it knows no tokens, and no certificates."""

    code = "contract.closed_server"
    absent: str
    """That the job that would be followed doesn't run here, whose secret would open this."""

    @override
    def describe(self) -> str:
        begin = ""
        if self.absent:
            begin = f"{self.absent}; the secret of a running job opens this server, and else "
        return begin + (
            "no caller could look up anything here: make a token with `paramfleet tokens new "
            "--role read --file FILE` and name the file in PARAMFLEET_TOKENS_FILE, or give "
            "certificates (PARAMFLEET_TLS_DIR) or a secret (PARAMFLEET_SECRET_FILE); to let "
            "everyone who can reach the address read, set PARAMFLEET_ADMIN_OPEN_READING=true"
        )


@final
class StreamServer:
    """One server of a change stream; ``serve`` is its whole life.

    Args:
        resolved: Its settings.
        clock: Time.
        source: Where changes come from; None for the folder of the settings.

    Raises:
        ClosedServerError: if nobody could ask it.
        CertificateFilesError: if the certificates can't be used.
        TokensFileError: if the tokens can't be read.
    """

    def __init__(
        self,
        resolved: Resolved[ServingSettings],
        *,
        clock: Clock,
        source: Source | None = None,
    ) -> None:
        settings = resolved.value
        _demand_callers(settings)
        self._settings = settings
        self._clock = clock
        registry = MetricRegistry()
        self._measures = Measures(registry)
        self.follower = Follower(
            source or _source_of(settings, clock),
            rules=FollowRules(
                memory_bytes=settings.memory,
                cache_dir=Path(settings.cache_dir or tempfile.gettempdir()),
                accept_other_tables=settings.accept_other_tables,
                retry_s=settings.retry_s,
            ),
            clock=clock,
            measures=self._measures,
        )
        self.api = Api(
            self.follower,
            settings=settings,
            measures=self._measures,
            clock=clock,
            now=lambda: datetime.now(UTC).timestamp(),
        )
        self._is_compiling = False
        self._has_own_source = source is not None
        self._server = self._new_server(resolved, registry)

    async def serve(self, started: "asyncio.Future[int] | None" = None) -> None:
        """Serve until it is cancelled.

        Cancellation: connections are closed.

        Args:
            started: Gets the port once the address is listened on.

        Raises:
            AdminPortInUseError: if the address can't be listened on.
        """
        settings = self._settings
        try:
            port = await self._server.start(settings.bind or settings.host, settings.port)
            scheme = "https" if settings.tls_dir or settings.tls_cert else "http"
            url = f"{scheme}://{join_endpoint(settings.host, port)}"
            log.info("serving.started", extra={"url": url, "pid": os.getpid()})
            self._tell_who_may_ask(url)
            if started is not None:
                started.set_result(port)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._tell_what_is_missing())
                await self._load_kernels()
                tasks.create_task(self.follower.run())
                tasks.create_task(self._measure())
                tasks.create_task(keep_tidy(self._clock))
        finally:
            await self._server.close()
            await self.follower.source.close()

    def status(self) -> dict[str, Any]:
        """Return what an operator may ask, in plain values."""
        ready, reason = self.ready()
        facts = self.api.facts() if ready else {"reason": reason}
        return {"role": "serving", "source": self.follower.source.name, "ready": ready, **facts}

    def ready(self) -> tuple[bool, str]:
        """Return whether there is a version, and why not."""
        if self._is_compiling:
            return False, COMPILING
        try:
            model = self.follower.served
        except NoVersionError as error:
            return False, error.reason
        return True, f"number {model.number}"

    def _new_server(
        self, resolved: Resolved[ServingSettings], registry: MetricRegistry
    ) -> AdminServer:
        settings = resolved.value
        tls = tls_of(settings, "serving")
        end = tls and tls.accepts(*MEMBER_ROLES, protocol="http/1.1")
        return AdminServer(
            status=self.status,
            ready=self.ready,
            metrics=registry,
            config=resolved.shown(),
            routes=self.api.routes,
            around=[in_json],
            gate=gate_of(replace(settings, job=_job_of(settings)), end),
            tls=end,
            limits=AdminLimits(
                max_connections=settings.max_connections,
                max_connections_per_peer=max(1, settings.max_connections // 2),
                body_timeout_s=settings.body_timeout_s,
                max_body_bytes=settings.max_body_bytes,
            ),
            clock=self._clock,
        )

    def _tell_who_may_ask(self, url: str) -> None:
        """Say how to ask, and how others may, where the job's secret alone opens this."""
        settings = self._settings
        has_secret = len(settings.secret) >= MIN_SECRET_LENGTH
        if settings.tokens_file or settings.admin_open_reading or not has_secret:
            return
        token = f"$(paramfleet tokens derive --job {_job_of(settings)})"
        extra = {
            "reason": "no file of tokens is given: only who has the job's secret can ask",
            "ask": f'curl -H "Authorization: Bearer {token}" {url}/v1/version',
            "remedy": (
                "to let others ask, make a token with `paramfleet tokens new --role read "
                "--file FILE`, and start this again with PARAMFLEET_TOKENS_FILE=FILE"
            ),
        }
        log.warning("serving.asks_for_secret", extra=extra)

    async def _load_kernels(self) -> None:
        """Have the kernels compiled, in another process, and loaded."""
        if is_cold():
            log.warning("serving.compiling", extra={"doing": COMPILING})
            self._is_compiling = True
            with compiling() as process:
                while process.poll() is None:
                    await self._clock.sleep(_COMPILE_POLL_S)
            self._is_compiling = False
        await asyncio.to_thread(load_kernels)
        freeze()

    async def _tell_what_is_missing(self) -> None:
        """Say at once if there is nothing to follow: an error comes late, or never."""
        if self._has_own_source:
            return
        with contextlib.suppress(OSError):  # the follower says it, each time it looks
            reason = await asyncio.to_thread(reason_to_wait, self._settings)
            if reason:
                extra = {"source": self.follower.source.name, "reason": reason}
                log.warning("serving.nothing_to_follow", extra=extra)

    async def _measure(self) -> None:
        """Set the gauges, again and again."""
        measures = self._measures
        while True:
            measures.pinned.set(self.follower.pinned is not None)
            if self.ready()[0]:
                facts = self.api.facts()
                measures.age.set(facts["age_s"])
                measures.skew.set(facts["clock_skew_s"])
                measures.number.set(facts["version"]["number"])
                measures.overlay_rows.set(facts["overlay_rows"])
                measures.overlay_bytes.set(facts["overlay_bytes"])
            await self._clock.sleep(_MEASURE_PERIOD_S)


def run(resolved: Resolved[ServingSettings]) -> int:
    """Serve until SIGTERM or SIGINT; return the exit status.

    Raises:
        FleetError: if it can't begin.
    """
    settings = resolved.value
    setup_logging("serving", level=settings.log_level, log_format=settings.log_format)
    name_process("serving")
    raise_open_files()
    for line in resolved.lines(given=True):
        log.info("setting %s", line)
    for warning in open_warnings(resolved.origins, settings, read_environment()):
        log.warning(warning)
    server = StreamServer(resolved, clock=SystemClock())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_until_stopped(server))
    log.info("serving.ended")
    return 0


async def _until_stopped(server: StreamServer) -> None:
    """Serve until a signal says that it is enough."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(server.serve())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()


def _job_of(settings: ServingSettings) -> str:
    """Return the job whose secret opens the server."""
    return settings.followed_job or settings.job


def _source_of(settings: ServingSettings, clock: Clock) -> Source:
    if not settings.followed_job:
        folder = place_of(settings.source).expanduser()
        return FolderSource(folder, clock=clock, poll_s=settings.poll_s)
    # Who serves a folder needs neither registry nor wire.
    from paramfleet_serving.following.job import JobSource  # noqa: PLC0415 -- slow
    from paramfleet_serving.jobs.exporting import ExportPlan  # noqa: PLC0415 -- slow

    return JobSource(
        replace(settings, job=settings.followed_job),
        Path(settings.cache_dir or tempfile.gettempdir()),
        ExportPlan(
            every_s=settings.every_s,
            dense_s=settings.dense_s,
            base_changes=settings.base_changes,
            stays=True,
        ),
        clock=clock,
        poll_s=min(settings.poll_s, settings.every_s / 4),
    )


def _demand_callers(settings: ServingSettings) -> None:
    """Pass if somebody may ask.

    Raises:
        ClosedServerError: if nobody may.
    """
    has_tokens = settings.tokens_file or len(settings.secret) >= MIN_SECRET_LENGTH
    has_certificates = settings.tls_dir or settings.tls_cert
    if not (has_tokens or has_certificates or settings.admin_open_reading):
        raise ClosedServerError(absent=absent_job(settings))

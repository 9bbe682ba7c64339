"""How a launcher's processes come to share what they import, and when each may start.

torch, paramfleet and the table kernels are most of a process's start. A launcher of several has
them imported once, in a process that forks each one (``process/prepared``). Pservers start as
soon as what they need is there; workers wait for torch's compiler, which the first optimizer
imports.
"""

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from paramfleet_shared.system.clock import Clock
from paramfleet_worker.app.launch.naming import job_settings_of
from paramfleet_worker.app.launch.preparing import PreparedLaunch
from paramfleet_worker.core.events import ProcessName
from paramfleet_worker.core.sharing import imports_torch, reason_against
from paramfleet_worker.process.prepared.sharing import SharedImports
from paramfleet_worker.process.prepared.starting import is_forking

__all__ = ["Sharing"]

POLL_S = 0.01
WITHIN_S = 60.0
"""How long the processes wait for what they share; then each imports for itself."""
TOLD_AFTER_S = 5.0
"""When it is said for what they wait; torch from a slow disk takes as long."""

PARTS = {"pserver": 1, "worker": 2}
"""How much must be imported before a process of this role starts."""

RUNNER = "paramfleet.runner.__main__"
OF_WORKERS = ("paramfleet.session.backends.pservers", "torch._dynamo")
"""What a worker imports when it joins, and torch for its first optimizer."""


class Sharing:
    """The imports of one launch. Belongs to the task that starts its processes.

    Args:
        prepared: What is started.
        clock: Paces the waiting.
    """

    def __init__(self, prepared: PreparedLaunch, clock: Clock) -> None:
        self._imports: SharedImports | None = None
        """None: each process imports for itself."""
        self._plan, self._environment = prepared.plan, prepared.environment
        self._renew_s = job_settings_of(prepared.environment).lease_renew_s
        self._clock = clock
        self._say: Callable[[str], None] = lambda _: None
        self._has_said = False

    def begin(self, say: Callable[[str], None]) -> None:
        """Have everything imported, if the processes may share it.

        Args:
            say: Is told why the script's processes can't, or can't any more.
        """
        self._say = say
        plan = self._plan
        several = sum(name.role in PARTS for name in plan.names) > 1
        if not (plan.share_imports and several and sys.platform == "linux") or is_forking():
            return
        is_script = plan.script[0].endswith(".py")
        if is_script:
            try:
                source = Path(plan.script[0]).read_text("utf-8")
            except (OSError, ValueError):
                return  # its own interpreter says what is wrong
            if not imports_torch(source):
                return
            if reason := reason_against(source, self._environment):
                say(f"each process does its own imports, which takes longer: {reason}")
                return
        elif plan.script[0] != "-P" or reason_against("", self._environment):
            return
        modules = OF_WORKERS if is_script else (RUNNER, *OF_WORKERS)
        self._imports = SharedImports(
            plan.shared_environment(self._environment), modules, say=say
        )

    def imports_of(self, name: ProcessName) -> SharedImports | None:
        """Return what a process may be a fork of; None: it is a new interpreter."""
        return self._imports if name.role in PARTS else None

    async def wait(
        self,
        name: ProcessName,
        is_over: Callable[[], bool],
        meanwhile: Callable[[], Awaitable[None]],
    ) -> None:
        """Wait until a process may start.

        Args:
            name: The process.
            is_over: Tells whether something has happened that ends the wait.
            meanwhile: Called while it lasts, as often as leases are renewed.
        """
        num_parts = PARTS.get(name.role, 0)
        if self._imports is None or not num_parts:
            return
        self._imports.want(num_parts)
        began = last = self._clock.monotonic()
        while not self._imports.has(num_parts):
            now = self._clock.monotonic()
            if (is_ended := is_over()) or now - began > WITHIN_S:
                if not is_ended:
                    self._say(
                        f"the shared imports were not done after {WITHIN_S:.0f} s: each "
                        "process does its own imports, which takes longer"
                    )
                self.close()
                return
            if not self._has_said and now - began > TOLD_AFTER_S:
                self._has_said = True
                self._say(
                    f"waiting for process {self._imports.pid}, which imports torch for all "
                    f"processes of the job; at most {WITHIN_S:.0f} s"
                )
            if now - last >= self._renew_s:
                last = now
                await meanwhile()
            await self._clock.sleep(POLL_S)

    def all_started(self) -> None:
        """End the process that has imported, unless others may have to be started."""
        plan = self._plan
        if not (plan.restarts and plan.restarted) and not plan.groups:
            self.close()

    def close(self) -> None:
        """End it in any case; what it has forked goes on."""
        imports, self._imports = self._imports, None
        if imports is not None:
            imports.close()

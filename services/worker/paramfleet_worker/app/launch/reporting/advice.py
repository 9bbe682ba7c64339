"""What may be done about a failure whose cause isn't the script's."""

from paramfleet_shared.system.memory import killed_for_memory
from paramfleet_shared.system.open_files import MORE_OPEN_FILES, num_open_files
from paramfleet_worker.app.launch.planning import LaunchPlan
from paramfleet_worker.app.launch.reporting.reasons import KILLED
from paramfleet_worker.core.events import ProcessName

__all__ = ["Advice"]

_NO_FILE = "OSError: [Errno 24] "
"""Begins the error of a process that may open no more files."""


class Advice:
    """What to do, in one line. Make it before the job's processes start.

    Args:
        plan: What is started; None for a collective job, which has no pservers.
    """

    def __init__(self, plan: LaunchPlan | None) -> None:
        self._plan = plan
        self._killed_before = killed_for_memory()

    def about(self, name: ProcessName, *, how: str, reason: str, local: bool) -> str:
        """Return what to do; empty if nothing is known.

        Args:
            name: The process that failed.
            how: How it ended.
            reason: Its error, or what the registry says.
            local: Whether it ran here.
        """
        if reason.startswith(_NO_FILE):
            return f"the limit of open files is {num_open_files()}: {MORE_OPEN_FILES}"
        if KILLED not in {how, reason}:
            return ""
        return self._memory(local=local) + self._survival(name)

    def _memory(self, *, local: bool) -> str:
        now, before = killed_for_memory(), self._killed_before
        if local and now is not None and before is not None and now > before:
            return (
                "memory was exhausted: since the start the kernel has killed "
                f"{now - before} of this control group for it (oom_kill of memory.events)"
            )
        where = "" if local else " there"
        return (
            f"SIGKILL often means that memory was exhausted: `dmesg`{where} says so, or the "
            "container's status"
        )

    def _survival(self, name: ProcessName) -> str:
        plan = self._plan
        if plan is None or name.role != "pserver":
            return ""
        if "pserver" in plan.restarted or plan.on_ray:
            return ""
        return "; with --data_dir, or --replicas 1, a job survives the loss of a pserver"

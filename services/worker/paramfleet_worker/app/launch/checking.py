"""Looks at the settings in the environment that a job's processes will read.

Each process refuses a name that nothing reads. The launcher does so, too, before it starts one:
else they would start and end one after the other.
"""

from collections.abc import Mapping

from paramfleet.config.settings import WorkerSettings
from paramfleet_coordinator.config import CoordinatorSettings
from paramfleet_shared.settings.config import check_environment

__all__ = ["check_settings"]

_OF_PSERVERS = "PARAMFLEET_PSERVER__"


def check_settings(environment: Mapping[str, str]) -> None:
    """Pass if each variable of a process's settings has a name that is read, and its type.

    Ranges aren't looked at, nor what settings say together: a script may give more of them.

    Args:
        environment: What the processes inherit.

    Raises:
        UnknownSettingError: naming the variable that nothing reads, and the nearest known one.
        SettingError: naming the variable whose value isn't of its type.
    """
    check_environment(CoordinatorSettings, section="coordinator", environment=environment)
    check_environment(WorkerSettings, section="worker", environment=environment)
    if any(name.startswith(_OF_PSERVERS) for name in environment):
        from paramfleet_pserver.config import PServerSettings  # noqa: PLC0415 - few need it

        check_environment(PServerSettings, section="pserver", environment=environment)

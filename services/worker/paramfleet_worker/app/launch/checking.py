"""Looks at the settings in the environment that a job's processes will read.

Each process refuses a name that nothing reads, and a value out of range. The launcher does so,
too, before it starts one: else they would start and end one after the other.
"""

from collections.abc import Mapping

from paramfleet.config.settings import RANGES, WorkerSettings
from paramfleet_coordinator import config as coordinator
from paramfleet_shared.settings.config import check_environment

__all__ = ["check_settings"]

_OF_PSERVERS = "PARAMFLEET_PSERVER__"
_BUDGETS = f"{_OF_PSERVERS}TABLE_MEMORY_BUDGETS"


def check_settings(environment: Mapping[str, str]) -> None:
    """Pass if each variable of a process's settings has a name that is read, and may be so.

    What settings say together isn't looked at: a script may give more of them.

    Args:
        environment: What the processes inherit.

    Raises:
        UnknownSettingError: naming the variable that nothing reads, and the nearest known one.
        SettingError: naming the variable whose value isn't of its type, or is out of range.
    """
    check_environment(
        coordinator.CoordinatorSettings,
        section="coordinator",
        environment=environment,
        ranges=coordinator.RANGES,
    )
    check_environment(WorkerSettings, section="worker", environment=environment, ranges=RANGES)
    if any(name.startswith(_OF_PSERVERS) for name in environment):
        from paramfleet_pserver.config import (  # noqa: PLC0415 - few need it
            RANGES as OF_PSERVERS,
        )
        from paramfleet_pserver.config import PServerSettings, table_budgets_of  # noqa: PLC0415

        check_environment(
            PServerSettings, section="pserver", environment=environment, ranges=OF_PSERVERS
        )
        table_budgets_of(_BUDGETS, environment.get(_BUDGETS, ""))

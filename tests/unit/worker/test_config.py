"""Settings of a launch."""

from typing import Any

import pytest

from paramfleet_shared.config import SettingError, resolve
from paramfleet_worker.config import LaunchSettings


def settings(**arguments: Any) -> LaunchSettings:
    return resolve(
        LaunchSettings,
        section="launch",
        arguments=arguments,
        environment={"PARAMFLEET_LAUNCH__WORKER_NUM": "4", "PARAMFLEET_REDIS": "redis://h9"},
    ).value


def test_an_argument_wins_over_the_environment() -> None:
    assert settings().worker_num == 4
    assert settings(worker_num=2).worker_num == 2
    assert settings().redis == "redis://h9"


@pytest.mark.parametrize("name", ["server_num", "worker_num"])
def test_no_server_or_no_worker_is_no_job(name: str) -> None:
    with pytest.raises(SettingError, match=f"{name} = 0: must be 1 or more"):
        settings(**{name: 0})


def test_the_addresses_of_several_machines_go_together() -> None:
    with pytest.raises(SettingError, match="coordinator = '': must be given"):
        settings(servers="h1:6000", workers="h1")

    both = settings(servers="h1:6000", workers="h1", coordinator="h1:7000")
    assert both.several_machines
    assert not settings().several_machines

"""Every number among the settings of every process has both bounds, and no NaN passes."""

import math
import typing
from dataclasses import fields
from typing import Any

import pytest

from paramfleet.config.settings import WorkerSettings
from paramfleet.data.settings import DatasetSettings
from paramfleet.runner.config.settings import CtrParameters, OptimizerSettings, RunnerSettings
from paramfleet_coordinator.config import CoordinatorSettings
from paramfleet_pserver.config import PServerSettings
from paramfleet_shared.settings.config import JobSettings, SettingError, resolve
from paramfleet_worker.config import LaunchSettings

SERVICES = (JobSettings, WorkerSettings, CoordinatorSettings, PServerSettings, LaunchSettings)
FILES = (DatasetSettings, RunnerSettings, OptimizerSettings, CtrParameters)


def numbers_of(classes: tuple[type, ...]) -> list[tuple[type, str, type]]:
    found = []
    for cls in classes:
        hints = typing.get_type_hints(cls)
        for field in fields(cls):
            kinds = {hints[field.name], *typing.get_args(hints[field.name])} & {int, float}
            found += [(cls, field.name, kind) for kind in kinds]
    return found


NUMBERS = numbers_of(SERVICES + FILES)


def id_of(value: Any) -> str:
    return value.__name__ if isinstance(value, type) else str(value)[:20]


@pytest.mark.parametrize(("cls", "name", "kind"), NUMBERS, ids=id_of)
@pytest.mark.parametrize(
    "wrong", [math.nan, math.inf, -math.inf, -5, 2**63, 1e300, "many", True]
)
def test_a_number_that_makes_no_sense_is_refused_by_name(
    cls: type, name: str, kind: type, wrong: Any
) -> None:
    with pytest.raises(SettingError) as caught:
        cls(**{name: wrong})
    assert caught.value.name == name
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("cls", "name", "kind"), [each for each in NUMBERS if each[2] is int], ids=id_of
)
def test_a_whole_number_takes_no_fraction(cls: type, name: str, kind: type) -> None:
    with pytest.raises(SettingError):
        cls(**{name: 1.5})


@pytest.mark.parametrize(("cls", "name", "kind"), numbers_of(SERVICES), ids=id_of)
@pytest.mark.parametrize("wrong", ["nan", "inf", "-inf", "1e400", "9" * 5000, "\x1b[2J", "-7"])
def test_a_number_given_as_text_is_judged_alike(
    cls: type, name: str, kind: type, wrong: str
) -> None:
    with pytest.raises(SettingError) as caught:
        resolve(cls, section="x", arguments={name: wrong}, environment={})
    assert len(str(caught.value)) < 500
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("cls", SERVICES + FILES[1:], ids=id_of)
def test_what_a_class_has_by_default_is_in_its_ranges(cls: type) -> None:
    cls()


@pytest.mark.parametrize("job", ["-a", "a b", "\x1b[2J", "x" * 129, "a/b", "..\n"])
@pytest.mark.parametrize("cls", [JobSettings, LaunchSettings], ids=id_of)
def test_a_job_has_a_name_of_a_safe_alphabet(cls: type, job: str) -> None:
    with pytest.raises(SettingError) as caught:
        cls(job=job)
    assert caught.value.name == "job"


ADDRESSES = ("host", "redis", "bind", "advertise", "servers", "workers", "coordinator", "ips")


@pytest.mark.parametrize(
    ("cls", "name"),
    [(cls, each.name) for cls in SERVICES for each in fields(cls) if each.name in ADDRESSES],
    ids=id_of,
)
def test_an_address_holds_no_control_characters(cls: type, name: str) -> None:
    with pytest.raises(SettingError) as caught:
        cls(**{name: "redis://h\r\n\x1b[2J"})
    assert caught.value.name == name


def test_a_table_of_too_many_numbers_in_a_file_is_an_error_of_ours(tmp_path: Any) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("lease_ttl_s = " + "9" * 5000)
    with pytest.raises(SettingError):
        resolve(JobSettings, section="", arguments={}, environment={}, file=file)

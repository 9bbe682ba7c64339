"""What a launcher finds wrong in the environment before it starts anything."""

import sys

import pytest

from paramfleet_shared.settings.config import SettingError, UnknownSettingError
from paramfleet_worker.app.launch.checking import check_settings


@pytest.mark.parametrize(
    ("variable", "nearest"),
    [
        ("PARAMFLEET_PSERVER__MEMORY_BUDGET", "PARAMFLEET_PSERVER__MEMORY_BUDGET_BYTES"),
        ("PARAMFLEET_PSERVER__DATA_DRI", "PARAMFLEET_PSERVER__DATA_DIR"),
        ("PARAMFLEET_COORDINATOR__NUM_SHARD", "PARAMFLEET_COORDINATOR__NUM_SHARDS"),
        ("PARAMFLEET_WORKER__RESUME_FORM", "PARAMFLEET_WORKER__RESUME_FROM"),
    ],
)
def test_a_name_that_nothing_reads_is_refused_with_the_nearest(
    variable: str, nearest: str
) -> None:
    with pytest.raises(UnknownSettingError, match=f"{variable}.* did you mean {nearest}"):
        check_settings({variable: "1"})


@pytest.mark.parametrize(
    ("variable", "value", "rule"),
    [
        (
            "PARAMFLEET_PSERVER__MEMORY_BUDGET_BYTES",
            "2G",
            "a whole number of bytes, such as 2147483648",
        ),
        ("PARAMFLEET_PSERVER__DURABILITY", "always", "one of none, async, sync"),
        ("PARAMFLEET_COORDINATOR__FINISH_GRACE_S", "soon", "a number"),
    ],
)
def test_a_value_of_another_type_is_refused_by_its_variable(
    variable: str, value: str, rule: str
) -> None:
    with pytest.raises(SettingError, match=rule) as caught:
        check_settings({variable: value})

    assert variable in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "value", "rule"),
    [
        ("PARAMFLEET_PSERVER__MEMORY_BUDGET_BYTES", "-5", "a whole number from 0 to"),
        ("PARAMFLEET_PSERVER__MEMORY_SHARE", "1.5", "a number from 0.01 to 1"),
        ("PARAMFLEET_PSERVER__INDEX", "65536", "a whole number from 0 to 65535"),
        ("PARAMFLEET_PSERVER__TABLE_MEMORY_BUDGETS", "users=2G", "users=2000000000"),
        ("PARAMFLEET_WORKER__ADMIN_PORT", "70000", "a whole number from 0 to 65535"),
        ("PARAMFLEET_COORDINATOR__NUM_SHARDS", "0", "a whole number from 1 to 65536"),
        ("PARAMFLEET_CALL_TIMEOUT_S", "nan", "a number from 0.001 to"),
    ],
)
def test_a_value_out_of_range_is_refused_by_its_variable(
    variable: str, value: str, rule: str
) -> None:
    with pytest.raises(SettingError, match=rule) as caught:
        check_settings({variable: value})

    assert str(caught.value).startswith(f"{variable} = ")


def test_what_processes_read_passes_though_a_script_may_have_to_add_to_it() -> None:
    check_settings(
        {
            "PARAMFLEET_PSERVER__DURABILITY": "async",
            "PARAMFLEET_PSERVER__INDEX": "",
            "PARAMFLEET_WORKER__RESUME_FROM": "",
            "PARAMFLEET_SECRET_FILE": "/none",
            "PARAMFLEET_SERVING__ANY": "is another program's",
            "PARAMFLEET_OF_A_SCRIPT": "1",
        }
    )


def test_a_pservers_settings_are_imported_where_there_are_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "paramfleet_pserver.config", None)

    check_settings({"PARAMFLEET_JOB": "flights"})

    with pytest.raises(ImportError):
        check_settings({"PARAMFLEET_PSERVER__INDEX": "0"})

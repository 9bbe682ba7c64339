"""Where a setting comes from, and what is refused."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from paramfleet_shared.errors import error_from_wire, error_to_wire
from paramfleet_shared.net.secret import open_warnings
from paramfleet_shared.settings.config import (
    JobSettings,
    Resolved,
    SettingError,
    UnknownSettingError,
    options_of,
    read_environment,
    resolve,
    without_password,
)
from paramfleet_shared.settings.field_docs import sentences_of


@dataclass(frozen=True, kw_only=True, slots=True)
class ShopSettings(JobSettings):
    """Settings of a made-up service."""

    port: int
    """Port to listen on;
    0 picks one."""

    mode: Literal["sync", "async"] = "sync"
    """How it works."""

    lead: int | None = None
    """Steps of lead."""

    loud: bool = False
    """Whether it shouts."""

    folder: Path = Path("out")
    """Where results go."""

    token: str = field(default="", metadata={"secret": True, "help": "Password."})

    names: list[str] = field(default_factory=list)


def given(
    arguments: dict[str, Any] | None = None,
    environment: dict[str, str] | None = None,
    file: Path | None = None,
) -> Resolved[ShopSettings]:
    return resolve(
        ShopSettings,
        section="worker",
        arguments={"port": 1} if arguments is None else arguments,
        environment=environment or {},
        file=file,
    )


def test_an_argument_goes_before_the_environment_before_the_file_before_the_default(
    tmp_path: Path,
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('job = "file"\nhost = "file"\n[worker]\nport = 3\nmode = "async"\n')
    environment = {"PARAMFLEET_JOB": "environment", "PARAMFLEET_WORKER__PORT": "2"}

    resolved = given({"port": 1}, environment, file)

    assert (resolved.value.port, resolved.value.job) == (1, "environment")
    assert (resolved.value.host, resolved.value.mode) == ("file", "async")
    assert resolved.origins["port"] == "argument"
    assert resolved.origins["job"] == "environment PARAMFLEET_JOB"
    assert resolved.origins["mode"] == "file"
    assert resolved.origins["redis"] == "default"


def test_an_argument_that_is_none_counts_as_not_given() -> None:
    assert given({"port": None}, {"PARAMFLEET_WORKER__PORT": "7"}).value.port == 7


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("PORT", "80", "port", 80),
        ("LEAD", "none", "lead", None),
        ("LEAD", "4", "lead", 4),
        ("LOUD", "Yes", "loud", True),
        ("LOUD", "0", "loud", False),
        ("FOLDER", "a/b", "folder", Path("a/b")),
        ("MODE", "async", "mode", "async"),
    ],
)
def test_text_from_the_environment_becomes_the_type_of_its_field(
    variable: str, text: str, name: str, value: object
) -> None:
    resolved = given(
        {}, {"PARAMFLEET_WORKER__PORT": "1", f"PARAMFLEET_WORKER__{variable}": text}
    )

    assert getattr(resolved.value, name) == value


@pytest.mark.parametrize(
    ("variable", "text", "rule"),
    [
        ("PARAMFLEET_WORKER__PORT", "eighty", "must be a whole number"),
        ("PARAMFLEET_LEASE_TTL_S", "long", "must be a number"),
        ("PARAMFLEET_WORKER__MODE", "slow", "must be one of sync, async"),
        ("PARAMFLEET_WORKER__LOUD", "maybe", "must be true or false"),
    ],
)
def test_text_that_is_no_value_of_its_type_is_refused_by_name(
    variable: str, text: str, rule: str
) -> None:
    environment = {"PARAMFLEET_WORKER__PORT": "1", variable: text}

    with pytest.raises(SettingError, match=rule) as caught:
        given({}, environment)

    assert (caught.value.name, caught.value.value) == (variable, text)


@pytest.mark.parametrize(
    ("line", "rule"),
    [("port = 1.5", "a whole number"), ("port = true", "a whole number")],
)
def test_a_file_with_a_value_of_another_type_is_refused(
    tmp_path: Path, line: str, rule: str
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(f"[worker]\n{line}\n")

    with pytest.raises(SettingError, match=rule):
        given({}, {}, file)


def test_a_file_that_is_no_toml_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("job: default")

    with pytest.raises(SettingError, match="a readable TOML file"):
        given({}, {}, file)


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("[worker]\nprot = 1\n", "port"),
        ("reddis = 'redis://a'\n", "redis"),
        ("[wroker]\nport = 1\n", "worker"),
    ],
)
def test_a_file_with_a_name_nothing_reads_is_refused_with_the_nearest(
    tmp_path: Path, text: str, nearest: str
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(text)

    with pytest.raises(UnknownSettingError, match=f"did you mean {nearest}"):
        given({"port": 1}, {}, file)


def test_the_sections_of_other_services_in_a_file_are_theirs(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("[coordinator]\nanything = 1\n[worker]\nport = 5\n")

    assert given({}, {}, file).value.port == 5


def test_an_argument_nothing_reads_is_refused() -> None:
    with pytest.raises(UnknownSettingError, match="did you mean port"):
        given({"ports": 1})


@pytest.mark.parametrize(
    ("variable", "nearest"),
    [
        ("PARAMFLEET_WORKER__PROT", "PARAMFLEET_WORKER__PORT"),
        ("PARAMFLEET_REDSI", "PARAMFLEET_REDIS"),
    ],
)
def test_a_mistyped_variable_is_refused_with_the_nearest(variable: str, nearest: str) -> None:
    with pytest.raises(UnknownSettingError) as caught:
        given({"port": 1}, {variable: "x"})

    assert caught.value.nearest == nearest


def test_a_variable_unlike_all_names_of_its_section_is_refused_without_a_guess() -> None:
    with pytest.raises(UnknownSettingError) as caught:
        given({"port": 1}, {"PARAMFLEET_WORKER__QQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQ": "x"})

    assert caught.value.nearest is None


def test_variables_of_others_are_left_alone() -> None:
    others = {
        "PARAMFLEET_LOG_DIR": "x",
        "PARAMFLEET_PSERVER__PORT": "1",
        "HOME": "/",
        "JOB": "1",
    }

    assert given({"port": 1}, others).value.job == "default"


def test_a_setting_without_default_that_nobody_gave_is_asked_for_by_both_its_names() -> None:
    with pytest.raises(SettingError, match=r"port = None.*PARAMFLEET_WORKER__PORT"):
        given({})


@pytest.mark.parametrize(
    "wrong",
    [
        {"job": ""},
        {"job": "a b"},
        {"redis": "localhost:6379"},
        {"lease_ttl_s": 0},
        {"join_timeout_s": -1},
        {"call_timeout_s": 0},
        {"outage_grace_s": 0},
        {"lease_renew_s": 2.0},
    ],
)
def test_a_value_against_its_rule_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingError) as caught:
        JobSettings(**wrong)

    assert caught.value.name in wrong


def test_a_refused_address_does_not_tell_its_password() -> None:
    with pytest.raises(SettingError) as caught:
        JobSettings(redis="http://me:secret@host")

    assert "secret" not in str(caught.value)


def test_a_setting_error_comes_over_the_wire_as_itself() -> None:
    error = SettingError(name="port", value=3, rule="even")

    again = error_from_wire(error_to_wire(error))

    assert isinstance(again, SettingError)
    assert str(again) == str(error)


def test_what_is_shown_hides_secrets_and_passwords() -> None:
    resolved = given({"port": 1, "token": "hush", "redis": "redis://me:pw@host:1/0"})

    shown, lines = resolved.shown(), "\n".join(resolved.lines())

    assert shown["token"] == {"value": "***", "origin": "argument"}
    assert shown["redis"]["value"] == "redis://me:***@host:1/0"
    assert shown["folder"]["value"] == "out"
    assert "port = 1 (argument)" in lines
    assert "hush" not in lines
    assert "pw" not in lines


def test_an_address_without_password_is_shown_as_it_is() -> None:
    assert without_password("redis://host:6379/0") == "redis://host:6379/0"
    assert without_password("redis://:pw@host") == "redis://:***@host"
    assert without_password("unix:///a?password=pw&db=1") == "unix:///a?password=***&db=1"


def test_options_carry_type_default_and_the_sentence_under_the_field() -> None:
    options = {option.name: option for option in options_of(ShopSettings)}

    assert options["port"].help == "Port to listen on; 0 picks one."
    assert options["port"].default is ...
    assert options["lead"].type is int
    assert options["mode"].type == Literal["sync", "async"]
    assert options["token"].help == "Password."
    assert options["names"].default == []
    assert options["job"].help.startswith("Name of the job")
    assert next(iter(options)) == "job"


def test_a_class_without_source_still_has_its_options() -> None:
    namespace: dict[str, Any] = {"dataclass": dataclass}
    exec("@dataclass\nclass Made:\n    size: int = 3\n", namespace)

    (option,) = options_of(namespace["Made"])

    assert (option.name, option.default, option.help) == ("size", 3, "")


def test_settings_without_section_are_all_shared() -> None:
    resolved = resolve(
        JobSettings, section="", arguments={}, environment={"PARAMFLEET_JOB": "nightly"}
    )

    assert resolved.value.job == "nightly"


def test_the_environment_is_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARAMFLEET_JOB", "here")

    environment = read_environment()
    environment["PARAMFLEET_JOB"] = "changed"

    assert read_environment()["PARAMFLEET_JOB"] == "here"


def test_a_secret_comes_from_the_file_that_the_environment_names(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("hunter2\n")
    variable = "PARAMFLEET_REDIS_PASSWORD_FILE"

    found = given(environment={variable: str(tmp_path / "password")})

    assert found.value.redis_password == "hunter2"
    assert found.origins["redis_password"] == f"environment {variable}"
    assert not any("hunter2" in line for line in found.lines())


def test_a_secret_of_a_service_comes_from_a_file_too(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc")

    found = given(environment={"PARAMFLEET_WORKER__TOKEN_FILE": str(tmp_path / "token")})

    assert found.value.token == "abc"


def test_a_file_of_a_secret_that_is_not_there_is_named(tmp_path: Path) -> None:
    variable = "PARAMFLEET_REDIS_PASSWORD_FILE"

    with pytest.raises(SettingError, match=f"{variable}.*none"):
        given(environment={variable: str(tmp_path / "none")})


def test_what_is_no_secret_has_no_file() -> None:
    with pytest.raises(UnknownSettingError):
        given(environment={"PARAMFLEET_WORKER__PORT_FILE": "x"})


def test_settings_are_read_and_checked_without_the_source_that_their_help_is_from() -> None:
    sentences_of.cache_clear()

    resolved = given()
    warnings = open_warnings(resolved.origins, resolved.value, {})

    assert (resolved.value.port, warnings) == (1, [])
    assert sentences_of.cache_info().misses == 0

"""A command line made from settings."""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click
import pytest
from click.testing import CliRunner, Result

from paramfleet_shared.errors import JobFailedError
from paramfleet_shared.settings.cli import (
    BoundedCommand,
    BoundedGroup,
    in_red,
    settings_command,
    with_dashes,
)
from paramfleet_shared.settings.config import JobSettings, Resolved, SettingError
from paramfleet_shared.settings.option_groups import (
    GroupedOption,
    OptionGroup,
    without_common_options,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class StallSettings(JobSettings):
    """Settings of a made-up service."""

    mode: Literal["sync", "async"] = "sync"
    """How it works."""

    loud: bool = False
    """Whether it shouts."""

    folder: Path = Path("out")
    """Where results go."""

    size: int = 1
    """How many; 1 to 9."""

    def __post_init__(self) -> None:
        if not 1 <= self.size <= 9:
            raise SettingError(name="size", value=self.size, rule="1 to 9")


def invoke(
    *words: str, status: int = 0, env: dict[str, str] | None = None
) -> tuple[Result, Any]:
    got: list[Resolved[StallSettings]] = []

    def run(resolved: Resolved[StallSettings]) -> int:
        got.append(resolved)
        return status

    command = settings_command(
        StallSettings, name="stall", section="worker", help="Run a stall.", run=run
    )
    return CliRunner().invoke(command, words, env=env), got[0] if got else None


def test_options_reach_the_settings_and_the_rest_stays_default() -> None:
    result, resolved = invoke("--mode", "async", "--loud", "--size", "3", "--folder", "a")

    assert result.exit_code == 0, result.output
    assert resolved.value == StallSettings(mode="async", loud=True, size=3, folder=Path("a"))
    assert resolved.origins["size"] == "argument"
    assert resolved.origins["job"] == "default"


def test_a_name_may_be_spelled_with_underscores() -> None:
    _, resolved = invoke("--lease_ttl_s", "9", "--join-timeout-s", "8")

    assert (resolved.value.lease_ttl_s, resolved.value.join_timeout_s) == (9.0, 8.0)


def test_the_environment_and_a_file_are_read_too(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("[worker]\nsize = 4\n")

    _, resolved = invoke("--config", str(file), env={"PARAMFLEET_WORKER__LOUD": "1"})

    assert (resolved.value.size, resolved.value.loud) == (4, True)


def test_help_names_every_setting_with_its_sentence_and_default() -> None:
    result, _ = invoke("--help")

    assert result.exit_code == 0
    for word in ("--size", "How many; 1 to 9.", "[default: 1]", "--no-loud", "[sync|async]"):
        assert word in result.output


def test_a_secret_is_no_option_because_everybody_sees_a_command_line() -> None:
    result, _ = invoke("--help")

    assert "--redis_user" in result.output
    assert "--redis_password" not in result.output


def test_help_shows_one_spelling_of_an_option_and_both_are_taken() -> None:
    shown, _ = invoke("--help")

    assert "--lease_ttl_s" in shown.output
    assert "--lease-ttl-s" not in shown.output
    assert "--admin_open_reading / --no-admin_open_reading" in shown.output
    for word in ("--no-admin_open_reading", "--no-admin-open-reading"):
        _, resolved = invoke(word)
        assert resolved.origins["admin_open_reading"] == "argument"


def test_what_run_returns_is_the_exit_status() -> None:
    result, _ = invoke(status=3)

    assert result.exit_code == 3


def test_a_wrong_setting_is_a_usage_error_in_one_line() -> None:
    result, resolved = invoke("--size", "10")

    assert result.exit_code == 2
    assert "Error: size = 10: must be 1 to 9" in result.output
    assert resolved is None


def test_an_error_of_ours_is_one_line_and_status_1() -> None:
    def run(_: Resolved[JobSettings]) -> int:
        raise JobFailedError(role="worker", index=3, reason="out of memory")

    command = settings_command(JobSettings, name="stall", section="", help="", run=run)
    result = CliRunner().invoke(command, [])

    assert result.exit_code == 1
    assert result.output == "stall: the job failed: worker 3: out of memory\n"


def test_a_setting_that_must_be_given_says_so() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Strict:
        size: int

    command = settings_command(Strict, name="x", section="worker", help="", run=lambda _: 0)

    assert "[required]" in CliRunner().invoke(command, ["--help"]).output
    with pytest.raises(AssertionError):
        assert CliRunner().invoke(command, []).exit_code == 0


@pytest.mark.parametrize(
    "words",
    [
        ("--size", "y" * 100_000),
        ("--mode", "y" * 100_000),
        ("y" * 100_000,),
        ("--" + "y" * 100_000,),
    ],
    ids=lambda words: words[0][:9],
)
def test_a_command_line_is_not_repeated_at_length(words: tuple[str, ...]) -> None:
    result, _ = invoke(*words)

    assert result.exit_code == 2
    assert len(result.output) < 3000
    assert "characters)" in result.output


def test_control_characters_of_a_command_line_reach_no_terminal() -> None:
    result, _ = invoke("--size", "\x1b]0;owned\x07")

    assert result.exit_code == 2
    assert "\x1b" not in result.output
    assert "\x07" not in result.output


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("file", "variables", "shown"),
    [
        (_Terminal(), {}, "\x1b[31m\x1b[1mwrong\x1b[0m"),
        (_Terminal(), {"NO_COLOR": "1"}, "wrong"),
        (io.StringIO(), {}, "wrong"),
    ],
)
def test_an_error_is_red_in_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, file: io.StringIO, variables: dict[str, str], shown: str
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert in_red("wrong", file) == shown


def test_what_is_wrong_comes_before_how_a_command_is_used() -> None:
    command = BoundedCommand("try", params=[click.Option(["--number"], type=int)])

    shown = CliRunner().invoke(command, ["--number=x"])

    assert shown.exit_code == 2
    assert shown.output.splitlines() == [
        "Error: Invalid value for '--number': 'x' is not a valid integer.",
        "Usage: try [OPTIONS]",
        "Try 'try --help' for help.",
    ]


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("--num-servers=2", ": did you mean --server_num or --servers?"),
        ("--log=x", ": did you mean --log_dir?"),
        ("--colour", ""),
    ],
)
def test_a_misspelt_option_is_answered_with_those_that_may_be_meant(
    word: str, meant: str
) -> None:
    options = [click.Option([name]) for name in ("--server_num", "--servers", "--log_dir")]
    command = BoundedCommand("try", params=[*options])

    shown = CliRunner().invoke(command, [word], token_normalize_func=with_dashes)

    option = word.partition("=")[0]
    assert shown.output.splitlines()[0] == f"Error: there is no option {option}{meant}"


def test_a_misspelt_command_is_answered_with_the_one_that_may_be_meant() -> None:
    group = BoundedGroup("try", commands=[click.Command("launch"), click.Command("plan")])

    shown = CliRunner().invoke(group, ["lanch"])

    first = "Error: there is no command 'lanch': did you mean 'launch'?"
    assert shown.output.splitlines()[0] == first


def test_options_of_a_group_are_shown_under_its_name_and_left_out_where_it_is_known() -> None:
    group = OptionGroup("Log options", is_common=True)
    command = BoundedCommand(
        "try", params=[GroupedOption(["--log_dir"], group=group), click.Option(["--size"])]
    )

    shown = command.get_help(click.Context(command, info_name="try"))
    with without_common_options():
        brief = command.get_help(click.Context(command, info_name="try"))

    assert shown.index("--size") < shown.index("Log options:") < shown.index("--log_dir")
    assert "--size" in brief
    assert "--log_dir" not in brief
    assert "and the log options" in brief

"""The command that continues from a checkpoint."""

import shlex

import pytest

from paramfleet_worker.core.checkpoints.command_line import CommandLine

SCRIPT = ("train.py", "--resume", "its own")


@pytest.mark.parametrize(
    "options", [(), ("--resume", "saved"), ("--resume=saved",), ("--resume=a", "--resume", "b")]
)
def test_it_is_that_of_the_launch_with_the_checkpoint_in_it(options: tuple[str, ...]) -> None:
    words = ("launch", *options, "--server_num=2", *SCRIPT)

    command = CommandLine.of(words, SCRIPT).resuming("/a b/7")

    expected = ["paramfleet", "launch", "--resume", "/a b/7", "--server_num=2", *SCRIPT]
    assert shlex.split(command) == expected


@pytest.mark.parametrize(
    ("words", "rest"),
    [
        (("demo", "--steps=3"), SCRIPT),
        (("launch", "--redis=redis://:secret@h:1/0", *SCRIPT), SCRIPT),
        (("launch", *SCRIPT), ("other.py",)),
        (("launch", "x" * 1000, *SCRIPT), SCRIPT),
        ((), ()),
    ],
)
def test_what_is_unknown_long_or_secret_is_left_out(
    words: tuple[str, ...], rest: tuple[str, ...]
) -> None:
    command = CommandLine.of(words, rest).resuming("/saved/7")

    assert command == "paramfleet launch --resume /saved/7 ..."

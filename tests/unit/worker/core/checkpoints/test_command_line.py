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

    command = CommandLine.of(words, SCRIPT, {}).resuming("/a b/7")

    expected = ["paramfleet", "launch", "--resume", "/a b/7", "--server_num=2", *SCRIPT]
    assert shlex.split(command) == expected


@pytest.mark.parametrize(
    ("words", "rest"),
    [
        (("demo", "--steps=3"), SCRIPT),
        (("launch", "--redis=redis://:secret@h:1/0", *SCRIPT), SCRIPT),
        (("launch", *SCRIPT), ("other.py",)),
        (("launch", "x" * 1000, *SCRIPT), SCRIPT),
        (("launch", "t.py", "--password", "hunter2"), ("t.py", "--password", "hunter2")),
        (("launch", "t.py", "--api_key=sk-123"), ("t.py", "--api_key=sk-123")),
        (("launch", "t.py", "DB_TOKEN=7"), ("t.py", "DB_TOKEN=7")),
        (("launch", "--job=\x1b[2J", "t.py"), ("t.py",)),
        (("launch", "t.py", "two\nlines"), ("t.py", "two\nlines")),
        ((), ()),
    ],
)
def test_what_is_unknown_long_or_secret_is_left_out(
    words: tuple[str, ...], rest: tuple[str, ...]
) -> None:
    command = CommandLine.of(words, rest, {}).resuming("/saved/7")

    assert command == "paramfleet launch --resume /saved/7 ..."


@pytest.mark.parametrize("path", ["s3://key:secret@bucket/7", "/a\nb/7", "/\x1b[2J"])
def test_a_checkpoint_that_is_secret_or_cannot_be_shown_is_left_out(path: str) -> None:
    assert (
        CommandLine(("launch",), ("t.py",)).resuming(path) == "paramfleet launch --resume ..."
    )


@pytest.mark.parametrize("word", ["--tokenizer=bert", "secret.py", "/key/7", "--keys"])
def test_words_that_only_resemble_secrets_are_shown(word: str) -> None:
    assert word in CommandLine(("launch",), ("t.py", word)).resuming("/saved/7")


@pytest.mark.parametrize("words", [("launch", *SCRIPT), ("demo",)])
def test_settings_of_processes_are_named_without_their_values(words: tuple[str, ...]) -> None:
    environment = {
        "PARAMFLEET_WORKER__VISUAL_PATH": "hidden",
        "PARAMFLEET_PSERVER__COLD_DIR": "/hidden",
        "PARAMFLEET_COORDINATOR__SETTLE_S": "",
        "PARAMFLEET_WORKER__RESUME_FROM": "/saved/6",
        "PARAMFLEET_SECRET": "hidden",
        "PATH": "/bin",
    }

    same = CommandLine.of(words, SCRIPT, environment).same

    own = "PARAMFLEET_PSERVER__COLD_DIR, PARAMFLEET_WORKER__VISUAL_PATH"
    assert same == f"with the same {own}"
    assert CommandLine.of(words, SCRIPT, {"PATH": "/bin"}).same == ""

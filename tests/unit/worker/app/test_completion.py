"""What shells complete."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete, get_completion_class
from click.testing import CliRunner

from paramfleet_shared.files.job_folder import JobFacts, JobFolder, runtime_dir
from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_worker.__main__ import main


def completed(*words: str, begun: str = "") -> list[str]:
    """Return what is offered behind these words, as each shell asks for it."""
    found = ShellComplete(main, {}, "paramfleet", "_PARAMFLEET_COMPLETE")
    return [f"{item.type}:{item.value}" for item in found.get_completions(list(words), begun)]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script_that_asks_the_command(shell: str) -> None:
    shown = CliRunner().invoke(main, ["completion", shell])

    assert shown.exit_code == 0, shown.output
    assert "_PARAMFLEET_COMPLETE" in shown.output
    assert "paramfleet" in shown.output
    assert get_completion_class(shell) is not None


def test_an_unknown_shell_is_refused() -> None:
    shown = CliRunner().invoke(main, ["completion", "csh"])

    assert shown.exit_code == 2
    assert "'csh' is not one of 'bash', 'zsh', 'fish'" in shown.output


def test_commands_and_options_are_completed() -> None:
    assert completed(begun="la") == ["plain:launch"]
    assert completed("completion", begun="f") == ["plain:fish"]
    assert "plain:--verbose" in completed("launch", begun="--ver")
    assert completed("launch", "--on", begun="r") == ["plain:ray"]


def test_commands_of_other_packages_are_completed_too() -> None:
    assert completed("certs", begun="is") == ["plain:issue"]
    assert "plain:--worker-num" in completed("coordinator", begun="--worker")
    assert "plain:--checkpoint-dir" in completed("coordinator", begun="--check")


def test_a_script_is_a_file() -> None:
    assert completed("launch", "--worker_num", "2", begun="tr") == ["file:tr"]


def test_the_name_of_a_job_is_one_that_runs_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARAMFLEET_RUNTIME_DIR", str(tmp_path))
    folder = JobFolder.claim(runtime_dir(str(tmp_path)), "clicks-1")
    try:
        folder.write_facts(
            JobFacts(job="clicks-1", launch="a", redis="unix:///x", pid=os.getpid(), tls_dir="")
        )

        assert completed("status", "--job", begun="cl") == ["plain:clicks-1"]
        assert completed("status", "--job", begun="x") == []
    finally:
        folder.close()
    monkeypatch.setenv("PARAMFLEET_LEASE_TTL_S", "not a number")
    assert completed("status", "--job") == []


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="this machine has no bash")
def test_bash_completes_what_was_begun(tmp_path: Path) -> None:
    program = tmp_path / "paramfleet"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{RUN}" "$@"\n')
    program.chmod(0o755)
    asks = """
        eval "$(paramfleet completion bash)"
        COMP_WORDS=(paramfleet certs is) COMP_CWORD=2
        _paramfleet_completion paramfleet
        echo "${COMPREPLY[@]}"
        """

    ended = subprocess.run(
        tied(["bash", "-c", asks]),
        env={**read_environment(), "PATH": f"{tmp_path}:{read_environment()['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.stdout == "issue\n", ended.stderr


RUN = "from paramfleet_worker.__main__ import main; main(prog_name='paramfleet')"

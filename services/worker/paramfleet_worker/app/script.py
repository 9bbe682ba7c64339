"""What a job's processes run: a user's script, or the runner on a model folder."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import NoReturn

from paramfleet.config.settings import WorkerSettings
from paramfleet_shared.errors import ContractError
from paramfleet_shared.settings.config import JobSettings, Resolved, read_environment
from paramfleet_shared.system.open_files import raise_open_files
from paramfleet_shared.system.processes.own_modules import OF_OURS
from paramfleet_worker.process.probes.shadowing import shadowing

__all__ = ["ScriptError", "become_worker", "script_of", "worker_environment"]

RUNNER = (*OF_OURS, "paramfleet.runner", "train")


class ScriptError(ContractError):
    """It isn't clear what the processes of a job should run."""

    code = "contract.script"
    found: str
    rule: str
    sentence = "{found}: {rule}"


def script_of(
    arguments: Sequence[str], *, model: Path | None, options: Sequence[str]
) -> tuple[str, ...]:
    """Return what Python is given: a script with its arguments, or the runner with a model.

    Args:
        arguments: Script and arguments; with a model more ``key=value``, as PaddleRec
            takes them behind one ``-o``.
        model: The YAML file of a model folder.
        options: ``key=value`` that overrule the file.

    Raises:
        ScriptError: if there is neither, or something of both, or if a file beside the script
            has the name of a package that it needs.
    """
    if model is None:
        if options:
            raise ScriptError(found=f"-o {options[0]}", rule="goes with -m and a model's YAML")
        if not arguments:
            rule = "name a training script, or a model's YAML file with -m"
            raise ScriptError(found="nothing to run", rule=rule)
        if not Path(arguments[0]).is_file():
            raise ScriptError(found=arguments[0], rule="there is no such script")
        _check_name(Path(arguments[0]))
        return tuple(arguments)
    words = [word for word in arguments if word not in {"-o", "--option"}]
    for word in words:
        if "=" not in word:
            rule = "a script and -m don't go together; what follows -m is key=value"
            raise ScriptError(found=word, rule=rule)
    return (*RUNNER, "-m", str(model.absolute()), *(f"-o{word}" for word in (*options, *words)))


def _check_name(script: Path) -> None:
    """Pass if the script's folder has no module that goes before a package it needs.

    Raises:
        ScriptError: if it has.
    """
    found = None if read_environment().get("PYTHONSAFEPATH") else shadowing(script)
    if found is not None:
        path, name = found
        rule = (
            f"Python would import this file instead of the package {name}, which every process "
            "of a job needs: give it another name"
        )
        raise ScriptError(found=str(path), rule=rule)


def worker_environment(
    settings: Resolved[WorkerSettings], inherited: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment in which a script is a worker.

    ``PADDLE_TRAINER_ID`` stays as it is: where no index was given, the coordinator
    assigns one. A secret stays in the file that holds it.
    """
    shared = {field.name for field in fields(JobSettings)}
    secret = {f.name for f in fields(settings.value) if f.metadata.get("secret")}

    def is_said(name: str) -> bool:
        origin = settings.origins[name]
        return origin == "file" if name in secret else origin != "default"

    named = {
        f"PARAMFLEET_{'' if name in shared else 'WORKER__'}{name.upper()}": str(value)
        for name, value in asdict(settings.value).items()
        if name in {"job", "redis"} or is_said(name)
    }
    return {**inherited, "TRAINING_ROLE": "TRAINER", "PYTHONUNBUFFERED": "1", **named}


def become_worker(
    script: tuple[str, ...], settings: Resolved[WorkerSettings], inherited: Mapping[str, str]
) -> NoReturn:
    """Replace this process by the script's own, with the same process id.

    The script is then a main program like any other: what it starts (data loaders that
    spawn) can import it, and signals and the exit code are its own.

    Args:
        script: The training script and its arguments.
        settings: Where the job is.
        inherited: This process's environment.

    Raises:
        OSError: if Python can't be started.
    """
    command = [sys.executable, *script]
    raise_open_files()
    os.execve(command[0], command, worker_environment(settings, inherited))  # noqa: S606

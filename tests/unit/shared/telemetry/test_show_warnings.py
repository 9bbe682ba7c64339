"""A worker's warnings with all their facts, unless the script has a log of its own."""

import json
import subprocess
import sys

from paramfleet_shared.system.processes.keeping import tied

WARN = (
    "import logging; from paramfleet_shared.telemetry.logs_and_metrics import show_warnings\n"
    "show_warnings('worker', 1); {more}\n"
    "logging.getLogger('paramfleet.x').warning('it.failed', extra={{'reason': 'no space'}})"
)


def said(more: str) -> str:
    command = tied([sys.executable, "-c", WARN.format(more=more)])
    return subprocess.run(command, capture_output=True, text=True, check=True).stderr


def test_a_warning_says_why() -> None:
    assert said("pass").strip().endswith("WARNING worker/1 it.failed reason='no space'")


def test_a_script_that_has_a_log_has_its_own_way() -> None:
    assert said("logging.basicConfig(format='own %(message)s')") == "own it.failed\n"


NOTE = (
    "import logging; from paramfleet_shared.telemetry.logs_and_metrics import note, {name}\n"
    "{first}\n"
    "note(logging.getLogger('paramfleet.x'), 'it.began', mode='async', workers=2)"
)


def noted(name: str, first: str) -> str:
    command = tied([sys.executable, "-c", NOTE.format(name=name, first=first)])
    return subprocess.run(command, capture_output=True, text=True, check=True).stderr


def test_a_note_is_shown_beside_warnings() -> None:
    line = noted("show_warnings", "show_warnings('worker', 1)")

    assert line.strip().endswith("INFO worker/1 it.began mode=async workers=2")
    assert line.count("it.began") == 1


def test_a_note_is_in_a_log_for_programs_once() -> None:
    line = noted("setup_logging", "setup_logging('worker', 1, log_format='json')")

    assert json.loads(line)["fields"] == {"mode": "async", "workers": 2}


def test_a_script_that_has_a_log_decides_about_notes() -> None:
    first = "show_warnings('worker', 1); logging.basicConfig(format='own %(message)s')"

    assert noted("show_warnings", first) == ""
    assert noted("show_warnings", f"{first}; logging.root.setLevel('INFO')") == "own it.began\n"


def test_it_is_said_once_however_often_it_is_asked_for() -> None:
    assert said("show_warnings('worker', 2)").count("it.failed") == 1

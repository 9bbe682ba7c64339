"""Commands for a running job: when it has ended, and when they are mistaken for others."""

from typing import Any

import click
import pytest
from click.testing import CliRunner

from paramfleet_worker.app.commands.operating import COMMANDS, require_going_on


def test_who_gives_resume_a_folder_is_shown_how_to_continue_from_a_checkpoint() -> None:
    (resume,) = [each for each in COMMANDS if each.name == "resume"]

    ended = CliRunner().invoke(resume, ["checkpoints"])

    assert ended.exit_code == 2
    assert "paramfleet launch --resume checkpoints SCRIPT" in ended.output


@pytest.mark.parametrize("state", ["starting", "training", "paused"])
def test_a_job_that_goes_on_may_still_do_what_was_asked(state: str) -> None:
    require_going_on({"state": state, "failure": None})


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ({"state": "finished", "failure": None}, "the job is finished"),
        (
            {"state": "failed", "failure": {"reason": "worker 1 was lost"}},
            "the job is failed: worker 1 was lost",
        ),
    ],
)
def test_of_a_job_that_has_ended_nothing_more_is_awaited(
    status: dict[str, Any], words: str
) -> None:
    with pytest.raises(click.ClickException) as caught:
        require_going_on(status)

    assert caught.value.message == words

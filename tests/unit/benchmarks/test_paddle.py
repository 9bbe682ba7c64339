"""The benchmark beside Paddle, as far as it goes without Paddle."""

import sys
from contextlib import AsyncExitStack
from pathlib import Path

import paddle
import pytest

from paddle_jobs import PaddleJob, PaddleMissingError, interpreter
from peer.children import ChildFailedError


def test_a_missing_environment_says_what_makes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PADDLE_VENV", ".venv-that-nobody-made")

    with pytest.raises(PaddleMissingError, match=r"sh scripts/paddle_env\.sh"):
        interpreter()


@pytest.mark.slow
async def test_a_server_that_dies_at_its_start_fails_the_job_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)  # it has no Paddle
    monkeypatch.setenv("PADDLE_VENV", str(tmp_path))
    async with AsyncExitStack() as stack:
        job = PaddleJob("rows", {}, workers=1, stack=stack, folder=tmp_path)

        with pytest.raises(ChildFailedError, match="No module named 'paddle'"):
            await job.start()


@pytest.mark.parametrize("quick", [False, True])
def test_both_systems_get_equally_many_batches_of_equal_size(*, quick: bool) -> None:
    for work in paddle.trainings(quick=quick):
        arguments = work.ours().arguments
        theirs = work.paddles()

        assert f"--batches={theirs['steps'] * theirs['windows']}" in arguments
        assert f"--batch_size={theirs['batch']}" in arguments
        assert f"--lr={theirs['lr']}" in arguments
        assert work.mode != "geo" or work.steps % work.k_steps == 0

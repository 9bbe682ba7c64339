"""The demo's command line, and that its example learns."""

from collections.abc import Iterator

import pytest
import torch
from click.testing import CliRunner

from paramfleet_worker.__main__ import main
from paramfleet_worker.app.beginning.demo import clicks
from paramfleet_worker.app.beginning.demo.command import SCRIPT, NoTorchError, launch_words


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_the_launcher_gets_sizes_and_the_script_its_mode() -> None:
    words = launch_words(mode="sync", servers=1, workers=3, steps=7, torch=True)

    assert words == [
        "--server_num=1",
        "--worker_num=3",
        str(SCRIPT),
        "--mode=sync",
        "--steps=7",
    ]


def test_without_torch_the_demo_says_how_to_get_it() -> None:
    with pytest.raises(NoTorchError, match=r"pip install 'paramfleet\[torch\]'"):
        launch_words(mode="geo", servers=1, workers=1, steps=1, torch=False)


def test_the_script_is_shown_as_it_is() -> None:
    shown = CliRunner().invoke(main, ["demo", "--show"])

    assert shown.output == SCRIPT.read_text(encoding="utf-8")


def test_the_same_samples_come_for_the_same_arguments_and_each_id_is_of_one_column() -> None:
    first, again = (clicks.made_up(3, 500, seed=1) for _ in range(2))
    other = clicks.made_up(4, 500, seed=1)

    assert torch.equal(first.ids, again.ids)
    assert not torch.equal(first.ids, other.ids)
    bounds = torch.tensor([20_000, 22_000, 22_050])
    assert (first.ids < bounds).all()
    assert (first.ids[:, 1:] >= bounds[:-1]).all()
    assert 0.2 < first.clicks.mean() < 0.6

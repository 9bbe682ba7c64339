"""The examples of workers that train apart, as a user starts them."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from paramfleet_shared.system.processes.keeping import tied

EXAMPLES = Path(__file__).parents[3] / "examples"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.forked]


def test_a_small_gpt_learns_under_torchrun_with_few_bytes(tmp_path: Path) -> None:
    words = random.Random(1)
    text = tmp_path / "text.txt"
    text.write_text(" ".join(words.choice(["left", "right", "round"]) for _ in range(9000)))
    options = ["--text", str(text), "--steps", "60", "--k_steps", "10", "--fragments", "2"]
    options += ["--overlap_steps", "2", "--mixing", "0.5", "--width", "16", "--context", "16"]

    script = EXAMPLES / "char_lm_diloco" / "train.py"
    ended = subprocess.run(
        tied([*TORCHRUN, "--nproc_per_node=2", str(script), *options]),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout.splitlines()[-1])
    assert result["workers"] == 2
    assert result["syncs"] == 7  # six periods, and the last of all
    assert result["k_steps"] == [[0, 10]]
    assert result["bytes"] < 7 * 10_000
    assert result["loss"] < 2.2  # of 13 characters: ln 13 is 2.56

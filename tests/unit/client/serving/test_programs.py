"""``torch.export`` takes a loaded model whole, with its tables, or its dense part alone."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim, export, load, save

import paramfleet as fleet

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_a_whole_model_becomes_a_program_for_any_batch(
    exported: Any, make_model: Any, mode: str, tmp_path: Path
) -> None:
    made = exported(make_model(mode))
    served = fleet.serving.load(made.path, make_model(mode))

    program = export(served, (made.probe[:2],), dynamic_shapes=({0: Dim("batch")},))
    save(program, tmp_path / "model.pt2")
    again = load(tmp_path / "model.pt2").module()

    assert torch.allclose(made.predicted(again), made.expected, atol=1e-6)


def test_the_dense_part_becomes_a_program_beside_the_tables(
    exported: Any, make_model: Any
) -> None:
    made = exported()
    served = fleet.serving.load(made.path, make_model())
    deep = fleet.serving.tables(made.path)["deep"]
    wide = fleet.serving.tables(made.path)["wide"]
    probe = made.probe[1:20]  # without padding

    program = export(
        served.tower, (torch.rand(2, 16),), dynamic_shapes=({0: Dim("batch")},)
    ).module()
    found = program(torch.cat([deep(probe).flatten(1), wide(probe).sum(1)], 1)).squeeze(1)

    assert torch.allclose(found, made.expected[1:20], atol=1e-6)

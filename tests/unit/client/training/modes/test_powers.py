"""By which power of the number of workers GEO divides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from paramfleet.training.modes.geo.powers import Powers, powers_at

if TYPE_CHECKING:
    from paramfleet.config.strategy import GeoMerge


def optimizer(kind: Any) -> torch.optim.Optimizer:
    made: torch.optim.Optimizer = kind([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    return made


@pytest.mark.parametrize(
    ("merge", "power"), [("damped", 0.5), ("mean", 1.0), ("remainder", 0.0), ("average", 0.0)]
)
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.Adagrad])
@pytest.mark.parametrize("step", [0, 7, 5_000])
def test_fixed_powers_are_those_of_their_merge(
    merge: GeoMerge, power: float, kind: Any, step: int
) -> None:
    assert powers_at(merge, optimizer(kind), step=step, workers=4) == Powers(power, power)


def test_sgd_begins_with_the_mean_and_ends_with_a_guarded_sum() -> None:
    sgd = optimizer(torch.optim.SGD)
    powers = [powers_at("paced", sgd, step=step, workers=16) for step in (0, 3, 12, 999)]
    assert powers == [
        Powers(power, power, guarded=True, rate=0.1) for power in (1.0, 0.75, 0.0, 0.0)
    ]


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SparseAdam])
@pytest.mark.parametrize("fresh", [0, 70])
def test_adam_begins_with_the_sum_and_ends_with_the_root(kind: Any, fresh: int) -> None:
    adam = optimizer(kind)
    powers = [
        powers_at("paced", adam, step=fresh + step, workers=4, fresh_steps=fresh).dense
        for step in (-fresh, 0, 50, 100, 200, 999)
    ]
    assert powers == [0.0, 0.0, 0.125, 0.25, 0.5, 0.5]


def test_rows_are_added_up_where_the_moments_of_a_worker_stand_for_all_gradients() -> None:
    rows = [
        powers_at("paced", optimizer(kind), step=999, workers=4).rows
        for kind in (torch.optim.Adam, torch.optim.SparseAdam, torch.optim.AdamW)
    ]
    assert rows == [0.0, 0.0, 0.5]


def test_differences_of_a_greater_rate_are_no_overshoot() -> None:
    sgd = optimizer(torch.optim.SGD)
    for rate in (1e-4, 0.5):
        sgd.param_groups[0]["lr"] = rate
        fields = powers_at("paced", sgd, step=99, workers=4).fields(dense=True, num_steps=3)
        assert fields == {"guarded_steps": pytest.approx(3 * rate)}
    sgd.param_groups[0]["lr"] = 0.0
    assert powers_at("paced", sgd, step=99, workers=4).fields(dense=True, num_steps=3) == {}


def test_others_have_the_root() -> None:
    for kind in (torch.optim.Adagrad, torch.optim.RMSprop):
        assert powers_at("paced", optimizer(kind), step=3, workers=4) == Powers(0.5, 0.5)


def test_a_part_says_what_isnt_zero() -> None:
    powers = Powers(0.25, 0.5, guarded=True)
    assert powers.fields(dense=True, num_steps=3) == {"damping": 0.25, "guarded_steps": 3}
    assert powers.fields(dense=False, num_steps=0) == {"damping": 0.5}
    assert Powers(0.0, 0.0).fields(dense=True, num_steps=3) == {}

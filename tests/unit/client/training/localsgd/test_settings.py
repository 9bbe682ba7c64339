"""A setting works or is refused, with the name of the one it doesn't go with."""

from typing import Any

import pytest

from paramfleet.training.localsgd.core.settings import LocalSgdSettings, LocalSgdSettingsError

REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"interval": "often"}, "interval", "paper"),
    ({"outer_optimizer": "adam"}, "outer_optimizer", "nesterov"),
    ({"optimizer_state": "sum"}, "optimizer_state", "average"),
    ({"wire_dtype": "int4"}, "wire_dtype", "int8"),
    ({"k_steps": 0}, "k_steps", "at least 1"),
    ({"begin_step": -1}, "begin_step", "at least 0"),
    ({"max_k_steps": 0}, "max_k_steps", "at least 1"),
    ({"fragments": 0}, "fragments", "at least 1"),
    ({"overlap_steps": -1}, "overlap_steps", "at least 0"),
    ({"outer_optimizer": "sgd", "outer_lr": 0.0}, "outer_lr", "more than 0"),
    ({"outer_optimizer": "sgd", "outer_momentum": 1.0}, "outer_momentum", "less than 1"),
    ({"overlap_steps": 1, "mixing": 1.0}, "mixing", "less than 1"),
    ({"interval": "paper", "fragments": 2}, "interval", "fragments = 2"),
    ({"outer_lr": 0.5}, "outer_lr", "outer_optimizer = 'none'"),
    ({"outer_momentum": 0.5}, "outer_momentum", "outer_optimizer = 'none'"),
    ({"outer_optimizer": "sgd", "begin_step": 9}, "begin_step", "outer_optimizer = 'sgd'"),
    (
        {"overlap_steps": 1, "optimizer_state": "average"},
        "overlap_steps",
        "optimizer_state = 'average'",
    ),
    (
        {"overlap_steps": 1, "optimizer_state": "reset"},
        "overlap_steps",
        "optimizer_state = 'reset'",
    ),
    ({"mixing": 0.5}, "mixing", "overlap_steps"),
]


@pytest.mark.parametrize(("given", "key", "other"), REFUSED)
def test_what_does_not_work_is_refused(given: dict[str, Any], key: str, other: str) -> None:
    with pytest.raises(LocalSgdSettingsError) as raised:
        LocalSgdSettings(**given)

    assert raised.value.key == key
    assert other in raised.value.rule


def test_diloco_is_accepted() -> None:
    settings = LocalSgdSettings(
        k_steps=100, begin_step=0, outer_optimizer="nesterov", outer_lr=0.7,
        outer_momentum=0.9, wire_dtype="int8", fragments=4, overlap_steps=5, mixing=0.5,
    )  # fmt: skip

    assert settings.fragments == 4

"""The states of generators, as values and as bytes."""

import random

import numpy as np
import pytest
import torch

from paramfleet.model_state.random_states import (
    check_random,
    packed_random,
    random_states,
    restore_random,
    unpacked_random,
)

CPU = torch.device("cpu")


def draws() -> list[float]:
    """Draw from each generator; two of them keep half of what they drew."""
    numbers = [random.random(), random.gauss(0, 1), torch.randn(3).sum().item()]
    return [*numbers, np.random.random(), np.random.normal()]


@pytest.mark.parametrize("packs", [True, False])
def test_generators_go_on_where_they_were(packs: bool) -> None:
    draws()
    states = unpacked_random(packed_random(CPU)) if packs else random_states(CPU)
    expected = [draws(), draws()]
    draws()

    check_random(states, CPU)
    restore_random(states, CPU)

    assert [draws(), draws()] == expected


def test_states_that_do_not_fit_are_refused() -> None:
    states = random_states(CPU)
    states["torch"] = torch.zeros(3, dtype=torch.uint8)
    with pytest.raises(ValueError, match="don't fit"):
        check_random(states, CPU)

"""Torch's functions that clip, for the life of a job."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, get_total_norm

from paramfleet.training.stepping.clipping import ClipMixedError, Clipping

PLAIN = clip_grad_norm_.__closure__[0].cell_contents if clip_grad_norm_.__closure__ else None


class Asked:
    """Answers with 10 as the norm of all workers' gradients."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, float, int | None]] = []

    def __call__(
        self, gradients: list[torch.Tensor], norm_type: float, *, examples: int | None
    ) -> float:
        self.calls.append((len(gradients), norm_type, examples))
        return 10.0


def parameter(*grad: float) -> torch.nn.Parameter:
    made = torch.nn.Parameter(torch.zeros(len(grad)))
    made.grad = torch.tensor(grad)
    return made


@pytest.fixture
def asked() -> Asked:
    return Asked()


@pytest.fixture
def own() -> list[torch.nn.Parameter]:
    return [parameter(3.0, 0.0), parameter(0.0, 4.0)]


@pytest.fixture
def clipping(asked: Asked, own: list[torch.nn.Parameter]) -> Iterator[Clipping]:
    made = Clipping(torch.optim.SGD(own, lr=1.0), asked)
    yield made
    made.end()


def grads(parameters: list[torch.nn.Parameter]) -> list[list[float]]:
    return [each.grad.tolist() for each in parameters if each.grad is not None]


def test_names_that_were_imported_before_clip_by_the_norm_of_all_workers(
    clipping: Clipping, asked: Asked, own: list[torch.nn.Parameter]
) -> None:
    del clipping
    norm = clip_grad_norm_(own, 5.0)

    assert norm.item() == 10.0
    torch.testing.assert_close(grads(own), [[1.5, 0.0], [0.0, 2.0]])
    assert get_total_norm([each.grad for each in own], 3.0).item() == 10.0  # type: ignore[misc]  # they are there
    assert asked.calls == [(2, 2.0, None), (2, 3.0, None)]


def test_examples_that_are_said_count(
    clipping: Clipping, asked: Asked, own: list[torch.nn.Parameter]
) -> None:
    with clipping.counting(7):
        clip_grad_norm_(iter(own[:1]), 5.0, float("inf"))

    assert asked.calls == [(1, float("inf"), 7)]


def test_other_models_and_the_time_after_the_job_are_torchs(
    clipping: Clipping, asked: Asked, own: list[torch.nn.Parameter]
) -> None:
    assert clip_grad_norm_([parameter(3.0, 4.0)], 1.0).item() == 5.0
    assert clip_grad_norm_([], 1.0).item() == 0.0

    clipping.end()

    assert clip_grad_norm_(own, 100.0).item() == 5.0
    assert asked.calls == []
    assert clip_grad_norm_.__closure__ is None or (
        clip_grad_norm_.__closure__[0].cell_contents is PLAIN
    )


def test_gradients_of_the_job_and_others_have_no_common_norm(
    clipping: Clipping, own: list[torch.nn.Parameter]
) -> None:
    del clipping
    with pytest.raises(ClipMixedError, match=r"1 of the parameters aren't .*, and 2 are"):
        clip_grad_norm_([*own, parameter(1.0)], 5.0)


def test_a_norm_that_isnt_finite_is_torchs_error(
    clipping: Clipping, own: list[torch.nn.Parameter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clipping, "_total_norm", lambda *_, **__: float("nan"))

    assert clip_grad_norm_(own, 5.0).isnan().item()
    with pytest.raises(RuntimeError, match="non-finite"):
        clip_grad_norm_(own, 5.0, error_if_nonfinite=True)


def test_values_are_clipped_in_each_worker_and_that_is_said_once(
    clipping: Clipping, own: list[torch.nn.Parameter], caplog: pytest.LogCaptureFixture
) -> None:
    del clipping
    with caplog.at_level(logging.WARNING):
        clip_grad_value_([parameter(9.0)], 1.0)
        assert not caplog.records, "of another model"
        clip_grad_value_(own, 1.0)
        clip_grad_value_(own[0], clip_value=0.5)

    assert grads(own) == [[0.5, 0.0], [0.0, 1.0]]
    (record,) = caplog.records
    assert record.message == "worker.clips_own_gradient"
    assert vars(record)["function"] == "clip_grad_value_"
    assert "fleet.clip_grad_norm_" in vars(record)["reason"]


def test_workers_that_share_no_step_clip_by_their_own_norm_and_that_is_said_once(
    own: list[torch.nn.Parameter], caplog: pytest.LogCaptureFixture
) -> None:
    clipping: Any = Clipping(torch.optim.SGD(own, lr=1.0), None)
    try:
        with caplog.at_level(logging.WARNING):
            assert clip_grad_norm_(own, 100.0).item() == 5.0
            clip_grad_norm_(own, 100.0)
    finally:
        clipping.end()

    (record,) = caplog.records
    assert "use sync mode" in vars(record)["reason"]

"""From the same payloads all workers take the same buffers."""

from typing import Any

import pytest
import torch
from typing_extensions import override

from paramfleet.model_state.agreement import Agreement, BufferTooLargeError
from paramfleet.model_state.module_state import BufferMismatchError


class Holder(torch.nn.Module):
    """Buffers of several kinds, and an extra state."""

    def __init__(self, **buffers: torch.Tensor) -> None:
        super().__init__()
        for name, value in buffers.items():
            self.register_buffer(name, value)
        self.register_buffer("scratch", torch.rand(2), persistent=False)
        self.state: Any = None

    @override
    def get_extra_state(self) -> Any:
        return self.state

    @override
    def set_extra_state(self, state: Any) -> None:
        self.state = state


def agree(agreements: list[Agreement]) -> list[bytes]:
    payloads = [each.payload() for each in agreements]
    for each in agreements:
        each.take(payloads)
    return payloads


def workers(*buffers: dict[str, torch.Tensor]) -> tuple[list[Any], list[Agreement]]:
    models = [Holder(**each) for each in buffers]
    return models, [Agreement(model) for model in models]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (torch.tensor([1.0, 2.0]), torch.tensor([3.0, 5.0]), torch.tensor([2.0, 3.5])),
        (torch.tensor(1.0).half(), torch.tensor(2.0).half(), torch.tensor(1.5).half()),
        (torch.tensor([1.0]).bfloat16(), torch.tensor([3.0]).bfloat16(), torch.tensor([2.0])),
        (torch.tensor(3e38), torch.tensor(3.2e38), torch.tensor(3.1e38)),
        (torch.tensor(1 + 2j), torch.tensor(3 - 2j), torch.tensor(2 + 0j)),
        (torch.tensor(2**60), torch.tensor(2**60 + 1), torch.tensor(2**60 + 1)),
        (torch.tensor([1, 9]).byte(), torch.tensor([200, 3]).byte(), torch.tensor([200, 9])),
        (
            torch.tensor([True, False]),
            torch.tensor([False, False]),
            torch.tensor([True, False]),
        ),
    ],
)
def test_numbers_become_their_mean_and_integers_the_largest(
    first: torch.Tensor, second: torch.Tensor, expected: torch.Tensor
) -> None:
    models, agreements = workers({"x": first}, {"x": second})

    agree(agreements)

    for model in models:
        assert model.x.dtype == first.dtype
        assert torch.equal(model.x, expected.to(first.dtype))


def test_what_is_not_part_of_the_model_stays_each_workers_own() -> None:
    models, agreements = workers({"x": torch.ones(1)}, {"x": torch.zeros(1)})
    before = [model.scratch.clone() for model in models]

    agree(agreements)

    assert all(torch.equal(m.scratch, b) for m, b in zip(models, before, strict=True))


def test_what_is_constant_travels_as_a_hash() -> None:
    large = {"mask": torch.full((300, 300), -torch.inf)}
    _, agreements = workers(large, {"mask": large["mask"].clone()})
    agree(agreements)

    payloads = agree(agreements)

    assert max(map(len, payloads)) < 300


def test_a_worker_that_changed_nothing_since_does_not_count() -> None:
    models, agreements = workers(
        {"x": torch.ones(1)}, {"x": torch.ones(1)}, {"x": torch.ones(1)}
    )
    agree(agreements)
    models[1].x.fill_(4.0)
    models[2].x.fill_(6.0)

    agree(agreements)

    assert [model.x.item() for model in models] == [5.0, 5.0, 5.0]


def test_one_workers_values_are_taken_where_it_alone_says_them() -> None:
    models, agreements = workers({"x": torch.ones(2)}, {"x": torch.zeros(2)})
    models[0].state = {"seen": torch.ones(1), "name": "first"}
    payloads = [agreements[0].payload(say="all"), agreements[1].payload(say="none")]

    for each in agreements:
        each.take(payloads)

    assert torch.equal(models[1].x, torch.ones(2))
    assert torch.equal(models[1].state["seen"], torch.ones(1))
    assert models[1].state["name"] == "first"


def test_extra_states_are_those_of_the_lowest_rank_that_changed_its_own() -> None:
    models, agreements = workers({}, {}, {})
    agree(agreements)
    models[1].state, models[2].state = {"seen": 3}, {"seen": 5}

    agree(agreements)

    assert [model.state for model in models] == [{"seen": 3}] * 3


def test_an_extra_state_that_is_not_plain_stays_each_workers_own() -> None:
    models, agreements = workers({"x": torch.ones(1)}, {"x": torch.zeros(1)})
    models[0].state, models[1].state = {1}, {2}

    agree(agreements)

    assert [model.state for model in models] == [{1}, {2}]
    assert models[0].x.item() == 0.5


@pytest.mark.parametrize("other", [torch.ones(3), torch.ones(2).double()])
def test_another_shape_or_dtype_is_an_error_that_names_the_buffer(other: torch.Tensor) -> None:
    models, agreements = workers(
        {"a": torch.ones(1), "x": torch.ones(2)}, {"a": torch.zeros(1), "x": other}
    )
    payloads = [each.payload() for each in agreements]

    for model, each in zip(models, agreements, strict=True):
        before = model.a.clone()
        with pytest.raises(BufferMismatchError, match="'x'"):
            each.take(payloads)
        assert torch.equal(model.a, before)


def test_at_the_end_the_other_buffers_are_agreed_on_nevertheless() -> None:
    models, agreements = workers(
        {"a": torch.ones(1), "x": torch.ones(2)}, {"a": torch.zeros(1), "x": torch.ones(3)}
    )
    payloads = [each.payload() for each in agreements]

    problems = [each.take(payloads, spares=True) for each in agreements]

    assert [model.a.item() for model in models] == [0.5, 0.5]
    assert [model.x.numel() for model in models] == [2, 3]
    assert all("'x'" in str(each) for (each,) in problems)


def large(scale: float) -> Any:
    return Holder(
        small=torch.ones(2) * scale, mask=torch.ones(999), queue=torch.ones(999) * scale
    )


def test_what_is_too_large_is_an_error_unless_it_is_the_same_everywhere() -> None:
    models = [large(1.0), large(3.0)]
    agreements = [Agreement(model, max_bytes=1000) for model in models]
    payloads = [each.payload() for each in agreements]

    for model, each in zip(models, agreements, strict=True):
        before = model.small.clone()
        with pytest.raises(BufferTooLargeError, match=r"'queue'.*1,000"):
            each.take(payloads)
        assert torch.equal(model.small, before)
        assert len(each.take(payloads, spares=True)) == 1

    assert max(map(len, payloads)) < 1500
    for scale, model in zip((1.0, 3.0), models, strict=True):
        assert torch.equal(model.small, torch.full((2,), 2.0))
        assert torch.equal(model.queue, torch.full((999,), scale))


def test_without_a_model_or_buffers_there_is_nothing_to_do() -> None:
    none, bare = Agreement(None), Agreement(torch.nn.Linear(1, 1))

    agree([none, bare])

    assert not none.has_state
    assert not bare.has_state
    assert Agreement(torch.nn.LazyBatchNorm1d()).has_state


def test_a_buffer_that_has_no_values_yet_waits() -> None:
    norms = [torch.nn.LazyBatchNorm1d(), torch.nn.LazyBatchNorm1d()]
    agreements = [Agreement(norm) for norm in norms]
    agree(agreements)
    for scale, norm in enumerate(norms):
        norm(torch.full((2, 3), float(scale)))

    agree(agreements)

    assert norms[0].running_mean is not None
    assert norms[1].running_mean is not None
    torch.testing.assert_close(norms[0].running_mean, torch.full((3,), 0.05))
    assert torch.equal(norms[0].running_mean, norms[1].running_mean)

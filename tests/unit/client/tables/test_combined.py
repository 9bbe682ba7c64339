"""Several optimizers are one, and each steps its own parameters."""

import copy
from typing import Any

import pytest
import torch

import paramfleet as fleet
from paramfleet.tables.combined import Combined, CombinedError, GroupAddedError, part_of
from paramfleet.tables.rules import OptimizerOptionError, check_options, pace_of, server_rule


def parameters() -> list[torch.nn.Parameter]:
    torch.manual_seed(3)
    return [torch.nn.Parameter(torch.randn(4, 3)) for _ in range(3)]


def made(values: list[torch.nn.Parameter]) -> list[torch.optim.Optimizer]:
    first, *others = values
    return [
        fleet.optim.FTRL([first], lr=0.1, l1=1e-3),
        torch.optim.Adam([{"params": [each]} for each in others], lr=0.01),
    ]


def take_steps(optimizers: list[torch.optim.Optimizer], values: Any, *, seed: int) -> None:
    dice = torch.Generator().manual_seed(seed)
    for _ in range(5):
        for value in values:
            value.grad = torch.randn(4, 3, generator=dice)
        for optimizer in optimizers:
            optimizer.step()


def test_each_steps_its_own_parameters_and_goes_on_after_a_load() -> None:
    apart, together, anew = parameters(), parameters(), parameters()
    separate, combined = made(apart), Combined(made(together))
    take_steps(separate, apart, seed=1)
    take_steps([combined], together, seed=1)

    other = Combined(made(anew))
    other.load_state_dict(copy.deepcopy(combined.state_dict()))
    with torch.no_grad():
        for mine, theirs in zip(anew, together, strict=True):
            mine.copy_(theirs)
    take_steps(separate, apart, seed=2)
    take_steps([combined], together, seed=2)
    take_steps([other], anew, seed=2)

    for one, two, three in zip(apart, together, anew, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)


def test_a_closure_is_called_once_and_its_loss_comes_back() -> None:
    values, calls = parameters(), []

    def loss() -> float:
        calls.append(1)
        return 2.5

    assert Combined(made(values)).step(loss) == 2.5
    assert calls == [1]


def test_a_rate_of_a_group_is_that_of_its_optimizer() -> None:
    parts = made(parameters())
    combined = Combined(parts)

    combined.param_groups[2]["lr"] = 0.5

    assert parts[1].param_groups[1]["lr"] == 0.5
    assert [type(part_of(combined, group)) for group in combined.param_groups] == [
        fleet.optim.FTRL,
        torch.optim.Adam,
        torch.optim.Adam,
    ]


def test_each_group_has_its_own_rule_on_the_servers() -> None:
    combined = Combined(made(parameters()))

    rules = [server_rule(combined, group, sparse=True).rule for group in combined.param_groups]

    assert rules == ["ftrl", "adam", "adam"]
    assert pace_of(combined) == "none"
    assert pace_of(Combined(made(parameters())[1:])) == "even"


def test_combined_ones_can_be_combined() -> None:
    values = parameters()
    inner = Combined(made(values)[:1])

    assert len(Combined([inner, torch.optim.SGD(values[1:])]).parts) == 2


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([], r"Combined\(\): got no optimizer: give it a list of torch optimizers"),
        ((), "got no optimizer"),
        (None, "got NoneType"),
        (torch.optim.SGD(parameters()), "got SGD"),
        ([torch.optim.SGD(parameters()), 1], "number 1 is int"),
        ([torch.optim.SGD], "number 0 is type"),
    ],
)
def test_what_are_no_optimizers_is_refused(given: Any, says: str) -> None:
    with pytest.raises(CombinedError, match=says):
        Combined(given)


def test_optimizers_with_one_parameter_are_refused_by_name() -> None:
    values = parameters()
    sgd, adam, inner = torch.optim.SGD(values[:1]), torch.optim.Adam(values[1:]), made(values)

    with pytest.raises(
        CombinedError, match=r"numbers 1 \(Adam\) and 2 \(RMSprop\) .* of shape \[4, 3\]"
    ):
        Combined([sgd, adam, torch.optim.RMSprop(values[2:])])
    with pytest.raises(CombinedError, match=r"numbers 0 \(SGD\) and 1 \(Combined\)"):
        Combined([sgd, Combined(inner)])


def test_a_group_is_added_to_one_of_the_optimizers() -> None:
    with pytest.raises(GroupAddedError, match="add the group to one of the optimizers"):
        Combined([torch.optim.SGD(parameters())]).add_param_group({"params": []})


def test_an_option_that_is_none_is_named_with_its_optimizer() -> None:
    combined = Combined(made(parameters()))
    combined.param_groups[1]["eps"] = float("nan")

    with pytest.raises(OptimizerOptionError, match="Adam with eps"):
        check_options(combined)


def test_a_copy_steps_as_the_original_does() -> None:
    values = parameters()
    combined = Combined(made(values))
    take_steps([combined], values, seed=1)
    again = copy.deepcopy((combined, values))
    take_steps([combined], values, seed=2)
    take_steps([again[0]], again[1], seed=2)
    for mine, its in zip(values, again[1], strict=True):
        assert mine is not its
        assert torch.equal(mine, its)


def test_a_group_that_came_after_combining_is_refused_by_the_next_step() -> None:
    values = parameters()
    combined = Combined(made(values))
    take_steps([combined], values, seed=1)
    combined.parts[1].add_param_group({"params": [torch.nn.Parameter(torch.ones(2))]})
    with pytest.raises(GroupAddedError, match="combine them afterwards"):
        combined.step()

"""A load puts dense values where their names say, whatever order the optimizer has them in."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import paramfleet as fleet
from paramfleet.config.roles import RoleMaker
from paramfleet.session.checkpoint.saving import Saving
from paramfleet.session.session import Session
from paramfleet.tables.dense_parameters import DenseOrderError, DenseParameterError
from paramfleet_shared.checkpoint.manifest import ManifestError, read_manifest
from paramfleet_shared.tables.spec import SavedTableMismatchError

IDS = torch.arange(9)
Made = tuple[Session, Saving]


class Towers(torch.nn.Module):
    """Two towers of one shape, which count differently: swapped they answer something else."""

    def __init__(self, **more: torch.nn.Module) -> None:
        super().__init__()
        self.rows = fleet.nn.Embedding(9, 2, name="rows")
        self.a = torch.nn.Linear(2, 2)
        self.b = torch.nn.Linear(2, 2)
        for name, module in more.items():
            self.add_module(name, module)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self.rows(ids)
        found: torch.Tensor = self.a(rows).sum(1) - 2 * self.b(rows).sum(1) + 1
        return found


def ada(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adagrad(parameters, lr=0.1)


ORDERS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "one": lambda e, a, b: ada(e + a + b),
    "other order": lambda e, a, b: ada(b[::-1] + e + a),
    "groups": lambda e, a, b: ada([{"params": e + a}, {"params": b}]),
    "other groups": lambda e, a, b: ada([{"params": b}, {"params": e}, {"params": a[::-1]}]),
    "list": lambda e, a, b: [ada(a), ada(e + b)],
    "other list": lambda e, a, b: [ada(e + b), ada(a)],
    "combined": lambda e, a, b: fleet.optim.Combined([ada(e), ada(b + a[:1]), ada(a[1:])]),
}


def made(order: Any, model: torch.nn.Module | None = None, steps: int = 0) -> Made:
    session = Session()
    session.init(RoleMaker(distributed=False))
    towers = session.distributed_model(model or Towers())
    lists = [list(getattr(towers, name).parameters()) for name in ("rows", "a", "b")]
    session.distributed_optimizer((ORDERS[order] if isinstance(order, str) else order)(*lists))
    session.init_worker()
    for _ in range(steps):
        step(session)
    return session, Saving(session)


def step(session: Session) -> None:
    assert session.optimizer is not None
    assert session.model is not None
    session.optimizer.minimize(session.model(IDS).pow(2).sum())


def answers(session: Session) -> torch.Tensor:
    assert session.model is not None
    found: torch.Tensor = session.model(IDS).detach()
    return found


def states(session: Session) -> dict[str, dict[str, Any]]:
    """Return the optimizer's states of dense parameters, by their names."""
    assert session.optimizer is not None
    assert session.model is not None
    return {
        name: {key: value.tolist() for key, value in found.items()}
        for name, parameter in session.model.named_parameters()
        if name != "rows.weight" and (found := session.optimizer.inner.state.get(parameter))
    }


@pytest.mark.parametrize("after", sorted(ORDERS))
@pytest.mark.parametrize("before", ["one", "groups", "list"])
def test_values_and_states_go_to_the_parameters_of_their_names(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, before: str, after: str
) -> None:
    trained, saving = made(before, steps=3)
    saving.save_persistables(tmp_path / "one")

    loaded, loading = made(after, steps=1)
    assert loading.load_model(tmp_path / "one") == []

    assert torch.equal(answers(loaded), answers(trained))
    assert states(loaded) == states(trained)
    step(trained)
    step(loaded)
    np.testing.assert_allclose(answers(loaded), answers(trained), atol=1e-6)
    assert not [each for each in caplog.records if each.levelname == "WARNING"]
    loading.save_persistables(tmp_path / "two")
    assert {table.version for table in read_manifest(tmp_path / "two").tables} == {4}


def test_a_checkpoint_names_the_parameters_of_each_dense_table(tmp_path: Path) -> None:
    made("other groups")[1].save_persistables(tmp_path / "one")

    assert {
        table: [(each.name, each.shape) for each in parameters]
        for table, parameters in read_manifest(tmp_path / "one").parameters.items()
    } == {
        "dense_0": [("b.weight", (2, 2)), ("b.bias", (2,))],
        "dense_2": [("a.bias", (2,)), ("a.weight", (2, 2))],
    }


def test_a_table_with_a_parameter_that_has_no_name_says_nothing(tmp_path: Path) -> None:
    stranger = torch.nn.Parameter(torch.zeros(3))
    order = ORDERS["groups"]

    def with_stranger(*lists: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        optimizer: torch.optim.Optimizer = order(*lists)
        optimizer.param_groups[0]["params"].append(stranger)
        return optimizer

    made(with_stranger)[1].save_persistables(tmp_path / "one")

    assert list(read_manifest(tmp_path / "one").parameters) == ["dense_1"]
    assert made(with_stranger)[1].load_model(tmp_path / "one") == []
    made("other groups")[1].save_persistables(tmp_path / "two")
    with pytest.raises(
        DenseParameterError, match=r"'a\.bias' .* the optimizer doesn't have it"
    ):
        made(with_stranger)[1].load_model(tmp_path / "two")
    made(lambda e, a, b: ada([{"params": a}, {"params": e + b}]))[1].save_persistables(
        tmp_path / "three"
    )
    lists = tmp_path / "three" / "manifest.json"
    document = json.loads(lists.read_text())
    document["parameters"].pop("dense_0")
    lists.write_text(json.dumps(document))
    with pytest.raises(DenseOrderError, match=r"'b\.weight' .* 'dense_0', .* 'dense_1'"):
        made(lambda e, a, b: ada([{"params": b}, {"params": e}]))[1].load_model(
            tmp_path / "three"
        )


def test_a_model_without_names_loads_by_its_tables_names(tmp_path: Path) -> None:
    made("one", steps=2)[1].save_persistables(tmp_path / "one")
    session = Session()
    session.init(RoleMaker(distributed=False))
    model = Towers()
    session.distributed_optimizer(ada(model.parameters()))

    assert Saving(session).load_model(tmp_path / "one") == []


def ftrl_of_a(e: Any, a: Any, b: Any) -> Any:
    return [fleet.optim.FTRL(a, lr=0.1), ada(e + b)]


def ftrl_of_the_rest(e: Any, a: Any, b: Any) -> Any:
    return [fleet.optim.FTRL(e, lr=0.1), ada(a + b)]


def test_another_rule_begins_anew_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trained, saving = made("one", steps=3)
    saving.save_persistables(tmp_path / "one")

    loaded, loading = made(ftrl_of_a, steps=1)
    assert loading.load_model(tmp_path / "one") == []

    assert torch.equal(answers(loaded), answers(trained))
    kept = {name: each for name, each in states(trained).items() if name[0] == "b"}
    assert states(loaded) == kept
    found = [vars(each) for each in caplog.records if each.levelname == "WARNING"]
    assert [
        (each["message"], each["table"], each["saved"], each["rule"]) for each in found
    ] == [("worker.states_left_out", "dense_0", "adagrad", "ftrl")]
    step(loaded)


def test_one_table_may_take_states_of_one_rule_and_begin_those_of_another_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trained, saving = made(ftrl_of_a, steps=3)
    saving.save_persistables(tmp_path / "one")

    loaded, loading = made("one")
    assert loading.load_model(tmp_path / "one") == []

    assert torch.equal(answers(loaded), answers(trained))
    kept = {name: each for name, each in states(trained).items() if name[0] == "b"}
    assert states(loaded) == kept
    found = [vars(each) for each in caplog.records if each.levelname == "WARNING"]
    assert [(each["message"], each["table"], each["saved"]) for each in found] == [
        ("worker.states_left_out", "dense_0", "ftrl")
    ]
    step(loaded)
    loading.save_persistables(tmp_path / "two")
    versions = {t.spec.name: t.version for t in read_manifest(tmp_path / "two").tables}
    assert versions["dense_0"] == 4


def test_a_group_that_moves_when_an_optimizer_comes_before_it_is_found(tmp_path: Path) -> None:
    trained, saving = made("one", steps=3)
    saving.save_persistables(tmp_path / "one")

    loaded, loading = made(ftrl_of_the_rest)
    assert loading.load_model(tmp_path / "one") == []

    assert torch.equal(answers(loaded), answers(trained))
    assert states(loaded) == states(trained)


def test_states_that_no_checkpoint_has_are_named_where_groups_moved_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made(lambda e, a, b: torch.optim.RMSprop(e + a + b, lr=0.1))[1].save_persistables(
        tmp_path / "one"
    )
    _, loading = made(lambda e, a, b: torch.optim.RMSprop(e + b + a, lr=0.1))
    caplog.clear()

    assert loading.load_model(tmp_path / "one") == []

    (found,) = [vars(each) for each in caplog.records if each.levelname == "WARNING"]
    assert (found["message"], found["tables"]) == (
        "worker.states_begin_anew",
        ["dense_0", "rows"],
    )


def smaller() -> torch.nn.Module:
    model = Towers()
    model.b.register_parameter("bias", None)
    return model


def reshaped() -> torch.nn.Module:
    model = Towers()
    model.b = torch.nn.Linear(1, 2)
    return model


def larger() -> torch.nn.Module:
    model = Towers()
    model.a.register_parameter("scale", torch.nn.Parameter(torch.ones(3)))
    return model


def renamed() -> torch.nn.Module:
    model = Towers()
    model.a.register_parameter("offset", model.a.bias)
    model.a.register_parameter("bias", None)
    return model


@pytest.mark.parametrize(
    ("model", "parameter", "difference"),
    [
        (smaller, "b.bias", "is in the checkpoint, and the optimizer doesn't have it"),
        (reshaped, "b.weight", "has shape (2, 1), and in the checkpoint (2, 2)"),
        (larger, "a.scale", "is not in the checkpoint"),
        (renamed, "a.offset", "is not in the checkpoint"),
    ],
)
@pytest.mark.parametrize("order", ["one", "groups"])
def test_other_parameters_are_refused_by_name_and_nothing_is_changed(
    tmp_path: Path, model: Any, parameter: str, difference: str, order: str
) -> None:
    made("one", steps=2)[1].save_persistables(tmp_path / "one")
    session, loading = made(order, model())
    assert session.model is not None
    before = {name: value.clone() for name, value in session.model.state_dict().items()}

    with pytest.raises(DenseParameterError, match="load a checkpoint of this model") as caught:
        loading.load_model(tmp_path / "one")

    assert (caught.value.parameter, caught.value.difference) == (parameter, difference)
    after = session.model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_a_vector_with_the_name_of_a_table_of_rows_is_refused(tmp_path: Path) -> None:
    made("other order")[1].save_persistables(tmp_path / "one")
    path = tmp_path / "one" / "manifest.json"
    document = json.loads(path.read_text())
    document["tables"] = [each for each in document["tables"] if each["name"] != "rows"]
    document["files"] = [each for each in document["files"] if each["table"] != "rows"]
    document["rows"] = {}
    text = json.dumps(document).replace('"dense_0"', '"rows"')
    path.write_text(text)

    with pytest.raises(SavedTableMismatchError, match="kind = 'dense'"):
        made("one")[1].load_model(tmp_path / "one")


def test_a_group_that_is_new_keeps_its_values_and_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trained, saving = made("one", steps=2)
    saving.save_persistables(tmp_path / "one")

    def with_new(e: Any, a: Any, b: Any) -> Any:
        return ada(
            [{"params": e + a + b}, {"params": list(model.get_submodule("new").parameters())}]
        )

    model = Towers(new=torch.nn.Linear(2, 2))
    loaded, loading = made(with_new, model)

    assert loading.load_model(tmp_path / "one") == ["dense_1"]

    assert torch.equal(answers(loaded), answers(trained))
    (found,) = [vars(each) for each in caplog.records if each.levelname == "WARNING"]
    assert found["message"] == "worker.tables_not_in_checkpoint"
    assert "parameter group N" in found["remedy"]
    assert "name=" not in found["remedy"]


@pytest.fixture
def former(tmp_path: Path) -> Path:
    """Return a checkpoint of one group that doesn't name its parameters."""
    made("one", steps=2)[1].save_persistables(tmp_path / "former")
    path = tmp_path / "former" / "manifest.json"
    document = json.loads(path.read_text())
    assert document.pop("parameters")
    path.write_text(json.dumps(document))
    return path.parent


def test_a_checkpoint_of_a_former_version_loads_as_before(former: Path) -> None:
    trained, _ = made("one", steps=2)
    loaded, loading = made("one")

    assert loading.load_model(former) == []

    assert sorted(states(loaded)) == sorted(states(trained))


def test_the_advice_for_a_table_of_a_former_version_is_about_groups(former: Path) -> None:
    with pytest.raises(SavedTableMismatchError, match="parameter group N of the optimizer"):
        made("groups")[1].load_model(former)
    with pytest.raises(ManifestError, match="parameter group N of the optimizer") as caught:
        made(ftrl_of_the_rest)[1].load_model(former)
    assert "name=" not in str(caught.value)


def test_what_inference_needs_is_exported_without_them(tmp_path: Path) -> None:
    session, saving = made("other list", steps=1)
    assert session.model is not None

    saving.save_inference_model(tmp_path / "model")

    assert "parameters" not in json.loads((tmp_path / "model" / "manifest.json").read_text())
    state = torch.load(tmp_path / "model" / "model.pt", weights_only=True)  # noqa: TID251 - the safe kind
    assert torch.equal(state["a.weight"], session.model.state_dict()["a.weight"])

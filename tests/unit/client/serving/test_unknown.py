"""What unknown ids read: chosen when a model is exported, or when it is loaded."""

from typing import Any

import pytest
import torch

import paramfleet as fleet
from paramfleet.serving import UnknownRowError

UNKNOWN = torch.tensor([70, 1 << 60])


@pytest.mark.parametrize(
    ("unknown", "deep", "wide"),
    [
        ("zeros", [0.0] * 4, [0.0] * 4),
        ("constant", [0.0] * 4, [0.1] * 4),
        ({"deep": [1, 2, 3, 4.5]}, [1, 2, 3, 4.5], None),
        ({"wide": torch.ones(4), "deep": "zeros"}, [0.0] * 4, [1.0] * 4),
    ],
)
@pytest.mark.parametrize("when", ["exported", "loaded"])
def test_unknown_ids_read_what_was_chosen(
    exported: Any, make_model: Any, when: str, unknown: Any, deep: Any, wide: Any
) -> None:
    export = exported()
    if when == "exported":
        export.saving.save_inference_model(export.path, unknown=unknown)

    served = fleet.serving.load(
        export.path, make_model(), unknown=None if when == "exported" else unknown
    )

    for name, row in (("deep", deep), ("wide", wide)):
        rows = served.get_submodule(name).rows(UNKNOWN)
        own = export.model.get_submodule(name)(UNKNOWN.unsqueeze(1)).reshape(2, 4)
        assert torch.allclose(rows, own if row is None else torch.tensor([row] * 2))
    known = torch.tensor([[3, 4, 5]])
    assert torch.equal(served.deep(known), export.model.deep(known))


@pytest.mark.parametrize(
    ("unknown", "message"),
    [
        ("nothing", "must be one of initial, zeros, constant, or a row; not 'nothing'"),
        ({"deeper": "zeros"}, "table 'deeper': there is no such sparse table; .*deep, wide"),
        ({"deep": "what"}, "table 'deep': must be one of"),
        ({"deep": [1.0]}, "a shared row must be 4 finite float32 numbers, not \\[1\\]"),
        ({"deep": [1.0, 2.0, 3.0, float("nan")]}, "4 finite float32 numbers"),
        ({"deep": [1.0, 2.0, 3.0, 1e300]}, "4 finite float32 numbers"),
        ({"deep": object()}, "4 finite float32 numbers"),
        ({"deep": None}, "4 finite float32 numbers"),
        (None, "must be one of"),
    ],
)
def test_a_wrong_choice_is_refused_and_the_former_export_stays(
    exported: Any, make_model: Any, unknown: Any, message: str
) -> None:
    export = exported()

    with pytest.raises(UnknownRowError, match=message):
        export.saving.save_inference_model(export.path, unknown=unknown)
    if unknown is not None:
        with pytest.raises(UnknownRowError, match=message):
            fleet.serving.load(export.path, make_model(), unknown=unknown)

    served = fleet.serving.load(export.path, make_model())
    assert torch.equal(export.predicted(served), export.expected)
    assert [path.name for path in export.path.parent.iterdir()] == ["export"]

"""Models and training loops of other libraries learn with our rows as with torch's."""

import importlib.util
from typing import Any

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = "train_library.py"
BOUND = 0.002
"""How much an AUC may differ from torch's."""

LIBRARIES = {
    "deepctr_deepfm": "deepctr_torch",
    "deepctr_din": "deepctr_torch",
    "rechub_din": "torch_rechub",
    "rechub_dssm": "torch_rechub",
    "recbole_deepfm": "recbole",
}
"""By model: the package that it is of."""


@pytest.mark.parametrize("model", LIBRARIES)
def test_a_library_s_own_fit_reaches_the_auc_that_it_has_with_torch(
    jobs: Any, model: str
) -> None:
    library = LIBRARIES[model]
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"no {library} here: sh scripts/install.sh libraries")

    alone = jobs.local(SCRIPT, model, "--rows", "torch,fleet")
    workers = [each["fleet"] for each in jobs.run(SCRIPT, model, servers=1).results]

    reached = alone["torch"]["auc"]
    assert reached > 0.6
    for ours in (alone["fleet"], *workers):
        assert abs(ours["auc"] - reached) < BOUND, (ours, alone["torch"])
        for fact in ("saved", "parameters"):  # what the library wrote and counted
            assert ours.get(fact) == alone["torch"].get(fact)
    assert workers[0]["auc"] == workers[1]["auc"]

"""A job takes a checkpoint's dense values in its own order only, and one process in any."""

import json
from pathlib import Path
from typing import Any

import pytest

from paramfleet_shared.checkpoint.manifest import read_manifest

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = "dense_order.py"
ORDERS = ("one", "other", "groups", "other_groups", "list", "other_list", "ftrl")
SAME = {"groups": "list", "list": "groups"}
"""Orders whose tables have the same parameters."""
REMEDY = "load it in one process with this optimizer and save it again"


def saved_alone(jobs: Any, folder: Path, *orders: str) -> dict[str, dict[str, Any]]:
    """Have checkpoints of these orders written, unless they were; return what each was."""
    return {
        order: jobs.local_once(SCRIPT, "--order", order, "--save", str(folder / order))
        for order in orders
    }


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of checkpoints that no test changes."""
    return tmp_path_factory.mktemp("kept")


@pytest.mark.parametrize(
    ("mode", "order"), [("sync", "one"), ("async", "groups"), ("geo", "list"), ("sync", "ftrl")]
)
def test_a_job_refuses_another_order_in_every_worker_and_nothing_is_changed(
    jobs: Any, kept: Path, mode: str, order: str
) -> None:
    saved = saved_alone(jobs, kept, *ORDERS)
    fits = {order, SAME.get(order, order)}
    folders = [each for each in ORDERS if each not in fits] + [order]

    results = jobs.run(
        SCRIPT,
        *("--mode", mode, "--order", order),
        *(str(kept / each) for each in folders),
        workers=2,
        servers=2,
        PARAMFLEET_CHECKPOINT_DIRS=str(kept),
    ).results

    for loads in zip(*(result["loads"] for result in results), strict=True):
        assert loads[0]["error"] == loads[1]["error"]
    for result in results:
        *refused, last = result["loads"]
        for count, load in enumerate(refused):
            kind, message = load["error"]
            assert kind == "DenseOrderError"
            assert "of table 'dense_" in message
            assert REMEDY in message
            assert load["same"] or count < 2  # which bring what the other worker has sent
        assert last["error"] == []
        assert result["dense"] == saved[order]["dense"]
        assert result["answers"] == pytest.approx(saved[order]["answers"], abs=1e-6)


@pytest.mark.parametrize(
    ("mode", "before", "after"),
    [
        ("sync", "one", "other"),
        ("async", "other_groups", "groups"),
        ("geo", "list", "other_groups"),
        ("async", "one", "ftrl"),
    ],
)
def test_a_job_does_not_begin_with_tables_of_another_order(
    jobs: Any, kept: Path, mode: str, before: str, after: str
) -> None:
    saved_alone(jobs, kept, before)
    common = ["--mode", mode, "--server_load", str(kept / before)]

    ended = jobs.run(
        SCRIPT, *common, "--order", after, servers=1, PARAMFLEET_CHECKPOINT_DIRS=str(kept)
    )

    for name in ("worker0", "worker1"):
        assert ended.codes[name] != 0
        assert "DenseOrderError: parameter " in ended.logs[name]
        assert REMEDY in ended.logs[name]
        assert "worker.trains" not in ended.logs[name]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (
            ["--order", "groups"],
            (
                "'b.weight' of the checkpoint isn't in the model (in table 'dense_0'): "
                "load a checkpoint of this model, or begin without one; "
                "dense_N holds parameter group N of the optimizer"
            ),
        ),
        (
            ["--wide"],
            "parameter 'b.weight' has shape (3, 2) in the model, and (2, 2) in the checkpoint",
        ),
    ],
)
def test_tables_of_another_size_are_refused_by_the_parameter_that_differs(
    jobs: Any, kept: Path, other: list[str], words: str
) -> None:
    saved_alone(jobs, kept, "one")
    common = [*other, "--server_load", str(kept / "one")]

    ended = jobs.run(SCRIPT, *common, servers=1, PARAMFLEET_CHECKPOINT_DIRS=str(kept))

    for name in ("worker0", "worker1"):
        assert ended.codes[name] != 0
        assert "SavedTableMismatchError" in ended.logs[name]
        assert words in ended.logs[name]


@pytest.mark.parametrize("mode", ["sync", "async", "geo"])
def test_one_process_turns_a_job_s_checkpoint_into_one_of_another_order(
    jobs: Any, tmp_path: Path, mode: str
) -> None:
    job, turned = str(tmp_path / "job"), str(tmp_path / "turned")
    sizes = {"workers": 2, "servers": 2}
    saved = jobs.run(SCRIPT, "--mode", mode, "--save", job, **sizes).results[0]
    assert [each.name for each in read_manifest(Path(job)).parameters["dense_0"]] == [
        "a.weight", "a.bias", "b.weight", "b.bias"
    ]  # fmt: skip
    to = ["--order", "ftrl", "--steps", "0"]

    alone = jobs.local(SCRIPT, *to, job, "--save", turned)
    results = jobs.run(SCRIPT, *to, "--mode", mode, turned, **sizes).results
    begun = jobs.run(SCRIPT, *to, "--mode", mode, "--server_load", turned, **sizes).results

    for result in [alone, *results, *begun]:
        assert [load["error"] for load in result["loads"]] in ([], [[]])
        assert result["dense"] == saved["dense"]
        assert result["answers"] == pytest.approx(saved["answers"], abs=1e-6)


@pytest.mark.parametrize(("mode", "how"), [("sync", "--load"), ("geo", "--server_load")])
def test_a_checkpoint_of_a_former_version_loads_by_its_tables_names(
    jobs: Any, tmp_path: Path, mode: str, how: str
) -> None:
    saved = saved_alone(jobs, tmp_path, "one")["one"]
    path = tmp_path / "one" / "manifest.json"
    document = json.loads(path.read_text())
    assert document.pop("parameters")
    path.write_text(json.dumps(document))
    load = [str(path.parent)] if how == "--load" else [how, str(path.parent)]
    common = ["--mode", mode, "--steps", "0", *load]

    same = jobs.run(SCRIPT, *common, servers=1)
    other = jobs.run(SCRIPT, *common, "--order", "ftrl", servers=1)

    for result in same.results:
        assert result["dense"] == saved["dense"]
    assert "tables_not_in" not in same.logs["worker0"]
    assert other.results
    log = other.logs["worker0"]
    for event in ("worker.tables_not_in_checkpoint", "worker.tables_not_in_model"):
        (line,) = [each for each in log.splitlines() if event in each]
        assert "dense_N holds parameter group N of the optimizer" in line
        assert "name=" not in line


def test_localsgd_refuses_another_order_too(jobs: Any, tmp_path: Path) -> None:
    folder = str(tmp_path / "one")
    common = ["--mode", "localsgd"]
    (saved,) = jobs.run(SCRIPT, *common, "--save", folder, workers=1, servers=1).results

    results = jobs.run(SCRIPT, *common, "--order", "other", folder, servers=1).results
    same = jobs.run(SCRIPT, *common, "--order", "groups", folder, servers=1).results

    for result in results:
        (load,) = result["loads"]
        assert load["error"][0] == "DenseOrderError"
    for result in same:  # whose fragment has both groups
        assert result["loads"] == [{"error": [], "same": False}]
        assert result["dense"] == saved["dense"]

"""GEO's workers have optimizer states of their own; a checkpoint has one of each row."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paramfleet.session.checkpoint.local_state import join_parts
from paramfleet_shared.checkpoint.manifest import FilePart, read_manifest, read_part

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = "own_states.py"
FIRST = 0.25
"""Adagrad's accumulators in the script, when they are new."""


def saved(folder: Path) -> dict[str, tuple[FilePart, int]]:
    """Return each table of a checkpoint, and its optimizer's steps, by its kind."""
    manifest = read_manifest(folder)
    found: dict[str, tuple[FilePart, int]] = {}
    for table in manifest.tables:
        files = [file for file in manifest.files if file.table == table.spec.name]
        parts = [read_part(folder, file, table.spec) for file in files]
        found[table.spec.kind] = join_parts(parts, table.spec), table.version
    return found


def rows_of(part: FilePart) -> dict[int, Any]:
    assert part.ids is not None
    return dict(zip(part.ids.tolist(), part.states, strict=True))


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


def test_adagrad_s_accumulators_are_summed_and_divided_again(jobs: Any, tmp_path: Path) -> None:
    folder = tmp_path / "end"
    train = ["--steps", "9", "--save", str(folder)]
    ada, bob = jobs.run(SCRIPT, *train, workers=2, servers=2).results

    tables = saved(folder)
    part, steps = tables["sparse"]
    assert steps == 18
    of_rows = rows_of(part)
    assert set(of_rows) == set(range(20))
    for number, states in of_rows.items():
        own = [np.array(each["rows"][str(number)]) for each in (ada, bob)]
        close(states, sum(own) - FIRST)
    dense, steps = tables["dense"]
    assert steps == 9
    both = np.array(ada["dense"]) + np.array(bob["dense"]) - FIRST
    close(dense.states, both)
    gathered = read_manifest(folder).gathered
    assert gathered is not None
    assert (gathered.workers, dict(gathered.left_out)) == ((0, 1), {})

    again = jobs.run(SCRIPT, "--load", str(folder), workers=4, servers=1).results

    for worker in again:
        assert worker["steps"] == 18
        for number, states in of_rows.items():
            share = FIRST + (states - FIRST) / 4
            close(worker["rows"][str(number)], share)
        share = FIRST + (dense.states - FIRST) / 4
        close(worker["dense"], share)

    other = ["--optimizer", "adam", "--load", str(folder)]
    ended = jobs.run(SCRIPT, *other, workers=1, servers=1)

    (worker,) = ended.results
    assert worker["steps"] == 0
    assert set(map(tuple, worker["rows"].values())) == {(0.0,) * 8}
    named = [x for x in ended.logs["worker0"].splitlines() if "worker.states_left_out" in x]
    assert len(named) == 2
    assert all(line.endswith("saved=adagrad rule=adam") for line in named)


def test_moments_are_the_mean_of_those_that_stepped_a_row(jobs: Any, tmp_path: Path) -> None:
    folder = tmp_path / "end"
    kind = ["--optimizer", "adam"]
    train = [*kind, "--steps", "5", "--save", str(folder)]
    ada, bob = jobs.run(SCRIPT, *train, workers=2, servers=1).results

    tables = saved(folder)
    of_rows = rows_of(tables["sparse"][0])
    for number, states in of_rows.items():
        movers = ([ada] if number < 12 else []) + ([bob] if number >= 8 else [])
        mean = np.mean([each["rows"][str(number)] for each in movers], axis=0)
        close(states, mean)
    dense = tables["dense"][0]
    mean = np.mean([ada["dense"], bob["dense"]], axis=0)
    close(dense.states, mean)

    again = jobs.run(SCRIPT, *kind, "--load", str(folder), workers=3, servers=2).results

    for worker in again:
        for number, states in of_rows.items():
            close(worker["rows"][str(number)], states)
        close(worker["dense"], dense.states)


def test_a_checkpoint_in_the_middle_has_every_worker_s_states(
    jobs: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "middle"
    train = ["--steps", "30", "--save_running", str(folder)]
    jobs.run(SCRIPT, *train, workers=2, servers=2)

    gathered = read_manifest(folder).gathered
    assert gathered is not None
    assert (gathered.workers, dict(gathered.left_out)) == ((0, 1), {})
    part, steps = saved(folder)["sparse"]
    assert 29 < steps <= 60
    assert (part.states > FIRST).all(axis=1).sum() == 20

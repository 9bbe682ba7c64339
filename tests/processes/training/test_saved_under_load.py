"""A checkpoint that was written under load is the same training on any number of servers."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paramfleet_shared.checkpoint.layers import read_layers
from paramfleet_shared.checkpoint.manifest import read_manifest

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = "saved_under_load.py"


def digest_of(folder: Path) -> str:
    """Return one of all numbers of a checkpoint, whatever servers and layers it has."""
    layers = read_layers(folder, read_manifest(folder))
    found = sha256()
    for table in sorted(layers.top.manifest.tables, key=lambda each: each.spec.name):
        parts = [file.read() for file in layers.files(table.spec.name)]
        found.update(f"{table.spec.name} {table.version}".encode())
        if table.is_dense:
            for part in sorted(parts, key=lambda each: each.start):
                found.update(np.vstack([part.values[None], part.states]).T.tobytes())
            continue
        ids = np.concatenate([part.ids for part in parts if part.ids is not None])
        rows = np.concatenate([np.hstack([part.values, part.states]) for part in parts])
        order = np.argsort(ids)
        found.update(ids[order].tobytes() + rows[order].tobytes())
    return found.hexdigest()


@pytest.mark.parametrize("mode", ["sync", "async", "geo"])
def test_saved_on_three_servers_it_loads_on_1_2_and_5_with_equal_numbers_and_next_losses(
    jobs: Any, tmp_path: Path, mode: str
) -> None:
    enough, kept = tmp_path / "enough", tmp_path / "kept"
    args = ["--mode", mode, "--until", str(enough), "--kept", str(kept)]
    running = jobs.start(SCRIPT, *args, workers=2, servers=3)
    running.wait_for("worker0", "training")
    running.admin().wait(lambda s: number_of(s["periodic_checkpoint"]) >= 5)
    enough.touch()
    ended = running.end()
    assert ended.codes == dict.fromkeys(running.pids, 0), ended.story()

    found = sorted(path for path in kept.iterdir() if not path.is_symlink())
    newest = [path for path in found if read_manifest(path).increment is not None][-1]
    saved = read_manifest(newest)
    assert saved.cut is not None
    assert saved.cut.consistent, saved.cut
    expected, losses = digest_of(newest), list[Any]()
    for servers in (1, 2, 5):
        again = tmp_path / f"again-{servers}"
        after = ["--mode", "sync", "--load", str(newest), "--again", str(again)]
        (result,) = jobs.run(SCRIPT, *after, workers=1, servers=servers).results
        assert digest_of(again) == expected
        losses.append(json.dumps(result["losses"]))
    assert len(set(losses)) == 1, losses


def number_of(done: dict[str, Any] | None) -> int:
    return 0 if done is None else int(Path(done["dirname"]).name.partition("-")[0])

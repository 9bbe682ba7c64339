"""Tables are written as Paddle writes them, and come back to the bit."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import paramfleet as fleet
from paramfleet.api.shrinking import Shrinking
from paramfleet.config.roles import RoleMaker
from paramfleet.nn import CtrAccessor, SparseRule
from paramfleet.session.checkpoint.saving import Saving
from paramfleet.session.session import Session
from paramfleet_shared.checkpoint.layers import read_layers
from paramfleet_shared.checkpoint.manifest import CheckpointWriteError, FilePart, read_manifest
from paramfleet_shared.tables.rules.ctr.catalog import PART_RULES
from paramfleet_worker.__main__ import main
from paramfleet_worker.app.checkpoints.foreign import ForeignTable, PaddleText
from paramfleet_worker.app.checkpoints.foreign_rows import ForeignTableError
from paramfleet_worker.app.checkpoints.importing import import_table
from paramfleet_worker.app.export.paddle import PaddleFiles
from paramfleet_worker.app.export.table import export_table

BIG = -3
"""An id whose key is beyond 2^63."""


def checkpoint(
    folder: Path, accessor: CtrAccessor, *, ids: Any = (0, 5, BIG), date: str = ""
) -> Path:
    """Train a table with an accessor, and a plain one; save them."""
    session = Session()
    session.init(RoleMaker(distributed=False))
    ads = fleet.nn.Embedding(0, 4, name="ads", accessor=accessor, negative_ids=True)
    words = fleet.nn.Embedding(0, 2, name="words", negative_ids=True)
    model = session.distributed_model(torch.nn.ModuleDict({"ads": ads, "words": words}))
    optimizer = session.distributed_optimizer(torch.optim.Adam(model.parameters(), lr=0.3))
    session.init_worker()
    if date:
        Shrinking(session).set_date(date)
    wanted = torch.tensor(ids)
    for step in range(3):
        show = 1.0 + (wanted == ids[0]) * 9 * step
        rows = ads(wanted, show=show, click=show / 3)
        loss = (rows * torch.linspace(-1, 1, 4)).sum() + words(wanted).pow(2).sum()
        optimizer.minimize(loss)
    Saving(session).save_persistables(folder, mode=3)
    return folder


def rows_of(folder: Path, table: str) -> dict[int, bytes]:
    found = {}
    for file in read_layers(folder, read_manifest(folder)).files(table):
        part: FilePart = file.read()
        assert part.ids is not None
        for id_, values, states in zip(part.ids, part.values, part.states, strict=True):
            found[int(id_)] = values.tobytes() + states.tobytes()
    return found


@pytest.mark.parametrize("rule", sorted(PART_RULES))
@pytest.mark.parametrize("days", ["date", "saves"])
def test_rows_with_an_accessor_come_back_to_the_bit(
    tmp_path: Path, rule: str, days: Any
) -> None:
    parts: dict[str, Any] = {
        "embed": SparseRule(),
        "embedx": SparseRule(rule, learning_rate=0.1),
    }
    accessor = CtrAccessor(embedx_threshold=2.0, days_by=days, **parts)
    base = checkpoint(tmp_path / "base", accessor, date="20261127")
    empty = checkpoint(tmp_path / "empty", accessor, ids=(9,))
    written = tmp_path / "text"
    compress = rule.startswith("Std")

    done = export_table(
        base, table="ads", format="paddle", output=written, paddle=PaddleFiles(2, compress)
    )
    suffix = ".gz" if compress else ""
    names = [f"000/part-000-0000{number}{suffix}" for number in range(2)]
    assert [str(path.relative_to(written)) for path in done.files] == names
    text = PaddleText("CtrCommonAccessor")
    source = ForeignTable(written / "000", "paddle", text)
    import_table(source, into=empty, table="ads", output=tmp_path / "new")

    assert rows_of(tmp_path / "new", "ads") == rows_of(base, "ads")
    lengths = set()
    for path in done.files:
        content = gzip.decompress(path.read_bytes()) if compress else path.read_bytes()
        for line in content.decode().splitlines():
            key, slot, *numbers = line.split()
            lengths.add(len(numbers))
            assert slot == "-1"
            assert int(key) in {0, 5, BIG % 2**64}
    assert len(lengths) == 2, "a row that isn't extended is short"


def test_a_plain_table_is_keys_and_values(tmp_path: Path) -> None:
    base = checkpoint(tmp_path / "base", CtrAccessor())
    empty = checkpoint(tmp_path / "empty", CtrAccessor(), ids=(9,))
    export_table(base, table="words", format="paddle", output=tmp_path / "text")

    text = (tmp_path / "text" / "001" / "part-000-00000").read_text()
    assert [line.split()[0] for line in text.splitlines()] == [str(BIG % 2**64), "0", "5"]
    source = ForeignTable(tmp_path / "text" / "001", "paddle", PaddleText("none"))
    import_table(source, into=empty, table="words", output=tmp_path / "new")

    was, now = (rows_of(folder, "words") for folder in (base, tmp_path / "new"))
    assert {id_: row[:8] for id_, row in now.items()} == {i: row[:8] for i, row in was.items()}
    (tmp_path / "text" / "001" / "part-000-00000").write_text("7 1 2 3\n")
    with pytest.raises(
        ForeignTableError,
        match="has 3 numbers after its key, and a row of the table 2: name another table",
    ):
        import_table(source, into=empty, table="words", output=tmp_path / "other")
    with pytest.raises(ForeignTableError, match="lack its counts"):
        import_table(source, into=empty, table="ads", output=tmp_path / "other")


def test_other_rules_and_layouts_keep_counts_and_begin_anew(tmp_path: Path) -> None:
    adam = SparseRule("SparseAdamSGDRule")
    empty = checkpoint(tmp_path / "empty", CtrAccessor(embedx=adam), ids=(9,))
    (tmp_path / "000").mkdir()
    lines = [
        # unseen delta show click w g2sum slot mf_dim, then g2sum and weights
        "7 3 0.5 40 4 0.25 1.5 -1 3 2.5 1 2 3",
        "8 20400 0.5 1 0 0.75 0.5 -1 3",
    ]
    (tmp_path / "000" / "part-0").write_text("\n".join(lines))
    text = PaddleText("CtrDymfAccessor", "SparseAdaGradSGDRule")
    source = ForeignTable(tmp_path / "000", "paddle", text)

    import_table(source, into=empty, table="ads", output=tmp_path / "new")

    (file,) = read_layers(tmp_path / "new", read_manifest(tmp_path / "new")).files("ads")
    part = file.read()
    assert part.values.tolist() == [[40, 4, 0.25, 1, 2, 3], [1, 0, 0.75, 0, 0, 0]]
    anew = [0.0] * 6 + [pytest.approx(0.9), pytest.approx(0.999)]
    assert part.states[0].tolist() == [1.5, *anew, 0.5, 0, 1], "3 days since an unknown one"
    assert part.states[1].tolist() == [0.5, *anew, 0.5, 20400, 0], "a day"


@pytest.mark.parametrize("days", ["date", "saves"])
@pytest.mark.parametrize("unseen", ["-5", "-0.5", "nan", "inf"])
def test_days_that_are_none_are_named(tmp_path: Path, days: Any, unseen: str) -> None:
    empty = checkpoint(tmp_path / "empty", CtrAccessor(days_by=days), ids=(9,))
    (tmp_path / "000").mkdir()
    line = f"7 {unseen} 0.5 40 4 0.25 1.5 -1 3"
    (tmp_path / "000" / "part-0").write_text(f"\n{line}\n")
    text = PaddleText("CtrDymfAccessor", "SparseAdaGradSGDRule")
    source = ForeignTable(tmp_path / "000", "paddle", text)

    with pytest.raises(ForeignTableError, match=r"part-0: line 2: its unseen_days must be 0"):
        import_table(source, into=empty, table="ads", output=tmp_path / "new")


def test_the_command_writes_a_folder_that_is_not_there(tmp_path: Path) -> None:
    base = checkpoint(tmp_path / "base", CtrAccessor())
    words = ["export", str(base), "--table=ads", "--format=paddle", "--shards=3", "--gzip"]
    words += [f"--output={tmp_path / 'text'}"]

    said = CliRunner().invoke(main, words)
    again = CliRunner().invoke(main, words)

    assert said.exit_code == 0, said.output
    assert sorted(path.name for path in (tmp_path / "text" / "000").iterdir()) == [
        f"part-000-0000{number}.gz" for number in range(3)
    ]
    assert [path.name for path in (tmp_path / "text").iterdir()] == ["000"]
    assert again.exit_code == 1
    assert "is there already" in again.stderr
    for output in (base / "text", base / "manifest.json"):
        with pytest.raises(CheckpointWriteError):
            export_table(base, table="ads", format="paddle", output=output)


def test_nine_digits_are_a_float32_to_the_bit() -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 3000, np.uint32)
    floats = bits.view(np.float32)
    floats = floats[np.isfinite(floats)]
    text = " ".join(f"{number:.9g}" for number in floats.tolist())
    again = np.array([float(each) for each in text.split()]).astype(np.float32)
    assert again.tobytes() == floats.tobytes()

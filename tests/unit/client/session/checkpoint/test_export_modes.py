"""What Fleet's save modes hold, and what they change: golden numbers of its CTR accessor."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import paramfleet as fleet
from paramfleet.api.removing import Removing
from paramfleet.api.shrinking import Shrinking
from paramfleet.config.roles import RoleMaker
from paramfleet.nn import CtrAccessor
from paramfleet.serving.errors import ExportDamagedError, ExportError
from paramfleet.serving.manifest import ExportManifest, read_export_manifest
from paramfleet.session.checkpoint.exports.applying import apply_deltas
from paramfleet.session.checkpoint.exports.modes import NoBaseError, SaveModeError
from paramfleet.session.checkpoint.saving import Saving
from paramfleet.session.session import Session
from paramfleet_shared.checkpoint.manifest import ManifestError
from paramfleet_shared.files.tensorfile import read_tensors
from paramfleet_worker.app.commands.checkpoints import checkpoint


class Alone:
    """One process that trains a table with an accessor, and a plain one."""

    def __init__(self, **options: Any) -> None:
        self.session = Session()
        self.session.init(RoleMaker(distributed=False))
        accessor = CtrAccessor(**options)
        self.ads = fleet.nn.Embedding(0, 3, name="ads", accessor=accessor)
        self.words = fleet.nn.Embedding(0, 2, name="words")
        modules = torch.nn.ModuleDict({"ads": self.ads, "words": self.words})
        self.model = self.session.distributed_model(modules)
        sgd = torch.optim.SGD(self.model.parameters(), lr=0.5)
        self.optimizer = self.session.distributed_optimizer(sgd)
        self.session.init_worker()
        self.saving = Saving(self.session)

    def push(self, id_: int, show: float, click: float) -> None:
        rows = self.ads(
            torch.tensor([id_]), show=torch.tensor([show]), click=torch.tensor([click])
        )
        self.optimizer.minimize(rows.sum())

    def use(self, *words: int) -> None:
        self.optimizer.minimize(self.words(torch.tensor(words)).sum())

    def column(self, name: str, *ids: int) -> list[float]:
        store: Any = self.ads.table.source
        numbers: Any = store.column(name)[store.held(np.array(ids, np.int64)), 0]
        found: list[float] = numbers.tolist()
        return found

    def export(self, folder: Path, mode: int, **more: Any) -> ExportManifest:
        self.saving.save_inference_model(folder, mode=mode, **more)
        return read_export_manifest(folder, deltas=True)


def ids_of(folder: Path, file: Any) -> list[int]:
    read = read_tensors(folder / file.name, num_bytes=file.bytes, sha256=file.sha256)
    found: list[int] = read.tensors["ids"].tolist()
    return found


def held(folder: Path, table: str = "ads") -> list[int]:
    return ids_of(folder, read_export_manifest(folder, deltas=True).tables[table].file)


def test_a_delta_holds_a_row_when_its_score_is_enough_and_then_counts_anew(
    tmp_path: Path,
) -> None:
    alone = Alone()
    alone.export(tmp_path / "base", 2)
    alone.push(7, 3, 1)
    assert alone.column("delta_score", 7) == [pytest.approx(1.2)]
    alone.export(tmp_path / "1", 1)
    assert held(tmp_path / "1") == [], "its score, 1.2, is less than 1.5"
    assert alone.column("delta_score", 7) == [pytest.approx(1.2)]

    alone.push(7, 3, 1)
    alone.export(tmp_path / "2", 1)

    assert held(tmp_path / "2") == [7]
    assert alone.column("delta_score", 7) == [0.0]
    alone.export(tmp_path / "3", 1)
    assert held(tmp_path / "3") == [], "nothing was pushed"


def test_a_base_without_rows_says_how_many_are_below_which_threshold(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    alone = Alone(base_threshold=2.5)
    alone.export(tmp_path / "before any", 2)
    for id_ in (7, 8, 9):
        alone.push(id_, 3, 1)
    alone.export(tmp_path / "delta", 1)
    assert not [each for each in caplog.records if "base" in each.msg]

    alone.export(tmp_path / "base", 2)

    (said,) = [each for each in caplog.records if each.msg == "worker.base_without_rows"]
    facts = vars(said)
    assert (facts["table"], facts["left_out"]) == ("ads", 3)
    assert facts["folder"] == str(tmp_path / "base")
    assert "3 rows has a score of at least base_threshold = 2.5" in facts["reason"]
    alone.push(7, 9, 9)
    alone.export(tmp_path / "with one", 2)
    assert held(tmp_path / "with one") == [7]
    assert sum(each.msg == "worker.base_without_rows" for each in caplog.records) == 1


def test_two_bases_in_a_row_hold_the_same_rows(tmp_path: Path) -> None:
    alone = Alone()
    alone.push(7, 3, 2)
    alone.push(8, 1, 0)

    for name in ("one", "two"):
        alone.export(tmp_path / name, 2)
        assert held(tmp_path / name) == [7]
    assert alone.column("delta_score", 7) == [0.0]
    assert alone.column("delta_score", 8) == [pytest.approx(0.1)], "it was not written"


def test_batch_models_count_days_where_saves_do(tmp_path: Path) -> None:
    alone = Alone(days_by="saves", delta_keep_days=1, show_click_decay_rate=1.0)
    alone.push(7, 9, 9)
    for name in ("one", "two"):
        alone.saving.save_persistables(tmp_path / name, mode=3)
    alone.push(8, 9, 9)

    days = alone.ads.table.day
    unseen = [days - seen for seen in alone.column("seen_day", 7, 8)]
    assert unseen == [2, 0]
    alone.export(tmp_path / "base", 2)
    assert held(tmp_path / "base") == [8], "7 wasn't seen for more than delta_keep_days"

    again = Alone(days_by="saves")
    again.saving.load_model(tmp_path / "two")
    assert again.ads.table.day == days, "it goes on as the training did"
    again.saving.save_persistables(tmp_path / "checkpoint", mode=0)
    assert again.ads.table.day == days


def test_a_date_is_the_clock_of_tables_that_have_one(tmp_path: Path) -> None:
    alone = Alone(show_click_decay_rate=1.0)
    shrinking = Shrinking(alone.session)
    shrinking.set_date("20261101")
    alone.push(7, 9, 9)
    alone.saving.save_persistables(tmp_path / "batch", mode=3)
    shrinking.set_date("20261117")
    alone.export(tmp_path / "in time", 2)
    shrinking.set_date("20261118")
    alone.export(tmp_path / "late", 2)

    assert held(tmp_path / "in time") == [7]
    assert held(tmp_path / "late") == [], "16 days are over"


def test_a_pull_changes_nothing(tmp_path: Path) -> None:
    alone = Alone()
    alone.push(7, 3, 3)
    alone.export(tmp_path / "base", 2)
    with torch.no_grad():
        alone.ads(torch.tensor([7, 9]))

    alone.export(tmp_path / "delta", 1)

    assert held(tmp_path / "delta") == []
    assert alone.column("delta_score", 7) == [0.0]


def test_what_is_pushed_while_a_base_is_written_stays(tmp_path: Path) -> None:
    alone = Alone()
    alone.push(7, 3, 3)
    saving: Any = alone.saving
    note = saving._note_exported

    def late(*args: Any) -> None:
        alone.push(7, 2, 0)  # behind the cut
        alone.push(8, 9, 9)
        note(*args)

    saving._note_exported = late
    alone.export(tmp_path / "base", 2)

    assert alone.column("delta_score", 7, 8) == [pytest.approx(0.2, abs=1e-6), 9.0]


def test_a_row_that_began_anew_meanwhile_keeps_its_score() -> None:
    alone = Alone()
    alone.push(7, 3, 3)
    mode = alone.optimizer.running
    removing = Removing(alone.session)
    removing.remove_rows("ads", [7])
    alone.push(7, 1, 0)
    ids, amounts = np.array([7, 99]), np.array([3.0, 1.0], np.float32)
    mode.discount(alone.ads.table, ids, amounts)

    assert alone.column("delta_score", 7) == [pytest.approx(0.1)]


def test_plain_tables_have_all_rows_in_a_base_and_what_changed_in_a_delta(
    tmp_path: Path,
) -> None:
    alone = Alone()
    alone.use(1, 2, 3)
    alone.push(7, 3, 3)
    alone.export(tmp_path / "base", 2)
    alone.use(2)
    removing = Removing(alone.session)
    removing.remove_rows("words", [3])
    removing.remove_rows("ads", [7])

    delta = alone.export(tmp_path / "delta", 1)

    assert held(tmp_path / "base", "words") == [1, 2, 3]
    assert held(tmp_path / "delta", "words") == [2]
    removed = [delta.tables[name].removed for name in ("words", "ads")]
    assert [ids_of(tmp_path / "delta", file) for file in removed] == [[3], [7]]
    nothing = alone.export(tmp_path / "nothing", 1)
    assert all(table.removed is None and not table.rows for table in nothing.tables.values())


def test_a_delta_names_what_it_follows_and_is_no_model(tmp_path: Path) -> None:
    alone = Alone()
    alone.use(1)
    base = alone.export(tmp_path / "base", 2).release
    first = alone.export(tmp_path / "1", 1).release
    second = alone.export(tmp_path / "2", 1).release
    again = alone.export(tmp_path / "other", 2).release

    assert base is not None
    assert (base.kind, base.sequence, base.after) == ("base", 0, "")
    assert first is not None
    assert (first.base, first.after, first.sequence) == (base.export, base.export, 1)
    assert second is not None
    assert (second.base, second.after, second.sequence) == (base.export, first.export, 2)
    assert again is not None
    assert again.export not in {base.export, second.export}
    fleet.serving.load(tmp_path / "base", alone.model)
    with pytest.raises(ExportError, match="delta"):
        fleet.serving.tables(tmp_path / "1")


def test_a_delta_without_a_known_base_is_refused(tmp_path: Path) -> None:
    alone = Alone()
    alone.use(1)
    with pytest.raises(NoBaseError, match="mode=2"):
        alone.export(tmp_path / "delta", 1)
    alone.export(tmp_path / "base", 2)

    other = Alone()
    other.use(1)
    with pytest.raises(NoBaseError, match="isn't known what changed"):
        other.export(tmp_path / "delta", 1, after=tmp_path / "base")
    assert not (tmp_path / "delta").exists()
    alone.export(tmp_path / "delta", 1, after=tmp_path / "base")


def test_a_delta_after_a_load_is_refused_until_there_is_another_base(tmp_path: Path) -> None:
    alone = Alone(base_threshold=0.0, delta_threshold=0.0)
    alone.push(7, 3, 1)
    alone.export(tmp_path / "base", 2)
    alone.push(8, 3, 1)
    alone.saving.save_persistables(tmp_path / "checkpoint")
    alone.push(9, 3, 1)
    alone.export(tmp_path / "1", 1)

    with pytest.raises(ManifestError):
        alone.saving.load_model(tmp_path / "none")
    alone.push(7, 1, 0)
    alone.export(tmp_path / "2", 1)
    alone.saving.load_model(tmp_path / "checkpoint")

    for after in (None, tmp_path / "2"):
        with pytest.raises(NoBaseError, match="isn't known what changed"):
            alone.export(tmp_path / "3", 1, after=after)
    assert not (tmp_path / "3").exists()
    alone.export(tmp_path / "base 2", 2)
    alone.push(9, 3, 1)
    alone.export(tmp_path / "4", 1)
    apply_deltas(tmp_path / "base 2", [tmp_path / "4"], tmp_path / "applied")
    alone.export(tmp_path / "whole", 0)
    for table in ("ads", "words"):
        assert held(tmp_path / "applied", table) == held(tmp_path / "whole", table)
    assert held(tmp_path / "base 2") == [7, 8]


def test_a_mode_that_a_function_does_not_have_is_named(tmp_path: Path) -> None:
    alone = Alone()
    for mode, said in (
        (5, "incremental"),
        (1, "save_inference_model"),
        (9, "must be one of 0"),
        (True, "must be one of 0"),
    ):
        with pytest.raises(SaveModeError, match=said):
            alone.saving.save_persistables(tmp_path / "x", mode=mode)
    with pytest.raises(SaveModeError, match="save_persistables"):
        alone.saving.save_inference_model(tmp_path / "x", mode=3)
    assert not list(tmp_path.iterdir())


def test_a_base_with_its_deltas_is_the_model_at_the_last_one(tmp_path: Path) -> None:
    alone = Alone(base_threshold=0.0, delta_threshold=0.0)
    for step in range(4):
        alone.push(7 + step, 3, 1)
        alone.use(step, 50)
        mode, name = (1, str(step)) if step else (2, "base")
        alone.export(tmp_path / name, mode)
        if step == 1:
            Removing(alone.session).remove_rows(alone.words, [0])
    whole = alone.export(tmp_path / "whole", 0)
    deltas = [tmp_path / str(step) for step in (1, 2, 3)]

    done = apply_deltas(tmp_path / "base", deltas[:2], tmp_path / "applied")
    again = apply_deltas(tmp_path / "applied", deltas[2:], tmp_path / "applied")

    assert (done.deltas, again.deltas, again.tables) == (2, 1, 2)
    found = fleet.serving.tables(tmp_path / "applied")
    for name, table in fleet.serving.tables(tmp_path / "whole").items():
        np.testing.assert_array_equal(found[name].ids, table.ids)
        np.testing.assert_array_equal(found[name].rows, table.rows)
    assert again.rows == sum(each.rows for each in whole.tables.values())
    fleet.serving.load(tmp_path / "applied", alone.model)


def test_the_command_line_applies_deltas(tmp_path: Path) -> None:
    alone = Alone()
    alone.use(1)
    alone.export(tmp_path / "base", 2)
    alone.use(2)
    alone.export(tmp_path / "1", 1)
    output = tmp_path / "applied"

    words = ["apply", str(tmp_path / "base"), str(tmp_path / "1"), "--output", str(output)]
    done = CliRunner().invoke(checkpoint, words)
    refused = CliRunner().invoke(checkpoint, [*words[:2], str(tmp_path / "base"), *words[3:]])

    assert done.output == f"{output}: 1 delta, 2 tables, 2 rows\n"
    assert refused.exit_code == 2
    assert "is no delta" in refused.output


def test_deltas_that_do_not_follow_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    alone = Alone()
    alone.use(1)
    for mode, name in ((2, "base"), (1, "1"), (1, "2"), (2, "other"), (0, "whole")):
        alone.use(1)
        alone.export(tmp_path / name, mode)
    base, first, second, other, whole = (
        tmp_path / name for name in ("base", "1", "2", "other", "whole")
    )

    for begin, deltas, said in (
        (base, [second], "name all deltas of the base"),
        (base, [first, first], "name all deltas of the base"),
        (other, [first], "name all deltas of the base"),
        (base, [other], "is no delta"),
        (whole, [first], "which no delta follows"),
        (first, [second], "is a delta"),
    ):
        with pytest.raises(ExportError, match=said):
            apply_deltas(begin, deltas, tmp_path / "applied")
    rows = next(first.glob("rows.words*"))
    rows.write_bytes(rows.read_bytes()[:-1] + b"x")
    with pytest.raises(ExportDamagedError, match="SHA-256"):
        apply_deltas(base, [first], tmp_path / "applied")
    assert not list(tmp_path.glob("*applied*"))
    assert not list(tmp_path.glob(".*"))


def test_a_delta_may_be_replaced_also_where_it_names_removed_rows(tmp_path: Path) -> None:
    alone = Alone()
    alone.use(1, 2)
    alone.export(tmp_path / "base", 2)
    Removing(alone.session).remove_rows(alone.words, [1])
    removed = alone.export(tmp_path / "delta", 1).tables["words"].removed

    assert removed is not None
    alone.export(tmp_path / "delta", 1)
    assert not (tmp_path / "delta" / removed.name).exists()

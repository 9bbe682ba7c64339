from pathlib import Path

import numpy as np
import pytest

import census

ROW = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, ?, Not-in-family, White, Male, "
    "2174, 0, 40, Cuba, "
)


def test_the_last_rows_are_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(census, "NUM_TRAIN_ROWS", 3)
    (tmp_path / "adult.data").write_text(f"{ROW}<=50K\n" * 3 + f"{ROW}>50K\n\n")

    dataset = census.load_census(census.census_file(tmp_path))

    assert dataset.train.labels.tolist() == [0, 0, 0]
    assert dataset.test.labels.tolist() == [1]
    assert (dataset.train.wide_ids >= 0).all()


def test_a_folder_without_the_census_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        census.census_file(tmp_path)


def test_income_is_no_feature() -> None:
    fields = {name for field in census.WIDE_FIELDS + census.DEEP_FIELDS for name in field}

    assert "income" not in fields | set(census.DENSE_COLUMNS)


@pytest.mark.slow
def test_the_real_census_splits_where_it_should(data_dir: Path) -> None:
    dataset = census.load_census(census.census_file(data_dir))

    assert (len(dataset.train), len(dataset.test)) == (26_048, 6_513)
    assert np.isfinite(dataset.train.dense).all()
    assert dataset.train.wide_ids.shape == (26_048, len(census.WIDE_FIELDS))
    assert dataset.train.deep_ids.shape == (26_048, len(census.DEEP_FIELDS))

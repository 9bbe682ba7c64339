from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import census
import data

PERSON = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Sales, Wife, White, Female, 0, 0, 40, "
    "Cuba, "
)


@pytest.fixture
def people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a census of four people, three of them for training."""
    monkeypatch.setattr(census, "NUM_TRAIN_ROWS", 3)
    folder = tmp_path / "people"
    folder.mkdir()
    (folder / "adult.data").write_text(f"{PERSON}<=50K\n{PERSON}>50K\n" * 2)
    return folder


def test_the_cached_arrays_are_those_that_were_read(people: Path, tmp_path: Path) -> None:
    read = data.load_dataset("census", data_dir=people, cache_dir=None)
    data.load_dataset("census", data_dir=people, cache_dir=tmp_path)
    cached = data.load_dataset("census", data_dir=people, cache_dir=tmp_path)

    for part in ("train", "test"):
        for name in ("wide_ids", "deep_ids", "dense", "labels"):
            before, after = (getattr(getattr(d, part), name) for d in (read, cached))
            assert before.dtype == after.dtype
            assert np.array_equal(before, after)


def test_the_second_time_the_tables_are_not_read(
    people: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data.load_dataset("census", data_dir=people, cache_dir=tmp_path)
    monkeypatch.delattr(census, "load_census")

    assert len(data.load_dataset("census", data_dir=people, cache_dir=tmp_path).test) == 1


def test_a_changed_table_is_read_again(people: Path, tmp_path: Path) -> None:
    data.load_dataset("census", data_dir=people, cache_dir=tmp_path)
    with (people / "adult.data").open("a") as file:
        file.write(f"{PERSON}>50K\n")

    assert len(data.load_dataset("census", data_dir=people, cache_dir=tmp_path).test) == 2


def test_several_at_once_leave_one_complete_file(people: Path, tmp_path: Path) -> None:
    cache_dir = tmp_path / "cache"

    with ThreadPoolExecutor(4) as pool:
        loaded = list(
            pool.map(
                lambda _: data.load_dataset("census", data_dir=people, cache_dir=cache_dir),
                range(4),
            )
        )

    assert len({d.train.labels.tobytes() for d in loaded}) == 1
    assert [file.suffix for file in cache_dir.iterdir()] == [".npz"]


def test_a_cache_that_cannot_be_written_costs_time_and_a_warning(
    people: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the folder should be")

    dataset = data.load_dataset("census", data_dir=people, cache_dir=blocked)

    assert len(dataset.train) == 3
    assert "cache not written" in caplog.text


def test_the_census_without_a_folder_says_which_option_names_it() -> None:
    with pytest.raises(ValueError, match="--data_dir"):
        data.load_dataset("census", data_dir=None, cache_dir=None)


def test_an_unknown_data_set_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="flights, census"):
        data.load_dataset("trains", data_dir=None, cache_dir=None)

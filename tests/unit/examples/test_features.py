import numpy as np
import pandas as pd
import pytest

from features import HASH_BITS, MAX_FIELDS, field_ids, standardised


@pytest.fixture
def frame() -> pd.DataFrame:
    return pd.DataFrame({"city": ["Oslo", "Rome", None, "Oslo"], "hour": [1, 2, 1, 2]})


def test_an_id_tells_its_field_and_is_not_negative(frame: pd.DataFrame) -> None:
    ids = field_ids(frame, [("city",), ("hour",), ("city", "hour")])

    assert ids.dtype == np.int64
    assert ids.shape == (4, 3)
    assert (ids >= 0).all()
    assert (ids >> HASH_BITS == [0, 1, 2]).all()


def test_equal_values_have_equal_ids_and_missing_is_a_value(frame: pd.DataFrame) -> None:
    (city,) = field_ids(frame, [("city",)]).T

    assert city[0] == city[3]
    assert len({city[0], city[1], city[2]}) == 3


def test_a_cross_tells_its_values_and_their_order_apart(frame: pd.DataFrame) -> None:
    crossed, turned = field_ids(frame, [("city", "hour"), ("hour", "city")]).T

    assert len(set(crossed)) == 4
    assert not np.array_equal(crossed % 2**HASH_BITS, turned % 2**HASH_BITS)


def test_ids_do_not_depend_on_the_other_rows(frame: pd.DataFrame) -> None:
    fields = [("city",), ("city", "hour")]

    assert np.array_equal(field_ids(frame[2:], fields), field_ids(frame, fields)[2:])


def test_ids_are_the_same_on_every_machine(frame: pd.DataFrame) -> None:
    ids = field_ids(frame, [("city", "hour")])

    assert ids[0, 0] == 187506176120641


def test_more_fields_than_an_id_can_tell_are_refused(frame: pd.DataFrame) -> None:
    with pytest.raises(ValueError, match="32769 fields"):
        field_ids(frame, [("city",)] * (MAX_FIELDS + 1))


def test_numbers_are_measured_on_the_training_rows_only() -> None:
    columns = pd.DataFrame({"x": [1.0, 3.0, 100.0], "same": [7, 7, 7]})

    scaled = standardised(columns, np.array([0, 1]))

    assert scaled.dtype == np.float32
    assert scaled[:, 0].tolist() == [-1.0, 1.0, 5.0]
    assert scaled[:, 1].tolist() == [0.0, 0.0, 0.0]


def test_a_missing_number_becomes_the_mean() -> None:
    columns = pd.DataFrame({"x": [1.0, np.nan, 3.0]})

    assert standardised(columns, np.arange(3))[1, 0] == 0.0

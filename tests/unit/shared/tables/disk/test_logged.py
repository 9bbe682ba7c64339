"""The keys of the log, compared with a dict."""

import numpy as np
import pytest

from paramfleet_shared.tables.disk.log.logged import GONE, KEY_BYTES, UNKNOWN, Logged
from paramfleet_shared.tables.disk.log.segments import PUT, REMOVE

ROW_BYTES = 24
KEYS = 300


@pytest.mark.parametrize("most", [1, 1 << 10, 1 << 14])
def test_the_newest_entry_of_a_key_counts(most: int) -> None:
    rng = np.random.default_rng(most)
    logged, places, offset = Logged(most), dict[int, int](), 0
    for _ in range(200):
        keys = rng.integers(0, KEYS, rng.integers(1, 60)).astype(np.uint64)
        kind = REMOVE if rng.random() < 0.2 else PUT
        logged.note(kind, keys, (3, offset, ROW_BYTES))
        for at, key in enumerate(keys.tolist()):
            place = (3 << 40) + offset + ROW_BYTES * at
            places[key] = place if kind == PUT else GONE
        offset += ROW_BYTES * keys.size
    asked = np.arange(2 * KEYS, dtype=np.uint64)
    assert logged.find(asked).tolist() == [places.get(key, UNKNOWN) for key in range(2 * KEYS)]
    assert logged.num_keys == len(places)
    newest = np.flatnonzero(logged.is_newest())
    found = dict(
        zip(logged.keys[newest].tolist(), logged.places_of(newest).tolist(), strict=True)
    )
    assert found == places
    assert logged.num_entries > KEYS


def test_a_key_takes_as_many_bytes_as_it_says() -> None:
    most = 1 << 16
    logged = Logged(most)
    keys = np.random.default_rng(1).integers(0, 1 << 63, most).astype(np.uint64)
    for first in range(0, most, 1 << 12):
        logged.note(PUT, keys[first : first + (1 << 12)], (0, 0, ROW_BYTES))
    assert logged.num_keys == most
    assert logged.num_bytes <= 1.001 * KEY_BYTES * most


def test_a_log_without_keys_knows_none() -> None:
    logged = Logged()
    assert logged.find(np.array([0, 7], np.uint64)).tolist() == [UNKNOWN, UNKNOWN]
    assert logged.num_bytes < 1 << 10
    assert logged.is_newest().size == 0

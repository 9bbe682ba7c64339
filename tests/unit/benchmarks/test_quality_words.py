"""That pairs of words are neighbours or not, and that nothing else shows which."""

import numpy as np

from quality_tasks import area_under_curve
from quality_words import NUM_WORDS, word_pairs


def test_half_of_the_pairs_are_neighbours_and_frequency_does_not_show_which() -> None:
    dice = np.random.default_rng(1)
    text = [f"{first}{'ab'[at % 2]}" for first in dice.zipf(1.5, 20_000) % 50 for at in (0, 1)]

    ids, labels = word_pairs([text], seed=2)

    assert len(ids) > 2_000
    assert abs(labels.mean() - 0.5) < 1e-3
    assert ids[:, 0].max() < NUM_WORDS <= ids[:, 1].min()
    for column in (0, 1):
        counts = np.bincount(ids[:, column])
        found = area_under_curve(labels, counts[ids[:, column]].astype(np.float64))
        assert abs(found - 0.5) < 0.04


def test_neighbours_are_within_the_window_of_their_text() -> None:
    ids, labels = word_pairs([["a", "b"] * 3000, ["c", "d"] * 3000], seed=2)

    real = ids[labels == 1]
    words = real[:, 0] // 2
    others = (real[:, 1] - NUM_WORDS) // 2
    np.testing.assert_array_equal(words, others)
    assert len(np.unique(real[:, 0])) == 4


def test_pairs_are_the_same_each_time() -> None:
    text = [str(word) for word in np.random.default_rng(1).integers(0, 90, 3000)]

    (ids, labels), (again, same) = word_pairs([text], seed=7), word_pairs([text], seed=7)

    np.testing.assert_array_equal(ids, again)
    np.testing.assert_array_equal(labels, same)

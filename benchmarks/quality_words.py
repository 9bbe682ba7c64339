"""Pairs of words of real texts: neighbours, and words that stand apart."""

import lzma
import re
from collections import Counter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["TEXTS", "read_words", "word_pairs"]

TEXTS = ("novels50.txt.xz", "text8_head.txt.xz")
MOST_BYTES = 4_000_000
"""Of each text, from its beginning."""
NUM_WORDS = 500
"""The most frequent ones; all others are left out before neighbours are looked for."""
WINDOW = 2
SAMPLE = 1e-3
"""Share of a text above which a word is thinned out, as in word2vec."""
NUM_PAIRS = 480_000
"""Half of them neighbours."""


def read_words(data_dir: Path) -> list[list[str]]:
    """Return the words of each text, in small letters."""
    found = []
    for name in TEXTS:
        with lzma.open(data_dir / name) as text:
            lowered = text.read(MOST_BYTES).decode(errors="replace").lower()
        found.append(re.findall(r"[a-z]+", lowered))
    return found


def word_pairs(
    texts: list[list[str]], *, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return pairs in random order, and which are neighbours.

    A pair that isn't has the neighbour of another pair, so how frequent a word is doesn't
    show what a pair is.

    Args:
        texts: Words of each.
        seed: Of all that is drawn.

    Returns:
        ids, int64 [n, 2], a word and a neighbour, whose ids differ from those of words; and
        labels, float32 [n].
    """
    counts = Counter(word for text in texts for word in text)
    common = [word for word, _ in counts.most_common(NUM_WORDS)]
    numbers = {word: number for number, word in enumerate(common)}
    share = np.array([counts[word] for word in common]) / counts.total()
    keep = np.minimum(1.0, np.sqrt(SAMPLE / share))
    dice = np.random.default_rng(seed)
    words, others = [], []
    for text in texts:
        kept = np.array([numbers[word] for word in text if word in numbers], np.int64)
        kept = kept[dice.random(len(kept)) < keep[kept]]
        reach = dice.integers(1, WINDOW + 1, len(kept))
        for offset in range(1, WINDOW + 1):
            (near,) = np.nonzero(reach[:-offset] >= offset)
            words.append(kept[near])
            others.append(kept[near + offset])
    all_words, all_others = np.concatenate(words), np.concatenate(others)
    drawn = dice.permutation(len(all_words))[:NUM_PAIRS]
    labels = (np.arange(len(drawn)) % 2 == 0).astype(np.float32)
    ids = np.stack([all_words[drawn], all_others[drawn] + NUM_WORDS], 1)
    ids[1::2, 1] = dice.permutation(ids[1::2, 1])
    return ids, labels

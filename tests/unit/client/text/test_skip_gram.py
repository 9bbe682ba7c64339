"""Batches of skip-gram against a plain reader of the same text with the same chance."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from paramfleet.data.progress import OtherDataError
from paramfleet.text.kernels import sample_words
from paramfleet.text.sampling import NEGATIVE_POWER, Alias, keep_chances
from paramfleet.text.skip_gram import SkipGramBatch, SkipGramSettings, SkipGramText
from paramfleet.text.vocabulary import Vocabulary
from paramfleet_shared.settings.config import SettingError

MASK = 2**64 - 1
SETTINGS = SkipGramSettings(batch_words=100, window=4, negatives=3, sample=0.02, seed=5)


class PlainChance:
    """SplitMix64 in whole numbers."""

    def __init__(self, state: int) -> None:
        self.state = state

    def draw(self) -> int:
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        mixed = self.state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK
        return mixed ^ (mixed >> 31)


def plain_sample(
    numbers: list[int], keep: list[int], alias: Alias, state: int, window: int, negatives: int
) -> list[tuple[int, int, list[int]]]:
    chance, found = PlainChance(state), []
    limits, others = alias.limits.tolist(), alias.others.tolist()
    for number in numbers:
        if chance.draw() >> 32 > keep[number]:
            continue
        reach = 1 + ((chance.draw() >> 32) * window >> 32)
        targets = [number]
        for _ in range(negatives):
            drawn = chance.draw()
            place = (drawn >> 32) * len(limits) >> 32
            targets.append(place if drawn & 0xFFFFFFFF <= limits[place] else others[place])
        found.append((number, reach, targets))
    return found


def sampled(
    numbers: NDArray[np.int32], keep: NDArray[np.uint32], alias: Alias, state: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    size = len(numbers)
    out = np.empty(size, np.int64), np.empty(size, np.int64), np.empty((size, 4), np.int64)
    pair = (alias.limits, alias.others)
    kept = sample_words(numbers, keep, pair, (np.uint64(state), 4), out)
    return out[0][:kept], out[1][:kept], out[2][:kept]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    random = np.random.default_rng(1)
    words = [f"{a}{b}" for a in "abcdefgh" for b in "klmnop"]
    drawn = random.zipf(1.4, 60_000) % len(words)
    (tmp_path / "text").write_text(" ".join(words[each] for each in drawn), encoding="utf-8")
    return tmp_path / "text"


@pytest.fixture
def known(text: Path) -> Vocabulary:
    return Vocabulary.build([text], min_count=1)


def reader(text: Path, known: Vocabulary, **facts: Any) -> SkipGramText:
    return SkipGramText([str(text)], known, facts.pop("settings", SETTINGS), **facts)


def plain(batches: list[SkipGramBatch]) -> list[list[Any]]:
    return [[getattr(part, "tolist", lambda: part)() for part in batch] for batch in batches]  # noqa: B023


def test_what_is_sampled_is_exactly_what_plain_python_draws(known: Vocabulary) -> None:
    alias = Alias.of(known.counts.astype(np.float64) ** NEGATIVE_POWER)
    keep = keep_chances(known.counts, 0.01)
    numbers = np.random.default_rng(2).integers(0, len(known), 500).astype(np.int32)

    words, reaches, targets = sampled(numbers, keep, alias, 77)

    expected = plain_sample(numbers.tolist(), keep.tolist(), alias, 77, 4, 3)
    assert 50 < len(expected) < 490
    found = zip(words.tolist(), reaches.tolist(), targets.tolist(), strict=True)
    assert list(found) == expected


@pytest.mark.parametrize("size", [1, 2, 3, 100, 5000])
def test_an_alias_table_stands_for_its_distribution(size: int) -> None:
    weights = np.random.default_rng(size).pareto(1.0, size) + 1e-9

    shares = Alias.of(weights).shares()

    np.testing.assert_allclose(shares, weights / weights.sum(), atol=2e-9)


def test_draws_are_distributed_as_they_should_be(known: Vocabulary) -> None:
    weights = known.counts.astype(np.float64) ** NEGATIVE_POWER
    alias, keep = Alias.of(weights), keep_chances(known.counts, 0.01)
    numbers = np.repeat(np.arange(len(known), dtype=np.int32), 4000)

    words, reaches, targets = sampled(numbers, keep, alias, 9)

    drawn = np.bincount(targets[:, 1:].ravel(), minlength=len(known))
    expected = weights / weights.sum() * drawn.sum()
    assert ((drawn - expected) ** 2 / expected).sum() < 1.6 * len(known)  # chi squared
    ratio = 0.01 * known.counts.sum() / known.counts
    chance = np.minimum(np.sqrt(ratio) + ratio, 1)
    stayed = np.bincount(words, minlength=len(known)) / 4000
    np.testing.assert_allclose(stayed, chance, atol=5 * 0.5 / np.sqrt(4000))
    np.testing.assert_allclose(np.bincount(reaches)[1:] / len(reaches), 0.25, atol=0.01)


def test_without_sampling_every_word_stays(known: Vocabulary) -> None:
    assert (keep_chances(known.counts, 0) == 2**32 - 1).all()


def test_workers_share_the_text_and_lose_no_word(text: Path, known: Vocabulary) -> None:
    whole = SkipGramSettings(batch_words=100, sample=0)
    workers = [reader(text, known, settings=whole, rank=r, num_workers=2) for r in (0, 1)]

    found = [list(worker) for worker in workers]

    counts = np.zeros(len(known), np.int64)
    for batch in (batch for batches in found for batch in batches):
        np.add.at(counts, batch.words.numpy(), 1)
        assert batch.num_words == len(batch.words) <= 100
    assert counts.tolist() == known.counts.tolist()
    assert min(sum(b.num_words for b in batches) for batches in found) > 10_000


def test_batches_are_the_same_for_the_same_seed_alone(text: Path, known: Vocabulary) -> None:
    first, again = list(reader(text, known)), list(reader(text, known))
    other = SkipGramSettings(batch_words=100, window=4, negatives=3, sample=0.02, seed=6)

    assert plain(first) == plain(again)
    assert plain(first) != plain(list(reader(text, known, settings=other)))
    for batch in first:
        assert torch.equal(batch.targets[:, 0], batch.words)
        assert batch.reaches.min() >= 1
        assert batch.reaches.max() <= 4


def test_a_reader_goes_on_exactly_where_it_was(text: Path, known: Vocabulary) -> None:
    through = reader(text, known)
    expected = [plain(list(through)) for _ in range(2)]
    stopped, batches = reader(text, known), []
    batches += plain(list(stopped))
    for number, batch in enumerate(stopped):
        batches += plain([batch])
        if number == 41:
            break
    state = json.loads(json.dumps(stopped.state_dict()))
    resumed = reader(text, known)

    resumed.load_state_dict(state)

    assert batches + plain(list(resumed)) == expected[0] + expected[1]
    assert expected[0] != expected[1]


def test_a_position_of_other_data_is_refused(text: Path, known: Vocabulary) -> None:
    state = reader(text, known).state_dict()

    with pytest.raises(OtherDataError, match="worker"):
        reader(text, known, rank=1, num_workers=2).load_state_dict(state)
    with pytest.raises(OtherDataError, match="vocabulary"):
        reader(text, Vocabulary(["a"], [1])).load_state_dict(state)


@pytest.mark.parametrize("wrong", [{"window": 0}, {"negatives": 0}, {"sample": 2.0}])
def test_settings_have_ranges(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=next(iter(wrong))):
        SkipGramSettings(**wrong)

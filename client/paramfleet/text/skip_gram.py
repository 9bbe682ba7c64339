"""Text as batches that skip-gram with negative sampling trains on."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from paramfleet.data.progress import require_same
from paramfleet.text.kernels import sample_words
from paramfleet.text.pieces import read_pieces
from paramfleet.text.sampling import NEGATIVE_POWER, Alias, keep_chances
from paramfleet.text.vocabulary import Vocabulary
from paramfleet_shared.settings.config import SettingError

__all__ = ["SkipGramBatch", "SkipGramSettings", "SkipGramText"]

_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class SkipGramSettings:
    """How text becomes batches.

    Raises:
        SettingError: if a value is outside its documented range.
    """

    batch_words: int = 512
    """Words of text of a batch, those that sampling leaves out counted."""

    window: int = 5
    """Most words that a word looks to each side; how many is drawn from 1 to this."""

    negatives: int = 5
    """Words drawn for each word; all words in its window share them."""

    sample: float = 1e-3
    """Share of the text above which a word is thinned out; 0 keeps all."""

    seed: int = 0
    """Of all that chance decides."""

    def __post_init__(self) -> None:
        for name in ("batch_words", "window", "negatives"):
            if getattr(self, name) < 1:
                raise SettingError(name=name, value=getattr(self, name), rule="1 or more")
        if not 0 <= self.sample <= 1:
            raise SettingError(name="sample", value=self.sample, rule="from 0 to 1")


class SkipGramBatch(NamedTuple):
    """n words that follow each other in the text, those thinned out left away."""

    words: torch.Tensor
    """int64 [n]."""
    reaches: torch.Tensor
    """int64 [n]: how far each looks to both sides, in words of this batch."""
    targets: torch.Tensor
    """int64 [n, 1 + N]: each word, and its negatives. One that is the word itself doesn't
    count."""
    num_words: int
    """Words of the text that it was made of."""


class SkipGramText:
    """A worker's part of a text, as batches; iterated once an epoch.

    Workers take the pieces of the text in turns. Chance depends on seed, epoch, worker and
    number of the batch alone, so that the same batches come again.

    Args:
        files: All files, the same for every worker: plain, ``.gz`` or ``.xz``.
        vocabulary: The words that count.
        settings: How text becomes batches.
        rank: Which worker this is.
        num_workers: How many there are.

    Shape legend: n = words of a batch, N = negatives.
    """

    def __init__(
        self,
        files: Sequence[str],
        vocabulary: Vocabulary,
        settings: SkipGramSettings,
        *,
        rank: int = 0,
        num_workers: int = 1,
    ) -> None:
        self._files = [str(file) for file in files]
        self._vocabulary = vocabulary
        self._settings = settings
        self._rank = rank
        self._num_workers = num_workers
        self._keep = keep_chances(vocabulary.counts, settings.sample)
        self._alias = Alias.of(vocabulary.counts.astype(np.float64) ** NEGATIVE_POWER)
        self._epoch = 0
        self._batch = 0

    def __iter__(self) -> Iterator[SkipGramBatch]:
        """Yield what is left of the epoch; the next one begins anew.

        Raises:
            EmptyFileListError: if there are no files.
            CannotReadFileError: if one isn't there.
            DamagedFileError: if a compressed one is cut off or broken.
        """
        for number, words in enumerate(self._cut()):
            if number >= self._batch:
                batch = self._sampled(words, number)
                self._batch = number + 1
                yield batch
        self._epoch += 1
        self._batch = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the position, behind the batch yielded last, as JSON can hold it."""
        return {**self._facts(), "epoch": self._epoch, "batch": self._batch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was called.

        Raises:
            OtherDataError: if it was of other files, words, settings or workers.
        """
        for name, value in self._facts().items():
            require_same(state, name, value)
        self._epoch, self._batch = int(state["epoch"]), int(state["batch"])

    def _facts(self) -> dict[str, Any]:
        """Return what a position depends on."""
        own = self._settings
        return {
            "version": _VERSION,
            "kind": "skip_gram",
            "files": self._files,
            "vocabulary": self._vocabulary.digest,
            "batches": [own.batch_words, own.window, own.negatives, own.sample, own.seed],
            "worker": [self._rank, self._num_workers],
        }

    def _cut(self) -> Iterator[NDArray[np.int32]]:
        """Yield the numbers of this worker's words, as many as a batch has."""
        size, rest = self._settings.batch_words, np.empty(0, np.int32)
        pieces = read_pieces(self._files, self._vocabulary.tokens)
        for number, piece in enumerate(pieces):
            if number % self._num_workers != self._rank:
                continue
            words = np.concatenate([rest, self._vocabulary.numbers(piece)])
            whole = len(words) - len(words) % size
            for begin in range(0, whole, size):
                yield words[begin : begin + size]
            rest = words[whole:]
        if len(rest):
            yield rest

    def _sampled(self, numbers: NDArray[np.int32], batch: int) -> SkipGramBatch:
        own = self._settings
        words, reaches = np.empty(len(numbers), np.int64), np.empty(len(numbers), np.int64)
        targets = np.empty((len(numbers), 1 + own.negatives), np.int64)
        kept = sample_words(
            numbers,
            self._keep,
            (self._alias.limits, self._alias.others),
            (np.uint64(_seed(own.seed, self._epoch, self._rank, batch)), own.window),
            (words, reaches, targets),
        )
        return SkipGramBatch(
            torch.from_numpy(words[:kept]),
            torch.from_numpy(reaches[:kept]),
            torch.from_numpy(targets[:kept]),
            len(numbers),
        )


def _seed(*parts: int) -> int:
    """Return 64 bits that depend on all parts."""
    text = ",".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")

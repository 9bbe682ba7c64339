"""The words of a text, each with its number and how often it occurs."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paramfleet.text.kernels import Table, count_words, number_words
from paramfleet.text.pieces import Tokens, folding, read_pieces
from paramfleet_shared.errors import ContractError

__all__ = ["Vocabulary", "VocabularyError"]


_ODD_BYTES = "surrogateescape"
"""How a word keeps bytes that are no UTF-8."""


class VocabularyError(ContractError):
    """A vocabulary has no words, or its file isn't one."""

    code = "contract.vocabulary"
    source: str
    rule: str
    sentence = "{source}: {rule}"


class Vocabulary:
    """Words by number, the most frequent first; words as frequent stand by their bytes.

    So it is the same wherever it is made of the same text.

    Args:
        words: The words.
        counts: How often each occurs.
        tokens: What a word of a text is; see ``read_pieces``.

    Raises:
        VocabularyError: if there are no words, or a word occurs twice.
    """

    def __init__(
        self, words: Sequence[str], counts: Sequence[int], *, tokens: Tokens = "letters"
    ) -> None:
        self.words = list(words)
        self.counts: NDArray[np.int64] = np.array(counts, np.int64)
        self.tokens: Tokens = tokens
        if not self.words:
            raise VocabularyError(source="vocabulary", rule="there is no word in it")
        known = _Counter("blanks")
        known.add("\n".join(self.words).encode(errors=_ODD_BYTES))
        if known.num_words != len(self.words):
            rule = "it has a word twice, or a word with a space in it"
            raise VocabularyError(source="vocabulary", rule=rule)
        self._table = known.table
        self._fold = folding(tokens)

    def __len__(self) -> int:
        return len(self.words)

    @property
    def num_occurrences(self) -> int:
        """How many words the text has, those left out not counted."""
        return int(self.counts.sum())

    @property
    def digest(self) -> str:
        """What words and counts there are, as 16 digits."""
        text = "\n".join(self.words).encode(errors=_ODD_BYTES) + self.counts.tobytes()
        return hashlib.blake2b(text, digest_size=8).hexdigest()

    @classmethod
    def build(
        cls, files: Iterable[str | Path], *, min_count: int = 5, tokens: Tokens = "letters"
    ) -> "Vocabulary":
        """Count the words of some files.

        Args:
            files: Text, plain, ``.gz`` or ``.xz``.
            min_count: Words that occur less often are left out.
            tokens: What a word is; see ``read_pieces``.

        Raises:
            VocabularyError: if no word is frequent enough.
            CannotReadFileError: if a file isn't there.
            DamagedFileError: if a compressed one is cut off or broken.
        """
        counter = _Counter(tokens)
        for piece in read_pieces([str(file) for file in files], tokens):
            counter.add(piece)
        ranked = sorted(
            (-count, word) for word, count in counter.ranked() if count >= min_count
        )
        if not ranked:
            rule = f"no word occurs {min_count} times"
            raise VocabularyError(source="the text", rule=rule)
        words = [word.decode(errors=_ODD_BYTES) for _, word in ranked]
        return cls(words, [-count for count, _ in ranked], tokens=tokens)

    @classmethod
    def load(cls, path: str | Path, *, tokens: Tokens = "letters") -> "Vocabulary":
        """Read what ``save`` or word2vec.c's ``-save-vocab`` wrote.

        Raises:
            VocabularyError: if it can't be read, or a line isn't a word and a number.
        """
        try:
            lines = Path(path).read_text(encoding="utf-8", errors=_ODD_BYTES).split("\n")
        except OSError as error:
            rule = f"can't be read ({error})"
            raise VocabularyError(source=str(path), rule=rule) from error
        words, counts = [], []
        for number, line in enumerate(lines if lines[-1] else lines[:-1], start=1):
            word, _, count = line.partition(" ")
            if not word or not count.isdecimal():
                rule = f"line {number} must be a word, a blank and a number, not {line!r}"
                raise VocabularyError(source=str(path), rule=rule)
            words.append(word)
            counts.append(int(count))
        return cls(words, counts, tokens=tokens)

    def save(self, path: str | Path) -> None:
        """Write ``word count`` lines, in the order of the numbers."""
        lines = (f"{w} {n}\n" for w, n in zip(self.words, self.counts.tolist(), strict=True))
        Path(path).write_text("".join(lines), encoding="utf-8", errors=_ODD_BYTES)

    def numbers(self, text: bytes) -> NDArray[np.int32]:
        """Return the numbers of a text's words, int32 [n]; others are passed over."""
        found = np.empty(len(text) // 2 + 1, np.int32)
        count = number_words(np.frombuffer(text, np.uint8), self._fold, self._table, found)
        return found[:count]


class _Counter:
    """Words and how often they came."""

    def __init__(self, tokens: Tokens) -> None:
        self._fold = folding(tokens)
        self.table = _empty_table(1 << 12, 1 << 16)

    @property
    def num_words(self) -> int:
        """How many different words came."""
        return int(self.table[4][0])

    def add(self, text: bytes) -> None:
        """Count the words of a text."""
        at = 0
        view = np.frombuffer(text, np.uint8)
        while (at := count_words(view, at, self._fold, self.table)) >= 0:
            self._grow(len(text))

    def ranked(self) -> Iterable[tuple[bytes, int]]:
        """Yield each word and its count, as they came."""
        _, spans, letters, counts, _ = self.table
        whole = letters.tobytes()
        for number in range(self.num_words):
            begin, size = spans[number].tolist()
            yield whole[begin : begin + size], int(counts[number])

    def _grow(self, num_letters: int) -> None:
        slots, _, letters, counts, used = self.table
        num = int(used[0])
        words = b"\n".join(word for word, _ in self.ranked())
        self.table = _empty_table(2 * slots.size, 2 * letters.size + num_letters)
        count_words(np.frombuffer(words, np.uint8), 0, folding("blanks"), self.table)
        self.table[3][:num] = counts[:num]


def _empty_table(num_slots: int, num_letters: int) -> Table:
    """Return a table without words, of which half of the slots may be used."""
    return (
        np.zeros(num_slots, np.uint32),
        np.zeros((num_slots // 2, 2), np.int64),
        np.zeros(num_letters, np.uint8),
        np.zeros(num_slots // 2, np.int64),
        np.zeros(2, np.int64),
    )

"""How good vectors of words are: analogies, and how alike people find two words.

Shape legend: V = words, D = width of a vector, Q = questions.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet.data.reading.files import ByPath, open_file, read_some
from paramfleet_shared.errors import ContractError

__all__ = [
    "JudgementError",
    "Pair",
    "Question",
    "WordVectors",
    "read_pairs",
    "read_questions",
    "spearman",
]

_QUESTIONS_AT_ONCE = 256


class JudgementError(ContractError):
    """A line of a file of judgements isn't one."""

    code = "contract.judgement"
    file: str
    line: int
    rule: str
    sentence = "{file}, line {line}: {rule}"


class Question(NamedTuple):
    """``a`` is to ``b`` as ``c`` is to ``d``."""

    a: str
    b: str
    c: str
    d: str


class Pair(NamedTuple):
    """Two words, and how alike people found them."""

    first: str
    second: str
    score: float


def read_questions(file: str | Path) -> list[Question]:
    """Read analogies in the form of questions-words: four words a line, ``:`` begins a section.

    Words are made small. The file may be ``.gz`` or ``.xz``.

    Raises:
        JudgementError: if a line hasn't four words.
        CannotReadFileError: if the file isn't there.
        DamagedFileError: if it is cut off or broken.
    """
    found = []
    for number, line in enumerate(_lines(file), start=1):
        words = _words(line)
        if not words or words[0].startswith(":"):
            continue
        if len(words) != len(Question._fields):
            rule = f"{len(words)} words instead of four"
            raise JudgementError(file=str(file), line=number, rule=rule)
        found.append(Question(*words))
    return found


def read_pairs(file: str | Path) -> list[Pair]:
    """Read judgements in the form of WordSim-353: two words and a number, between tabs.

    Words are made small. The file may be ``.gz`` or ``.xz``; a line with ``#`` is a remark.

    Raises:
        JudgementError: if a line is something else.
        CannotReadFileError: if the file isn't there.
        DamagedFileError: if it is cut off or broken.
    """
    found = []
    for number, line in enumerate(_lines(file), start=1):
        if not line.strip() or line.startswith(b"#"):
            continue
        try:
            first, second, score = _words(line)
            found.append(Pair(first, second, float(score)))
        except ValueError as error:
            rule = "must be two words and a number"
            raise JudgementError(file=str(file), line=number, rule=rule) from error
    return found


class WordVectors:
    """Words with a vector each, to be judged.

    Args:
        words: The words, the most frequent first.
        vectors: float32 [V, D]; only their directions count.
    """

    def __init__(self, words: Sequence[str], vectors: NDArray[np.float32]) -> None:
        self._places = {word: place for place, word in enumerate(words)}
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        self._units: NDArray[np.float32] = (vectors / np.maximum(lengths, 1e-12)).astype(
            np.float32
        )

    def analogies(self, questions: Sequence[Question], *, restrict: int = 300_000) -> float:
        """Return the share of the questions that are answered right, NaN without any.

        The answer is the word nearest to ``b - a + c`` by its cosine, but for these three:
        3CosAdd of unit vectors (Mikolov et al. 2013; Levy and Goldberg 2014), as word2vec.c
        and gensim ask. Questions with a word that isn't known are left out.

        Args:
            questions: What is asked.
            restrict: Only so many words, the most frequent, are known.
        """
        units, known = self._units[:restrict], []
        for question in questions:
            places = [self._places.get(word, restrict) for word in question]
            if max(places) < min(restrict, len(units)):
                known.append(places)
        if not known:
            return float("nan")
        asked, right = np.array(known), 0
        for begin in range(0, len(asked), _QUESTIONS_AT_ONCE):
            some = asked[begin : begin + _QUESTIONS_AT_ONCE]
            a, b, c, d = some.T
            cosines = (units[b] - units[a] + units[c]) @ units.T
            np.put_along_axis(cosines, some[:, :3], -np.inf, axis=1)
            right += int((cosines.argmax(axis=1) == d).sum())
        return right / len(asked)

    def similarity(self, pairs: Sequence[Pair]) -> float:
        """Return Spearman's correlation of cosines with judgements; NaN below two pairs.

        Pairs with a word that isn't known are left out.
        """
        known = [pair for pair in pairs if {pair.first, pair.second} <= self._places.keys()]
        if len(known) < 2:
            return float("nan")
        first = self._units[[self._places[pair.first] for pair in known]]
        second = self._units[[self._places[pair.second] for pair in known]]
        cosines = (first.astype(np.float64) * second).sum(axis=1)
        return spearman(cosines, np.array([pair.score for pair in known]))


def spearman(left: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    """Return the correlation of the ranks of two rows of numbers; equal ones share theirs."""
    ranks = [_ranks(each) - (len(each) + 1) / 2 for each in (left, right)]
    scale = float(np.sqrt((ranks[0] ** 2).sum() * (ranks[1] ** 2).sum()))
    return float((ranks[0] * ranks[1]).sum()) / scale if scale else float("nan")


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rank of each number from 1; equal ones have the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    means = np.cumsum(counts) - (counts - 1) / 2
    ranks: NDArray[np.float64] = means[inverse]
    return ranks


def _words(line: bytes) -> list[str]:
    """Return the words of a line, small; only ASCII's blanks are between them."""
    return [word.decode(errors="replace").lower() for word in line.split()]


def _lines(file: str | Path) -> list[bytes]:
    name, text = str(file), b""
    with open_file(name, ByPath()) as opened:
        while more := read_some(opened, name):
            text += more
    return text.split(b"\n")

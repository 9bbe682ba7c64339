"""Texts to train words on: the real ones where they are, else one that is made up."""

import lzma
import re
from pathlib import Path

import numpy as np

from paramfleet_shared.settings.config import read_environment

__all__ = ["data_folder", "write_text"]

NUM_WORDS = 500_000
"""Of the made-up text."""

NUM_DIFFERENT = 10_000
SENTENCE = 1000
"""Words of a line: what gensim takes for a sentence, and text8 is cut into."""


def data_folder() -> Path | None:
    """Return the folder of ``PARAMFLEET_DATA`` with texts and judgements; None without it."""
    named = read_environment().get("PARAMFLEET_DATA")
    beside = Path(__file__).parents[2] / "shared" / "data"
    folder = (Path(named) if named else beside) / "medium"
    return folder if folder.is_dir() else None


def write_text(path: Path, *, names: tuple[str, ...], most_words: int | None = None) -> str:
    """Write words in small letters, a thousand a line.

    Args:
        path: The file.
        names: Texts of the folder of data, packed as ``.xz``.
        most_words: To stop behind.

    Returns:
        What the text is.
    """
    folder = data_folder()
    if folder is None:
        words, what = _made_up(), f"{NUM_WORDS:,} made-up words, Zipf distributed"
    else:
        packed = (lzma.decompress((folder / name).read_bytes()) for name in names)
        words = re.findall(r"[a-z]+", b" ".join(packed).decode(errors="replace").lower())
        what = f"{', '.join(name.partition('.')[0] for name in names)}: {len(words):,} words"
    words = words[:most_words]
    lines = (" ".join(words[at : at + SENTENCE]) for at in range(0, len(words), SENTENCE))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return what


def _made_up() -> list[str]:
    random = np.random.default_rng(0)
    letters = [chr(97 + n) for n in range(26)]
    names = ["".join(random.choice(letters, 6)) for _ in range(NUM_DIFFERENT)]
    frequency = 1 / np.arange(1.0, NUM_DIFFERENT + 1)
    drawn = random.choice(NUM_DIFFERENT, NUM_WORDS, p=frequency / frequency.sum())
    return [names[each] for each in drawn]

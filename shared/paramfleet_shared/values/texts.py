"""Text from outside, made fit to be shown: bounded, and without control characters.

A terminal takes control characters for commands, and a person may take the end of a very long
text for all that there is to read. So what comes from a wire, a file or a user is shortened
and escaped where it becomes a part of a sentence, a line of a log or a line on a terminal.
"""

import difflib
import re
from collections.abc import Iterable, Iterator
from typing import Any

__all__ = [
    "MAX_NAME_LENGTH",
    "MAX_SHOWN",
    "NAME_RULE",
    "all_near",
    "is_name",
    "is_printable",
    "nearest",
    "printable",
    "shortened",
    "shown",
]

MAX_SHOWN = 200
"""Characters of a value that an error shows."""

MAX_NAME_LENGTH = 256
"""Characters of a name."""

NAME_RULE = (
    f"1 to {MAX_NAME_LENGTH} letters, digits, blanks or _ - . , : / @ + # = % & ( ) [ ], the "
    "first a letter, a digit or _, the last no blank, and no '..'"
)
"""What ``is_name`` demands, for errors."""

_MAX_DEPTH = 32
"""Of lists and maps in each other, as far as they are shown."""

_WORD_ENDS = re.compile("[-_]")

_CLEARLY_BETTER = 0.2
"""A name that is more similar by so much is the only one that is meant."""

_PUNCTUATION = frozenset(" _-.,:/@+#=%&()[]")

_CONTROL = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 but tab and line feed, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # that turn the direction of writing
    "\u2028\u2029"  # that end lines
    "\ud800-\udfff"  # halves that no encoding takes
    "]"
)


def printable(text: str, *, lines: bool = True) -> str:
    r"""Return text whose control characters are escaped, as ``\x1b``.

    Args:
        text: Any.
        lines: Whether line feeds stay as they are.
    """
    if text.isprintable():
        return text
    escaped = _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)
    return escaped if lines else escaped.replace("\n", "\\n")


def is_printable(text: str) -> bool:
    """Return whether text holds nothing that ``printable`` would escape, and no line feed."""
    return text.isprintable() or not (_CONTROL.search(text) or "\n" in text)


def shortened(text: str, most: int = MAX_SHOWN) -> str:
    """Return text of at most ``most`` characters and, behind them, how many there were."""
    if len(text) <= most:
        return text
    return f"{text[:most]}... ({len(text)} characters)"


def shown(value: object, most: int = MAX_SHOWN) -> str:
    """Return what ``repr`` does, bounded and without control characters."""
    if isinstance(value, str | bytes) and len(value) > most:
        return f"{value[:most]!r}... ({len(value)} characters)"
    if isinstance(value, int) and value.bit_length() > 512:
        return f"a whole number of {value.bit_length()} bits"
    if type(value) in {list, tuple, dict}:
        text = _up_to(most, _pieces(value, most, 0))
        return text if len(text) <= most else f"{text[:most]}..."
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 -- whatever a stranger's class raises
        text = f"<{type(value).__name__}>"
    return shortened(printable(text, lines=False), most)


def _up_to(most: int, pieces: Iterable[str]) -> str:
    """Return the first pieces of a text, up to one beyond ``most`` characters."""
    text = ""
    for piece in pieces:
        text += piece
        if len(text) > most:
            break
    return text


def _pieces(value: object, most: int, depth: int) -> Iterator[str]:
    """Yield the text of a value, without looking further than it is asked for.

    A list in a list may stand there many times: the whole text could be larger than memory.
    """
    if depth > _MAX_DEPTH:
        yield "..."
    elif type(value) is list or type(value) is tuple:
        opening, closing = "[]" if type(value) is list else "()"
        for at, each in enumerate(value):
            yield ", " if at else opening
            yield from _pieces(each, most, depth + 1)
        yield (
            ("," if len(value) == 1 and opening == "(" else "") if value else opening
        ) + closing
    elif type(value) is dict:
        for at, (key, each) in enumerate(value.items()):
            yield ", " if at else "{"
            yield from _pieces(key, most, depth + 1)
            yield ": "
            yield from _pieces(each, most, depth + 1)
        yield "}" if value else "{}"
    else:
        is_long = isinstance(value, str | bytes) and len(value) > most // 2
        yield shown(value, most // 2 if is_long else most)


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return the known name that an unknown one most likely means; None if none is similar.

    Args:
        name: As in ``all_near``.
        known: The names that exist.
        cutoff: How similar they must be, from 0 to 1.
    """
    return next(iter(all_near(name, known, cutoff=cutoff)), None)


def all_near(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> list[str]:
    """Return the known names that an unknown one may mean: at most two, the likeliest first.

    The words of a name may stand in another order: ``num_servers`` is near ``server_num``.

    Args:
        name: Any text. One that is more than twice as long as each known name is near none:
            to compare them takes as long as both lengths multiplied.
        known: The names that exist.
        cutoff: How similar they must be, from 0 to 1.
    """
    names = [each for each in sorted(known) if len(name) <= 2 * len(each)]
    scores = {each: _likeness(name, each) for each in names}
    best = sorted(names, key=lambda each: -scores[each])[:2]
    return [
        each
        for each in best
        if scores[each] >= cutoff and scores[each] > scores[best[0]] - _CLEARLY_BETTER
    ]


def _likeness(name: str, known: str) -> float:
    """Return how similar two names are, from 0 to 1, in whichever order their words are."""
    pairs = {(known, name)}
    if len(_WORD_ENDS.split(name)) > 1:
        pairs.add((_in_order(known), _in_order(name)))
    return max(difflib.SequenceMatcher(None, *pair).ratio() for pair in pairs)


def _in_order(name: str) -> str:
    return "_".join(sorted(_WORD_ENDS.split(name)))


def is_name(text: Any) -> bool:
    """Return whether a value can be the name of a table, a barrier or the like."""
    if not isinstance(text, str) or not 1 <= len(text) <= MAX_NAME_LENGTH:
        return False
    ends_well = (text[0].isalnum() or text[0] == "_") and text[-1] != " "
    known = all(char.isalnum() or char in _PUNCTUATION for char in text)
    return ends_well and known and ".." not in text

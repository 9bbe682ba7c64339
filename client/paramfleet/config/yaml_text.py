"""YAML of a configuration, read with bounds.

An alias stands for all that its anchor names, and may stand within another anchor: a few
hundred bytes can mean billions of values. So values are counted as often as they are meant.
"""

from pathlib import Path
from typing import Any

import yaml
from yaml.composer import ComposerError

from paramfleet_shared.files.regular_files import read_regular

__all__ = ["MAX_FILE_BYTES", "BoundedLoader", "read_text", "value_of"]

MAX_FILE_BYTES = 1 << 20
"""Of a file. PaddleRec's largest has some 5,000."""

MAX_NESTING = 64
"""Of lists and mappings in each other."""

MAX_VALUES = 100_000
"""Keys and values, those behind an alias once for each alias."""


class BoundedLoader(yaml.SafeLoader):
    """Plain values alone, not too many and not too deep.

    ``get_single_node`` raises ``MarkedYAMLError``, with the line, for what is beyond.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._count = 0
        self._sizes: dict[yaml.Node, int] = {}
        """Of each node that is complete, all within it counted."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Return the next node, as the base class does, if it is within bounds.

        Raises:
            ComposerError: if it isn't.
        """
        mark, before = self.peek_event().start_mark, self._count  # type: ignore[no-untyped-call]  # its stubs lack it
        self._count += 1
        self._depth += 1
        if self._depth > MAX_NESTING:
            rule = f"lists and mappings may be {MAX_NESTING} deep"
            raise ComposerError(None, None, rule, mark)
        is_alias = self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is not None and is_alias:
            if node not in self._sizes:
                raise ComposerError(
                    None, None, "an alias is inside the value that it refers to", mark
                )
            self._count += self._sizes[node]
        elif node is not None:
            self._sizes[node] = self._count - before
        if self._count > MAX_VALUES:
            rule = f"there are more than {MAX_VALUES} values, those of aliases counted"
            raise ComposerError(None, None, rule, mark)
        return node


def read_text(path: Path) -> str:
    """Return the text of a configuration.

    Raises:
        OSError: if the system refuses.
        ValueError: if it isn't a regular file of UTF-8, or is too large.
    """
    content = read_regular(path, most_bytes=MAX_FILE_BYTES + 1, may_be_link=True)
    if len(content) > MAX_FILE_BYTES:
        rule = f"it is larger than {MAX_FILE_BYTES} bytes"
        raise ValueError(rule)
    return content.decode("utf-8")


def value_of(text: str) -> Any:
    """Return what YAML makes of a text.

    Raises:
        YAMLError: if it isn't YAML, or out of bounds.
        ValueError: if a date or a number in it is none.
    """
    loader = BoundedLoader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()

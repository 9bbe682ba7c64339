"""What PaddleRec's readers import: its folder of utilities, and Paddle's own names."""

from pathlib import Path
from typing import Any

from paramfleet.config.yaml_text import read_text, value_of

__all__ = ["PADDLE_NAMES", "YamlHelper"]

PADDLE_NAMES = Path(__file__).parent / "paddle_names"
"""Folder with the modules of Paddle that readers import, for where there is no Paddle."""


class YamlHelper:
    """Reads a configuration as PaddleRec does."""

    def load_yaml(self, path: str) -> dict[str, Any]:
        """Return the file's values by dotted key.

        Raises:
            OSError: if the system refuses.
            YAMLError: if the file isn't YAML, or means too much.
            ValueError: if it isn't a regular file of UTF-8, or is too large.
        """
        return _flat(value_of(read_text(Path(path))) or {}, "")


def _flat(values: dict[str, Any], above: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{above}{key}"
        flat |= _flat(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return flat

"""What PaddleRec's readers of a ``pipe_command`` import from its folder of utilities."""

from pathlib import Path
from typing import Any

import yaml

__all__ = ["YamlHelper"]


class YamlHelper:
    """Reads a configuration as PaddleRec does."""

    def load_yaml(self, path: str) -> dict[str, Any]:
        """Return the file's values by dotted key."""
        with Path(path).open(encoding="utf-8") as opened:
            return _flat(yaml.safe_load(opened) or {}, "")


def _flat(values: dict[str, Any], above: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{above}{key}"
        flat |= _flat(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return flat

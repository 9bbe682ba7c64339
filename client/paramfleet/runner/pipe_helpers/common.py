"""The ``common`` that PaddleRec's older readers import from the folder they are given."""

from paramfleet.data.reading.paddlerec import YamlHelper

__all__ = ["YamlHelper"]

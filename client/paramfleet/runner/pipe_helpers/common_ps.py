"""The ``common_ps`` that PaddleRec's readers import from the folder they are given."""

from paramfleet.data.reading.paddlerec import YamlHelper

__all__ = ["YamlHelper"]

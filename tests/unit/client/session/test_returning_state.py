"""What a worker's former process sent of where it was is judged before it changes anything."""

from typing import Any

import msgpack
import pytest
import torch

from paramfleet.model_state.plain import pack
from paramfleet.model_state.random_states import packed_random
from paramfleet.session.backends.resuming import plain_of
from paramfleet.session.backends.returning import judged_state
from paramfleet.session.registered import SavedProgress


def packed(**changes: Any) -> bytes:
    said = {
        "progress": pack(plain_of(SavedProgress(steps=3))),
        "random": packed_random(torch.device("cpu")),
        "rates": [0.5],
        "buffers": b"",
        "agreed": {},
    } | changes
    whole: bytes = msgpack.packb({name: each for name, each in said.items() if each != "none"})
    return whole


def test_what_was_kept_comes_back() -> None:
    state = judged_state(packed(), groups=1, device=torch.device("cpu"))
    assert state.progress == SavedProgress(steps=3)
    assert state.rates == [0.5]


@pytest.mark.parametrize(
    "changes",
    [
        {"progress": "none"}, {"random": "none"}, {"rates": "none"}, {"buffers": "none"},
        {"agreed": "none"}, {"progress": pack(None)}, {"progress": pack({"steps": 3})},
        {"progress": pack({"positions": [], "more": 1})}, {"progress": b"\x91"},
        {"random": b"\x80"}, {"random": b""}, {"random": msgpack.packb({"python": 1})},
        {"rates": []}, {"rates": [0.5, 0.5]}, {"rates": ["0.5"]}, {"rates": 7},
        {"buffers": "text"},
    ],
)  # fmt: skip
def test_what_cant_be_is_a_value_error(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each its own words
        judged_state(packed(**changes), groups=1, device=torch.device("cpu"))


@pytest.mark.parametrize("content", [b"", b"\x80", b"\xc0", b"\x91", b"\xff" * 9])
def test_nor_is_other_content(content: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each its own words
        judged_state(content, groups=1, device=torch.device("cpu"))

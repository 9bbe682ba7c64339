"""Pieces that come before the request that names them."""

import pytest

from paramfleet_pserver.requests.staging import Staging
from paramfleet_shared.net.wire.message import MalformedMessageError, Message


def test_one_tensors_pieces_are_named_once() -> None:
    staging = Staging(lambda *_: None)
    named = [{"tensor": name, "table": "w", "number": 1} for name in ("0.grads", "1.grads")]

    with pytest.raises(MalformedMessageError, match=r"'1\.grads' has another's pieces"):
        staging.fill(Message(fields={"rank": 0, "staged": named}))

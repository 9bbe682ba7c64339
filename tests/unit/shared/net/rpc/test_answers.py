"""Errors come out of an answer as what they went in."""

from typing import Any

import msgpack
import pytest

from paramfleet_shared.errors import (
    ContractError,
    FleetError,
    IntegrityError,
    JobFailedError,
    OutcomeUnknownError,
    UnavailableError,
)
from paramfleet_shared.errors.tables import TableLimitError
from paramfleet_shared.net.rights import OperationRefusedError
from paramfleet_shared.net.rpc.answers import (
    UnknownOperationError,
    error_body,
    read_error,
    status_of,
)
from paramfleet_shared.net.rpc.deadlines import DeadlineExceededError
from paramfleet_shared.net.wire.message import MalformedMessageError, WireVersionError


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UnknownOperationError(operation="fly", server="x"), 404),
        (OperationRefusedError(server="x", operation="fly", role="worker", allowed="a"), 403),
        (WireVersionError(found=1, supported=2), 400),
        (ContractError("x"), 400),
        (IntegrityError("x"), 409),
        (JobFailedError(role="worker", index=1, reason="x"), 409),
        (FleetError("x"), 500),
        (KeyError("x"), 500),
        (UnavailableError("x"), 503),
        (OutcomeUnknownError("x"), 504),
    ],
)
def test_the_status_tells_the_branch(error: BaseException, status: int) -> None:
    assert status_of(error) == status


def test_an_error_comes_back_as_its_class() -> None:
    body = error_body(JobFailedError(role="worker", index=1, reason="gone"))

    back = read_error(memoryview(body), peer="pserver 0", status=409)

    assert isinstance(back, JobFailedError)
    assert back.remote
    assert back.facts == {"role": "worker", "index": 1, "reason": "gone"}


def test_facts_that_cannot_travel_are_left_out() -> None:
    body = error_body(ContractError("odd", what=object()))

    back = read_error(memoryview(body), peer="x", status=400)

    assert type(back) is ContractError
    assert str(back) == "odd"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>502</html>",
        b"\xc1",
        msgpack.packb([1]),
        msgpack.packb({"code": "contract", "message": 3, "facts": {}}),
        msgpack.packb({"code": "contract", "message": "m", "facts": {1: 2}}),
        msgpack.packb(
            {"code": "contract.wire_version", "message": "m", "facts": {"message": 1}}
        ),
        msgpack.packb(
            {
                "code": DeadlineExceededError.code,
                "message": "m",
                "facts": {"peer": "p", "operation": "o", "waited_s": "long"},
            }
        ),
        msgpack.packb(
            {
                "code": TableLimitError.code,
                "message": "m",
                "facts": {"table": "t", "what": "w", "value": 1, "setting": 2, "limit": 3},
            }
        ),
    ],
)
def test_an_answer_that_is_no_error_of_ours_is_malformed(body: Any) -> None:
    with pytest.raises(MalformedMessageError, match="answer 502 of pserver 0"):
        read_error(memoryview(body), peer="pserver 0", status=502)

"""Which lines of processes are shown to who hasn't asked for all."""

import io
import logging
from typing import Literal

import pytest

from paramfleet_shared.telemetry.logs_and_metrics import setup_logging
from paramfleet_worker.core.showing.lines import amount_of, event_of, is_shown, level_of

ROLES = ("coordinator", "pserver", "worker")


def logged(
    event: str,
    *,
    role: str,
    index: int | None,
    level: int,
    log_format: Literal["text", "json"] = "text",
) -> bytes:
    """Return the line that a process of the job writes for an event."""
    setup_logging(role, index, "DEBUG", log_format=log_format)
    logger = logging.getLogger("paramfleet_shared")
    stream = io.StringIO()
    handler = logger.handlers[0]
    assert isinstance(handler, logging.StreamHandler)
    handler.setStream(stream)
    try:
        logger.log(level, event, extra={"number": 1})
    finally:
        logger.handlers.clear()
        logger.propagate = True
    return stream.getvalue().strip().encode()


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("index", [None, 12])
@pytest.mark.parametrize("log_format", ["text", "json"])
def test_what_a_process_does_is_for_the_logs_and_what_goes_wrong_for_people(
    role: str, index: int | None, log_format: Literal["text", "json"]
) -> None:
    lines = {
        level: logged("job.joined", role=role, index=index, level=level, log_format=log_format)
        for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)
    }

    assert [is_shown(line, "usual") for line in lines.values()] == [False, False, True, True]
    assert [is_shown(line, "quiet") for line in lines.values()] == [False, False, True, True]
    assert all(is_shown(line, "verbose") for line in lines.values())
    assert level_of(lines[logging.WARNING]) == "WARNING"
    assert event_of(lines[logging.INFO]) == "job.joined"


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_checkpoint_is_news_unless_it_is_to_be_quiet(
    log_format: Literal["text", "json"],
) -> None:
    line = logged(
        "worker.checkpoint_written",
        role="worker", index=0, level=logging.INFO, log_format=log_format,
    )  # fmt: skip

    assert is_shown(line, "usual")
    assert not is_shown(line, "quiet")


@pytest.mark.parametrize(
    "line",
    [
        b"step 100 loss 0.4123",
        b"INFO:root:my own log",
        b"2026-05-01 12:00:00,123 INFO my.module step 3",
        b"12:00:00 INFO worker/0 not ours: no milliseconds",
        b'{"auc": 0.75, "level": "INFO"}',
        b"",
        b"\xff\xfe",
    ],
)
def test_what_scripts_print_is_shown_always(line: bytes) -> None:
    assert level_of(line) == ""
    assert is_shown(line, "usual")
    assert is_shown(line, "quiet")


def test_the_options_say_how_much() -> None:
    assert amount_of(quiet=False, verbose=False) == "usual"
    assert amount_of(quiet=True, verbose=False) == "quiet"
    assert amount_of(quiet=False, verbose=True) == "verbose"

"""Runs cases of one reader, and says what became of them.

A case has a number, and its dice are thrown from the seed and that number: so one that goes
wrong can be run again alone. Whatever a reader gets, it reads it or refuses it by a typed
error, within a time and a memory that follow from the input's size.
"""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

__all__ = ["BrokenCaseError", "Found", "Reader", "run"]

CASE_CPU_S = 5.0
"""Processor time of a case, after which it counts as one that doesn't end."""

MAX_GROWTH_BYTES = 256 << 20
"""Peak memory beyond that before the first case. No input has a hundredth of that."""

BETWEEN_LOOKS = 1000
"""Cases between two looks at the memory."""

_CASES_OF_A_SEED = 1 << 40


class BrokenCaseError(AssertionError):
    """A reader did what it mustn't."""


class _EndlessError(BaseException):
    """No reader catches it."""


@dataclass(frozen=True, slots=True)
class Reader:
    """What reads bytes that may have been damaged."""

    name: str
    make: Callable[[Random], Any]
    """Makes a case's input."""
    read: Callable[[Any], None]
    """Reads it."""
    refusals: tuple[type[Exception], ...]
    """How it may be refused."""
    share: float
    """Of all cases."""


@dataclass(frozen=True, slots=True)
class Found:
    """Of a run."""

    cases: int
    refused: int
    seconds: float
    growth_bytes: int
    """Of the peak memory."""


def run(reader: Reader, *, seed: int, first: int, cases: int) -> Found:
    """Run some cases, in the main thread.

    Args:
        reader: It.
        seed: Of the dice.
        first: Number of the first case.
        cases: How many.

    Raises:
        BrokenCaseError: for the first that was neither read nor refused.
    """
    dice, refused, began = Random(), 0, time.perf_counter()
    before = _reset_peak()
    former = signal.signal(signal.SIGPROF, _end)
    try:
        for number in range(first, first + cases):
            dice.seed(seed * _CASES_OF_A_SEED + number)
            given = reader.make(dice)
            signal.setitimer(signal.ITIMER_PROF, CASE_CPU_S)
            try:
                reader.read(given)
            except reader.refusals:
                refused += 1
            except (Exception, _EndlessError) as error:
                why = _why(reader, seed, number, repr(error))
                raise BrokenCaseError(why) from error
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0.0)
            if number % BETWEEN_LOOKS == 0 and _peak() - before > MAX_GROWTH_BYTES:
                why = _why(reader, seed, number, "it, or one shortly before, took memory")
                raise BrokenCaseError(why)
    finally:
        signal.signal(signal.SIGPROF, former)
    growth = _peak() - before
    if growth > MAX_GROWTH_BYTES:
        last = first + cases - 1
        raise BrokenCaseError(_why(reader, seed, last, f"the cases took {growth} bytes"))
    return Found(cases, refused, time.perf_counter() - began, growth)


def _why(reader: Reader, seed: int, number: int, what: str) -> str:
    case = f"--only={reader.name} --seed={seed} --first={number} --cases=1"
    return f"{what[:2000]}; again: python -m tests.fuzz {case}"


def _end(*_: Any) -> None:
    raise _EndlessError


def _reset_peak() -> int:
    """Return the memory in use, and begin to look for the peak anew."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:  # a system without it has another peak
        return _peak()
    return _peak()


def _peak() -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    return 0

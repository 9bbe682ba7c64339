"""Faults of the network by chance, for tests of recovery: ``PARAMFLEET_FAULTS``.

``drop=0.01,duplicate=0.01,delay=0.02:30,seed=7`` loses a hundredth of the requests and of the
replies, sends a hundredth of the requests twice and delays two hundredths of the replies by up
to 30 ms. ``reorder=0.02:30`` has requests wait so long, and later ones overtake them. The same
seed breaks the same calls of a worker to a pserver, if it makes the same.

Only the environment of a worker that begins can ask for them.
"""

import random
from collections.abc import Callable, Mapping
from typing import NamedTuple

from paramfleet_shared.net.rpc.faults import NO_FAULTS, FaultHook, Verdict
from paramfleet_shared.settings.config import SettingError
from paramfleet_shared.settings.points import FAULTS_VARIABLE
from paramfleet_shared.system.clock import Clock

__all__ = ["VARIABLE", "FaultRates", "RandomFaults", "faults_of", "read_faults"]

VARIABLE = FAULTS_VARIABLE

_MOST_DELAY_MS = 60_000
_KEYS = ("drop", "duplicate", "delay", "reorder", "seed")
_LATE = ("delay", "reorder")


class FaultRates(NamedTuple):
    """How often calls break."""

    drop: float = 0.0
    """Of requests, and of replies."""
    duplicate: float = 0.0
    """Of requests."""
    delay: float = 0.0
    """Of replies."""
    delay_s: float = 0.0
    """The longest delay."""
    seed: int = 0
    reorder: float = 0.0
    """Of requests, how many wait, and are overtaken."""
    reorder_s: float = 0.0
    """The longest wait."""


class RandomFaults:
    """Breaks calls by chance. Used from one event loop.

    Args:
        rates: How often.
        stream: Chooses among the sequences of a seed.
        clock: By whose time delays are meant.
    """

    def __init__(self, rates: FaultRates, stream: str, clock: Clock) -> None:
        self._rates = rates
        self._random = random.Random(f"{rates.seed}/{stream}")  # noqa: S311 -- a test's
        self._clock = clock

    def on_request(self, op: str) -> Verdict:
        """Decide about the next request."""
        del op
        chance = self._random.random()
        if chance < self._rates.drop:
            return Verdict.DROP
        if chance < self._rates.drop + self._rates.duplicate:
            return Verdict.DUPLICATE
        if chance > 1 - self._rates.reorder:
            return Verdict.HOLD
        return Verdict.DELIVER

    async def on_hold(self, op: str) -> Verdict:
        """Have a request wait."""
        del op
        await self._clock.sleep(self._rates.reorder_s * self._random.random())
        return Verdict.DELIVER

    async def on_reply(self, op: str) -> Verdict:
        """Decide about the next reply; may wait."""
        del op
        chance, late = self._random.random(), self._random.random()
        if late < self._rates.delay:
            await self._clock.sleep(self._rates.delay_s * late / self._rates.delay)
        return Verdict.DROP if chance < self._rates.drop else Verdict.DELIVER


def faults_of(
    environment: Mapping[str, str], *, rank: int, clock: Clock
) -> Callable[[int], FaultHook]:
    """Return by pserver what breaks a worker's calls.

    Args:
        environment: Usually ``read_environment()``.
        rank: The worker's.
        clock: By whose time delays are meant.

    Raises:
        SettingError: naming what can't be read.
    """
    rates = read_faults(environment.get(VARIABLE, ""))
    if rates is None:
        return lambda _: NO_FAULTS
    return lambda server: RandomFaults(rates, f"{rank}/{server}", clock)


def read_faults(text: str) -> FaultRates | None:
    """Return what a text asks for; None for nothing.

    Raises:
        SettingError: naming the part that can't be read, and why.
    """
    if not text.strip():
        return None
    given: dict[str, float | int] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        if name not in _KEYS or name in given:
            rule = f"{', '.join(_KEYS)}, each once, as drop=0.01"
            raise SettingError(name=VARIABLE, value=part, rule=rule)
        if name == "seed":
            given[name] = _seed(part, value)
            continue
        rate, colon, late_ms = value.partition(":")
        if (name in _LATE) != bool(colon):
            rule = "a rate, and for delay and reorder milliseconds behind it, as delay=0.02:30"
            raise SettingError(name=VARIABLE, value=part, rule=rule)
        given[name] = _number(part, rate, 1.0)
        if colon:
            given[f"{name}_s"] = _number(part, late_ms, _MOST_DELAY_MS) / 1000
    if sum(given.get(name, 0.0) for name in ("drop", "duplicate", "reorder")) > 0.9:
        rule = "0.9 at most for drop, duplicate and reorder"
        raise SettingError(name=VARIABLE, value=text, rule=rule)
    return FaultRates(**given)  # type: ignore[arg-type]  # seed alone is whole


def _seed(part: str, text: str) -> int:
    """Return a seed.

    Raises:
        SettingError: if it is none.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise SettingError(name=VARIABLE, value=part, rule="a whole number from 0")
    return int(text)


def _number(part: str, text: str, most: float) -> float:
    """Return a number from 0 to a limit.

    Raises:
        SettingError: if it is none.
    """
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0.0 <= number <= most:
        raise SettingError(name=VARIABLE, value=part, rule=f"a number from 0 to {most:g}")
    return number

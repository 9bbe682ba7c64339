"""Somebody who asks a server for all rows, again and again, and keeps the answers."""

import threading
from collections.abc import Sequence

import numpy as np

from followed.ledger import Ledger, State
from followed.model import NUM_IDS
from paramfleet.serving import Client, FoundRows
from paramfleet_shared.errors import FleetError, OutcomeUnknownError, UnavailableError

__all__ = ["Asker", "all_rows", "faults_of", "is_of"]

EVERY_S = 0.02

_IDS = np.arange(NUM_IDS)


class Asker(threading.Thread):
    """Asks until ``close``.

    Args:
        client: Of the server, which may be away now and then.
    """

    def __init__(self, client: Client) -> None:
        super().__init__(name="asker", daemon=True)
        self.answers: list[FoundRows] = []
        """Those that differ from the one before."""
        self.num_answers = 0
        self.num_away = 0
        """Questions that nobody answered."""
        self.errors: list[str] = []
        self._client = client
        self._ended = threading.Event()

    def run(self) -> None:
        """Ask again and again."""
        while not self._ended.wait(EVERY_S):
            try:
                found = all_rows(self._client)
            except (UnavailableError, OutcomeUnknownError):
                self.num_away += 1
            except FleetError as error:
                self.errors.append(str(error))
            else:
                self.num_answers += 1
                if not self.answers or not _is_same(found, self.answers[-1]):
                    self.answers.append(found)

    def close(self) -> None:
        """Ask no more."""
        self._ended.set()
        self.join()


def all_rows(client: Client) -> FoundRows:
    """Return what a server has of all ids.

    Raises:
        FleetError: why it has no answer.
    """
    return client.lookup({"words": _IDS, "users": _IDS})


def is_of(found: FoundRows, state: State) -> bool:
    """Return whether an answer has the rows of a state, to the bit."""
    return all(
        found.rows[name].tobytes() == rows.tobytes() for name, rows in state.rows.items()
    )


def faults_of(answers: Sequence[FoundRows], ledger: Ledger) -> list[str]:
    """Return what is wrong with answers: other rows than were published, or older ones."""
    faults, place = list[str](), (-1, -1)
    for found in answers:
        version = found.version
        state = ledger.states.get((version.stream, version.number))
        if state is None:
            faults.append(f"version {version.number} of {version.stream} wasn't published")
        elif not is_of(found, state):
            faults.append(f"rows of version {version.number} aren't what was published")
        now = ledger.place(version.stream, version.number)
        if now < place:
            faults.append(f"version {now} was served after {place}")
        place = max(place, now)
    return faults


def _is_same(one: FoundRows, other: FoundRows) -> bool:
    return one.version == other.version and all(
        np.array_equal(rows, other.rows[name]) for name, rows in one.rows.items()
    )

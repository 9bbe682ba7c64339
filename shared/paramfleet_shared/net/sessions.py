"""Browsers that were admitted: codes that open a page once, and the sessions they begin.

A code is for a link that may end up in a terminal's history or a log: it works once, for ten
minutes. What it begins is a session of two random halves, one for a cookie and one that the
page keeps by itself. Browsers send a cookie to every port of a host, so that the cookie alone
would be known to whoever serves another page on this machine.

Times are seconds of one clock, given by the caller. Of codes and keys only hashes are
kept.
"""

import hashlib
import hmac
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["CODE_LIFE_S", "SESSION_LIFE_S", "Attempts", "Sessions"]

CODE_LIFE_S = 600.0
SESSION_LIFE_S = 12 * 3600.0

_MAX_CODES = 64
_MAX_SESSIONS = 256
_MAX_PEERS = 1024
_MAX_WRONG = 10
_WINDOW_S = 60.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Session(Generic[T]):
    who: T
    key_digest: str
    until: float


class Sessions(Generic[T]):
    """The codes and sessions of one process; of too many the oldest are forgotten."""

    def __init__(self) -> None:
        self._codes: OrderedDict[str, tuple[T, float]] = OrderedDict()
        self._sessions: OrderedDict[str, _Session[T]] = OrderedDict()

    def make_code(self, who: T, *, now: float) -> str:
        """Return a new code that lets its bearer in once, as ``who``."""
        code = secrets.token_urlsafe(32)
        self._codes[_digest_of(code)] = (who, now + CODE_LIFE_S)
        while len(self._codes) > _MAX_CODES:
            self._codes.popitem(last=False)
        return code

    def redeem(self, code: str, *, now: float) -> T | None:
        """Return whom a code stands for, once; None if it is unknown, used or too old."""
        who, until = self._codes.pop(_digest_of(code), (None, now))
        return who if now < until else None

    def begin(self, who: T, *, now: float) -> tuple[str, str]:
        """Begin a session; return what the cookie holds, and what the page keeps."""
        cookie, key = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        session = _Session(who, _digest_of(key), now + SESSION_LIFE_S)
        self._sessions[_digest_of(cookie)] = session
        while len(self._sessions) > _MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return cookie, key

    def find(self, cookie: str, key: str, *, now: float) -> T | None:
        """Return whose session both halves are of; None if there is none, or no more."""
        session = self._sessions.get(_digest_of(cookie))
        if session is None or now >= session.until:
            return None
        return session.who if hmac.compare_digest(session.key_digest, _digest_of(key)) else None


class Attempts:
    """Wrong answers of each peer to the question who it is.

    What may not be guessed is 32 random bytes, so guesses are limited for the sake of the log
    and of the processor alone. A peer with a right answer is always admitted: peers of
    one machine have one address, and one user's guesses must not keep another one out.
    """

    def __init__(self) -> None:
        self._peers: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def wrong(self, peer: str, *, now: float) -> bool:
        """Note a wrong answer; return whether there were too many in this minute."""
        since, count = self._peers.pop(peer, (now, 0))
        if now - since >= _WINDOW_S:
            since, count = now, 0
        self._peers[peer] = (since, count + 1)
        while len(self._peers) > _MAX_PEERS:
            self._peers.popitem(last=False)
        return count >= _MAX_WRONG


def _digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()

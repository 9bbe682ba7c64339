"""Tokens of the admin addresses, of which a file keeps the hashes alone.

A line is ``<sha256> <role> <name>``. A token is 32 random bytes, so that its plain SHA-256
can't be guessed back, and it begins with ``pf-<role>-``, so that people can distinguish them.
"""

import hashlib
import hmac
import logging
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final, get_args

from typing_extensions import override

from paramfleet_shared.errors import ContractError

__all__ = [
    "KnownTokens",
    "SeveralTokens",
    "TokenEntry",
    "TokenRole",
    "Tokens",
    "TokensFileError",
    "entry_of",
    "new_token",
    "read_tokens",
]

log = logging.getLogger(__name__)

TokenRole = Literal["read", "worker", "pserver", "admin"]

_NUM_BYTES = 32
_ROLES = "|".join(get_args(TokenRole))
_LINE = re.compile(rf"(?P<digest>[0-9a-f]{{64}}) (?P<role>{_ROLES}) (?P<name>\S{{1,64}})")


class TokensFileError(ContractError):
    """The file of token hashes can't be read."""

    code = "contract.tokens_file"
    path: str
    reason: str
    sentence = "the file of tokens {path}: {reason}"


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """One token: its hash, its role and its name."""

    digest: str
    role: str
    name: str

    def to_line(self) -> str:
        """Return it as a line of the file."""
        return f"{self.digest} {self.role} {self.name}\n"


def new_token(role: TokenRole, name: str) -> tuple[str, TokenEntry]:
    """Return a new token, and what is kept of it."""
    token = f"pf-{role}-{secrets.token_urlsafe(_NUM_BYTES)}"
    return token, entry_of(token, role, name)


def entry_of(token: str, role: TokenRole, name: str) -> TokenEntry:
    """Return what is kept of a token."""
    return TokenEntry(_digest_of(token), role, name)


def read_tokens(path: Path) -> list[TokenEntry]:
    """Return the entries of a file; empty lines and those from ``#`` are none.

    Raises:
        TokensFileError: if it can't be read, or a line is none of a token.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise TokensFileError(path=str(path), reason=str(error)) from error
    entries = []
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.startswith("#"):
            match = _LINE.fullmatch(line.strip())
            if match is None:
                rule = f"line {number} isn't `<sha256> <role> <name>`"
                raise TokensFileError(path=str(path), reason=rule)
            entries.append(TokenEntry(match["digest"], match["role"], match["name"]))
    return entries


class KnownTokens:
    """Tokens that are always the same.

    Args:
        entries: What is kept of each.
    """

    def __init__(self, entries: Iterable[TokenEntry]) -> None:
        self._entries = list(entries)

    def find(self, token: str) -> TokenEntry | None:
        """Return a token's entry, None if there is none; in the same time for all."""
        self._refresh()
        digest = _digest_of(token)
        found = None
        for entry in self._entries:
            if hmac.compare_digest(entry.digest, digest):
                found = entry
        return found

    def has(self, entry: TokenEntry) -> bool:
        """Return whether a token that was found is still accepted."""
        self._refresh()
        return entry in self._entries

    def _refresh(self) -> None:
        """Read the entries again if they may have changed."""


@final
class Tokens(KnownTokens):
    """The tokens of a file; it is read again when it has changed.

    Args:
        path: The file.

    Raises:
        TokensFileError: if it can't be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = self._stamp_now()
        super().__init__(read_tokens(path))

    @override
    def _refresh(self) -> None:
        stamp = self._stamp_now()
        if stamp == self._stamp:
            return
        try:
            self._entries = read_tokens(self._path)
        except TokensFileError as error:
            log.warning("tokens.not_reloaded", extra={"reason": str(error)})
            return
        self._stamp = stamp

    def _stamp_now(self) -> tuple[int, int, int] | None:
        try:
            fact = self._path.stat()
        except OSError:
            return None
        return fact.st_mtime_ns, fact.st_size, fact.st_ino


@final
class SeveralTokens(KnownTokens):
    """The tokens of several files.

    Args:
        files: Those of each.
    """

    def __init__(self, files: Iterable[KnownTokens]) -> None:
        super().__init__([])
        self._files = list(files)

    @override
    def find(self, token: str) -> TokenEntry | None:
        found = [each.find(token) for each in self._files]
        return next((entry for entry in found if entry is not None), None)

    @override
    def has(self, entry: TokenEntry) -> bool:
        return any(each.has(entry) for each in self._files)


def _digest_of(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()

"""``Client``: a server of rows (``paramfleet serve``), asked from Python.

Shape legend: D = row width.
"""

import json
import math
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, final
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from paramfleet.serving.remote.connections import Answer, Connections, Request
from paramfleet.serving.remote.errors import (
    LookupIdsError,
    RemoteOptionError,
    ServerAnswerError,
    ServerRefusedError,
    ServerUnreachableError,
)
from paramfleet_shared.errors import FleetError, error_from_wire
from paramfleet_shared.errors.serving import ServingTableError
from paramfleet_shared.files.tensorfile import parse_tensors, tensor_pieces
from paramfleet_shared.net.tls import member_of
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.values.texts import shown

__all__ = ["Client", "DenseParameters", "FoundRows", "ServedVersion"]

RAW = "application/x-safetensors"
_ROLE = "serving"


@dataclass(frozen=True, slots=True)
class ServedVersion:
    """A version of a model: the state after a change of a stream."""

    stream: str
    number: int


@dataclass(frozen=True, slots=True)
class FoundRows:
    """Rows of all requested tables at one version."""

    rows: Mapping[str, NDArray[np.float32]]
    """By table: float32 [..., D], in the shape of the ids."""

    version: ServedVersion
    age_s: float
    """Age of the version in seconds."""


@dataclass(frozen=True, slots=True)
class DenseParameters:
    """Dense parameters of one version."""

    tensors: Mapping[str, NDArray[np.float32]]
    """By name."""

    version: ServedVersion
    tag: str
    """Changes when the parameters change."""


@final
class Client:
    """A client of one server. Threads may share it; it keeps connections between requests.

    Args:
        url: The server's address, such as ``http://host:7200``.
        token: A token of the role ``read``; of ``admin`` for ``roll_back`` and ``follow``.
        tls: For https: the certificate file of the authority that signed the server's
            certificate, as ``paramfleet certs`` makes it (``ca.crt``), or your own SSL context,
            which may have a client certificate that replaces the token. None uses the
            authorities of this machine.
        timeout_s: Timeout of a whole request in seconds.

    Raises:
        RemoteOptionError: if an argument is wrong.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str = "",
        tls: ssl.SSLContext | str | Path | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        parts = _parts_of(url)
        if not 0 < timeout_s < math.inf:
            raise RemoteOptionError(option="timeout_s", rule="must be above 0, and finite")
        if not (token.isascii() and token.isprintable()):
            raise RemoteOptionError(option="token", rule="must be printable ASCII")
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/")
        self._timeout_s = float(timeout_s)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._connections = Connections(
            parts,
            context=_context_of(tls) if parts.scheme == "https" else None,
            check=_check_role if isinstance(tls, str | Path) else _accept,
            monotonic=SystemClock().monotonic,
        )
        self._widths: dict[str, int] = {}

    def lookup(self, ids: Mapping[str, NDArray[np.int64]]) -> FoundRows:
        """Return the rows of ids, int64 of any shape by table, all at one version.

        Raises:
            LookupIdsError: if ids are not integers.
            ServerUnreachableError: if no answer came in time.
            ServerRefusedError: if the server refused the caller or the request.
            ServerAnswerError: if the answer does not match the request.
            FleetError: errors of the server, such as ``ServingTableError``,
                ``ServerBusyError``, ``NoVersionError``, ``LookupTooLargeError``.
        """
        arrays = {name: _ids_of(name, each) for name, each in ids.items()}
        body = b"".join(tensor_pieces(arrays, {}))
        answer = self._ask(Request("POST", "/v1/lookup", body, {"Content-Type": RAW}))
        tensors = self._tensors_of(answer)
        for name, array in arrays.items():
            found = tensors.get(name)
            if found is None or found.shape[:-1] != array.shape:
                problem = f"it lacks rows of table {name!r}, in the shape of the ids"
                raise self._wrong(problem)
        age_s = self._header(answer, "paramfleet-age", float)
        return FoundRows(tensors, self._version_of(answer), age_s)

    def width_of(self, table: str) -> int:
        """Return the row width D of a table.

        Raises:
            ServingTableError: if the server has no table of this name.
            FleetError: as ``lookup``.
        """
        if table not in self._widths:
            listed = self._read("/v1/tables", "tables", list)
            try:
                self._widths = {str(each["name"]): int(each["dim"]) for each in listed}
            except (KeyError, TypeError, ValueError) as error:
                problem = f"describes tables wrongly: {error!r}"
                raise self._wrong(problem) from error
        if table not in self._widths:
            there = ", ".join(sorted(self._widths)) or "none"
            raise ServingTableError(table=table, there=there)
        return self._widths[table]

    def version(self) -> ServedVersion:
        """Return the version that is served now.

        Raises:
            FleetError: as ``lookup``.
        """
        return self._as_version(self._read("/v1/version", "version", dict))

    def dense(self, *, known: str = "") -> DenseParameters | None:
        """Return the dense parameters; None if they still have the tag ``known``.

        Raises:
            FleetError: as ``lookup``.
        """
        headers = {"If-None-Match": known} if known else {}
        answer = self._ask(Request("GET", "/v1/dense", headers=headers))
        if answer.status == 304:
            return None
        tensors = self._tensors_of(answer)
        tag = self._header(answer, "etag", str)
        return DenseParameters(tensors, self._version_of(answer), tag)

    def roll_back(
        self, number: int, *, stream: str = "", timeout_s: float = 300.0
    ) -> ServedVersion:
        """Make the server serve an earlier number of the stream until ``follow``; for admins.

        Args:
            number: The number of the change.
            stream: The name of the stream, as ``version`` returns it. The request is refused
                if the server follows another stream now. Empty means the current one.
            timeout_s: Timeout in seconds.

        Raises:
            NumberNotKeptError: if the files of this number were deleted.
            FleetError: as ``lookup``.
        """
        asked = {"number": number} | ({"stream": stream} if stream else {})
        body = json.dumps(asked).encode()
        request = Request("POST", "/v1/rollback", body, {"Content-Type": "application/json"})
        answer = self._document(self._ask(request, timeout_s=timeout_s))
        return self._as_version(answer.get("version"))

    def follow(self) -> None:
        """Make the server serve the newest version again; for admins.

        Raises:
            FleetError: as ``lookup``.
        """
        self._ask(Request("POST", "/v1/follow"))

    def close(self) -> None:
        """Close the idle connections; the client can still be used."""
        self._connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, path: str, name: str, kind: type) -> Any:
        found = self._document(self._ask(Request("GET", path))).get(name)
        if type(found) is not kind:
            problem = f"it says no {name}"
            raise self._wrong(problem)
        return found

    def _ask(self, request: Request, *, timeout_s: float | None = None) -> Answer:
        """Return a good answer, or 304.

        Raises:
            FleetError: as ``lookup``.
        """
        headers = {**self._headers, **(request.headers or {})}
        whole = Request(request.method, request.path, request.body, headers)
        answer = self._connections.ask(whole, timeout_s=timeout_s or self._timeout_s)
        if answer.status not in {200, 304}:
            raise self._error_of(answer)
        return answer

    def _error_of(self, answer: Answer) -> FleetError:
        """Return the error that an answer is."""
        try:
            wire = json.loads(answer.body)["error"]
            if "facts" in wire:
                return error_from_wire(wire)
            reason = str(wire["message"])
        except (ValueError, KeyError, TypeError, RecursionError):
            reason = shown(answer.body.decode(errors="replace"))
        if answer.status >= 500:
            return ServerUnreachableError(url=self.url, reason=f"{answer.status}: {reason}")
        return ServerRefusedError(url=self.url, status=answer.status, reason=reason)

    def _document(self, answer: Answer) -> dict[str, Any]:
        """Return a JSON object.

        Raises:
            ServerAnswerError: if it is none.
        """
        try:
            document = json.loads(answer.body)
        except (ValueError, RecursionError) as error:
            problem = f"is no JSON: {error}"
            raise self._wrong(problem) from error
        if type(document) is not dict:
            raise self._wrong("is no JSON object")
        return document

    def _tensors_of(self, answer: Answer) -> dict[str, NDArray[np.float32]]:
        """Return tensors of float32.

        Raises:
            ServerAnswerError: if they aren't.
        """
        try:
            tensors = parse_tensors(answer.body).tensors
        except ValueError as error:
            problem = f"is no safetensors: {error}"
            raise self._wrong(problem) from error
        if any(tensor.dtype != np.float32 for tensor in tensors.values()):
            raise self._wrong("holds other numbers than float32")
        return tensors

    def _version_of(self, answer: Answer) -> ServedVersion:
        stream = self._header(answer, "paramfleet-stream", str)
        return ServedVersion(stream, self._header(answer, "paramfleet-number", int))

    def _as_version(self, wire: Any) -> ServedVersion:
        """Return a version of JSON.

        Raises:
            ServerAnswerError: if it is none.
        """
        try:
            return ServedVersion(str(wire["stream"]), int(wire["number"]))
        except (KeyError, TypeError, ValueError) as error:
            problem = f"says no version: {error!r}"
            raise self._wrong(problem) from error

    def _header(self, answer: Answer, name: str, kind: Any) -> Any:
        """Return what a header says.

        Raises:
            ServerAnswerError: if it isn't there, or not of the kind.
        """
        try:
            return kind(answer.headers[name])
        except (KeyError, ValueError) as error:
            problem = f"its header {name} can't be read: {error!r}"
            raise self._wrong(problem) from error

    def _wrong(self, reason: str) -> ServerAnswerError:
        return ServerAnswerError(url=self.url, reason=reason)


def _parts_of(url: str) -> Any:
    """Return the parts of an address.

    Raises:
        RemoteOptionError: if it is none.
    """
    rule = "must be an address as http://host:7200 or https://host:7200, without a login"
    try:
        parts = urlsplit(url)
        is_whole = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError as error:
        raise RemoteOptionError(option="url", rule=f"{rule}: {error}") from error
    if not is_whole or parts.query or parts.fragment or "@" in parts.netloc:
        raise RemoteOptionError(option="url", rule=rule)
    return parts


def _context_of(tls: ssl.SSLContext | str | Path | None) -> ssl.SSLContext:
    """Return the context of connections.

    Raises:
        RemoteOptionError: if the file can't be used.
    """
    if isinstance(tls, ssl.SSLContext):
        return tls
    if tls is None:
        return ssl.create_default_context()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # a certificate stands for a role, not for a host
    try:
        context.load_verify_locations(tls)
    except OSError as error:  # of TLS, too
        raise RemoteOptionError(option="tls", rule=f"{tls}: {error}") from error
    return context


def _check_role(end: ssl.SSLSocket) -> None:
    """Pass if the other end has a certificate of a server of rows.

    Raises:
        SSLCertVerificationError: if it has another.
    """
    member = member_of(end.getpeercert() or {})
    if member is None or member.role != _ROLE:
        found = "no member" if member is None else member.role
        problem = f"its certificate is that of {found}, not of {_ROLE}"
        raise ssl.SSLCertVerificationError(problem)


def _accept(_end: ssl.SSLSocket) -> None:
    """Leave the judgement to the context."""


def _ids_of(table: str, ids: object) -> NDArray[np.int64]:
    """Return ids as they are sent, int64 of any shape.

    Raises:
        LookupIdsError: if they aren't integers.
    """
    array = np.asarray(ids)
    if array.size and array.dtype.kind not in "iu":
        raise LookupIdsError(table=table, dtype=str(array.dtype))
    return array.astype(np.int64)

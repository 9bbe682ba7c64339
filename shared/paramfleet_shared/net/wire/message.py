"""One message: plain fields and tensors, to buffers and back without copying a payload.

Layout, all numbers little-endian::

    magic "PFMS" | version u8 | 3 zero bytes | header length u32
    header: msgpack [fields, [[name, dtype, shape], ...]]
    zero bytes up to the next multiple of 64
    tensor bytes, C order; each tensor starts at a multiple of 64

Offsets are not sent: both sides compute them from the header. The body ends
with the last tensor's last byte. Nothing in a body is ever evaluated.
"""

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.errors import ContractError
from paramfleet_shared.net.wire.limits import DEFAULT_LIMITS, Limits

__all__ = [
    "ALIGNMENT_BYTES",
    "Buffer",
    "MalformedMessageError",
    "Message",
    "UnencodableMessageError",
    "WireVersionError",
    "decode",
    "encode",
]

Buffer = bytes | memoryview
"""One piece of an encoded message."""

ALIGNMENT_BYTES = 64
"""Where tensors start: a cache line, and the widest vector register."""

_MAGIC = b"PFMS"
_VERSION = 1
_PREFIX = struct.Struct("<4sB3xI")
_ZEROS = bytes(ALIGNMENT_BYTES)
_MAX_DIMENSIONS = 32
_SHORT_BYTES = 1024  # below this a copy is cheaper than to cut and to write one more buffer
_DTYPES = {
    name: np.dtype(name).newbyteorder("<")
    for name in (
        "float32", "float64", "float16", "int64", "int32", "int8", "uint8", "uint16", "uint64",
        "bool",
    )
}  # fmt: skip
_BOOL = _DTYPES["bool"]
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


class MalformedMessageError(ContractError):
    """Bytes from a peer are not a message, or a message lacks what it must hold."""

    code = "contract.malformed_message"
    where: str
    rule: str
    sentence = "malformed message: {where} {rule}"


class WireVersionError(ContractError):
    """The peer uses another version of the wire."""

    code = "contract.wire_version"
    found: int
    supported: int
    sentence = (
        "the peer has version {found} of the protocol and this process {supported}: run the "
        "same paramfleet on every machine of the job"
    )


class UnencodableMessageError(ContractError):
    """A field or a tensor cannot travel."""

    code = "contract.unencodable_message"
    where: str
    rule: str
    sentence = "the message cannot be sent: {where} {rule}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """Fields and tensors that travel together.

    Whoever sends a message lends its tensors until the call has ended: the
    bytes are written from the arrays themselves, later. See ``Channel.call``
    and ``rpc.server.Handler`` for what that asks of each side.
    """

    fields: Mapping[str, Any] = field(default_factory=dict)
    """Plain msgpack values: None, bool, int, float, str, bytes, lists, dicts."""
    tensors: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Arrays by name, of a dtype the wire knows."""


def encode(message: Message) -> list[Buffer]:
    """Return the message as buffers to write one after the other.

    Tensor payloads are views of the arrays, but for short ones: where the buffers are short
    on average, they are joined to one. An array that is not C-contiguous is made so first.

    Raises:
        UnencodableMessageError: if a field is not a plain value, or a tensor
            has a dtype the wire does not know.
    """
    header = _header(message)
    before = (
        _PREFIX.pack(_MAGIC, _VERSION, len(header)) + header
    )  # what the next piece begins with
    position = len(before)
    pieces: list[bytes | NDArray[Any]] = []
    for array in message.tensors.values():
        num_bytes = array.nbytes
        if not num_bytes:
            continue
        gap = -position % ALIGNMENT_BYTES
        if gap:
            before += _ZEROS[:gap]
        if before:
            pieces.append(before)
            before = b""
        pieces.append(array)
        position += gap + num_bytes
    if before:
        pieces.append(before)
    if position < _SHORT_BYTES * len(pieces):
        return [b"".join([p if isinstance(p, bytes) else p.tobytes() for p in pieces])]
    return [
        p if isinstance(p, bytes) else np.ascontiguousarray(p).data.cast("B") for p in pieces
    ]


def _header(message: Message) -> bytes:
    described: list[tuple[str, str, tuple[int, ...]]] = []
    for name, array in message.tensors.items():
        dtype = _NAMES.get(array.dtype)
        if dtype is None:
            raise UnencodableMessageError(
                where=f"tensor {name!r}",
                rule=f"has dtype {array.dtype.str}; the wire knows {', '.join(_DTYPES)}",
            )
        described.append((name, dtype, array.shape))
    try:
        header: bytes = msgpack.packb((message.fields, described))
    except (TypeError, ValueError, OverflowError) as error:
        raise UnencodableMessageError(
            where="fields", rule=f"must be plain values: {error}"
        ) from error
    return header


def decode(body: bytes | bytearray | memoryview, limits: Limits = DEFAULT_LIMITS) -> Message:
    """Read a message; its tensors are views of ``body``, which they keep alive.

    The views are writable if ``body`` is: a body received by ``rpc`` belongs to
    its one reader.

    Raises:
        MalformedMessageError: if ``body`` is anything but one whole message.
        WireVersionError: if it is a message of another version.
    """
    view = memoryview(body)
    fields, described, position = _read_header(view, limits)
    tensors: dict[str, NDArray[Any]] = {}
    for index, entry in enumerate(described):
        name, dtype, shape = _check_entry(entry, index)
        if name in tensors:
            raise MalformedMessageError(where=f"tensor {index}", rule="repeats a name")
        num_values = math.prod(shape)
        num_bytes = num_values * dtype.itemsize
        if num_bytes:
            position += -position % ALIGNMENT_BYTES
        if position + num_bytes > len(view):
            raise MalformedMessageError(
                where=f"tensor {index}", rule="does not fit in the body"
            )
        flat: NDArray[Any]
        if num_bytes:
            flat = np.frombuffer(view, dtype, num_values, position)
        else:
            flat = np.empty(0, dtype=dtype)
        if dtype is _BOOL and (flat.view(np.uint8) > 1).any():
            raise MalformedMessageError(
                where=f"tensor {index}", rule="has a bool other than 0 or 1"
            )
        tensors[name] = flat if len(shape) == 1 else flat.reshape(shape)
        position += num_bytes
    if position != len(view):
        raise MalformedMessageError(where="body", rule="goes on after its last tensor")
    return Message(fields=fields, tensors=tensors)


def _read_header(
    view: memoryview, limits: Limits
) -> tuple[dict[str, Any], Sequence[object], int]:
    if len(view) < _PREFIX.size:
        raise MalformedMessageError(where="body", rule="is shorter than its prefix")
    magic, version, header_bytes = _PREFIX.unpack_from(view)
    if magic != _MAGIC:
        raise MalformedMessageError(where="prefix", rule="does not start with PFMS")
    if version != _VERSION:
        raise WireVersionError(found=version, supported=_VERSION)
    if header_bytes > min(limits.max_header_bytes, len(view) - _PREFIX.size):
        raise MalformedMessageError(where="header", rule="is longer than the body or the limit")
    end = _PREFIX.size + header_bytes
    try:
        header = msgpack.unpackb(
            view[_PREFIX.size : end], strict_map_key=False, ext_hook=_refuse_extension
        )
    except (TypeError, ValueError, msgpack.UnpackException) as error:
        raise MalformedMessageError(where="header", rule=f"is not msgpack: {error}") from error
    parts = header if isinstance(header, list) and len(header) == 2 else (None, None)
    fields, described = parts
    if (
        not isinstance(fields, dict)
        or not isinstance(described, list)
        or not all(map(_is_text, fields))
    ):
        raise MalformedMessageError(where="header", rule="must be [fields, tensors]")
    if len(described) > limits.max_tensors:
        raise MalformedMessageError(
            where="header", rule=f"names more than {limits.max_tensors} tensors"
        )
    return fields, described, end


def _check_entry(entry: object, index: int) -> tuple[str, np.dtype[Any], list[int]]:
    # plain checks: a class pattern takes half a microsecond, and there is one for each
    parts = entry if type(entry) is list and len(entry) == 3 else (None, None, None)
    name, dtype, shape = parts
    if (
        type(name) is not str
        or type(shape) is not list
        or type(dtype) is not str
        or dtype not in _DTYPES
    ):
        raise MalformedMessageError(
            where=f"tensor {index}", rule="must be [name, dtype, shape] with a known dtype"
        )
    if len(shape) == 1 and type(shape[0]) is int and 0 <= shape[0] < 1 << 40:
        return name, _DTYPES[dtype], shape  # most are flat
    extent = 1  # as if no length were 0: numpy refuses such shapes too
    possible = len(shape) <= _MAX_DIMENSIONS
    for length in shape:
        if type(length) is not int or not 0 <= length < 1 << 40:
            possible = False
            break
        extent *= length or 1
    if not possible or extent >= 1 << 48:
        raise MalformedMessageError(where=f"tensor {index}", rule="has an impossible shape")
    return name, _DTYPES[dtype], shape


def _is_text(key: object) -> bool:
    return key.__class__ is str


def _refuse_extension(code: int, _data: bytes) -> object:
    problem = f"extension type {code}"
    raise ValueError(problem)

"""``stream.json``, and the names of all other files of a stream."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paramfleet_shared.deltas.errors import StreamError, StreamUnreadableError
from paramfleet_shared.deltas.records import StreamHead
from paramfleet_shared.files.documents import read_content, read_document, whole
from paramfleet_shared.values.texts import shown

__all__ = [
    "BASES_LOCK",
    "HEAD",
    "LOCK",
    "MANIFEST",
    "MAX_HEAD_BYTES",
    "MOST_NUMBER",
    "base_folder",
    "base_number",
    "change_file",
    "change_number",
    "head_bytes",
    "is_digest",
    "is_identity",
    "moment_of",
    "read_head",
    "refuse_link",
]

HEAD, MANIFEST = "stream.json", "manifest.json"

LOCK = "stream.lock"
"""Of who replaces ``stream.json``, for a moment."""

BASES_LOCK = "bases.lock"
"""Of who makes or removes bases."""

_IDENTITY = re.compile(r"[0-9a-f]{32}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_BASE = re.compile(r"base-(\d{12})")
_CHANGE = re.compile(r"delta-(\d{12})\.safetensors")

_FORMAT, _VERSION = "paramfleet-stream", 1

_LAST_MOMENT = 253_402_300_799
"""The end of the year 9999."""

MAX_HEAD_BYTES = 1 << 20
"""Of ``stream.json``: some 8,000 bases."""

MOST_NUMBER = 10**12 - 1
"""Of a change: names have twelve digits."""


def base_folder(folder: Path, stream: str, number: int) -> Path:
    """Return the folder of a base."""
    return folder / stream / f"base-{number:012d}"


def change_file(folder: Path, stream: str, number: int) -> Path:
    """Return the file of a change."""
    return folder / stream / f"delta-{number:012d}.safetensors"


def refuse_link(folder: Path) -> None:
    """Pass if a folder of a stream is none that leads elsewhere.

    Raises:
        OSError: if the system refuses to say.
        ValueError: if it is a link.
    """
    if folder.is_symlink():
        rule = f"its folder {folder.name} is a link, which could lead out of the stream's"
        raise ValueError(rule)


def base_number(name: str) -> int | None:
    """Return which base a folder has by its name; None if it is none."""
    found = _BASE.fullmatch(name)
    return int(found[1]) if found else None


def change_number(name: str) -> int | None:
    """Return which change a file has by its name; None if it is none."""
    found = _CHANGE.fullmatch(name)
    return int(found[1]) if found else None


def is_identity(value: Any) -> bool:
    """Return whether a value is the name of a stream or a writer: 32 hexadecimal digits."""
    return isinstance(value, str) and bool(_IDENTITY.fullmatch(value))


def is_digest(value: Any) -> bool:
    """Return whether a value is a SHA-256 as it is written here."""
    return isinstance(value, str) and bool(_DIGEST.fullmatch(value))


def moment_of(value: Any) -> float:
    """Return a moment that somebody states.

    Raises:
        ValueError: if it is no number of seconds from 1970 to the year 9999.
    """
    if type(value) not in {int, float} or not 0 <= value <= _LAST_MOMENT:
        rule = f"moment = {shown(value)} is no number of seconds since 1970"
        raise ValueError(rule)
    return float(value)


def head_bytes(head: StreamHead) -> bytes:
    """Return the content of ``stream.json``."""
    document = {
        "format": _FORMAT,
        "version": _VERSION,
        "stream": head.stream,
        "base": head.base,
        "last": head.last,
        "digest": head.digest,
        "moment": head.moment,
        "writer": head.writer,
        "bases": [
            {"number": number, "sha256": digest} for number, digest in head.bases.items()
        ],
    }
    return json.dumps(document, indent=1).encode() + b"\n"


def read_head(folder: Path) -> StreamHead | None:
    """Return what ``stream.json`` of a folder says; None if there is none.

    Raises:
        StreamError: if it isn't one, or breaks a rule of the format.
        StreamUnreadableError: if the system refuses it.
    """
    path = folder / HEAD
    try:
        document = read_document(
            read_content(path, most_bytes=MAX_HEAD_BYTES), most_bytes=MAX_HEAD_BYTES
        )
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StreamUnreadableError(path=str(path), reason=str(error)) from error
    except ValueError as error:
        raise StreamError(path=str(path), rule=f"can't be read: {error}") from error
    stated = (document.get("format"), document.get("version")) if type(document) is dict else ()
    if stated != (_FORMAT, _VERSION):
        rule = f"must be {_FORMAT} version {_VERSION}: name the folder that a job publishes to"
        raise StreamError(path=str(path), rule=rule)
    try:
        return _checked(document)
    except (KeyError, TypeError, ValueError) as error:
        raise StreamError(path=str(path), rule=f"is malformed: {error!r}") from error


def _checked(document: Mapping[str, Any]) -> StreamHead:
    """Return a head.

    Raises:
        KeyError: if a value is missing.
        TypeError: if one is of another type.
        ValueError: if one breaks its rule.
    """
    stream, writer, digest = document["stream"], document["writer"], document["digest"]
    if not (is_identity(stream) and is_identity(writer)):
        raise ValueError("stream and writer must be 32 hexadecimal digits each")
    last = whole(document["last"], "last", most=MOST_NUMBER)
    bases: dict[int, str] = {}
    newest = -1
    for wire in document["bases"]:
        number = whole(wire["number"], "number of a base", most=last)
        if number <= newest:
            raise ValueError("bases must be sorted, each once")
        bases[number], newest = wire["sha256"], number
    if not bases or document["base"] != newest:
        raise ValueError("base must be the newest of bases")
    if not all(map(is_digest, (digest, *bases.values()))):
        raise ValueError("digest and sha256 must be 64 hexadecimal digits each")
    return StreamHead(
        stream=stream,
        last=last,
        digest=digest,
        moment=moment_of(document["moment"]),
        writer=writer,
        bases=bases,
    )

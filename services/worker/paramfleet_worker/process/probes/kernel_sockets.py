"""The TCP sockets of this machine, as Linux shows them to every process."""

import contextlib
import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["KernelSocket", "kernel_sockets", "unmapped"]

_LISTENING = "0A"


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelSocket:
    """A socket, as the kernel writes it."""

    local: tuple[str, int]
    remote: tuple[str, int]
    is_listening: bool
    user: int
    inode: str


def kernel_sockets() -> Iterator[KernelSocket]:
    """Yield the TCP sockets of this machine; none where the kernel doesn't show them."""
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text("ascii").splitlines()[1:]:
                fields = line.split()
                yield KernelSocket(
                    local=_end(fields[1]),
                    remote=_end(fields[2]),
                    is_listening=fields[3] == _LISTENING,
                    user=int(fields[7]),
                    inode=fields[9],
                )


def unmapped(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """Return an address as people write it; one of version 4 as such."""
    return str(getattr(address, "ipv4_mapped", None) or address)


def _end(text: str) -> tuple[str, int]:
    """Return address and port; the kernel writes words of 32 bits backwards."""
    address, _, port = text.rpartition(":")
    raw = bytes.fromhex(address)
    words = [raw[at : at + 4][::-1] for at in range(0, len(raw), 4)]
    return unmapped(ipaddress.ip_address(b"".join(words))), int(port, 16)

"""Which hosts an admin address may be asked by: what a request's ``Host`` may name.

A browser lets a page read and change what is at the page's own host. So a page of another
site whose name is made to lead to this machine (DNS rebinding) could ask a process here as if
it were the process's own page; its requests still name that site in ``Host``. An address of
this machine, or a name that was given, can't be such a site's.
"""

import ipaddress
import re
from collections.abc import Iterable, Sequence
from typing import final

from paramfleet_shared.settings.config import SettingError

__all__ = ["AllowedHosts"]

_NAME = re.compile(r"\.?[a-z0-9_]([a-z0-9_.-]{0,252})")
_MAX_SHOWN = 80

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@final
class AllowedHosts:
    """The hosts of one process.

    Args:
        own: Names and addresses of this machine; those that stand for all of its addresses
            (0.0.0.0) are passed over.
        given: The ``admin_hosts`` setting: names with commas between; one that begins with a
            dot stands for all below it.

    Raises:
        SettingError: if a given one can't be a host.
    """

    def __init__(self, own: Iterable[str] = (), given: str = "") -> None:
        names = [name.strip().lower().rstrip(".") or name for name in given.split(",")]
        for name in filter(None, names):
            if not _NAME.fullmatch(name) and _address_of(name) is None:
                rule = "hosts without ports, with commas between, as trainer.example"
                raise SettingError(name="admin_hosts", value=given, rule=rule)
        plain = {name.lower().removesuffix(".") for name in own} | set(filter(None, names))
        self._addresses = {each for each in map(_address_of, plain) if each is not None}
        self._names = {name for name in plain if not name.startswith(".")}
        self._suffixes = tuple(name for name in plain if name.startswith("."))

    def refusal(self, asked: Sequence[str], *, local: str) -> str:
        """Return why a request isn't answered, in words; empty if its host is one of ours.

        Args:
            asked: The values of its ``Host`` headers.
            local: The address at which its connection arrived, which is this machine's.
        """
        if len(asked) != 1:
            return "the request names no host" if not asked else "the request names two hosts"
        host = _host_of(asked[0])
        address = _address_of(host)
        if address is None:
            is_ours = self._has_name(host)
        else:
            is_ours = address.is_loopback or address in {
                _address_of(local.partition("%")[0]),
                *self._addresses,
            }
            is_ours = is_ours and not address.is_unspecified
        if is_ours:
            return ""
        return (
            f"{asked[0][:_MAX_SHOWN]!r} isn't known as this machine's: ask by one of its "
            "addresses, or name the host in PARAMFLEET_ADMIN_HOSTS"
        )

    def _has_name(self, host: str) -> bool:
        if host == "localhost" or host.endswith(".localhost"):  # never asked of the DNS
            return True
        return bool(host) and (host in self._names or host.endswith(self._suffixes))


def _host_of(text: str) -> str:
    """Return the host of ``host:port`` without the port; empty if it is malformed."""
    text = text.strip().lower()
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        return host if closed and (not rest or _is_port(rest)) else ""
    host, colon, port = text.partition(":")
    return host.removesuffix(".") if not colon or _is_port(f":{port}") else ""


def _is_port(text: str) -> bool:
    digits = text[1:]
    is_number = digits.isascii() and digits.isdecimal() and len(digits) <= 5
    return text.startswith(":") and (not digits or (is_number and int(digits) < 1 << 16))


def _address_of(text: str) -> Address | None:
    """Return an address; of one of IPv4 that is written as one of IPv6, that."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return address if mapped is None else mapped

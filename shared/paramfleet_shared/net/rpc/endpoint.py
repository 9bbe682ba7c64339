"""``host:port``, as text."""

from paramfleet_shared.errors import ContractError

__all__ = ["MalformedEndpointError", "join_endpoint", "split_endpoint"]


class MalformedEndpointError(ContractError):
    """An endpoint is not ``host:port``."""

    code = "contract.malformed_endpoint"
    endpoint: str
    sentence = "{endpoint!r} is not an endpoint: write host:port, or [address]:port for IPv6"


def split_endpoint(endpoint: str) -> tuple[str, int]:
    """Return host and port of ``host:port`` or ``[IPv6 address]:port``.

    Raises:
        MalformedEndpointError: if it is anything else.
    """
    host, colon, port = endpoint.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    well_formed = bool(host and colon) and (bracketed or ":" not in host)
    if not well_formed or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise MalformedEndpointError(endpoint=endpoint)
    return host, int(port)


def join_endpoint(host: str, port: int) -> str:
    """Return ``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

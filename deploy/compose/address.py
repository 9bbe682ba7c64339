"""Write this container's address that the rest of its job reaches: ``address.py REDIS_URL``.

A container in several networks has several addresses, in no order that can be relied on. Redis
is in the network that the whole job shares, so the address is the one that faces Redis.

Runs without site-packages, because it is run at every container's start.
"""

import socket
import sys
from urllib.parse import urlsplit


def facing(host: str, port: int) -> str:
    """Return the own address that packets to the host would carry; none is sent."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[
        0
    ]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def main() -> int:
    """Return 0 if the address is written, else 1; a line says why."""
    redis = urlsplit(sys.argv[1])
    host, port = redis.hostname or "localhost", redis.port or 6379
    try:
        sys.stdout.write(f"{facing(host, port)}\n")
    except OSError as error:
        sys.stderr.write(f"entrypoint: no network leads to Redis at {host}:{port}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Ask this container's admin address how it is: ``healthy.py [PATH]``; 0 is well.

Runs without site-packages, because it is started every few seconds.
"""

import http.client
import os
import ssl
import sys
from pathlib import Path

PORT = 7101
TIMEOUT_S = 3.0


def connect() -> http.client.HTTPConnection:
    """Return a connection to the admin address, over TLS if the job speaks it."""
    folder = os.environ.get("PARAMFLEET_TLS_DIR")
    if not folder:
        return http.client.HTTPConnection("127.0.0.1", PORT, timeout=TIMEOUT_S)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # a certificate stands for a role, not for a host
    context.load_verify_locations(Path(folder, "ca.crt"))
    return http.client.HTTPSConnection("127.0.0.1", PORT, timeout=TIMEOUT_S, context=context)


def main() -> int:
    """Return 0 if the answer is 200, else 1; a line says why."""
    path = sys.argv[1] if len(sys.argv) > 1 else "/healthz"
    try:
        connection = connect()
        connection.request("GET", path)
        answer = connection.getresponse()
        said = answer.read(200)
    except OSError as error:
        sys.stdout.write(f"{path}: {error}\n")
        return 1
    sys.stdout.write(f"{path}: {answer.status} {said.decode(errors='replace')}\n")
    return 0 if answer.status == 200 else 1


if __name__ == "__main__":
    sys.exit(main())

"""Knock at addresses as a stranger: ``knock.py HOST:PORT...`` prints what each answers.

Runs in a container of the network, with nothing but Python's own modules. One JSON object: by
address, what plain HTTP and HTTPS without a certificate get of ``/healthz`` and ``/status``.
"""

import http.client
import json
import ssl
import sys

TIMEOUT_S = 3.0
PATHS = ("/healthz", "/status")


def knock(address: str, path: str, *, tls: bool) -> str:
    """Return the status of an answer, or why there was none."""
    host, port = address.rsplit(":", maxsplit=1)
    connection = http.client.HTTPConnection(host, int(port), timeout=TIMEOUT_S)
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        connection = http.client.HTTPSConnection(
            host, int(port), timeout=TIMEOUT_S, context=context
        )
    try:
        connection.request("GET", path)
        return str(connection.getresponse().status)
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__
    finally:
        connection.close()


def main() -> None:
    """Print what every address answers."""
    answers = {
        address: {
            ("https " if tls else "http ") + path: knock(address, path, tls=tls)
            for path in PATHS
            for tls in (False, True)
        }
        for address in sys.argv[1:]
    }
    sys.stdout.write(json.dumps(answers) + "\n")


if __name__ == "__main__":
    main()

"""Ask this container's admin address how it is: ``healthy.py PATH CA``; 0 is well.

CA is the file of the authority that signed the job's certificates.

Runs without site-packages, because it is started every few seconds.
"""

import http.client
import ssl
import sys

PORT = 7101
TIMEOUT_S = 3.0


def connect(authority: str) -> http.client.HTTPConnection:
    """Return a connection to the admin address."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # a certificate stands for a role, not for a host
    context.load_verify_locations(authority)
    return http.client.HTTPSConnection("127.0.0.1", PORT, timeout=TIMEOUT_S, context=context)


def main() -> int:
    """Return 0 if the answer is 200, else 1; a line says why."""
    path, authority = sys.argv[1:]
    try:
        connection = connect(authority)
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

"""Answer every DNS question with "no such name": ``python no_names.py ADDRESS``."""

import socket
import sys

_NO_SUCH_NAME = b"\x81\x83\x00\x01\x00\x00\x00\x00\x00\x00"
"""An answer's flags and counts (RFC 1035, 4.1.1): one question, nothing else, NXDOMAIN."""

_HEADER_BYTES = 12
_TYPE_AND_CLASS_BYTES = 4


def refusal(question: bytes) -> bytes:
    """Return the answer to a question: its id, its first name, and that it isn't known."""
    end = _HEADER_BYTES
    while end < len(question) and question[end]:
        end += question[end] + 1
    asked = question[_HEADER_BYTES : end + 1 + _TYPE_AND_CLASS_BYTES]
    return question[:2] + _NO_SUCH_NAME + asked


def main() -> None:
    """Answer until the process is ended."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((sys.argv[1], 53))
        while True:
            question, asker = server.recvfrom(4096)
            server.sendto(refusal(question), asker)


if __name__ == "__main__":
    main()

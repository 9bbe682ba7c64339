"""An S3 server on this machine, a process of its own, for tests."""

import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from paramfleet_shared.system.processes.keeping import tied

__all__ = ["serving_s3"]


@contextmanager
def serving_s3() -> Iterator[str]:
    """Start a server; yield its URL."""
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    server = subprocess.Popen(
        tied(command), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert server.stderr is not None
    # It writes a line for each request, and stands still where nobody reads them.
    reading = threading.Thread(target=deque, args=(server.stderr, 0))
    try:
        said = ""
        for line in server.stderr:
            said += line
            if "Running on" in line:
                break
        assert "Running on" in said, said
        reading.start()
        yield said.rstrip().rpartition(" ")[2]
    finally:
        server.kill()
        if reading.ident is not None:
            reading.join()
        server.communicate()

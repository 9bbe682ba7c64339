"""An S3 server on this machine, a process of its own, for tests."""

import subprocess
import sys
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
    try:
        said = ""
        for line in server.stderr:
            said += line
            if "Running on" in line:
                break
        assert "Running on" in said, said
        yield said.rstrip().rpartition(" ")[2]
    finally:
        server.kill()
        server.communicate()

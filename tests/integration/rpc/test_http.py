"""Other people's HTTP/2 clients may look in."""

import asyncio
import json
import shutil
import subprocess
from typing import Any

import pytest

from paramfleet_shared.net.wire.limits import Limits
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_shared.testing.patience import LATE_S

CURL = shutil.which("curl")


def curl_lacks_http2() -> bool:
    if CURL is None:
        return True
    told = subprocess.run(tied([CURL, "--version"]), capture_output=True, text=True, check=True)
    return "HTTP2" not in told.stdout


needs_curl = pytest.mark.skipif(curl_lacks_http2(), reason="no curl with HTTP/2 here")


async def curl(*arguments: str) -> str:
    assert CURL is not None
    command = tied(
        [CURL, "-s", "--max-time", str(LATE_S), "--http2-prior-knowledge", *arguments]
    )
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    told, _ = await process.communicate()
    assert process.returncode == 0
    return told.decode()


@needs_curl
async def test_curl_reads_the_health(peers: Any) -> None:
    _, endpoint = await peers.serve({}, health=lambda: {"role": "pserver", "index": 0})

    told = await curl(f"http://{endpoint}/healthz")

    assert json.loads(told) == {"role": "pserver", "index": 0}


@needs_curl
async def test_curl_may_ask_for_the_head_alone(peers: Any) -> None:
    _, endpoint = await peers.serve({})

    told = await curl("--head", f"http://{endpoint}/healthz")

    assert told.startswith("HTTP/2 200")
    assert "application/json" in told


@needs_curl
@pytest.mark.parametrize(
    ("path", "arguments", "status"),
    [
        ("/", (), "404"),
        ("/healthz", ("--data", "x"), "404"),
        ("/v1/fly", ("--data", "x"), "404"),
        ("/v1/echo", (), "405"),
        ("/v1/echo", ("--data", "not a message"), "400"),
        ("/v1/echo", ("--data", "x" * 5000), "413"),
    ],
)
async def test_curl_learns_what_it_did_wrong(
    peers: Any, path: str, arguments: tuple[str, ...], status: str
) -> None:
    _, endpoint = await peers.serve(
        {"echo": lambda request: request.message}, limits=Limits(max_body_bytes=4000)
    )

    told = await curl(
        "-o", "/dev/null", "-w", "%{http_code}", *arguments, f"http://{endpoint}{path}"
    )

    assert told == status

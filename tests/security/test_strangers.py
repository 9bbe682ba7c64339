"""Another user of the machine, and what it gets of a job: nothing."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import textwrap
from functools import partial

import pytest
from tests.security.conftest import Target

from paramfleet_shared.net.rpc.client import Channel, PeerUnprovenError
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_shared.testing.patience import LATE_S
from paramfleet_shared.testing.secrets import secret_for

STRANGER = textwrap.dedent(
    """
    import json, os, socket, sys

    facts = json.loads(sys.argv[1])
    found = {"uid": os.getuid()}
    settings = b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + bytes.fromhex("000000040000000000")
    hello = b"paramfleet-1\\r\\n\\r\\n" + bytes(32)

    def ask(sock, *texts):
        sock.settimeout(20)
        got = b""
        try:
            for text in texts:
                sock.sendall(text)
                got = sock.recv(4096)
            while more := sock.recv(4096):
                got += more
        except OSError as error:
            return got.hex() + f" {type(error).__name__}"
        return got.hex()

    for name in ("pserver", "coordinator"):
        host, _, port = facts[name].rpartition(":")
        address = host, int(port)
        with socket.create_connection(address) as sock:
            found[name + " http2"] = ask(sock, settings)
        with socket.create_connection(address) as sock:
            found[name + " proof"] = ask(sock, hello, bytes(32))
    with socket.socket(socket.AF_UNIX) as sock:
        try:
            sock.connect("\\0paramfleet/" + facts["pserver"])
            found["unix"] = ask(sock, settings)
        except OSError as error:
            found["unix"] = type(error).__name__
    for name in ("environ", "cmdline"):
        try:
            with open(f"/proc/{facts['pid']}/{name}", "rb") as file:
                found[name] = facts["secret"].encode() in file.read()
        except PermissionError:
            found[name] = False
    print(json.dumps(found))
    """
)
REFUSAL = "000000040000000000" + "000008070000000000" + "00000000" + "0000000c"
"""HTTP/2's empty SETTINGS, and GOAWAY with INADEQUATE_SECURITY."""


@pytest.fixture
def setpriv() -> list[str]:
    """Return how to run a command as nobody."""
    program = shutil.which("setpriv")
    if os.geteuid() != 0 or program is None:
        pytest.skip("only root can be another user, with setpriv")
    return [program, "--reuid=65534", "--regid=65534", "--clear-groups"]


async def test_another_user_is_served_nothing_by_pserver_and_coordinator(
    target: Target, setpriv: list[str]
) -> None:
    async with target.worker():
        facts = {
            "pserver": target.pserver,
            "coordinator": target.coordinator,
            "pid": target.pid("pserver"),
            "secret": target.settings.secret,
        }
        command = [*setpriv, sys.executable, "-I", "-S", "-c", STRANGER, json.dumps(facts)]
        run = partial(subprocess.run, tied(command), cwd="/", check=False)
        ended = await asyncio.to_thread(run, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
        found = json.loads(ended.stdout)

        assert found.pop("uid") == 65534
        for name in ("pserver", "coordinator"):
            assert found.pop(f"{name} http2") == REFUSAL
            challenge, refusal = found.pop(f"{name} proof").split(" ")[0], REFUSAL
            assert challenge.endswith(refusal), "its proof was none"
        assert found.pop("unix").split(" ")[0] in {REFUSAL, "", "ConnectionRefusedError"}
        assert found == {"environ": False, "cmdline": False}

        channel = target.channel(target.pserver, "pserver 0")
        answer = await channel.call("status", Message(), timeout_s=LATE_S)
        assert answer.fields["tables"] == [], "and the job goes on"
    assert target.log("pserver").read_text().count("connections.unproven") >= 1


async def test_a_process_of_another_job_is_no_member(target: Target) -> None:
    async with target.worker():
        channel = Channel(
            target.pserver, peer="pserver 0", clock=SystemClock(), secret=secret_for("another")
        )
        try:
            with pytest.raises(PeerUnprovenError, match="another secret"):
                await channel.call("status", Message(), timeout_s=20.0)
        finally:
            await channel.close()

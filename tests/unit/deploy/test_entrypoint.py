"""What a container says its address is, from a namespace with more than one network."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from paramfleet_shared.system.processes.keeping import tied

COMPOSE = Path(__file__).parents[3] / "deploy" / "compose"

TWO_NETWORKS = """
set -e
ip link set lo up
ip link add edge type veth peer name edge-far
ip link add cluster type veth peer name cluster-far
ip addr add 172.19.0.2/16 dev edge
ip addr add 172.20.0.9/16 dev cluster
for link in edge edge-far cluster cluster-far; do ip link set "$link" up; done
exec "$@"
"""


def start(folder: Path, environment: dict[str, str], *prefix: str) -> str:
    """Run the entry point with a `paramfleet` that prints its address; return that."""
    fake = folder / "paramfleet"
    fake.write_text('#!/bin/sh\necho "$1 at ${PARAMFLEET_HOST:-nothing}"\n')
    fake.chmod(0o755)
    completed = subprocess.run(
        tied([*prefix, "sh", str(COMPOSE / "entrypoint.sh"), "pserver"]),
        env={
            "PATH": f"{folder}:{Path(sys.executable).parent}:{os.defpath}:/usr/sbin:/sbin",
            "PARAMFLEET_LIB": str(COMPOSE),
            **environment,
        },
        check=True,
        capture_output=True,
        text=True,
    )
    return completed.stdout.strip()


def test_the_address_is_the_one_that_faces_redis(tmp_path: Path) -> None:
    assert start(tmp_path, {"PARAMFLEET_REDIS": "rediss://127.0.0.1:6379/0"}) == (
        "pserver at 127.0.0.1"
    )


def test_of_two_networks_it_is_that_of_redis(tmp_path: Path) -> None:
    apart = ("unshare", "--net", "sh", "-c", TWO_NETWORKS, "sh")
    probe = subprocess.run(tied([*apart, "true"]), capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        pytest.skip(f"no networks of its own: {probe.stderr.strip()}")

    found = start(tmp_path, {"PARAMFLEET_REDIS": "rediss://172.20.0.3:6379/0"}, *apart)

    assert found == "pserver at 172.20.0.9"


def test_an_address_that_was_given_stays(tmp_path: Path) -> None:
    given = {"PARAMFLEET_REDIS": "redis://127.0.0.1:6379/0", "PARAMFLEET_HOST": "10.0.0.7"}

    assert start(tmp_path, given) == "pserver at 10.0.0.7"


def test_a_command_without_redis_needs_none(tmp_path: Path) -> None:
    assert start(tmp_path, {}) == "pserver at nothing"


def test_what_the_images_copy_is_in_their_context() -> None:
    root = COMPOSE.parents[1]
    kept = {
        line[1:]
        for line in (root / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = {
        source
        for line in (COMPOSE / "Dockerfile").read_text().splitlines()
        if line.startswith("COPY ") and "--from=" not in line
        for source in line.split()[1:-1]
    }

    assert copied
    assert {
        source
        for source in copied
        if "[" not in source
        and not any(source == k or source.startswith(f"{k}/") for k in kept)
    } == set()

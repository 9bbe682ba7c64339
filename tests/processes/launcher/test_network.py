"""Three hosts with addresses of their own, as network namespaces on one bridge.

Everything happens inside a fresh network, mount and process namespace, and vanishes with
it. Needs root and the ``ip`` and ``unshare`` programs.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from paramfleet_shared.system.processes.keeping import tied

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("unshare")),
        reason="network namespaces need root, ip and unshare",
    ),
]

LAB = """
set -u
mount -t tmpfs none /run; mkdir -p /run/netns
ip link set lo up
ip link add br0 type bridge; ip link set br0 up
for i in 1 2 3; do
  ip netns add h$i
  ip link add v$i type veth peer name eth0 netns h$i
  ip link set v$i master br0 up
  ip -n h$i addr add 10.77.0.$i/24 dev eth0
  ip -n h$i link set eth0 up; ip -n h$i link set lo up
done
launch() {
  ip netns exec h$1 "$PYTHON" -m paramfleet_worker launch \\
    --servers=10.77.0.1:6000,10.77.0.2:6000 --workers=10.77.0.1,10.77.0.2,10.77.0.3 \\
    --coordinator=10.77.0.1:7000 --redis=redis://10.77.0.1:6379/0 --log_dir=log$1 \\
    train.py > out$1 2> err$1
  echo $? > code$1
}
wait_for() { until grep -qs "$2" "$1"; do sleep 0.05; done; }
for i in 3 2 1; do launch $i & done
"""

BODY = """
async def train(session):
    await opened(f"go{rank}")
take_part(train)
"""

Lab = Callable[[str], "list[Host]"]


class Host:
    """What a launcher on one host left behind."""

    def __init__(self, folder: Path, number: int) -> None:
        self.code = int((folder / f"code{number}").read_text())
        self.text = (folder / f"err{number}").read_text()
        lines = self.text.splitlines()
        self.error = "".join(line for line in lines if line.startswith("[launcher] error: "))
        self.last_word = lines[-1]


@pytest.fixture
def lab(tmp_path: Path, preamble: str) -> Lab:
    """Return a function that starts the job on three hosts, runs a scenario, and waits."""
    (tmp_path / "train.py").write_text(preamble + BODY)
    for rank in range(3):
        os.mkfifo(tmp_path / f"go{rank}")

    def run(scenario: str) -> list[Host]:
        spaces = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        settings = {
            "PARAMFLEET_LEASE_TTL_S": "4",
            "PARAMFLEET_LEASE_RENEW_S": "0.2",
            "PARAMFLEET_OUTAGE_GRACE_S": "6",
            "PARAMFLEET_RUNTIME_DIR": str(tmp_path / "jobs"),
            "PARAMFLEET_SECRET": "three hosts have the same secret",
        }
        done = subprocess.run(
            tied(["unshare", *spaces, "bash", "-c", LAB + scenario + "\nwait $(jobs -p)"]),
            cwd=tmp_path,
            env={"PATH": os.defpath + ":/usr/sbin", "PYTHON": sys.executable, **settings},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return [Host(tmp_path, number) for number in (1, 2, 3)]

    return run


ALL_TRAIN = """
wait_for err1 '^.worker 0. waiting'; wait_for err2 '^.worker 1. waiting'
wait_for err3 '^.worker 2. waiting'
"""


def test_three_hosts_given_one_command_train_and_end_together(lab: Lab) -> None:
    hosts = lab(ALL_TRAIN + "echo > go0; echo > go2; echo > go1")

    assert [host.code for host in hosts] == [0, 0, 0], "\n".join(host.text for host in hosts)


def test_the_host_of_a_killed_worker_and_all_others_name_it(lab: Lab) -> None:
    pid = "sed -n 's/.*worker 2. waiting pid=//p' err3"
    hosts = lab(ALL_TRAIN + f"kill -KILL $({pid})")

    assert [host.code for host in hosts] == [1, 1, 137]
    assert hosts[2].error == "[launcher] error: worker 2 was killed by SIGKILL"
    for host in hosts[:2]:
        who = "worker 2 on another machine"
        assert host.error == f"[launcher] error: {who}: was killed by SIGKILL"
        assert host.last_word.startswith("[launcher] the job failed; logs in ")


def test_both_sides_of_a_pulled_cable_end_and_the_majority_names_the_lost_worker(
    lab: Lab,
) -> None:
    hosts = lab(ALL_TRAIN + "ip link set v3 down")

    assert [host.code for host in hosts] == [1, 1, 1]
    for host in hosts[:2]:
        assert host.error.startswith("[launcher] error: worker 2 on another machine: ")
    alone = r"\[launcher\] error: redis 0: hasn't answered for \d+ s; worker 2 exited.*"
    assert re.fullmatch(alone, hosts[2].error), "it sees that Redis is gone, and no more"

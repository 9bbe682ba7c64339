"""The comparison with peers runs, and every system computes the same. Speed is not judged."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="grpcio is in the dependency group 'benchmark'")

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "peers.py"
SMALL = ("--rows=64", "--table-rows=2000", "--steps=6", "--rounds=1")


@pytest.mark.processes
@pytest.mark.timeout(180)  # three systems' processes, each with its imports
def test_three_systems_end_with_the_same_table_and_their_figures_are_printed(
    tmp_path: Path,
) -> None:
    output = tmp_path / "peers.json"

    ended = subprocess.run(
        [sys.executable, str(SCRIPT), *SMALL, f"--output={output}"],
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    figures = json.loads(ended.stdout.splitlines()[-1])
    assert figures == json.loads(output.read_text())
    assert figures["benchmark"] == "peers"
    assert figures["equal"] is True
    assert (figures["rows"], figures["dim"], figures["rounds"]) == (64, 16, 1)
    for suffix in ("", "_4_in_flight"):
        for name in ("ours_rows_per_s", "vs_grpcio", "vs_torch_rpc"):
            assert figures[name + suffix] > 0
    assert len(figures["runs"]) == 6
    assert figures["allocator"]["ours"]["MALLOC_MMAP_THRESHOLD_"]

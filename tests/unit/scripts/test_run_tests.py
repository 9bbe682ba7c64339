"""The suite's runner: what it makes of the coverage data that the processes left."""

import subprocess
import sys
from pathlib import Path

RUNNER = Path(__file__).parents[3] / "scripts" / "run_tests.py"

PROJECT = """
[tool.pytest.ini_options]
filterwarnings = ["error"]
asyncio_default_fixture_loop_scope = "function"
[tool.coverage.run]
branch = true
parallel = true
"""

A_TEST_WHOSE_PROCESS_DIED = """
from pathlib import Path

def test_a_killed_process_leaves_half_a_file():
    Path(".coverage.host.pid7.Xabcdefx").write_bytes(b"SQLite format 3")
    assert True
"""


def test_half_a_data_file_is_named_and_fails_nothing(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    room = tmp_path / "shared" / "paramfleet_shared" / "wire"
    room.mkdir(parents=True)
    (room / "test_it.py").write_text(A_TEST_WHOSE_PROCESS_DIED)
    ran = subprocess.run(
        [sys.executable, RUNNER, "shared/paramfleet_shared/wire/test_it.py"],
        cwd=tmp_path,
        env={},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "1 passed" in ran.stdout
    assert "left out: Couldn't use data file" in ran.stdout
    assert ".coverage.host.pid7.Xabcdefx" in ran.stdout

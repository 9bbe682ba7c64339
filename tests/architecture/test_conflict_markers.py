"""No file was committed in the middle of a merge."""

import re
import subprocess
from pathlib import Path

from paramfleet_shared.system.processes.keeping import tied

ROOT = Path(__file__).parents[2]
MARKER = re.compile(rb"^(<{7} |>{7} )", re.MULTILINE)


def test_no_file_holds_markers_of_a_conflict() -> None:
    command = tied(["git", "ls-files", "-z"])
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    paths = [ROOT / name.decode() for name in listing.stdout.split(b"\0") if name]
    assert paths

    marked = [
        str(path) for path in paths if path.is_file() and MARKER.search(path.read_bytes())
    ]

    assert not marked

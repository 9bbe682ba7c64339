"""What is compiled ahead for tables with rows on disk."""

import subprocess
import sys

from paramfleet_shared.system.processes.keeping import tied

_LIST = """
import importlib, pkgutil
from paramfleet_shared.tables.disk import kernels, warming

warming.warm_disk()
for module in pkgutil.iter_modules(kernels.__path__):
    found = importlib.import_module(f"{kernels.__name__}.{module.name}")
    for name in found.__all__:
        each = getattr(found, name)
        if "inline" not in getattr(each, "targetoptions", {"inline": "always"}):
            print(name, len(each.signatures))
"""


def test_all_kernels_are_compiled_ahead_once_each() -> None:
    done = subprocess.run(
        tied([sys.executable, "-c", _LIST]), capture_output=True, text=True, check=True
    )

    compiled = dict(line.split() for line in done.stdout.splitlines())
    assert {"change_rows", "emit", "put_rows", "within"} <= compiled.keys()
    assert {name for name, num in compiled.items() if num != "1"} == set()

"""A process that has everything imported and forks the processes of test jobs.

Importing torch takes seconds; forking from a process that has done it takes
milliseconds. It also imports what torch leaves until the first optimizer is made, and
exempts its objects from garbage collection, which would copy their pages into every child.
What runs in a child is the same script, role environment and wire as under the launcher.

It reads one JSON object a line from standard input and writes one a line:
``{"start": {"argv": [...], "env": {...}, "log": path}}`` answers ``{"pid": n}``;
``{"wait": pid}`` answers ``{"pid": n, "code": exit code or -signal}``.
"""

import atexit
import contextlib
import gc
import json
import os
import runpy
import signal
import sys

import torch._dynamo  # noqa: F401 - preloaded: the first optimizer imports it

import paramfleet  # noqa: F401 - preloaded for the children
import paramfleet.runner.__main__  # noqa: F401 - preloaded for the children
import paramfleet_coordinator.__main__
import paramfleet_pserver.app  # noqa: F401 - preloaded for the children
from paramfleet_shared.system.processes.tether import tie
from paramfleet_shared.tables.warm import main as warm


def start(argv: list[str], env: dict[str, str], log: str) -> int:
    starter = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    if not tie(starter):
        os._exit(1)
    code = 1
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(0)
        sys.stdin = open(os.devnull)  # noqa: PTH123, SIM115 - lives as long as the process
        os.environ.update(env)  # noqa: TID251 - this is the child's environment
        sys.argv = argv
        if argv[0] == "coordinator":
            paramfleet_coordinator.__main__.main()
        else:
            runpy.run_path(argv[0], run_name="__main__")
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException as error:  # noqa: BLE001 - the end of a process
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        _end(code)
    return 0


def _end(code: int) -> None:
    """End as an interpreter does: the script's exit handlers run."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.redirect_stdout(sys.stderr):
        warm()
    gc.collect()
    gc.freeze()
    print(json.dumps({"ready": os.getpid()}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        if "start" in command:
            answer = {"pid": start(**command["start"])}
        else:
            pid, status = os.waitpid(command["wait"], 0)
            answer = {"pid": pid, "code": os.waitstatus_to_exitcode(status)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

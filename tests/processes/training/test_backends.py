"""Every backend answers everything that the protocol has, or names what to do instead."""

from typing import Any

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = "ask_backend.py"
ALONE = {
    "joined": False,
    "stopped": False,
    "take_model": True,
    "take_optimizer": False,
    "start": True,
    "own": True,
    "communicator": False,
    "job": False,
    "agreement": False,
    "collective": False,
    "worker_index": 0,
    "worker_num": 1,
    "worker_endpoints": 0,
    "server_num": 0,
    "server_index": 0,
    "server_endpoints": 0,
    "check_served": None,
    "barrier": None,
    "gather": [0],
    "link": False,
    "between_steps": None,
    "raise_failure": None,
    "orders": False,
    "job_facts": True,
    "clipping": False,
    "ahead": False,
    "remove_rows": (
        "TableUnknownError: the optimizer trains no table 'rows' of rows; it trains: none"
    ),
    "prefetch_rows": (
        "TableUnknownError: the optimizer trains no table 'rows' of rows; it trains: none"
    ),
    "running": True,
    "examples": None,
    "depart": None,
    "stop": False,
    "abandon": None,
    "not asked": [],
}
SERVED = {
    "joined": True,
    "communicator": True,
    "job": True,
    "agreement": True,
    "worker_num": 2,
    "server_num": 2,
    "server_endpoints": 2,
    "gather": [0, 1],
    "link": True,
    "orders": True,
    "ahead": True,
    "stop": True,
}
LACKING = {
    "server_num": "leave the call out",
    "server_index": "leave the call out",
    "server_endpoints": "leave the call out",
    "check_served": "leave the call out",
    "job_facts": "fleet.util.all_gather",
    "remove_rows": "leave the call out",
    "prefetch_rows": "leave the call out",
    "running": "no mode of pservers runs",
    "examples": "leave out examples",
    "depart": "leave the call out",
}


def test_one_process_alone(jobs: Any) -> None:
    assert jobs.local_once(SCRIPT) == ALONE


def test_workers_with_pservers(jobs: Any) -> None:
    results = jobs.run(SCRIPT).results

    for rank, result in enumerate(results):
        assert result == ALONE | SERVED | {"worker_index": rank, "server_index": rank}


def test_a_collective_worker(jobs: Any) -> None:
    said = jobs.local_once(SCRIPT, "--collective")

    for name, remedy in LACKING.items():
        problem = said.pop(name)
        assert problem.startswith("WrongModeError: fleet.")
        assert "is_collective=True" in problem
        assert remedy in problem
    plain = {name: said_alone for name, said_alone in ALONE.items() if name not in LACKING}
    assert said == plain | {"joined": True, "collective": True, "stop": True}

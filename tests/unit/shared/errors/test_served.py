"""What a pserver answers with is the same class on the worker's side."""

import importlib
import inspect
import pkgutil
import subprocess
import sys
from typing import Any

import pytest

import paramfleet_pserver
from paramfleet_shared.errors import FleetError, error_from_wire, error_to_wire
from paramfleet_shared.errors import served as served_errors
from paramfleet_shared.system.processes.keeping import tied

FACTS = {
    "int": 3,
    "int | None": 3,
    "float": 0.5,
    "str": "words",
    "list[int]": [0, 2],
    "list[str]": ["in step 3"],
    "list[str] | None": ["in step 3"],
    "Any": "sync",
}


def made(cls: type[FleetError]) -> FleetError:
    stated = {
        name: kind
        for each in reversed(cls.__mro__)
        if issubclass(each, FleetError) and each is not FleetError
        for name, kind in inspect.get_annotations(each).items()
    }
    kinds = stated or inspect.get_annotations(cls.__init__)
    facts: dict[str, Any] = {
        name: FACTS[inspect.formatannotation(kind).removeprefix("typing.")]
        for name, kind in kinds.items()
        if name != "return"
    }
    return cls(**facts)


@pytest.mark.parametrize("name", served_errors.__all__)
def test_an_error_of_a_pserver_is_the_same_class_after_the_wire(name: str) -> None:
    error = made(getattr(served_errors, name))

    arrived = error_from_wire(error_to_wire(error))

    assert type(arrived) is type(error)
    assert (str(arrived), arrived.facts) == (str(error), error.facts)
    assert arrived.remote


def test_no_error_of_a_pserver_lives_where_workers_do_not_see_it() -> None:
    modules = [
        importlib.import_module(found.name)
        for found in pkgutil.walk_packages(paramfleet_pserver.__path__, "paramfleet_pserver.")
        if not found.name.endswith("__main__")
    ]

    hidden = [
        cls
        for module in modules
        for cls in vars(module).values()
        if isinstance(cls, type) and issubclass(cls, FleetError)
        if cls.__module__.startswith("paramfleet_pserver")
    ]

    assert hidden == []


@pytest.mark.slow
def test_a_client_knows_the_errors_of_the_servers() -> None:
    script = """
import paramfleet
paramfleet.init  # what a worker calls first
from paramfleet_shared.errors import error_from_wire
wire = {"code": "contract.unknown_table", "message": "", "facts": {"table": "t"}}
print(type(error_from_wire(wire)).__name__)
"""
    found = subprocess.run(
        tied([sys.executable, "-c", script]), capture_output=True, text=True, check=True
    )

    assert found.stdout == "UnknownTableError\n"

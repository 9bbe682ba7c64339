"""What tests start ends with pytest, also when that is killed."""

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]
STARTERS = {"subprocess.run", "subprocess.Popen", "subprocess.check_output"}
STARTERS |= {"asyncio.create_subprocess_exec", "create_subprocess_exec"}
TIES = {"tied", "behind_gate"}

# Not parts of pytest's processes: inside the engine, whose namespaces end with it.
APART = {"compose/cluster.py"}


def names_in_calls(text: str) -> list[str]:
    """Return the dotted names that a module calls, or gives to what it calls."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return [ast.unparse(each) for call in calls for each in (call.func, *call.args)]


def test_tests_tie_to_themselves_what_they_start() -> None:
    loose = {}
    for path in TESTS.rglob("*.py"):
        name = str(path.relative_to(TESTS))
        text = path.read_text(encoding="utf-8")
        if name in APART or name.startswith("processes/") or "subprocess" not in text:
            continue
        names = names_in_calls(text)
        num_started = sum(each in STARTERS for each in names)
        num_tied = sum(each in TIES for each in names)
        if num_started > num_tied:
            loose[name] = (num_started, num_tied)

    assert not loose, "starts more than it ties: use tied() of system.processes.keeping"

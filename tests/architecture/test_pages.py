"""What the pages say is what the code does."""

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from paramfleet.runner.config.configuration import read_config
from paramfleet.runner.config.settings import CtrParameters
from paramfleet_shared.settings.config import JobSettings, options_of
from paramfleet_shared.system.processes.keeping import tied

CHECKOUT = Path(__file__).parents[2]
PAGES = sorted([*CHECKOUT.glob("*.md"), *CHECKOUT.glob("docs/**/*.md")])
README = CHECKOUT / "README.md"
MIGRATION = CHECKOUT / "docs" / "migrating-from-paddle.md"
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DIFF_BLOCK = re.compile(r"^```diff\n(.*?)^```$", re.MULTILINE | re.DOTALL)
YAML_BLOCK = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MODULE = re.compile(r"`([\w./-]+/[\w-]+\.py)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)#:]+)(?:#[^)]*)?\)")


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, CHECKOUT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def blocks(page: Path) -> list[str]:
    return PYTHON_BLOCK.findall(page.read_text(encoding="utf-8"))


def name_of(page: Path) -> str:
    return str(page.relative_to(CHECKOUT))


def test_the_pages_name_modules_that_there_are() -> None:
    folders = ("client", "shared", "services", "tests", "benchmarks", "examples", "models")
    there = [
        str(path.relative_to(CHECKOUT))
        for folder in (*folders, "scripts")
        for path in (CHECKOUT / folder).rglob("*.py")
    ]
    current = [p for p in PAGES if p.name != "CHANGELOG.md" and p.parent.name != "adr"]

    gone = {
        f"{page.name}: {name}"
        for page in current
        for name in MODULE.findall(page.read_text(encoding="utf-8"))
        if not any(path.endswith(name) for path in there)
    }

    assert not gone


def test_the_configuration_page_is_fresh() -> None:
    page = script("configuration_page")

    written = page.PAGE.read_text(encoding="utf-8")

    assert written == page.render(), "run: make docs"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_on_a_page_compiles(page: Path) -> None:
    for number, block in enumerate(blocks(page)):
        compile(block, f"{name_of(page)}, block {number}", "exec")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_link_leads_to_a_file(page: Path) -> None:
    targets = LINK.findall(page.read_text(encoding="utf-8"))

    missing = [target for target in targets if not (page.parent / target).exists()]

    assert not missing


def test_the_lines_in_the_readme_are_those_of_a_program_that_tests_run() -> None:
    (change,) = DIFF_BLOCK.findall(README.read_text(encoding="utf-8"))
    program = blocks(CHECKOUT / "docs" / "tutorials" / "first-job.md")[0].splitlines()

    lines = [
        line for line in change.splitlines() if line != " ..." and not line.startswith("-")
    ]

    assert [line for line in lines if line[1:] not in program] == []
    assert sum(line.startswith("+") for line in lines) < 14


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"].values()
    groups = project["dependency-groups"].values()
    named = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    named += [requirement for more in (*extras, *groups) for requirement in more]
    page = (CHECKOUT / "docs" / "dependencies.md").read_text(encoding="utf-8")

    names = {re.split(r"[^A-Za-z0-9._-]", requirement)[0] for requirement in named}

    assert sorted(name for name in names if f"`{name}`" not in page) == []


@pytest.mark.forked
@pytest.mark.slow
@pytest.mark.processes
def test_the_python_of_the_collective_page_runs(tmp_path: Path) -> None:
    program = tmp_path / "collective.py"
    page = CHECKOUT / "docs" / "collective.md"
    program.write_text("\n".join(blocks(page)), encoding="utf-8")

    ended = subprocess.run(
        tied([sys.executable, str(program)]), capture_output=True, text=True, check=False
    )

    assert ended.returncode == 0, ended.stderr


@pytest.mark.forked
@pytest.mark.slow
@pytest.mark.processes
def test_the_program_of_the_page_on_saving_loads_what_it_saves(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(blocks(CHECKOUT / "docs" / "saving.md")[0], encoding="utf-8")

    said = [
        subprocess.run(
            tied([sys.executable, str(program), *words]),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for words in ([], ["--score"])
    ]

    assert said[0].startswith("auc 0.")
    assert said[0] == said[1]


@pytest.mark.forked
@pytest.mark.slow
@pytest.mark.processes
def test_the_python_of_the_migration_page_runs(tmp_path: Path) -> None:
    program = tmp_path / "migrated.py"
    program.write_text("\n".join(blocks(MIGRATION)), encoding="utf-8")

    ended = subprocess.run(
        tied([sys.executable, str(program)]),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "checkpoint").is_dir()


@pytest.mark.forked
@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(900)  # four programs, each of which imports torch
def test_the_programs_of_the_serving_page_answer_alike(tmp_path: Path) -> None:
    for block in blocks(CHECKOUT / "docs" / "serving.md"):
        if named := re.match(r"# (\w+\.py)\n", block):
            (tmp_path / named[1]).write_text(block, encoding="utf-8")

    answers = []
    for name in ("train.py", "serve.py", "to_program.py", "run_program.py"):
        ended = subprocess.run(
            tied([sys.executable, name]),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        if ended.stdout:
            answers.append(json.loads(ended.stdout))

    assert len(answers) == 3
    for answer in answers[1:]:
        assert answer == pytest.approx(answers[0], abs=1e-6)


def test_the_configuration_of_the_migration_page_is_read(tmp_path: Path) -> None:
    (text,) = YAML_BLOCK.findall(MIGRATION.read_text(encoding="utf-8"))
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")

    config = read_config(path).read_as(CtrParameters)

    assert config.runner.sync_mode == "geo"


def test_every_variable_that_names_a_file_of_a_secret_is_on_the_configuration_page() -> None:
    page = (CHECKOUT / "docs" / "configuration.md").read_text(encoding="utf-8")
    secrets = [option.name for option in options_of(JobSettings) if option.secret]

    assert secrets
    for name in secrets:
        rows = [line for line in page.splitlines() if line.startswith(f"| `{name}` |")]
        assert rows
        assert all(f"`PARAMFLEET_{name.upper()}_FILE`" in row for row in rows)

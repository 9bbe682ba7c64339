"""The site has every page, all that is public, and no link that leads nowhere."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.architecture.test_pages import script

import paramfleet as fleet
from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.processes.keeping import tied

CHECKOUT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["api_page", "cli_page", "idioms_page"])
def test_a_generated_page_is_fresh(name: str) -> None:
    page = script(name)

    written = page.PAGE.read_text(encoding="utf-8")

    assert written == page.render(), "run: make docs"


def test_links_lead_to_where_the_site_has_a_file() -> None:
    relinked = script("site_pages").relinked
    there = {"repository/benchmarks/README.md", "repository/models/README.md"}

    def of(text: str, uri: str) -> str:
        found: str = relinked(text, uri=uri, there=there)
        return found

    assert (
        of("[a](../benchmarks/README.md#x)", "a.md") == "[a](repository/benchmarks/README.md#x)"
    )
    assert of("[a](../../models/README.md)", "tutorials/a.md") == (
        "[a](../repository/models/README.md)"
    )
    assert of("[a](../docs/modes.md)", "repository/models/README.md") == "[a](../../modes.md)"
    assert of("[a](../README.md)", "a.md") == "[a](index.md)"
    assert of("[`a`](../pyproject.toml)", "a.md") == "`a`"  # a file that the site doesn't show
    assert of("[a](b.md#c)", "a.md") == "[a](b.md#c)"
    assert of("[a](../nowhere.md)", "a.md") == "[a](../nowhere.md)"  # MkDocs reports it
    assert of("[a](https://example.com/b)", "a.md") == "[a](https://example.com/b)"


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir"]

    built = subprocess.run(
        tied([*command, str(tmp_path)]),
        cwd=CHECKOUT,
        env=read_environment() | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert built.returncode == 0, built.stderr[-4000:]
    api = (tmp_path / "api.html").read_text(encoding="utf-8")
    modules = ("data", "nn", "optim", "serving", "text")
    absent = [name for name in fleet.__all__ if f"fleet.{name}" not in api]
    assert not [name for name in absent if name not in modules]
    assert (tmp_path / "repository" / "benchmarks" / "results" / "index.html").is_file()

"""What the site has beside ``docs/``: a hook of MkDocs, which ``mkdocs.yml`` names.

Pages link to files elsewhere in the repository, as ``../benchmarks/README.md``. On the site
those of ``SHOWN`` are pages, too, below ``repository/``. A link to any other file, such as a
module, becomes its text: the site has no such page.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

__all__ = ["SHOWN", "on_files", "on_page_markdown", "relinked"]

CHECKOUT = Path(__file__).parents[1]
BELOW = "repository"
"""The folder of the site for what is outside of ``docs/``."""

SHOWN = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "benchmarks/**/*.md",
    "benchmarks/results/*.png",
    "examples/*/README.md",
    "models/**/README.md",
)
"""Patterns of files outside of ``docs/`` that the site shows."""

MOVED = {"README.md": "docs/index.md"}
"""Files that the site shows as another page."""

_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#:]+)(#[^)\s]*)?\)")


def _shown() -> Iterator[str]:
    for pattern in SHOWN:
        for path in sorted(CHECKOUT.glob(pattern)):
            yield path.relative_to(CHECKOUT).as_posix()


def on_files(files: Files, /, *, config: MkDocsConfig) -> Files:
    """Add the files of ``SHOWN``."""
    for path in _shown():
        source = str(CHECKOUT / path)
        files.append(File.generated(config, f"{BELOW}/{path}", abs_src_path=source))
    return files


def on_page_markdown(markdown: str, /, *, page: Page, files: Files, **_: object) -> str:
    """Return the page with links that lead to what the site has."""
    return relinked(markdown, uri=page.file.src_uri, there=set(files.src_uris))


def relinked(markdown: str, *, uri: str, there: set[str]) -> str:
    """Return a page's text with links that lead to what the site has.

    Args:
        markdown: The text, with links that hold in the repository.
        uri: Where the page is on the site.
        there: Where all of the site's files are.
    """
    own = uri.removeprefix(f"{BELOW}/") if uri.startswith(f"{BELOW}/") else f"docs/{uri}"

    def link(found: re.Match[str]) -> str:
        mark, text, target, anchor = found[1], found[2], found[3], found[4] or ""
        path = posixpath.normpath(posixpath.join(posixpath.dirname(own), target))
        path = MOVED.get(path, path)
        on_site = path.removeprefix("docs/") if path.startswith("docs/") else f"{BELOW}/{path}"
        if path.startswith("docs/") or on_site in there:  # a wrong one is MkDocs' to report
            relative = posixpath.relpath(on_site, posixpath.dirname(uri) or ".")
            return f"{mark}[{text}]({relative}{anchor})"
        return text if (CHECKOUT / path).exists() else found[0]

    return _LINK.sub(link, markdown)

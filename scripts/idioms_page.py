"""Write ``docs/pytorch.md`` from the records of ``tests/idioms``: ``make docs``.

``tests/idioms`` measures each cell and compares it with its record; a test compares the page
with the records.
"""

from tests.idioms.page import PAGE, render

__all__ = ["PAGE", "render"]

if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")

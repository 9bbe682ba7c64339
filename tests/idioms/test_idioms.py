"""Each idiom has in each mode the outcome that its record, and so the page, says."""

from typing import Any

import pytest
from tests.idioms.measurement import measure, verdict
from tests.idioms.page import MODES_OF_PAGE
from tests.idioms.record import IDIOMS, MODES
from tests.idioms.rows import load

load()


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize("name", IDIOMS)
def test_an_idiom_has_in_each_mode_the_outcome_of_its_record(jobs: Any, name: str) -> None:
    record = IDIOMS[name]

    measured = measure(record, jobs, MODES)

    problems = {
        mode: verdict(record.cell(mode), found, bound=record.bound)
        for mode, found in measured.items()
    }
    assert not {mode: problem for mode, problem in problems.items() if problem}


def test_the_page_has_a_column_for_each_mode() -> None:
    assert tuple(MODES_OF_PAGE) == MODES

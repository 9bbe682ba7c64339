"""Kernels that step rows one by one."""

from typing import Any

import pytest

from paramfleet_shared.tables.kernels.replica import step_slots
from paramfleet_shared.tables.kernels.stepping.steps import step_chains, step_rows


@pytest.mark.parametrize("kernel", [step_slots, step_rows, step_chains])
def test_a_kernel_that_steps_rows_counts_no_references_to_arrays(kernel: Any) -> None:
    # Counts are atomic instructions: where a rule's part is a call, they are most of a
    # row's time.
    assert kernel.targetoptions["_nrt"] is False

"""What the records of formats say is true of torch's and numpy's numbers, too."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from paramfleet_shared.tables.codecs.catalog import CODECS, WIRE_DTYPES, WireDtype
from paramfleet_shared.tables.encoding import answer_dtype, narrowest


@pytest.mark.parametrize("name", WIRE_DTYPES)
def test_a_record_says_what_torch_says_of_the_numbers(name: WireDtype) -> None:
    codec = CODECS[name]
    dtype: torch.dtype = getattr(torch, codec.torch_dtype)

    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    assert codec.name == name
    assert codec.largest == limits.max
    assert np.dtype(codec.stored).itemsize == dtype.itemsize


def test_a_format_is_not_marked_as_packed_ids_are() -> None:
    with pytest.raises(AssertionError, match="packed ids"):
        replace(CODECS["float8_e4m3"], stored="uint8")


@pytest.mark.parametrize("name", WIRE_DTYPES)
def test_what_a_format_is_replaced_by_is_no_larger_and_finer(name: WireDtype) -> None:
    thin, answered = narrowest(name, 1), answer_dtype(name)

    sizes = [np.dtype(CODECS[each].stored).itemsize for each in (name, thin, answered)]
    scale = int(CODECS[name].has_scales)
    assert sizes[0] + scale >= sizes[1]
    assert sizes[2] >= sizes[0]
    assert not CODECS[thin].has_scales
    assert not CODECS[answered].has_scales

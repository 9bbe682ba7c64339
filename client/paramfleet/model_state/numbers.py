"""Which numbers a model's parameters and buffers may hold in a checkpoint or an export.

What is learned is finite, as in the tables of a job. So are running statistics: one value that
isn't makes every output of its layer NaN, and no later batch mends it. A negative variance does
that, too. Other buffers, and parameters that aren't trained, may hold infinities on purpose, as
masks of attention do. NaN is never meant.
"""

import torch

__all__ = ["wrong_numbers"]

_STATISTICS = frozenset({"running_mean", "running_var"})
"""Torch's names for those of its normalizations."""


def wrong_numbers(name: str, tensor: torch.Tensor, *, is_learned: bool = False) -> str | None:
    """Return what is wrong with the numbers of a tensor, None if nothing is.

    Args:
        name: As in the model's ``state_dict``.
        tensor: Of any shape and dtype, with numbers.
        is_learned: Whether it is a parameter that is trained.
    """
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return None
    if tensor.itemsize == 1:  # torch has no such test for float8
        tensor = tensor.to(torch.float32)
    own = name.rpartition(".")[2]
    if is_learned or own in _STATISTICS:
        if not bool(tensor.isfinite().all()):
            return "holds infinities or NaN"
        is_negative = not tensor.is_complex() and bool((tensor < 0).any())
        return "holds negative variances" if own == "running_var" and is_negative else None
    return "holds NaN" if bool(tensor.isnan().any()) else None

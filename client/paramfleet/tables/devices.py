"""Between this process's memory and the device that the model is on.

What goes to a CUDA device lies in page-locked memory first: the device then fetches it by
itself, and the training thread goes on meanwhile. What comes from one is written into such
memory, without a stop in between.

The page-locked memory is torch's. It keeps what is freed by size, and an event behind each
copy guards that it isn't handed out again before the copy has ended, whichever thread freed
it.
"""

import torch

__all__ = ["to_device", "to_host"]


def to_device(
    tensor: torch.Tensor, device: torch.device, *, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Return a tensor of the host on a device, and wait for no copy.

    Args:
        tensor: On the host, or there already. The result shares its memory if nothing has to
            change; else it may be written to as soon as this returns.
        device: Where to.
        dtype: Of the result, converted there; None for that of ``tensor``.
    """
    if device.type == "cuda" and tensor.is_cpu:
        tensor = tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device=device, dtype=dtype or tensor.dtype)


def to_host(tensor: torch.Tensor, *, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor without its gradient in the host's memory, contiguous, complete.

    Args:
        tensor: On any device. The result shares its memory if nothing has to change.
        dtype: Of the result, converted on the device.
    """
    if tensor.is_cpu and tensor.dtype == dtype:  # the rest takes four times as long
        return tensor.detach().contiguous()
    found = tensor.detach().to(dtype).contiguous()
    if found.device.type == "cuda":
        pinned = torch.empty(found.shape, dtype=dtype, pin_memory=True)
        return pinned.copy_(found)
    return found.to("cpu")

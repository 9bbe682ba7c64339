"""The states of a process's random generators, as plain values.

They are torch's of the CPU and of the worker's GPU, Python's ``random`` and NumPy's global
one. A generator that a script makes is its own: it is registered, or made anew.
"""

import random
from typing import Any

import msgpack
import numpy as np
import torch

__all__ = [
    "check_random",
    "packed_random",
    "random_states",
    "restore_random",
    "unpacked_random",
]


def random_states(device: torch.device) -> dict[str, Any]:
    """Return the states of this process's generators.

    Args:
        device: This worker's.
    """
    version, numbers, gauss = random.getstate()
    found: Any = np.random.get_state(legacy=True)
    kind, key, place, has_gauss, cached = found
    states = {
        "python": [version, torch.tensor(numbers), gauss],
        "numpy": [str(kind), torch.from_numpy(key.astype(np.int64)), place, has_gauss, cached],
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def packed_random(device: torch.device) -> bytes:
    """Return the same as bytes, in a tenth of the time: a change may carry it in each step.

    Args:
        device: This worker's.
    """
    version, numbers, gauss = random.getstate()
    found: Any = np.random.get_state(legacy=True)
    kind, key, place, has_gauss, cached = found
    states = {
        "python": [version, np.array(numbers, np.uint32).tobytes(), gauss],
        "numpy": [str(kind), key.tobytes(), place, has_gauss, cached],
        "torch": torch.get_rng_state().numpy().tobytes(),
    }
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device).numpy().tobytes()
    packed: bytes = msgpack.packb(states)
    return packed


def unpacked_random(packed: bytes) -> dict[str, Any]:
    """Return the states that ``packed_random`` packed."""
    states = msgpack.unpackb(packed)
    version, numbers, gauss = states["python"]
    kind, key, place, has_gauss, cached = states["numpy"]
    found: dict[str, Any] = {
        "python": [version, _numbers_of(numbers), gauss],
        "numpy": [kind, _numbers_of(key), place, has_gauss, cached],
    }
    for name in states.keys() & {"torch", "cuda"}:
        found[name] = torch.frombuffer(bytearray(states[name]), dtype=torch.uint8)
    return found


def _numbers_of(data: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(data, np.uint32).astype(np.int64))


def check_random(states: Any, device: torch.device) -> None:
    """Pass if the generators can take these states; nothing is changed.

    Raises:
        ValueError: if they can't.
    """
    try:
        random.Random().setstate(_of_python(states))  # noqa: S311 - nothing secret
        np.random.RandomState().set_state(_of_numpy(states))
        torch.Generator().set_state(states["torch"])
        if device.type == "cuda" and "cuda" in states:
            torch.Generator(device).set_state(states["cuda"])
    except (AttributeError, LookupError, OverflowError, RuntimeError, TypeError) as error:
        problem = f"the states of the random generators don't fit: {error!r}"
        raise ValueError(problem) from error


def restore_random(states: Any, device: torch.device) -> None:
    """Let the generators go on where ``random_states`` was called.

    Args:
        states: ``check_random`` has passed.
        device: This worker's.
    """
    random.setstate(_of_python(states))
    np.random.set_state(_of_numpy(states))
    torch.set_rng_state(states["torch"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


def _of_python(states: Any) -> tuple[Any, ...]:
    version, numbers, gauss = states["python"]
    return version, tuple(numbers.tolist()), gauss


def _of_numpy(states: Any) -> tuple[Any, ...]:
    kind, key, place, has_gauss, cached = states["numpy"]
    return kind, key.numpy().astype(np.uint32), place, has_gauss, cached

"""The kernels of skip-gram: the pairs of a batch, and their loss with what it moves.

A batch of n words has for each word its reach; the words that are at most so far away are
its contexts, a pair with each, in the order of the text. Sums are taken in the same order
everywhere.
"""

import math
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]  # llvmlite ships no types
from numba import types
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.basics.compiled import inlined, uncounted
from paramfleet_shared.tables.kernels.basics.lanes import (
    LANES,
    LANES_TYPE,
    instruction,
    load_lanes,
    spread,
    store_lanes,
)

__all__ = ["list_pairs", "num_pairs", "walk"]

_LARGE = 1e200
"""A product of numbers up to 2 that still can be doubled."""


@instruction
def _all_lanes(_typing: Any, _value: Any) -> Any:
    """Return a float in every lane."""

    def generate(_context: Any, builder: Any, _sig: Any, args: Any) -> Any:
        return spread(builder, args[0])

    return LANES_TYPE(types.float32), generate


@instruction
def _sum_lanes(_typing: Any, _lanes: Any) -> Any:
    """Return the sum of the lanes: of their halves, of those halves, and so on."""

    def generate(_context: Any, builder: Any, _sig: Any, args: Any) -> Any:
        (vector,), size = args, LANES
        index = ir.IntType(32)
        while size > 1:
            size //= 2
            nothing = ir.Constant(vector.type, ir.Undefined)
            halves = [
                builder.shuffle_vector(
                    vector, nothing, ir.Constant(ir.VectorType(index, size), list(places))
                )
                for places in (range(size), range(size, 2 * size))
            ]
            vector = builder.fadd(*halves)
        return builder.extract_element(vector, index(0))

    return types.float32(LANES_TYPE), generate


@uncounted
def num_pairs(reaches: NDArray[np.int64]) -> int:
    """Return how many pairs a batch has."""
    count, size = 0, reaches.size
    for at in range(size):
        count += min(at + reaches[at], size - 1) - max(at - reaches[at], 0)
    return count


@uncounted
def list_pairs(
    reaches: NDArray[np.int64], centres: NDArray[np.int64], contexts: NDArray[np.int64]
) -> None:
    """Write the places of each pair's words, [pairs] each."""
    pair, size = 0, reaches.size
    for at in range(size):
        for other in range(max(at - reaches[at], 0), min(at + reaches[at], size - 1) + 1):
            if other != at:
                centres[pair], contexts[pair] = at, other
                pair += 1


@inlined
def _dot(left: Any, at: Any, right: Any, to: Any, dim: Any) -> Any:
    first, second = _all_lanes(np.float32(0)), _all_lanes(np.float32(0))
    done = 0
    while done + 2 * LANES <= dim:
        first = first + load_lanes(left, at + done) * load_lanes(right, to + done)
        other = load_lanes(left, at + done + LANES) * load_lanes(right, to + done + LANES)
        second = second + other
        done += 2 * LANES
    if done + LANES <= dim:
        first = first + load_lanes(left, at + done) * load_lanes(right, to + done)
        done += LANES
    total = _sum_lanes(first + second)
    while done < dim:
        total += left[at + done] * right[to + done]
        done += 1
    return total


@inlined
def _pull(factor: Any, own: Any, other: Any, pull: Any, dim: Any) -> Any:
    """``pull += factor * other rows; other sums += factor * own rows``.

    Args:
        factor: How much.
        own: Rows, and where in them.
        other: Rows, sums, and where in both.
        pull: float32 [D].
        dim: D.
    """
    rows, at = own
    others, sums, to = other
    whole = dim - dim % LANES
    for done in range(0, whole, LANES):
        pulled = load_lanes(pull, done) + factor * load_lanes(others, to + done)
        moved = load_lanes(sums, to + done) + factor * load_lanes(rows, at + done)
        store_lanes(pull, done, pulled)
        store_lanes(sums, to + done, moved)
    for done in range(whole, dim):
        pulled_one = pull[done] + factor * others[to + done]
        sums[to + done] += factor * rows[at + done]
        pull[done] = pulled_one


@inlined
def _settle(pull: Any, sums: Any, at: Any, dim: Any) -> Any:
    """``sums += pull; pull = 0``."""
    whole = dim - dim % LANES
    nothing = _all_lanes(np.float32(0))
    for done in range(0, whole, LANES):
        store_lanes(sums, at + done, load_lanes(sums, at + done) + load_lanes(pull, done))
        store_lanes(pull, done, nothing)
    for done in range(whole, dim):
        sums[at + done] += pull[done]
        pull[done] = np.float32(0)


@uncounted
def _pair(
    inputs: tuple[Any, Any, Any],
    outputs: tuple[Any, Any, Any],
    pull: Any,
    factor: Any,
) -> Any:
    """Move the rows of one pair; returns its loss."""
    rows, sums, at = inputs
    others, other_sums, targets = outputs
    dim = pull.size
    loss, product = np.float64(0), np.float64(1)
    for each in range(targets.size):
        if each > 0 and targets[each] == targets[0]:
            continue
        to = targets[each] * dim
        score = _dot(rows, at, others, to, dim)
        shrunk = np.float32(math.exp(-abs(score)))
        chance = (np.float32(1) if score >= 0 else shrunk) / (np.float32(1) + shrunk)
        wrong = -score if each == 0 else score
        loss += max(wrong, np.float32(0))
        product *= 1.0 + shrunk
        if product > _LARGE:
            loss += math.log(product)
            product = np.float64(1)
        wanted = np.float32(1) if each == 0 else np.float32(0)
        _pull(factor * (wanted - chance), (rows, at), (others, other_sums, to), pull, dim)
    _settle(pull, sums, at, dim)
    return loss + math.log(product)


@uncounted
def walk(
    inputs: tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]],
    outputs: tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]],
    reaches: NDArray[np.int64],
    pull: NDArray[np.float32],
    factor: np.float32,
) -> float:
    """Go through the pairs of a batch; each adds to ``sums`` what lowers its loss.

    That is ``-factor`` times the gradient. Where ``sums`` are the rows themselves, a pair
    sees what those before it have moved.

    Args:
        inputs: Flat rows, their sums, and each word's row, int64 [n].
        outputs: Flat rows, their sums, and each target's row, int64 [n, K].
        reaches: int64 [n].
        pull: float32 [D], all zeros.
        factor: How far a gradient moves a row.

    Returns:
        The loss of all pairs.
    """
    rows, sums, index = inputs
    others, other_sums, targets = outputs
    size, loss = reaches.size, 0.0
    for at in range(size):
        of_word = (others, other_sums, targets[at])
        for other in range(max(at - reaches[at], 0), min(at + reaches[at], size - 1) + 1):
            if other != at:
                of_context = (rows, sums, index[other] * pull.size)
                loss += _pair(of_context, of_word, pull, factor)
    return loss

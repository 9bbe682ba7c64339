"""Hashes of ids and of counters, exact in 64 bits on every machine."""

import numpy as np

from paramfleet_shared.tables.kernels.basics.compiled import inlined

__all__ = ["counter_bits", "mix", "shard_of"]

_MIX_1 = np.uint64(0xFF51AFD7ED558CCD)
_MIX_2 = np.uint64(0xC4CEB9FE1A85EC53)
_STEP = np.uint64(0x9E3779B97F4A7C15)
_SPLIT_1 = np.uint64(0xBF58476D1CE4E5B9)
_SPLIT_2 = np.uint64(0x94D049BB133111EB)
_27, _30, _31, _33 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(33)
_ONE = np.uint64(1)
_SHARD_MASK = np.uint64(0xFFFF)
_16, _32 = np.uint64(16), np.uint64(32)


@inlined
def mix(key: np.uint64) -> np.uint64:
    """Return murmur3's 64-bit finaliser of ``key``.

    Identity or a Fibonacci multiply collapse on the shapes ids have in practice:
    strides, a feature number in the high bits, multiples of the number of shards.
    """
    key ^= key >> _33
    key *= _MIX_1
    key ^= key >> _33
    key *= _MIX_2
    key ^= key >> _33
    return key


@inlined
def shard_of(mixed: np.uint64, num_shards: int) -> np.uint64:
    """Return the shard of the key whose ``mix`` this is, from 16 bits of it."""
    bits = (mixed >> _32) & _SHARD_MASK
    return (bits * np.uint64(num_shards)) >> _16


@inlined
def counter_bits(base: np.uint64, counter: int) -> np.uint64:
    """Return 64 random bits, the ``counter``-th of the stream ``base`` (splitmix64)."""
    bits = base + (np.uint64(counter) + _ONE) * _STEP
    bits = (bits ^ (bits >> _30)) * _SPLIT_1
    bits = (bits ^ (bits >> _27)) * _SPLIT_2
    return bits ^ (bits >> _31)

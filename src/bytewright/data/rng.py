"""Pseudo-random orders and keys without state: each value is a function of its arguments alone.

`Permutation` maps a position of an epoch to an example without a shuffled list. Its memory does not grow with
the data, and resuming at any step needs no saved state. `mix_key` derives independent keys, for example for
each epoch or for the initial weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from jaxtyping import Int, Int64

NUM_ROUNDS = 8
"""Each half of a position is mixed four times; four rounds in all already pass the tests of uniformity."""


@dataclass(frozen=True)
class Permutation:
    """A bijection on 0 … size-1, selected by `key` and computed for each position separately.

    A position is split into `high * width + low`. In turn, a hash of each half is added to the other half,
    modulo the other half's range. This is a Feistel network on two nearly equal ranges. Each round can be
    inverted, so the result is a bijection on `width * height ≥ size` numbers. A result that is not below
    `size` is mapped again until it is. This follows a cycle of the bijection, so it is again a bijection.

    >>> sorted(Permutation(10, key=7)(np.arange(10)).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """

    size: int
    key: int

    def __call__(self, positions: Int[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """Return the image of each position."""
        images = self._mix(positions.astype(np.uint64))
        while (outside := images >= self.size).any():
            images[outside] = self._mix(images[outside])
        return images.astype(np.int64)

    def _mix(self, positions: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        width = max(math.isqrt(self.size - 1) + 1, 2)
        height = max(-(-self.size // width), 2)
        high, low = np.divmod(positions, np.uint64(width))
        for number in range(0, NUM_ROUNDS, 2):
            low = (low + _hash(high, self.key, number)) % np.uint64(width)
            high = (high + _hash(low, self.key, number + 1)) % np.uint64(height)
        mixed: npt.NDArray[np.uint64] = high * np.uint64(width) + low
        return mixed


def _hash(values: npt.NDArray[np.uint64], key: int, number: int) -> npt.NDArray[np.uint64]:
    """Hash to 32 bits, so that adding a half cannot overflow; each key and round has its own function."""
    mixed = values + np.uint64(mix_key(key, number))  # wraps around on purpose
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)  # the finaliser of splitmix64
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    hashed: npt.NDArray[np.uint64] = (mixed ^ (mixed >> np.uint64(31))) >> np.uint64(32)
    return hashed


def mix_key(*parts: int) -> int:
    """Hash numbers into one 64-bit key; it depends on their order.

    >>> len({mix_key(seed, epoch) for seed in range(30) for epoch in range(30)})
    900
    """
    key = 0
    for part in parts:
        key = (key ^ (part % 2**64)) + 0x9E3779B97F4A7C15 & 2**64 - 1
        key = (key ^ key >> 30) * 0xBF58476D1CE4E5B9 & 2**64 - 1
        key = (key ^ key >> 27) * 0x94D049BB133111EB & 2**64 - 1
        key ^= key >> 31
    return key


def shuffle_epochs(places: Int64[np.ndarray, " batch"], size: int, seed: int) -> Int64[np.ndarray, " batch"]:
    """Return which of `size` items is at each place; place `size` is the first of the second epoch.

    >>> shuffle_epochs(np.arange(12), size=4, seed=0).reshape(3, 4).tolist()
    [[2, 1, 0, 3], [3, 1, 0, 2], [0, 2, 3, 1]]
    """
    epochs, positions = np.divmod(places, size)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        positions[here] = Permutation(size, mix_key(seed, int(epoch)))(positions[here])
    return positions

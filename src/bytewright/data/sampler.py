"""Which tokens a step trains on: a pure function of (data, seed, step, rank), and nothing else.

The corpus is cut into windows of `context_length` tokens, side by side; the targets of a window are its
tokens moved by one. `WindowSampler` gives every window once per epoch, in a fresh order each epoch, and
splits every batch between ranks without overlap. The order is not a shuffled list but a keyed bijection that
maps a position to a window, so it takes no memory whatever the size of the corpus, and any step can be asked
for at any time: resuming needs no state at all. `get_batch` draws windows at random with replacement, as the
textbook has it.

This module knows nothing of files or models: tokens are any one-dimensional array of uint16 or uint32 ids.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Int, Int64
from torch import Tensor

from bytewright.errors import UsageError

Tokens = npt.NDArray[np.unsignedinteger] | npt.NDArray[np.signedinteger]
Batch = tuple[Int64[Tensor, "batch context"], Int64[Tensor, "batch context"]]

NUM_ROUNDS = 8
"""Each half of a position is mixed four times; four rounds in all already pass the tests of uniformity."""


def get_batch(
    tokens: Tokens | Sequence[int] | Int[Tensor, " tokens"],
    batch_size: int,
    context_length: int,
    device: torch.device | str,
    *,
    generator: np.random.Generator | None = None,
) -> tuple[Int64[Tensor, "batch context"], Int64[Tensor, "batch context"]]:
    """Draw `batch_size` random windows with replacement: (inputs, targets), each (batch, context).

    `tokens` is one sequence of ids: an array, a memory map, a tensor on the CPU or a list.

    >>> inputs, targets = get_batch(np.arange(100, dtype=np.uint16), 4, 8, "cpu")
    >>> inputs.shape, bool((targets == inputs + 1).all())
    (torch.Size([4, 8]), True)
    """
    array = np.asarray(tokens)
    if array.dtype.kind not in "iu":
        raise UsageError(f"tokens must be integers, but these are {array.dtype}")
    if array.ndim != 1:
        raise UsageError(f"tokens must have one dimension, but have the shape {array.shape}")
    for name, value in (("batch_size", batch_size), ("context_length", context_length)):
        if value < 1:
            raise UsageError(f"{name} must be at least 1, but is {value}")
    num_starts = len(array) - context_length
    if num_starts < 1:
        raise UsageError(_too_short(len(array), context_length))
    generator = generator or np.random.default_rng()
    starts = generator.integers(num_starts, size=batch_size)
    windows = gather_windows(array, starts, context_length)
    if windows.min() < 0:
        raise UsageError(f"tokens must be from 0 to 2^63 - 1, but one is {windows.min()} as a 64-bit integer")
    return split_windows(torch.from_numpy(windows).to(device))


def gather_windows(
    tokens: Tokens, starts: Int64[np.ndarray, " batch"], context_length: int
) -> Int64[np.ndarray, "batch window"]:
    """Copy the `context_length + 1` tokens from each start: a window and the one token after it.

    >>> gather_windows(np.array([5, 6, 7, 8, 9], dtype=np.uint16), np.array([0, 2]), 2).tolist()
    [[5, 6, 7], [7, 8, 9]]
    """
    windows: npt.NDArray[np.int64] = tokens[starts[:, None] + np.arange(context_length + 1)].astype(np.int64)
    return windows


def split_windows(windows: Int64[Tensor, "batch window"]) -> Batch:
    """Split windows of n + 1 tokens into n inputs and the n targets that follow them, both contiguous."""
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


@dataclass(frozen=True)
class Permutation:
    """A bijection on 0 … size-1, chosen by `key`, computed for any position on its own.

    A position is split as `high * width + low`; in turn each half is shifted by a hash of the other, modulo
    its own range (a Feistel network on two nearly equal ranges), which can be undone and so is a bijection on
    `width * height ≥ size` numbers. A result beyond `size` is sent through again until it falls inside: the
    walk along a cycle of a bijection, itself a bijection.

    >>> sorted(Permutation(10, key=7)(np.arange(10)).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """

    size: int
    key: int

    def __call__(self, positions: Int[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """Where each position goes."""
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
    """Hash to 32 bits, so that adding a half cannot overflow; a different function for each key and round."""
    mixed = values + np.uint64(mix_key(key, number))  # wraps around, as it should
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)  # the finaliser of splitmix64
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    hashed: npt.NDArray[np.uint64] = (mixed ^ (mixed >> np.uint64(31))) >> np.uint64(32)
    return hashed


def mix_key(*parts: int) -> int:
    """Fold numbers into one 64-bit key; the order counts, and close numbers give keys that are far apart.

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
    """Say what of `size` things stands at places counted from the first epoch on, each shuffled by itself.

    >>> shuffle_epochs(np.arange(12), size=4, seed=0).reshape(3, 4).tolist()
    [[2, 1, 0, 3], [3, 1, 0, 2], [0, 2, 3, 1]]
    """
    epochs, positions = np.divmod(places, size)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        positions[here] = Permutation(size, mix_key(seed, int(epoch)))(positions[here])
    return positions


@dataclass(frozen=True, kw_only=True)
class WindowSampler:
    """Which windows a step sees: every window once per epoch, in an order that `seed` and the epoch decide.

    A batch that reaches the end of an epoch continues in the next. Ranks take neighbouring shares of the same
    global batch, so with the global batch held constant the tokens of a step do not depend on how many ranks
    there are.

    >>> sampler = WindowSampler(num_tokens=13, context_length=3, batch_size=2, seed=0)
    >>> sampler.num_windows
    4
    >>> sorted(sampler.windows(0).tolist() + sampler.windows(1).tolist())
    [0, 1, 2, 3]
    """

    num_tokens: int
    context_length: int
    batch_size: int
    seed: int
    rank: int = 0
    num_ranks: int = 1

    def __post_init__(self) -> None:
        if self.num_windows < 1:
            raise UsageError(_too_short(self.num_tokens, self.context_length))
        if self.batch_size < 1:
            raise UsageError(f"batch_size is {self.batch_size}; a batch holds at least one window")
        if not 0 <= self.rank < self.num_ranks:
            raise UsageError(f"rank {self.rank} is outside the range 0 to {self.num_ranks - 1}")

    @property
    def num_windows(self) -> int:
        """Windows in an epoch; the last needs one token after it to predict."""
        return (self.num_tokens - 1) // self.context_length

    def windows(self, step: int) -> Int64[np.ndarray, " batch"]:
        """Give the numbers of the windows that this rank sees at `step`, counted from 0."""
        first = (step * self.num_ranks + self.rank) * self.batch_size
        return shuffle_epochs(np.arange(first, first + self.batch_size), self.num_windows, self.seed)

    def starts(self, step: int) -> Int64[np.ndarray, " batch"]:
        """Give the position of each window's first token."""
        return self.windows(step) * self.context_length


class TokenStore:
    """Tokens where batches are cut from: on the accelerator if they fit there, else in (mapped) host memory.

    On the accelerator they keep their two or four bytes each, and a batch is one gather there: only the
    starts travel. `max_resident_bytes` is the largest corpus that is moved; by default half of the free
    memory.
    """

    def __init__(
        self, tokens: Tokens, device: torch.device | str = "cpu", *, max_resident_bytes: int | None = None
    ) -> None:
        self.device = torch.device(device)
        self.host = tokens
        self.resident: Tensor | None = None
        if self.device.type == "cpu":
            return
        if max_resident_bytes is None:
            max_resident_bytes = _free_bytes(self.device) // 2
        if tokens.nbytes <= max_resident_bytes:
            # Gathers are not implemented for unsigned types everywhere: the same bits, seen as signed.
            signed = np.dtype(f"i{tokens.dtype.itemsize}")
            self.resident = torch.from_numpy(np.array(tokens).view(signed)).to(self.device)

    @property
    def num_resident_bytes(self) -> int:
        """How much memory of an accelerator the tokens take."""
        return 0 if self.resident is None else self.resident.nbytes

    def batch(self, starts: Int64[np.ndarray, " batch"], context_length: int) -> Batch:
        """Cut the windows at `starts` into (inputs, targets) on the device."""
        if self.resident is None:
            return split_windows(self._send(gather_windows(self.host, starts, context_length)))
        first = self._send(starts)
        windows = self.resident[first[:, None] + torch.arange(context_length + 1, device=self.device)]
        return split_windows(windows.long() & (256**self.host.dtype.itemsize - 1))

    def _send(self, numbers: npt.NDArray[np.int64]) -> Tensor:
        """Bring numbers to the device; a GPU fetches them itself, while the host goes on."""
        tensor = torch.from_numpy(numbers)
        if self.device.type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(self.device, non_blocking=True)


def side_by_side_starts(num_tokens: int, context_length: int) -> Int64[np.ndarray, " windows"]:
    """Return where windows begin that stand side by side; the last one has one more token to predict.

    >>> side_by_side_starts(31, 10).tolist()
    [0, 10, 20]
    """
    if num_tokens <= context_length:
        raise UsageError(_too_short(num_tokens, context_length))
    return np.arange(0, num_tokens - context_length, context_length)


def spread_evenly(starts: Int64[np.ndarray, " windows"], count: int) -> Int64[np.ndarray, " n"]:
    """Select `count` windows, spread evenly over all of them.

    >>> spread_evenly(np.arange(10), 4).tolist()
    [0, 2, 5, 7]
    """
    chosen: npt.NDArray[np.int64] = starts[np.arange(count) * len(starts) // count]
    return chosen


def in_batches(starts: Int64[np.ndarray, " n"], batch_size: int) -> Iterator[Int64[np.ndarray, " batch"]]:
    """Cut `starts` into batches; the last may be smaller."""
    for first in range(0, len(starts), batch_size):
        yield starts[first : first + batch_size]


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return 2**32  # mps shares the host's memory and has no such question; 4 GiB is modest on any of them


def _too_short(num_tokens: int, context_length: int) -> str:
    return (
        f"the data has {num_tokens} tokens, but a context of {context_length} needs at least "
        f"{context_length + 1}: one window and the token after it"
    )

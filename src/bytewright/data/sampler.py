"""Batches of training data: which tokens a step trains on, as a pure function of (data, seed, step).

A window is `context_length` tokens; its targets are the same tokens shifted by one. Two samplers choose the
windows of a step. Each uses every window once per epoch, in a new order each epoch, and needs no saved state:

- `WindowSampler` cuts the corpus into adjacent windows, wherever documents begin.
- `DocumentSampler` starts each window at a document. This suits documents shorter than the context: a window
  then contains its document from the beginning.

`get_batch` draws random windows with replacement. `TokenStore` copies windows to the device. Tokens are any
one-dimensional array of uint16 or uint32 ids. If a mask selects the tokens whose prediction counts, the
targets of all others are `IGNORED`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Int, Int64
from torch import Tensor

from bytewright import with_aliases
from bytewright.data.dataset import ShardedIds
from bytewright.data.rng import shuffle_epochs
from bytewright.errors import UsageError, wrong_value

IGNORED = -100
"""The target of a position that does not count in the loss, as in `torch.nn.functional.cross_entropy`."""

TOKENS_AT_ONCE = 2**24
"""Number of tokens that are searched at a time; bounds the memory."""

Tokens = npt.NDArray[np.unsignedinteger] | npt.NDArray[np.signedinteger]
Corpus = Tokens | ShardedIds
"""All tokens of a file or of a dataset."""
Batch = tuple[Int64[Tensor, "batch context"], Int64[Tensor, "batch context"]]


@with_aliases(dataset="tokens")
def get_batch(
    tokens: Tokens | Sequence[int] | Int[Tensor, " tokens"],
    batch_size: int,
    context_length: int,
    device: torch.device | str,
    *,
    generator: np.random.Generator | None = None,
) -> tuple[Int64[Tensor, "batch context"], Int64[Tensor, "batch context"]]:
    """Return inputs and targets, each (batch, context), of random windows drawn with replacement.

    `tokens` is one sequence of ids: an array, a memory map, a tensor on the CPU or a list.

    >>> inputs, targets = get_batch(np.arange(100, dtype=np.uint16), 4, 8, "cpu")
    >>> inputs.shape, bool((targets == inputs + 1).all())
    (torch.Size([4, 8]), True)
    """
    array = np.asarray(tokens)
    if array.dtype.kind not in "iu":
        raise wrong_value("tokens", "integers", array.dtype)
    if array.ndim != 1:
        raise wrong_value("tokens", "an array with one dimension", array.shape)
    for name, value in (("batch_size", batch_size), ("context_length", context_length)):
        if value < 1:
            raise wrong_value(name, "at least 1", value)
    num_starts = len(array) - context_length
    if num_starts < 1:
        raise _too_short(len(array), context_length)
    generator = generator or np.random.default_rng()
    starts = generator.integers(num_starts, size=batch_size)
    windows = gather_windows(array, starts, context_length)
    if windows.min() < 0:
        raise wrong_value("tokens", "from 0 to 2^63 - 1", int(windows.min()))
    return split_windows(torch.from_numpy(windows).to(device))


def gather_windows(
    tokens: Corpus, starts: Int64[np.ndarray, " batch"], context_length: int
) -> Int64[np.ndarray, "batch window"]:
    """Return the `context_length + 1` tokens from each start: a window and the token after it.

    >>> gather_windows(np.array([5, 6, 7, 8, 9], dtype=np.uint16), np.array([0, 2]), 2).tolist()
    [[5, 6, 7], [7, 8, 9]]
    """
    windows: npt.NDArray[np.int64] = tokens[starts[:, None] + np.arange(context_length + 1)].astype(np.int64)
    return windows


def split_windows(windows: Int64[Tensor, "batch window"]) -> Batch:
    """Return the first n tokens (inputs) and the last n tokens (targets) of windows of n + 1, contiguous."""
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


@dataclass(frozen=True, kw_only=True)
class WindowSampler:
    """The windows of each step: every window once per epoch, in an order that depends on `seed` and epoch.

    A batch that reaches the end of an epoch continues in the next one.

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

    def __post_init__(self) -> None:
        if self.num_windows < 1:
            raise _too_short(self.num_tokens, self.context_length)
        if self.batch_size < 1:
            raise wrong_value("batch_size", "at least 1", self.batch_size)

    @property
    def num_windows(self) -> int:
        """Number of windows in an epoch; each needs one token after it as the last target."""
        return (self.num_tokens - 1) // self.context_length

    def windows(self, step: int) -> Int64[np.ndarray, " batch"]:
        """Return the numbers of the windows of `step`; steps count from 0."""
        first = step * self.batch_size
        return shuffle_epochs(np.arange(first, first + self.batch_size), self.num_windows, self.seed)

    def starts(self, step: int) -> Int64[np.ndarray, " batch"]:
        """Return the position of each window's first token."""
        return self.windows(step) * self.context_length


@dataclass(frozen=True, kw_only=True)
class DocumentSampler:
    """The documents of each step; a window that is longer than its document continues with the next one.

    >>> sampler = DocumentSampler(first_tokens=np.array([1, 4, 9, 12]), batch_size=2, seed=0)
    >>> sorted(sampler.starts(0).tolist() + sampler.starts(1).tolist())
    [1, 4, 9, 12]
    """

    first_tokens: Int64[np.ndarray, " documents"]
    batch_size: int
    seed: int

    def __post_init__(self) -> None:
        if not len(self.first_tokens):
            message = "no window can start at a document: no end token has a whole window after it"
            raise UsageError(message, key="first_tokens")

    def windows(self, step: int) -> Int64[np.ndarray, " batch"]:
        """Return the numbers of the documents of `step`; steps count from 0."""
        first = step * self.batch_size
        return shuffle_epochs(np.arange(first, first + self.batch_size), len(self.first_tokens), self.seed)

    def starts(self, step: int) -> Int64[np.ndarray, " batch"]:
        """Return the position of each window's first token."""
        first_tokens: npt.NDArray[np.int64] = self.first_tokens[self.windows(step)]
        return first_tokens


def find_documents(tokens: Corpus, end: int, context_length: int) -> Int64[np.ndarray, " documents"]:
    """Return where a window starts for each document: at the end token before it.

    Documents without a whole window after that token are left out. So is the first document of a file, which
    has no end token before it.

    >>> find_documents(np.array([5, 0, 6, 7, 0, 8, 0, 9], dtype=np.uint16), end=0, context_length=3).tolist()
    [1, 4]
    """
    found = [
        start + np.flatnonzero(tokens[start : start + TOKENS_AT_ONCE] == end)
        for start in range(0, len(tokens), TOKENS_AT_ONCE)
    ]
    ends = np.concatenate([np.empty(0, np.int64), *found])
    return ends[ends + context_length < len(tokens)].astype(np.int64)


class TokenStore:
    """The tokens of a corpus, and their mask, on the accelerator if they fit, else in (mapped) host memory.

    On the accelerator a token uses two or four bytes, as in the file, and a batch is one gather: only the
    starts are transferred. Corpora above `max_resident_bytes` stay on the host (by default half of the free
    memory).
    """

    def __init__(
        self,
        tokens: Corpus,
        device: torch.device | str = "cpu",
        *,
        mask: npt.NDArray[np.uint8] | None = None,
        max_resident_bytes: int | None = None,
    ) -> None:
        self.device = torch.device(device)
        self.host, self.host_mask = tokens, mask
        self.resident: Tensor | None = None
        self.resident_mask: Tensor | None = None
        if self.device.type == "cpu":
            return
        if max_resident_bytes is None:
            max_resident_bytes = _free_bytes(self.device) // 2
        if tokens.nbytes + (0 if mask is None else mask.nbytes) <= max_resident_bytes:
            # Not every device can gather unsigned types, so the same bits are stored as signed integers.
            signed = np.dtype(f"i{tokens.dtype.itemsize}")
            self.resident = torch.from_numpy(np.array(tokens).view(signed)).to(self.device)
            if mask is not None:
                self.resident_mask = torch.from_numpy(np.array(mask)).to(self.device)

    @property
    def num_resident_bytes(self) -> int:
        """Bytes of accelerator memory that the tokens use."""
        return sum(part.nbytes for part in (self.resident, self.resident_mask) if part is not None)

    def batch(self, starts: Int64[np.ndarray, " batch"], context_length: int) -> Batch:
        """Return inputs and targets of the windows at `starts`, on the device."""
        if self.resident is None:
            inputs, targets = split_windows(self._send(gather_windows(self.host, starts, context_length)))
            if self.host_mask is None:
                return inputs, targets
            counted = self._send(gather_windows(self.host_mask, starts + 1, context_length - 1))
            return inputs, targets.masked_fill(counted == 0, IGNORED)
        first = self._send(starts)
        places = first[:, None] + torch.arange(context_length + 1, device=self.device)
        inputs, targets = split_windows(self.resident[places].long() & (256**self.host.dtype.itemsize - 1))
        if self.resident_mask is None:
            return inputs, targets
        return inputs, targets.masked_fill(self.resident_mask[places[:, 1:]] == 0, IGNORED)

    def _send(self, numbers: npt.NDArray[np.int64]) -> Tensor:
        """Copy numbers to the device; the copy to a GPU is asynchronous."""
        tensor = torch.from_numpy(numbers)
        if self.device.type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(self.device, non_blocking=True)


def side_by_side_starts(num_tokens: int, context_length: int) -> Int64[np.ndarray, " windows"]:
    """Return the starts of adjacent windows, each followed by at least one token.

    >>> side_by_side_starts(31, 10).tolist()
    [0, 10, 20]
    """
    if num_tokens <= context_length:
        raise _too_short(num_tokens, context_length)
    return np.arange(0, num_tokens - context_length, context_length)


def count_targets(
    mask: npt.NDArray[np.uint8], starts: Int64[np.ndarray, " windows"], context_length: int
) -> Int64[np.ndarray, " windows"]:
    """Return how many targets of each window count.

    >>> count_targets(np.array([1, 0, 0, 1, 1], dtype=np.uint8), np.array([0, 1, 2]), 2).tolist()
    [0, 1, 2]
    """
    until = np.concatenate([[0], np.cumsum(mask, dtype=np.int64)])
    counts: npt.NDArray[np.int64] = until[starts + context_length + 1] - until[starts + 1]
    return counts


def spread_evenly(starts: Int64[np.ndarray, " windows"], count: int) -> Int64[np.ndarray, " n"]:
    """Select `count` windows, spread evenly over all of them.

    >>> spread_evenly(np.arange(10), 4).tolist()
    [0, 2, 5, 7]
    """
    chosen: npt.NDArray[np.int64] = starts[np.arange(count) * len(starts) // count]
    return chosen


def in_batches(starts: Int64[np.ndarray, " n"], batch_size: int) -> Iterator[Int64[np.ndarray, " batch"]]:
    """Yield batches of `starts`; the last may be smaller."""
    for first in range(0, len(starts), batch_size):
        yield starts[first : first + batch_size]


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return 2**32  # mps shares the host's memory and does not report free memory; 4 GiB is modest on any Mac


def _too_short(num_tokens: int, context_length: int) -> UsageError:
    message = (
        f"the data has {num_tokens} tokens, but a context of {context_length} needs at least"
        f" {context_length + 1}: one window and the token after it"
    )
    return UsageError(message, key="tokens", expected=context_length + 1, found=num_tokens)

"""The samplers use every window once per epoch, without state."""

from __future__ import annotations

from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bytewright.data.rng import Permutation
from bytewright.data.sampler import (
    Tokens,
    TokenStore,
    WindowSampler,
    gather_windows,
    get_batch,
    in_batches,
    side_by_side_starts,
    spread_evenly,
)
from bytewright.errors import UsageError
from rejection import rejects

seeds = st.integers(min_value=-(2**63), max_value=2**64)


@given(size=st.integers(1, 3000), key=st.integers(0, 2**64 - 1))
def test_a_permutation_reaches_every_number_once(size: int, key: int) -> None:
    assert sorted(Permutation(size, key)(np.arange(size)).tolist()) == list(range(size))


@given(size=st.integers(1, 2**40), key=st.integers(0, 2**64 - 1), data=st.data())
def test_a_permutation_of_any_size_stays_inside_and_keeps_positions_apart(
    size: int, key: int, data: st.DataObject
) -> None:
    positions = np.array(data.draw(st.lists(st.integers(0, size - 1), unique=True, min_size=1)))
    images = Permutation(size, key)(positions)
    assert images.min() >= 0
    assert images.max() < size
    assert len(np.unique(images)) == len(positions)


def test_every_position_has_every_image_equally_often() -> None:
    size, num_keys = 23, 4000
    counts = np.zeros((size, size))
    for key in range(num_keys):
        counts[np.arange(size), Permutation(size, key)(np.arange(size))] += 1
    expected = num_keys / size
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    freedom = (size - 1) ** 2
    assert abs(chi_squared - freedom) < 5 * np.sqrt(2 * freedom)


def test_adjacent_positions_have_distant_images() -> None:
    images = Permutation(100_000, key=3)(np.arange(100_000))
    steps = np.diff(images)
    assert (np.abs(steps) < 100).mean() < 0.005  # 0.2 % by chance
    assert abs(np.corrcoef(images[:-1], images[1:])[0, 1]) < 0.02


@settings(deadline=None)
@given(
    num_windows=st.integers(1, 60),
    extra=st.integers(0, 4),
    context_length=st.integers(1, 5),
    batch_size=st.integers(1, 12),
    seed=seeds,
    epochs=st.integers(1, 3),
)
def test_every_window_occurs_once_per_epoch(
    num_windows: int,
    extra: int,
    context_length: int,
    batch_size: int,
    seed: int,
    epochs: int,
) -> None:
    num_tokens = num_windows * context_length + 1 + extra % context_length
    sampler = WindowSampler(
        num_tokens=num_tokens, context_length=context_length, batch_size=batch_size, seed=seed
    )
    num_steps = -(-num_windows * epochs // batch_size)
    seen = np.concatenate([sampler.windows(step) for step in range(num_steps)])
    for epoch in range(epochs):
        of_epoch = seen[epoch * num_windows : (epoch + 1) * num_windows]
        assert sorted(of_epoch.tolist()) == list(range(num_windows))


@given(seed=seeds, steps=st.lists(st.integers(0, 10**12), min_size=1, max_size=5))
def test_a_batch_does_not_depend_on_earlier_batches(seed: int, steps: list[int]) -> None:
    def sampler() -> WindowSampler:
        return WindowSampler(num_tokens=10**9, context_length=256, batch_size=8, seed=seed)

    used = sampler()
    for step in steps:
        used.starts(step)
    for step in steps:
        assert used.starts(step).tolist() == sampler().starts(step).tolist()


def test_seeds_and_epochs_change_the_order() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        sampler = WindowSampler(num_tokens=1001, context_length=10, batch_size=100, seed=seed)
        return sampler.windows(epoch).tolist()  # type: ignore[no-any-return]

    orders = [order(seed, epoch) for seed in range(4) for epoch in range(4)]
    assert len({tuple(one) for one in orders}) == len(orders)


def test_the_last_window_reaches_the_last_token_and_no_further() -> None:
    tokens = np.arange(21, dtype=np.uint16)
    sampler = WindowSampler(num_tokens=21, context_length=5, batch_size=4, seed=0)
    windows = gather_windows(tokens, sampler.starts(0), 5)
    assert sorted(windows[:, -1].tolist()) == [5, 10, 15, 20]


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_device_and_host_stores_return_the_same_batches(dtype: type) -> None:
    largest = np.iinfo(dtype).max
    tokens: Tokens = (largest - np.arange(50)).astype(dtype)
    starts = np.array([0, 7, 44])
    host = TokenStore(tokens, "cpu")
    resident = TokenStore(tokens, "cpu")
    resident.resident = torch.from_numpy(tokens.view(np.dtype(f"i{tokens.dtype.itemsize}")))
    for ours, theirs in zip(host.batch(starts, 5), resident.batch(starts, 5), strict=True):
        assert torch.equal(ours, theirs)
    inputs, targets = host.batch(starts, 5)
    assert inputs[0].tolist() == [largest - i for i in range(5)]
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


def test_get_batch_draws_every_start_equally_often() -> None:
    tokens = np.arange(12, dtype=np.uint16)
    inputs, targets = get_batch(tokens, 8000, 4, "cpu", generator=np.random.default_rng(0))
    assert inputs.shape == targets.shape == (8000, 4)
    assert torch.equal(targets, inputs + 1)
    counts = torch.bincount(inputs[:, 0])
    assert len(counts) == 8
    assert (counts - 1000).abs().max() < 150


def test_batches_are_contiguous() -> None:
    tokens = np.arange(50, dtype=np.uint16)
    for batch in (get_batch(tokens, 3, 4, "cpu"), TokenStore(tokens).batch(np.array([0, 7]), 4)):
        for tensor in batch:
            assert tensor.is_contiguous()
            assert tensor.view(-1).shape == (tensor.numel(),)


@pytest.mark.parametrize(
    ("tokens", "batch_size", "context_length", "key", "found"),
    [
        (np.zeros((4, 20), np.uint16), 2, 4, "tokens", (4, 20)),
        (np.arange(20), 0, 4, "batch_size", 0),
        (np.arange(20), 2, 0, "context_length", 0),
        (np.full(20, 2**63, np.uint64), 2, 4, "tokens", -(2**63)),
        (np.full(20, -1), 2, 4, "tokens", -1),
        (np.arange(100.0), 1, 16, "tokens", np.dtype(np.float64)),
    ],
)
def test_arguments_of_get_batch_are_checked(
    tokens: Any,
    batch_size: int,
    context_length: int,
    key: str,
    found: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # so that the function itself checks
    with pytest.raises(UsageError) as rejection:
        get_batch(tokens, batch_size, context_length, "cpu")
    assert (rejection.value.key, rejection.value.found) == (key, found)


def test_a_batch_is_drawn_from_a_list_or_a_tensor_as_well() -> None:
    for tokens in (list(range(50)), torch.arange(50)):
        inputs, targets = get_batch(tokens, 3, 4, "cpu")
        assert targets.equal(inputs + 1)


def test_a_context_longer_than_the_data_is_rejected() -> None:
    tokens = np.zeros(16, dtype=np.uint16)
    for call in (
        lambda: WindowSampler(num_tokens=16, context_length=16, batch_size=1, seed=0),
        lambda: get_batch(tokens, 1, 16, "cpu"),
        lambda: side_by_side_starts(16, 16),
    ):
        with rejects(UsageError, key="tokens", expected=17, found=16):
            call()


@given(num_windows=st.integers(1, 200), rest=st.integers(0, 6), data=st.data())
def test_evaluation_windows_are_distinct_and_inside(num_windows: int, rest: int, data: st.DataObject) -> None:
    every = side_by_side_starts(num_windows * 7 + 1 + rest, 7)
    assert every.tolist() == [7 * number for number in range(num_windows)]
    count = data.draw(st.integers(1, num_windows))
    starts = spread_evenly(every, count)
    assert len(np.unique(starts)) == count
    assert set(starts) <= set(every)
    assert np.concatenate(list(in_batches(starts, 3))).tolist() == starts.tolist()

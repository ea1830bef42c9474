"""The fixed tree: streaming, by shares and by the reference, the sum has the same bits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bytewright.parallel.tree import Node, RunningSum, TreeSum, add_by_tree, find_nodes, max_nodes


def make_parts(count: int, seed: int = 0) -> list[Tensor]:
    """Return tensors of very different sizes: every order of their addition rounds differently."""
    generator = torch.Generator().manual_seed(seed)
    scales = 10.0 ** torch.randint(-6, 7, (count, 1), generator=generator)
    return list(torch.randn(count, 100, generator=generator) * scales)


def add_in_shares(parts: list[Tensor], num_ranks: int) -> Tensor:
    """Add as ranks do: each its own nodes, then one the rest."""
    share, rest = len(parts) // num_ranks, TreeSum(len(parts))
    for rank in range(num_ranks):
        own = TreeSum(len(parts), rank * share)
        for part in parts[rank * share : (rank + 1) * share]:
            own.add([part])
        assert own.nodes == find_nodes(len(parts), rank * share, (rank + 1) * share)
        for node, sums in zip(own.nodes, own.sums, strict=True):
            rest.add(sums, node.stop - node.start)
    return rest.sums[0][0]


@pytest.mark.parametrize("count", range(1, 34))
def test_a_streamed_sum_has_the_bits_of_the_reference(count: int) -> None:
    parts = make_parts(count)
    streamed = TreeSum(count)
    for part in parts:
        assert len(streamed.nodes) <= max_nodes(count)
        streamed.add([part])
    assert torch.equal(streamed.sums[0][0], add_by_tree(parts))


@settings(max_examples=40)
@given(st.integers(1, 6), st.integers(1, 8))
def test_the_number_of_ranks_does_not_change_the_sum(share: int, num_ranks: int) -> None:
    parts = make_parts(share * num_ranks, seed=share)
    assert torch.equal(add_in_shares(parts, num_ranks), add_by_tree(parts))


def test_another_order_has_other_bits() -> None:
    """Otherwise the tests above could not fail."""
    parts = make_parts(8)
    running = RunningSum(into=[torch.empty(100)])
    for part in parts:
        running.add([part])
    assert torch.allclose(running.sums[0][0], add_by_tree(parts), rtol=1e-3, atol=1.0)
    assert not torch.equal(running.sums[0][0], add_by_tree(parts))


@settings(max_examples=40)
@given(st.integers(1, 200), st.data())
def test_the_nodes_of_a_share_cover_it(num_parts: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, num_parts - 1))
    last = data.draw(st.integers(first + 1, num_parts))
    nodes = find_nodes(num_parts, first, last)
    assert [part for node in nodes for part in range(node.start, node.stop)] == list(range(first, last))
    assert len(nodes) <= 2 * num_parts.bit_length()


def test_equal_shares_of_a_power_of_two_are_one_node_each() -> None:
    for share in (1, 2, 4):
        for num_ranks in (1, 2, 3, 5, 8):
            for rank in range(num_ranks):
                assert len(find_nodes(share * num_ranks, rank * share, (rank + 1) * share)) == 1


def test_the_sum_is_written_into_given_tensors() -> None:
    parts, into = make_parts(6), [torch.empty(100)]
    total = TreeSum(6, into=into)
    for part in parts:
        total.add([part])
    assert total.sums == [into]
    assert torch.equal(into[0], add_by_tree(parts))


def test_a_leaf_is_a_node() -> None:
    assert find_nodes(5, 4, 5) == [Node(4, 5)]


def test_tensors_that_share_memory_are_added_once() -> None:
    """autograd returns one tensor for two parameters whose gradients are equal, and expanded tensors."""
    total = TreeSum(2)
    for value in (1.0, 2.0):
        shared = torch.full((), value).expand(3)
        total.add([shared, shared])
    assert [tensor.tolist() for tensor in total.sums[0]] == [[3.0] * 3] * 2

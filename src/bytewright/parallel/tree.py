"""The fixed binary tree in which the gradients of the parts of a batch are added.

Floating-point addition depends on its order. The tree fixes the order by the number of parts alone. The left
child of a node of n parts has the first 2ᵏ of them, the largest power of two below n. The right child has the
others. So a process that computes some of the parts can add the nodes inside its share, and another process
can add the rest. The sum has the same bits.

`add_by_tree` is the reference. `TreeSum` adds the same tree while the parts arrive one after the other, and
holds at most ⌊log₂ n⌋ + 1 unfinished nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

Tensors = Sequence[Float[Tensor, "..."]]


class Node(NamedTuple):
    """A node of the tree: the parts from `start` to `stop` - 1."""

    start: int
    stop: int

    @property
    def middle(self) -> int:
        """Where the right child begins.

        >>> Node(0, 6).middle, Node(4, 6).middle
        (4, 5)
        """
        size = self.stop - self.start
        return self.start + (1 << (size - 1).bit_length() - 1)

    @property
    def children(self) -> tuple[Node, Node]:
        """Both children; a leaf, a single part, has none."""
        return Node(self.start, self.middle), Node(self.middle, self.stop)


def add_by_tree(parts: Tensors) -> Float[Tensor, ...]:
    """Return the sum of all parts in the order of the tree.

    >>> add_by_tree([torch.tensor(x) for x in (1e8, 1.0, -1e8)]).item(), 1e8 + 1.0 - 1e8
    (0.0, 1.0)
    """
    if len(parts) == 1:
        return parts[0]
    middle = Node(0, len(parts)).middle
    return add_by_tree(parts[:middle]) + add_by_tree(parts[middle:])


def find_nodes(num_parts: int, first: int, last: int) -> list[Node]:
    """Return the largest nodes of the tree of `num_parts` that lie in the parts from `first` to `last` - 1.

    Parts that are cut into equal shares of a power of two are one node each.

    >>> find_nodes(8, 4, 8), find_nodes(6, 0, 3)
    ([Node(start=4, stop=8)], [Node(start=0, stop=2), Node(start=2, stop=3)])
    """

    def inside(node: Node) -> list[Node]:
        if first <= node.start and node.stop <= last:
            return [node]
        if node.stop <= first or last <= node.start:
            return []
        left, right = node.children
        return inside(left) + inside(right)

    return inside(Node(0, num_parts))


def max_nodes(num_parts: int) -> int:
    """Return how many unfinished nodes `TreeSum` holds at most while a part is computed.

    Before part p it holds one node for each 1 among the binary digits of p.

    >>> [max_nodes(num_parts) for num_parts in (1, 2, 3, 4, 7, 8)]
    [0, 1, 1, 2, 2, 3]
    """
    return num_parts.bit_length() - 1


class TreeSum:
    """Adds lists of tensors, such as the gradients of all parameters, in the order of the tree.

    The sums of parts, or of whole nodes, are added from `first` on without gaps. `into` are the tensors that
    receive the first of them, and with `first` = 0 the sum of all parts. Other given tensors are not changed:
    gradients that autograd returns can share memory.
    """

    def __init__(self, num_parts: int, first: int = 0, *, into: Tensors | None = None) -> None:
        self.num_parts = num_parts
        self.nodes: list[Node] = []
        """The largest nodes that are complete."""
        self.sums: list[Tensors] = []
        """The sums of these nodes; that of all parts alone if all have been added."""
        self._can_change: list[bool] = []
        self._next, self._into = first, into

    def add(self, tensors: Tensors, num_parts: int = 1) -> None:
        """Add the sum of the next `num_parts` parts, which must be a node."""
        is_first = self._into is not None and not self.nodes
        if self._into is not None and is_first:
            torch._foreach_copy_(list(self._into), list(tensors))
            tensors = self._into
        self.nodes.append(Node(self._next, self._next + num_parts))
        self.sums.append(tensors)
        self._can_change.append(is_first)
        self._next += num_parts
        while len(self.nodes) > 1 and self._are_children(*self.nodes[-2:]):
            left, right = list(self.sums[-2]), list(self.sums.pop())
            if self._can_change[-2]:
                torch._foreach_add_(left, right)
            else:
                self.sums[-1] = torch._foreach_add(left, right)
            self._can_change[-2:] = [True]
            self.nodes[-2:] = [Node(self.nodes[-2].start, self.nodes[-1].stop)]

    def _are_children(self, left: Node, right: Node) -> bool:
        """Return whether two adjacent nodes are the children of one node."""
        parent = Node(left.start, right.stop)
        return parent.middle == left.stop and find_nodes(self.num_parts, *parent) == [parent]


class RunningSum:
    """Adds lists of tensors one after the other: needs one buffer, and its order depends on the ranks."""

    def __init__(self, *, into: Tensors | None = None) -> None:
        self.sums: list[Tensors] = []
        """The sum so far, if any part has been added."""
        self._into = into

    def add(self, tensors: Tensors) -> None:
        """Add the tensors of the next part; they may be overwritten."""
        if self.sums:
            torch._foreach_add_(list(self.sums[0]), list(tensors))
            return
        if self._into is not None:
            torch._foreach_copy_(list(self._into), list(tensors))
        self.sums = [tensors if self._into is None else self._into]

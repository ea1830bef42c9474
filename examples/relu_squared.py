"""A feed-forward layer with ReLU² instead of a gate (arXiv 2109.08668)."""

import torch

from bytewright.model import Linear
from bytewright.registry import feed_forwards


@feed_forwards.register("relu_squared")
class ReLUSquared(torch.nn.Module):
    """W2 relu(W1 x)², for every position separately."""

    acts_per_position = True  # so that text is generated with the key/value cache

    def __init__(self, d_model, d_ff, device=None, dtype=None, *, power: int = 2):
        super().__init__()
        self.w1 = Linear(d_model, d_ff, device, dtype)
        self.w2 = Linear(d_ff, d_model, device, dtype)
        self.power = power

    def forward(self, x):
        """Transform each position."""
        return self.w2(torch.relu(self.w1(x)) ** self.power)

"""The FLOPs of a model's matrix products, computed from its config.

A product of (m x k) with (k x n) has m·n dot products of length k: m·n·k multiplications and as many
additions, 2·m·n·k FLOPs. For one sequence of T tokens, with the letters of `account.parameters`:

    per layer    q, k, v       2·T·d·(H + 2K)·h
                 scores        2·T²·H·h           q kᵀ, for every head
                 weighting     2·T²·H·h           weights times values
                 output        2·T·d·H·h
                 ffn           3 · 2·T·d·f gated, 2 · 2·T·d·f ungated
    once         head          2·T·d·V

All scores are counted, although the causal mask hides half of them: this is the usual convention, and the
reference implementation computes all of them. `causal=True` counts T·(T + 1)/2 pairs instead of T², as a
kernel does that skips the masked half. Embedding lookups are not products. Elementwise work (norms, softmax)
is small compared with the products and is not counted. In the backward pass each product y = a·b needs two of
the same size, one for the gradient of each factor. Training therefore costs three times the forward pass.

The count is exact: it equals `torch.utils.flop_counter` on the reference implementation.

A projection costs d² or d·f per token and layer, attention costs T·d, and the head V·d once. Larger models
therefore spend a smaller share in the head, and longer contexts a larger share in attention (`growth`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bytewright.account.shapes import GPT2_FAMILY, find_preset
from bytewright.account.tracing import costs_of
from bytewright.errors import BytewrightError, wrong_value
from bytewright.model.config import ModelConfig
from bytewright.model.costs import Component, Matmul, StepShape
from bytewright.registry import losses


def list_matmuls(config: ModelConfig, num_tokens: int | None = None, batch_size: int = 1) -> list[Matmul]:
    """Return the products of a forward pass over `batch_size` sequences of `num_tokens` tokens.

    >>> base = ModelConfig(vocab_size=10_000, context_length=256, d_model=512, num_layers=4, num_heads=16)
    >>> for it in list_matmuls(base)[:4]:
    ...     print(f"{it.name}: {it.times} x ({it.m} x {it.k}) ({it.k} x {it.n})")
    q: 4 x (256 x 512) (512 x 512)
    k: 4 x (256 x 512) (512 x 512)
    v: 4 x (256 x 512) (512 x 512)
    scores: 64 x (256 x 32) (32 x 256)
    """
    length = config.context_length if num_tokens is None else num_tokens
    for name, value in (("batch_size", batch_size), ("num_tokens", length)):
        if value < 1:
            raise wrong_value(name, "at least 1", value)
    x = StepShape(config=config, batch_size=batch_size, num_tokens=length, precision="fp32")
    num_norms = count_norms(config)
    in_layers = [
        dataclasses.replace(one, times=count * one.times)
        for kind, count in (("attention", config.num_layers), ("ffn", config.num_layers), ("norm", num_norms))
        for one in costs_of(kind, x).matmuls  # type: ignore[arg-type]
        if count
    ]
    return [*in_layers, x.product("head", "head", x.d, x.V)]


def count_norms(config: ModelConfig) -> int:
    """Return the number of norms of the residual stream: two per block, and a final one with pre-norm."""
    return {"pre": 2 * config.num_layers + 1, "post": 2 * config.num_layers, "none": 0}[config.norm]


@dataclass(frozen=True, kw_only=True)
class FlopCount:
    """FLOPs of a forward pass by component, summed over the layers."""

    qkv_projections: int = 0
    attention_scores: int = 0
    attention_weighting: int = 0
    output_projection: int = 0
    feed_forward: int = 0
    other: int = 0
    """Products of an attention or a norm that does not state them."""
    head: int = 0

    @property
    def forward(self) -> int:
        """FLOPs of the forward pass."""
        return sum(self.by_component().values())

    @property
    def backward(self) -> int:
        """FLOPs of the backward pass: two products for each product of the forward pass."""
        return 2 * self.forward

    @property
    def training(self) -> int:
        """FLOPs of forward and backward pass."""
        return self.forward + self.backward

    def by_component(self) -> dict[Component, int]:
        """Return the FLOPs of each component, in the order of the forward pass."""
        counts: dict[Component, int] = dataclasses.asdict(self)  # type: ignore[assignment]  # its fields
        return {name: flops for name, flops in counts.items() if flops or name != "other"}

    def shares(self) -> Mapping[Component, float]:
        """Return each component's share of the forward pass, 0 to 1; training has the same shares."""
        return {name: flops / self.forward for name, flops in self.by_component().items()}


def count_flops(
    config: ModelConfig, num_tokens: int | None = None, batch_size: int = 1, *, causal: bool = False
) -> FlopCount:
    """Return the FLOPs of `batch_size` sequences of `num_tokens` tokens (default: the full context).

    >>> base = ModelConfig(vocab_size=10_000, context_length=256, d_model=512, num_layers=4, num_heads=16)
    >>> count_flops(base).training / 256  # per token
    111722496.0
    """
    length = config.context_length if num_tokens is None else num_tokens
    totals: dict[Component, int] = {}
    for matmul in list_matmuls(config, length, batch_size):
        totals[matmul.component] = totals.get(matmul.component, 0) + matmul.flops
    if causal:
        for component in ("attention_scores", "attention_weighting"):
            totals[component] = totals.get(component, 0) * (length + 1) // (2 * length)
    return FlopCount(**totals)


def training_flops_per_token(config: ModelConfig) -> float:
    """Return the FLOPs of forward and backward pass per token, at full context."""
    return count_flops(config).training / config.context_length


def flops_utilisation(
    config: ModelConfig, tokens_per_second: float, peak_flops_per_second: float, *, of_loss: float = 0.0
) -> float:
    """Return the model FLOPs utilisation (MFU): these FLOPs per second as a share of the peak, 0 to 1.

    `of_loss` is the result of `extra_loss_flops`.
    """
    return (training_flops_per_token(config) + of_loss) * tokens_per_second / peak_flops_per_second


def extra_loss_flops(config: ModelConfig, loss: str, options: Mapping[str, Any]) -> float:
    """Return the training FLOPs per token of a registered loss beyond those of the head.

    The products of its forward pass are counted by tracing it on the meta device, without memory, and count
    three times, as all products do. A loss that cannot be traced there counts as one that adds none.

    >>> base = ModelConfig(vocab_size=10_000, context_length=256, d_model=512, num_layers=4, num_heads=16)
    >>> extra_loss_flops(base, "cross_entropy", {})
    0.0
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    part, length = losses[loss], config.context_length
    compute = part(**options) if isinstance(part, type) else functools.partial(part, **options)
    hidden = torch.zeros(length, config.d_model, device="meta")
    output_weight = torch.zeros(config.vocab_size, config.d_model, device="meta")
    targets = torch.zeros(length, dtype=torch.long, device="meta")
    try:
        with FlopCounterMode(display=False) as counter:
            compute(hidden, output_weight, targets)
    except BytewrightError:
        raise
    except (NotImplementedError, RuntimeError, TypeError, ValueError):
        return 0.0
    of_head = 2 * length * config.d_model * config.vocab_size
    extra: int = max(0, counter.get_total_flops() - of_head)
    return 3.0 * extra / length


CONTEXTS = (1024, 16_384)


@dataclass(frozen=True, kw_only=True)
class Growth:
    """The FLOPs of a forward pass of one model at one context length."""

    name: str
    context_length: int
    flops: FlopCount

    def shares(self) -> Mapping[str, float]:
        """Return the shares of projections, attention (its T² part), feed-forward layers and head."""
        flops = self.flops
        parts = {
            "projections": flops.qkv_projections + flops.output_projection,
            "attention": flops.attention_scores + flops.attention_weighting,
            "feed-forward": flops.feed_forward,
            "head": flops.head,
        }
        if flops.other:
            parts["other"] = flops.other
        return {name: part / flops.forward for name, part in parts.items()}


def growth(
    models: Mapping[str, ModelConfig] | None = None, contexts: Sequence[int] = CONTEXTS
) -> list[Growth]:
    """Return the FLOPs of every model at every context; default: the GPT-2 family at 1,024 and 16,384.

    >>> [f"{it.name} {it.context_length}: {it.shares()['attention']:.0%}" for it in growth()][-2:]
    ['gpt2-xl 1024: 7%', 'gpt2-xl 16384: 55%']
    """
    models = models or {name: find_preset(name) for name in GPT2_FAMILY}
    return [
        Growth(name=name, context_length=length, flops=count_flops(config, length))
        for name, config in models.items()
        for length in contexts
    ]

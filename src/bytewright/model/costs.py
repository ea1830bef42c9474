"""What a part states about its costs: matrix products, tensors kept for the backward pass, memory traffic.

A part states its costs with a class method `costs(x)`. It returns the `Costs` of one module, or None if they
must be measured. `x` is a `StepShape`: the sizes of a training step, under the letters of the formulas.
`account` adds the costs of all modules, and measures parts that state nothing by tracing
(`account.tracing`). A test compares all statements with traces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from bytewright.model.config import ModelConfig

Precision = Literal["fp32", "bf16"]
DeviceKind = Literal["cuda", "cpu"]
KeptKind = Literal["activations", "attention matrices", "weight copies"]
Component = Literal[
    "qkv_projections",
    "attention_scores",
    "attention_weighting",
    "output_projection",
    "feed_forward",
    "other",
    "head",
]

WIDE = 4
"""Bytes of a float32, the type of norms, softmax, losses, gradients of weights and optimizer state."""


@dataclass(frozen=True, kw_only=True)
class Matmul:
    """A product of the forward pass, computed `times` times: (m x k) with (k x n)."""

    name: str
    component: Component
    times: int
    m: int
    k: int
    n: int

    @property
    def flops(self) -> int:
        """FLOPs of all `times` products; a multiplication and its addition count as two."""
        return self.times * 2 * self.m * self.k * self.n


class Kept(NamedTuple):
    """A tensor that is kept for the backward pass."""

    name: str
    num_bytes: int
    kind: KeptKind = "activations"
    is_freed_early: bool = False
    """Whether the backward pass of its sublayer frees it before that pass needs the most memory."""
    sublayer: str = ""
    """The sublayer that keeps it, filled in by `account`."""


class Pass(NamedTuple):
    """Work other than matrix products, forward and backward: operations, and bytes read and written."""

    name: str
    flops: int
    num_bytes: int


@dataclass(frozen=True, kw_only=True)
class Costs:
    """The costs of one module in one training step.

    Formulas map a product of letters to its factor: {"dd": 2, "dc": 2} is 2·d² + 2·d·c. The letters are those
    of `StepShape`, and h, the size of a head.
    """

    parameters: Mapping[str, int] = field(default_factory=dict)
    """Formula of the number of parameters."""
    matmuls: Sequence[Matmul] = ()
    """Products of the forward pass; those of scores and weighting are computed inside a kernel."""
    kept: Sequence[Kept] = ()
    """Tensors kept for the backward pass, without the input, which the sublayer before it keeps. A norm also
    keeps its output, for the sublayer after it."""
    backward_bytes: int = 0
    """Temporary memory of the backward pass when it needs the most."""
    gradient_bytes: int = 0
    """Memory of the gradients of the weights beyond the size of the weights."""
    passes: Sequence[Pass] = ()
    """All other work. That of a norm in a compiled step includes the residual sum before it."""
    textbook: Mapping[str, int] = field(default_factory=dict)
    """Formula of the activations of one token that a textbook counts."""
    cached_numbers: int = 0
    """Numbers that a token adds to the cache of generation."""


@dataclass(frozen=True, kw_only=True)
class StepShape:
    """The sizes of one step, named by the letters of the formulas."""

    config: ModelConfig
    batch_size: int
    num_tokens: int
    precision: Precision
    compiled: bool = False
    device: DeviceKind = "cuda"

    @property
    def B(self) -> int:  # noqa: N802
        """Sequences."""
        return self.batch_size

    @property
    def T(self) -> int:  # noqa: N802
        """Tokens of a sequence."""
        return self.num_tokens

    @property
    def N(self) -> int:  # noqa: N802
        """Tokens of the batch."""
        return self.batch_size * self.num_tokens

    @property
    def H(self) -> int:  # noqa: N802
        """Query heads."""
        return self.config.num_heads

    @property
    def A(self) -> int:  # noqa: N802
        """Scores of a layer: all pairs of tokens of a sequence, for each head."""
        return self.N * self.num_tokens * self.config.num_heads

    @property
    def d(self) -> int:
        """Width of the residual stream, and of all query heads together."""
        return self.config.d_model

    @property
    def c(self) -> int:
        """Width of all key heads together."""
        return self.config.kv_heads * self.config.d_head

    @property
    def f(self) -> int:
        """Width inside the feed-forward layer."""
        return self.config.ffn_width

    @property
    def V(self) -> int:  # noqa: N802
        """Size of the vocabulary."""
        return self.config.vocab_size

    @property
    def s(self) -> int:
        """Bytes per number of the computation."""
        return 2 if self.precision == "bf16" else WIDE

    @property
    def is_fused(self) -> bool:
        """Whether the model uses the fused implementation."""
        return self.config.implementation == "fused"

    @property
    def has_kernels(self) -> bool:
        """Whether the fused layers use our Triton kernels: in a half-precision type on a GPU."""
        return self.is_fused and self.device == "cuda" and self.precision == "bf16"

    def product(self, name: str, component: Component, k: int, n: int) -> Matmul:
        """Return the product of all tokens with a (k x n) matrix."""
        return Matmul(name=name, component=component, times=1, m=self.N, k=k, n=n)

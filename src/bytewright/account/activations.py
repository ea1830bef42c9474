"""The tensors that the forward pass keeps for the backward pass, computed from the config.

Autograd keeps the inputs of gradients, each storage once. With N = batch·tokens, d = d_model, f = d_ff,
H heads, c = the width of all key heads, A = N·T·H scores, and s bytes per number of the computation (4 in
fp32, 2 in bf16; norms and softmax always use 4):

    norm          (4 + 4 + s)·N·d     its input in float32, the input divided by its rms, the output
    attention     reference: q, k, v of every head and the merged result, 4·s·N·d, and
                  (4 + 4 + s)·A       scores, their exponentials, the weights
                  fused: the joined projection s·N·(d + 2c), q and k again if rotated or normalised,
                  the result s·N·d, a normaliser per row and head 4·N·H, and no scores
    ffn           gated, reference: gate, its sigmoid, SiLU, up, their product: 5·s·N·f
                  gated, fused: gate and up joined, SiLU, product: 4·s·N·f (3 with our kernel)
                  ungated: 3·s·N·f
    weights       in bf16 a copy of each matrix, and for joined matrices a joined copy: s each

A compiler keeps less, because the backward pass recomputes cheap operations. It keeps 2·s·N·d of a norm (the
residual stream and the output), 2·s·A of the reference scores, 3·s·N·f of a gated layer, and 2·s·N·f of an
ungated one.

The result is exact to a few per mille: rotary tables and one number per token and norm are left out. `memory`
adds the rest of a training step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from bytewright.account.devices import DeviceKind
from bytewright.model.config import ModelConfig

Precision = Literal["fp32", "bf16"]
NormName = Literal["ln1", "ln2", "ln_final"]
Sublayer = Literal["attention", "ffn", "head"] | NormName
Kind = Literal["activations", "attention matrices", "weight copies"]

WIDE = 4
"""Bytes of a float32, the type of norms, softmax, losses, gradients of weights and optimizer state."""

KERNEL_HEADS, KERNEL_CONTEXT = (32, 64), 512
"""Head sizes and the longest context of our attention kernel; a test compares them with the kernel."""


class Kept(NamedTuple):
    """A tensor that is kept for the backward pass."""

    name: str
    num_bytes: int
    sublayer: Sublayer
    kind: Kind = "activations"
    is_freed_early: bool = False
    """Whether the backward pass of its sublayer frees it before that pass needs the most memory."""


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
    def is_gated(self) -> bool:
        """Whether the feed-forward layer has a gate."""
        return self.config.ffn == "swiglu"

    @property
    def has_kernels(self) -> bool:
        """Whether the fused layers use our Triton kernels: in a half-precision type on a GPU."""
        return self.is_fused and self.device == "cuda" and self.precision == "bf16"

    @property
    def has_unfused_attention(self) -> bool:
        """Whether torch does not fuse attention: it has no fp32 kernel for shared key heads."""
        shared = self.config.kv_heads != self.config.num_heads
        return self.is_fused and shared and self.precision == "fp32" and self.device == "cuda"

    @property
    def has_attention_kernel(self) -> bool:
        """Whether our attention kernel supports these sizes."""
        config = self.config
        plain = not config.qk_norm and config.kv_heads == config.num_heads
        return (
            self.has_kernels and plain and config.d_head in KERNEL_HEADS and self.num_tokens <= KERNEL_CONTEXT
        )


def kept_by_norm(x: StepShape, numbers: int, name: NormName) -> Iterator[Kept]:
    """Yield the tensors of a norm of `numbers` numbers: input in float32, input over rms, output."""
    if x.compiled:
        yield Kept(f"{name}: input", x.s * numbers, name, is_freed_early=True)
    else:
        yield Kept(f"{name}: input, widened", WIDE * numbers, name)
        yield Kept(f"{name}: input over its rms", WIDE * numbers, name, is_freed_early=True)
    yield Kept(f"{name}: output", x.s * numbers, name, is_freed_early=True)


def kept_by_block(x: StepShape) -> list[Kept]:
    """Return the tensors that one block keeps."""
    kept = [*_kept_by_attention(x), *_kept_by_ffn(x)]
    if x.config.norm == "none":
        kept.append(Kept("residual stream before attention", x.s * x.N * x.d, "attention"))
        kept.append(Kept("residual stream before ffn", x.s * x.N * x.d, "ffn"))
    else:
        kept += [*kept_by_norm(x, x.N * x.d, "ln1"), *kept_by_norm(x, x.N * x.d, "ln2")]
    return kept


def kept_after_blocks(x: StepShape) -> list[Kept]:
    """Return the tensors that are kept once: of the final norm, the embeddings or the last hidden states."""
    if x.config.norm == "pre":
        return list(kept_by_norm(x, x.N * x.d, "ln_final"))
    name = "embeddings of the tokens" if x.config.norm == "post" else "hidden states"
    return [Kept(name, x.s * x.N * x.d, "head")]


def _kept_by_attention(x: StepShape) -> Iterator[Kept]:
    """Yield q, k and v as they are kept, the result, and the scores if they are written to memory."""
    s, queries, keys = x.s, x.N * x.d, x.N * x.c
    if x.config.qk_norm:
        yield from _kept_by_qk_norm(x)
    if x.is_fused and not x.has_unfused_attention:
        yield Kept("q, k and v, joined", s * (queries + 2 * keys), "attention")
        if not x.has_attention_kernel and (x.config.position == "rope" or x.config.qk_norm):
            yield Kept("q and k after norm and rotation", s * (queries + keys), "attention")
        yield Kept("normaliser of every row", WIDE * x.N * x.H, "attention")
    else:
        yield Kept("q, k and v of every head", 3 * s * queries, "attention")
        yield from _kept_scores(x)
    is_unfused = not x.is_fused or x.has_unfused_attention
    yield Kept("attended", s * queries, "attention", is_freed_early=is_unfused)
    if x.is_fused or x.precision == "bf16":
        yield Kept("q, k and v weights", s * x.d * (x.d + 2 * x.c), "attention", "weight copies")
    if x.precision == "bf16":
        yield Kept("output weight in bf16", s * x.d * x.d, "attention", "weight copies")


def _kept_by_qk_norm(x: StepShape) -> Iterator[Kept]:
    queries_and_keys = x.N * (x.d + x.c)
    if x.compiled:
        yield Kept("q and k before their norm", x.s * queries_and_keys, "attention")
        return
    widened = WIDE * queries_and_keys
    if x.is_fused and x.precision == "fp32":  # views of the joined projection, which is kept anyway
        widened = WIDE * x.N * (x.d + 2 * x.c) if x.has_unfused_attention else 0
    yield Kept("q and k before their norm, widened", widened, "attention")
    yield Kept("q and k over their rms", WIDE * queries_and_keys, "attention")


def _kept_scores(x: StepShape) -> Iterator[Kept]:
    """Yield the matrices of all pairs of tokens."""
    if not x.has_unfused_attention:  # torch's separate products keep only the weights
        yield Kept("scores", (x.s if x.compiled else WIDE) * x.A, "attention", "attention matrices")
        if not x.compiled:
            yield Kept("exponentials", WIDE * x.A, "attention", "attention matrices")
        yield Kept("mask", x.T * x.T, "attention", "attention matrices")
        yield Kept("maximum and sum of every row", 2 * WIDE * x.N * x.H, "attention")
    freed_early = not x.has_unfused_attention
    yield Kept("weights of the average", x.s * x.A, "attention", "attention matrices", freed_early)


def _kept_by_ffn(x: StepShape) -> Iterator[Kept]:
    s, inner = x.s, x.N * x.f
    if not x.is_gated:
        yield Kept("inner, its sigmoid, SiLU", (2 if x.compiled else 3) * s * inner, "ffn")
    elif x.compiled or x.has_kernels:
        yield Kept("gate, up, product", 3 * s * inner, "ffn")
    elif x.is_fused:
        yield Kept("gate, up, SiLU, product", 4 * s * inner, "ffn")
    else:
        yield Kept("gate, its sigmoid, SiLU, up, product", 5 * s * inner, "ffn")
    if x.precision == "bf16" or (x.is_fused and x.is_gated):
        upper = 2 if x.is_gated else 1
        yield Kept("upper weights", upper * s * x.d * x.f, "ffn", "weight copies")
    if x.precision == "bf16":
        yield Kept("w2 in bf16", s * x.d * x.f, "ffn", "weight copies")

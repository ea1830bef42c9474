"""The configuration of a Transformer: its sizes, its architectural choices, and the shapes of its weights.

`ModelConfig` is validated on construction, so its users need no checks. `d_ff` and `num_kv_heads` can be
None; the properties `ffn_width` and `kv_heads` then derive them from the other sizes. The fields stay None,
so that `dataclasses.replace(config, d_model=768)` derives them again.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from bytewright.errors import UsageError, wrong_value
from bytewright.field_docs import described

Norm = Literal["pre", "post", "none"]
Position = Literal["rope", "none"]
FeedForwardKind = Literal["swiglu", "silu"]
Implementation = Literal["fused", "reference"]

MAX_SIZE = 2**28
"""The largest allowed size; the number of bytes of a matrix of two such sizes still fits into 64 bits."""

Shape = tuple[int, ...]

_CHOICES: Mapping[str, tuple[str, ...]] = {
    "norm": get_args(Norm),
    "position": get_args(Position),
    "ffn": get_args(FeedForwardKind),
    "implementation": get_args(Implementation),
}


@described
@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes and choices of one Transformer language model.

    >>> base = ModelConfig(vocab_size=10_000, context_length=256, d_model=512, num_layers=4, num_heads=16)
    >>> base.ffn_width, base.d_head, base.kv_heads
    (1344, 32, 16)
    """

    vocab_size: int
    """Number of token ids; ids are from 0 to vocab_size - 1."""
    context_length: int
    """Maximum number of tokens of a sequence."""
    d_model: int
    """Width of the residual stream."""
    num_layers: int
    """Number of blocks; each has attention and a feed-forward layer."""
    num_heads: int
    """Query heads; each has d_model / num_heads dimensions."""
    d_ff: int | None = None
    """Inner width of the feed-forward layer; None: 8/3·d_model, to a multiple of 64; silu: 4·d_model."""
    rope_theta: float = 10_000.0
    """Base of the rotary frequencies: pair i turns by θ^(-2i/d_head) radians per position."""
    norm: Norm = "pre"
    """Place of RMSNorm: before each sublayer and the head, after each residual sum, or nowhere."""
    position: Position = "rope"
    """Rotary embeddings on queries and keys, or no position information beyond the causal mask."""
    ffn: FeedForwardKind = "swiglu"
    """Feed-forward layer: gated W2(SiLU(W1 x) ⊙ W3 x), or W2 SiLU(W1 x)."""
    tie_embeddings: bool = False
    """Use the embedding matrix also as the output head."""
    qk_norm: bool = False
    """RMSNorm on each head's queries and keys, before the rotation."""
    num_kv_heads: int | None = None
    """Key/value heads, each shared by num_heads / num_kv_heads query heads; None: num_heads."""
    implementation: Implementation = "fused"
    """Layer classes to use; both implementations have the same parameters under the same names."""

    def __post_init__(self) -> None:
        for name in ("vocab_size", "context_length", "d_model", "num_layers", "num_heads"):
            _check_size(name, getattr(self, name))
        for name in ("d_ff", "num_kv_heads"):
            if getattr(self, name) is not None:
                _check_size(name, getattr(self, name))
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise wrong_value(name, f"one of {', '.join(choices)}", getattr(self, name))
        check_heads(self.d_model, self.num_heads, self.kv_heads)
        if self.position == "rope" and self.d_head % 2:
            raise wrong_value("d_model / num_heads", "even, because RoPE rotates pairs", self.d_head)
        for name in ("tie_embeddings", "qk_norm"):
            if type(getattr(self, name)) is not bool:
                raise wrong_value(name, "true or false", getattr(self, name))
        theta: object = self.rope_theta
        is_number = isinstance(theta, int | float) and type(theta) is not bool
        if not is_number or not 0 < self.rope_theta <= sys.float_info.max:
            raise wrong_value("rope_theta", "a positive number", theta)

    @property
    def d_head(self) -> int:
        """Dimensions of one head."""
        return self.d_model // self.num_heads

    @property
    def kv_heads(self) -> int:
        """Number of key/value heads, derived if `num_kv_heads` is None."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def ffn_width(self) -> int:
        """Inner width of the feed-forward layer, derived if `d_ff` is None.

        SwiGLU has three matrices instead of two; the factor 8/3 instead of 4 keeps the parameter count equal.
        """
        if self.d_ff is not None:
            return self.d_ff
        if self.ffn == "silu":
            return 4 * self.d_model
        return max(64, 64 * ((self.d_model + 12) // 24))  # 8/3·d_model = 64·(d_model/24), to the nearest

    def to_dict(self) -> dict[str, Any]:
        """Return the fields; `ModelConfig(**fields)` is an equal config."""
        return dataclasses.asdict(self)


def check_heads(d_model: int, num_heads: int, kv_heads: int) -> None:
    """Raise unless the heads divide the width, and the key/value heads divide the query heads."""
    if num_heads < 1 or d_model % num_heads:
        raise UsageError(
            f"d_model ({d_model}) must be a multiple of num_heads ({num_heads})",
            key="num_heads",
            found=num_heads,
        )
    if kv_heads < 1 or num_heads % kv_heads:
        raise UsageError(
            f"num_heads ({num_heads}) must be a multiple of num_kv_heads ({kv_heads})",
            key="num_kv_heads",
            found=kv_heads,
        )


def _check_size(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise wrong_value(name, "a positive whole number", value)
    if value > MAX_SIZE:
        raise wrong_value(name, f"at most {MAX_SIZE}", value)


def weight_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Return the shape of every weight by name, as in `TransformerLM(config).state_dict()`.

    Readers check a file against these shapes before they build a model.

    >>> tiny = ModelConfig(vocab_size=50, context_length=8, d_model=16, num_layers=1, num_heads=2)
    >>> shapes = weight_shapes(tiny)
    >>> shapes["token_embeddings.weight"], shapes["layers.0.attn.q_proj.weight"], len(shapes)
    ((50, 16), (16, 16), 12)
    """
    d = config.d_model
    shapes: dict[str, Shape] = {"token_embeddings": (config.vocab_size, d)}
    block = _block_shapes(config)
    for layer in range(config.num_layers):
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in block.items()}
    if config.norm == "pre":
        shapes["ln_final"] = (d,)
    if not config.tie_embeddings:
        shapes["lm_head"] = (config.vocab_size, d)
    return {f"{name}.weight": shape for name, shape in shapes.items()}


def _block_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Return the shapes of the weights of one block; matrices are (out, in)."""
    d, f, d_head = config.d_model, config.ffn_width, config.d_head
    queries, keys = config.num_heads * d_head, config.kv_heads * d_head
    shapes: dict[str, Shape] = {
        "attn.q_proj": (queries, d),
        "attn.k_proj": (keys, d),
        "attn.v_proj": (keys, d),
        "attn.output_proj": (d, queries),
        "ffn.w1": (f, d),
        "ffn.w2": (d, f),
    }
    if config.ffn == "swiglu":
        shapes["ffn.w3"] = (f, d)
    if config.qk_norm:
        shapes |= {"attn.q_norm": (d_head,), "attn.k_norm": (d_head,)}
    if config.norm != "none":
        shapes |= {"ln1": (d,), "ln2": (d,)}
    return shapes

"""The shape of a Transformer as a value: every size and every architectural choice, and nothing that runs.

`ModelConfig` is checked once, on construction; everything behind it may rely on it. Two fields may be left to
their defaults and are then derived (`d_ff`, `num_kv_heads`): they stay None in the record, so that
`dataclasses.replace(config, d_model=768)` derives them anew, and the properties `ffn_width` and `kv_heads`
give the sizes that hold. It knows nothing of devices, precision, training or tensors.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from bytewright.errors import UsageError, suggest
from bytewright.field_docs import described

Norm = Literal["pre", "post", "none"]
Position = Literal["rope", "none"]
FeedForwardKind = Literal["swiglu", "silu"]
Implementation = Literal["fused", "reference"]

MAX_SIZE = 2**28
"""The largest size that is believed: the bytes of a matrix of two such sizes can still be counted."""

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
    """Number of token ids; ids run from 0 to vocab_size - 1."""
    context_length: int
    """The longest sequence the model reads at once."""
    d_model: int
    """Width of the residual stream."""
    num_layers: int
    """Number of blocks, each of attention and a feed-forward layer."""
    num_heads: int
    """Query heads; each has d_model / num_heads dimensions."""
    d_ff: int | None = None
    """Width inside the feed-forward layer; None: 8/3·d_model to a multiple of 64, or 4·d_model for silu."""
    rope_theta: float = 10_000.0
    """Base of the rotary frequencies: pair i turns by θ^(-2i/d_head) radians per position."""
    norm: Norm = "pre"
    """RMSNorm before each sublayer and before the head, or after each residual sum, or nowhere."""
    position: Position = "rope"
    """Rotary embeddings on queries and keys, or no notion of position beyond the causal mask."""
    ffn: FeedForwardKind = "swiglu"
    """Gated W2(SiLU(W1 x) ⊙ W3 x), or plain W2 SiLU(W1 x)."""
    tie_embeddings: bool = False
    """Use the embedding matrix as the output head too."""
    qk_norm: bool = False
    """RMSNorm over each head's queries and keys, before they are rotated."""
    num_kv_heads: int | None = None
    """Key/value heads, each shared by num_heads / num_kv_heads query heads; None: as many as num_heads."""
    implementation: Implementation = "fused"
    """The fast twin or the readable one; both have the same parameters under the same names."""

    def __post_init__(self) -> None:
        for name in ("vocab_size", "context_length", "d_model", "num_layers", "num_heads"):
            _check_size(name, getattr(self, name))
        for name in ("d_ff", "num_kv_heads"):
            if getattr(self, name) is not None:
                _check_size(name, getattr(self, name))
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise UsageError(f"{name} must be one of {', '.join(choices)}, not {getattr(self, name)!r}")
        if self.d_model % self.num_heads:
            raise UsageError(f"d_model ({self.d_model}) must be a multiple of num_heads ({self.num_heads})")
        if self.num_heads % self.kv_heads:
            raise UsageError(
                f"num_heads ({self.num_heads}) must be a multiple of num_kv_heads ({self.kv_heads})"
            )
        if self.position == "rope" and self.d_head % 2:
            raise UsageError(
                f"rotary embeddings turn pairs, so d_model / num_heads must be even, not {self.d_head}"
            )
        for name in ("tie_embeddings", "qk_norm"):
            if type(getattr(self, name)) is not bool:
                raise UsageError(f"{name} must be true or false, not {getattr(self, name)!r}")
        theta: object = self.rope_theta
        is_number = isinstance(theta, int | float) and type(theta) is not bool
        if not is_number or not 0 < self.rope_theta <= sys.float_info.max:
            raise UsageError(f"rope_theta must be a positive number, not {str(theta)[:20]}")

    @property
    def d_head(self) -> int:
        """Dimensions of one head."""
        return self.d_model // self.num_heads

    @property
    def kv_heads(self) -> int:
        """Number of key/value heads, derived when `num_kv_heads` was left open."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def ffn_width(self) -> int:
        """Width inside the feed-forward layer, derived when `d_ff` was left open.

        SwiGLU has three matrices where the plain layer has two: 8/3 instead of 4 keeps the parameters equal.
        """
        if self.d_ff is not None:
            return self.d_ff
        if self.ffn == "silu":
            return 4 * self.d_model
        return max(64, 64 * ((self.d_model + 12) // 24))  # 8/3·d_model = 64·(d_model/24), to the nearest

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> ModelConfig:
        """Build from plain fields, such as a table of a TOML file; an unknown key is refused by name."""
        known = [field.name for field in dataclasses.fields(cls)]
        for key in fields:
            if key not in known:
                raise UsageError(f"unknown model option {key}{suggest(key, known)}")
        for field in dataclasses.fields(cls):
            if field.default is dataclasses.MISSING and field.name not in fields:
                raise UsageError(f"model option {field.name!r} is missing")
        return cls(**fields)

    def to_dict(self) -> dict[str, Any]:
        """Return plain fields that `from_dict` reads back to an equal config."""
        return dataclasses.asdict(self)


def _check_size(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f"{name} must be a positive whole number, not {value!r}")
    if value > MAX_SIZE:
        raise UsageError(f"{name} must be at most {MAX_SIZE}, but is larger")


def weight_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Give the shape of every weight by its name, in the order of the data.

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
    """Give the shapes of one block, all of which are alike; matrices are (out, in)."""
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

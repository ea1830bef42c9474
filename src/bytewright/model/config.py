"""The configuration of a Transformer: its sizes, and the names and options of its parts.

`ModelConfig` is validated on construction, so its users need no checks. `d_ff` and `num_kv_heads` can be
None; the properties `ffn_width` and `kv_heads` then derive them from the other sizes. The fields stay None,
so that `dataclasses.replace(config, d_model=768)` derives them again.

The norm, the position encoding, the attention and the feed-forward layer are parts. One field has the name of
a part that is registered in `bytewright.registry`, and a second field has its options. `PARTS` lists these
fields. `model.parts` constructs the parts and documents what a part must provide.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

from bytewright.errors import UsageError, wrong_value
from bytewright.plugins import errors_of_part
from bytewright.registry import Registry, attentions, feed_forwards, norms, positions
from bytewright.storage.config_reader import document_fields, list_options, read_options

NormPlace = Literal["pre", "post", "none"]
Implementation = Literal["fused", "reference"]

MAX_SIZE = 2**28
"""The largest allowed size; the number of bytes of a matrix of two such sizes still fits into 64 bits."""

_CHOICES: Mapping[str, tuple[str, ...]] = {
    "norm": get_args(NormPlace),
    "implementation": get_args(Implementation),
}


class PartField(NamedTuple):
    """A field of `ModelConfig` that names a part, and where its options and its class are found."""

    registry: Registry
    name: str
    """The field with the name of the part."""
    options: str
    """The field with its options."""
    provided: tuple[str, ...]
    """The parameters that the model passes to a part that declares them; all others are options."""

    def class_of(self, config: ModelConfig) -> Any:
        """Return the registered class."""
        return self.registry[getattr(config, self.name)]


PARTS: Mapping[str, PartField] = {
    "norm": PartField(norms, "norm_kind", "norm_options", ("d_model", "device", "dtype")),
    "position": PartField(
        positions,
        "position",
        "position_options",
        ("theta", "d_k", "max_seq_len", "d_model", "num_heads", "device", "dtype"),
    ),
    "attention": PartField(
        attentions,
        "attention",
        "attention_options",
        ("d_model", "num_heads", "num_kv_heads", "rope", "qk_norm", "device", "dtype"),
    ),
    "ffn": PartField(feed_forwards, "ffn", "ffn_options", ("d_model", "d_ff", "device", "dtype")),
}
"""The parts of a model."""


@document_fields
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
    """Inner width of the feed-forward layer; None: 8/3·d_model, to a multiple of 64, for swiglu; otherwise
    4·d_model, or what the layer states."""
    rope_theta: float = 10_000.0
    """Base of the rotary frequencies: pair i turns by θ^(-2i/d_head) radians per position."""
    norm: NormPlace = "pre"
    """Place of the norms: before each sublayer and the head, after each residual sum, or nowhere."""
    norm_kind: str = "rmsnorm"
    """Name of the norm."""
    norm_options: dict[str, Any] = field(default_factory=dict, hash=False)
    """Options of the norm."""
    position: str = "rope"
    """Position encoding: rotary embeddings on queries and keys, or none beyond the causal mask."""
    position_options: dict[str, Any] = field(default_factory=dict, hash=False)
    """Options of the position encoding."""
    attention: str = "multi_head"
    """Name of the attention."""
    attention_options: dict[str, Any] = field(default_factory=dict, hash=False)
    """Options of the attention."""
    ffn: str = "swiglu"
    """Feed-forward layer: gated W2(SiLU(W1 x) ⊙ W3 x) for swiglu, W2 SiLU(W1 x) for silu."""
    ffn_options: dict[str, Any] = field(default_factory=dict, hash=False)
    """Options of the feed-forward layer."""
    tie_embeddings: bool = False
    """Use the embedding matrix also as the output head."""
    qk_norm: bool = False
    """RMSNorm on each head's queries and keys, before the rotation."""
    num_kv_heads: int | None = None
    """Key/value heads, each shared by num_heads / num_kv_heads query heads; None: num_heads."""
    mup_base_width: int | None = None
    """Maximal update parametrisation (muP). The learning rate is that of a model with this `d_model`; rates,
    initial head and logits are scaled from there to `d_model`. None: standard parametrisation."""
    implementation: Implementation = "fused"
    """Layer classes to use; both implementations have the same parameters under the same names."""

    def __post_init__(self) -> None:
        for name in ("vocab_size", "context_length", "d_model", "num_layers", "num_heads"):
            _check_size(name, getattr(self, name))
        for name in ("d_ff", "num_kv_heads", "mup_base_width"):
            if getattr(self, name) is not None:
                _check_size(name, getattr(self, name))
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise wrong_value(name, f"one of {', '.join(choices)}", getattr(self, name))
        check_heads(self.d_model, self.num_heads, self.kv_heads)
        for name in ("tie_embeddings", "qk_norm"):
            if type(getattr(self, name)) is not bool:
                raise wrong_value(name, "true or false", getattr(self, name))
        theta: object = self.rope_theta
        is_number = isinstance(theta, int | float) and type(theta) is not bool
        if not is_number or not 0 < self.rope_theta <= sys.float_info.max:
            raise wrong_value("rope_theta", "a positive number", theta)
        self._check_parts()

    def _check_parts(self) -> None:
        for part in PARTS.values():
            part.registry.check(getattr(self, part.name), part.name)
            options = getattr(self, part.options)
            if not isinstance(options, dict):
                raise wrong_value(part.options, "a table", options)
            options = read_options(part.class_of(self), options, provided=part.provided, key=part.options)
            object.__setattr__(self, part.options, options)
        accepted = list_options(PARTS["attention"].class_of(self), ())
        for name, is_used in (("num_kv_heads", self.kv_heads != self.num_heads), ("qk_norm", self.qk_norm)):
            if is_used and name not in accepted:
                message = f"the attention {self.attention!r} has no setting {name}; remove it"
                raise UsageError(message, key=name, found=getattr(self, name))
        for part in PARTS.values():
            if check := getattr(part.class_of(self), "check_config", None):
                with errors_of_part(part.registry, getattr(self, part.name), "cannot check the config"):
                    check(self)

    @property
    def d_head(self) -> int:
        """Dimensions of one head."""
        return self.d_model // self.num_heads

    @property
    def width_ratio(self) -> float:
        """d_model divided by `mup_base_width`; 1 with the standard parametrisation."""
        return 1.0 if self.mup_base_width is None else self.d_model / self.mup_base_width

    @property
    def kv_heads(self) -> int:
        """Number of key/value heads, derived if `num_kv_heads` is None."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def ffn_width(self) -> int:
        """Inner width of the feed-forward layer; if `d_ff` is None, its `default_width` or 4·d_model."""
        if self.d_ff is not None:
            return self.d_ff
        default_width = getattr(feed_forwards[self.ffn], "default_width", None)
        if default_width is None:
            return 4 * self.d_model
        with errors_of_part(feed_forwards, self.ffn, "has a default_width that fails"):
            width = int(default_width(self.d_model))
        if width < 1:
            raise wrong_value(f"default_width of the feed-forward layer {self.ffn!r}", "at least 1", width)
        return width

    def to_dict(self) -> dict[str, Any]:
        """Return the fields; `ModelConfig(**fields)` is an equal config."""
        return dataclasses.asdict(self)


def check_heads(d_model: int, num_heads: int, kv_heads: int) -> None:
    """Raise unless the heads divide the width, and the key/value heads divide the query heads."""
    if num_heads < 1 or d_model % num_heads:
        message = f"d_model ({d_model}) must be a multiple of num_heads ({num_heads})"
        raise UsageError(message, key="num_heads", found=num_heads)
    if kv_heads < 1 or num_heads % kv_heads:
        message = f"num_heads ({num_heads}) must be a multiple of num_kv_heads ({kv_heads})"
        raise UsageError(message, key="num_kv_heads", found=kv_heads)


def _check_size(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise wrong_value(name, "a positive whole number", value)
    if value > MAX_SIZE:
        raise wrong_value(name, f"at most {MAX_SIZE}", value)

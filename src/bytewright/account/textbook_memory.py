"""The textbook's memory of a training step with AdamW, as algebra: a simplified list of tensors, added up.

All in float32, 4 bytes a number: P parameters, P gradients, 2·P of optimizer state, and for each of B·T
tokens what the following leave behind, each once:

    block     two norms 2·d; q, k and v d + 2·c; scores H·T and softmax H·T; weighted sum d; output d;
              feed-forward gated: W1 f, W3 f, SiLU f, product f, W2 d; plain: W1 f, SiLU f, W2 d
    after     final norm d; logits V; cross-entropy V (the probabilities, from which its gradient is made)

So the peak is a·B + b. That is a teaching figure: it leaves out the copies and temporaries that a program
makes and keeps things that a good one never writes. `memory` predicts what our twins really take.
"""

from __future__ import annotations

from dataclasses import dataclass

from bytewright.account.expression import Expression, symbols
from bytewright.account.parameters import count_parameters
from bytewright.model.config import ModelConfig

FLOAT32 = 4


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """The simplified memory of a training step: `a` bytes for each sequence and `b` bytes besides."""

    parameters: int
    gradients: int
    optimizer_state: int
    activations_per_sequence: int
    parameters_formula: Expression
    """P: how many parameters there are."""
    per_sequence_formula: Expression
    """a: bytes of activations of one sequence."""

    @property
    def a(self) -> int:
        """Bytes that each further sequence of the batch adds."""
        return self.activations_per_sequence

    @property
    def b(self) -> int:
        """Bytes that do not depend on the batch."""
        return self.parameters + self.gradients + self.optimizer_state

    def peak(self, batch_size: int) -> int:
        """Bytes of a step of `batch_size` sequences."""
        return self.a * batch_size + self.b

    def largest_batch(self, memory_bytes: float) -> int:
        """Give the largest batch that fits into so much memory; 0 if none does."""
        return max(0, int((memory_bytes - self.b) // self.a))


def simplified_inventory(config: ModelConfig, num_tokens: int | None = None) -> Inventory:
    """Add up the textbook's list for `config`, at its full context unless told otherwise.

    >>> from bytewright.account.presets import find_preset
    >>> xl = simplified_inventory(find_preset("gpt2-xl"))
    >>> print(xl.per_sequence_formula)
    32·L·T·d + 8·H·L·T² + 16·L·T·f + 4·T·d + 8·T·V
    >>> xl.a, xl.b, xl.largest_batch(80e9)
    (18034335744, 34032921600, 2)
    """
    length = config.context_length if num_tokens is None else num_tokens
    count = count_parameters(config)
    values = {
        "T": length,
        "L": config.num_layers,
        "d": config.d_model,
        "c": config.kv_heads * config.d_head,
        "f": config.ffn_width,
        "h": config.d_head,
        "H": config.num_heads,
        "V": config.vocab_size,
    }
    formula = activations_formula(config)
    return Inventory(
        parameters=FLOAT32 * count.total,
        gradients=FLOAT32 * count.total,
        optimizer_state=2 * FLOAT32 * count.total,
        activations_per_sequence=formula.evaluate(values),
        parameters_formula=parameters_formula(config),
        per_sequence_formula=formula,
    )


def parameters_formula(config: ModelConfig) -> Expression:
    """Write the number of parameters as algebra.

    >>> from bytewright.account.presets import find_preset
    >>> print(parameters_formula(find_preset("gpt2-xl")))
    2·V·d + 4·L·d² + 3·L·d·f + 2·L·d + d
    """
    L, V, d, f, h = symbols("L V d f h")  # noqa: N806
    c = _key_width(config)
    attention = 2 * d * d + 2 * d * c + (2 * h if config.qk_norm else 0)
    ffn = (3 if config.ffn == "swiglu" else 2) * d * f
    norms = 0 if config.norm == "none" else 2 * d
    final = d if config.norm == "pre" else 0
    return (1 if config.tie_embeddings else 2) * V * d + L * (attention + ffn + norms) + final


def activations_formula(config: ModelConfig) -> Expression:
    """Write the bytes of activations of one sequence as algebra."""
    T, L, H, V, d, f = symbols("T L H V d f")  # noqa: N806
    norms = 0 if config.norm == "none" else 2 * d
    attention = d + 2 * _key_width(config) + 2 * H * T + 2 * d
    ffn = (4 if config.ffn == "swiglu" else 2) * f + d
    final = d if config.norm == "pre" else 0
    return FLOAT32 * (L * T * (attention + ffn + norms) + T * (final + 2 * V))


def _key_width(config: ModelConfig) -> Expression:
    """Width of all key heads: a size of its own only where query heads share them."""
    return symbols("d" if config.kv_heads == config.num_heads else "c")[0]

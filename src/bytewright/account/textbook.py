"""The textbook's estimate of the memory of a training step with AdamW, as a formula.

The textbook lists tensors and adds up their sizes, all in float32 (4 bytes): P parameters, P gradients, 2·P
of optimizer state, and for each of B·T tokens the following activations:

    block     two norms 2·d; q, k and v d + 2·c; scores H·T and softmax H·T; weighted sum d; output d;
              feed-forward gated: W1 f, W3 f, SiLU f, product f, W2 d; ungated: W1 f, SiLU f, W2 d
    after     final norm d; logits V; cross-entropy V (the probabilities, for its gradient)

The peak is a·B + b. It is a teaching figure: it omits the copies and temporaries of a real program, and
includes tensors that a fused implementation never writes. `memory` predicts our implementations.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

from bytewright.account.parameters import count_parameters
from bytewright.account.tracing import costs_of
from bytewright.model.config import ModelConfig
from bytewright.model.costs import Costs, StepShape

Powers = tuple[tuple[str, int], ...]
SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
FLOAT32 = 4


@dataclass(frozen=True, kw_only=True)
class TextbookMemory:
    """The memory of a training step: `a` bytes for each sequence plus `b` bytes."""

    parameters: int
    gradients: int
    optimizer_state: int
    activations_per_sequence: int
    parameters_formula: Expression
    """P, the number of parameters."""
    per_sequence_formula: Expression
    """a, the bytes of activations of one sequence."""

    @property
    def a(self) -> int:
        """Bytes of each sequence of the batch."""
        return self.activations_per_sequence

    @property
    def b(self) -> int:
        """Bytes that do not depend on the batch."""
        return self.parameters + self.gradients + self.optimizer_state

    def peak(self, batch_size: int) -> int:
        """Return the bytes of a step of `batch_size` sequences."""
        return self.a * batch_size + self.b

    def largest_batch(self, memory_bytes: float) -> int:
        """Return the largest batch that fits into `memory_bytes`; 0 if none fits."""
        return max(0, int((memory_bytes - self.b) // self.a))


def textbook_estimate(config: ModelConfig, num_tokens: int | None = None) -> TextbookMemory:
    """Return the textbook's estimate for `config` and `num_tokens` (default: the full context).

    >>> from bytewright.account.shapes import find_preset
    >>> xl = textbook_estimate(find_preset("gpt2-xl"))
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
    return TextbookMemory(
        parameters=FLOAT32 * count.total,
        gradients=FLOAT32 * count.total,
        optimizer_state=2 * FLOAT32 * count.total,
        activations_per_sequence=formula.evaluate(values),
        parameters_formula=parameters_formula(config),
        per_sequence_formula=formula,
    )


def parameters_formula(config: ModelConfig) -> Expression:
    """Return the formula of the number of parameters.

    >>> from bytewright.account.shapes import find_preset
    >>> print(parameters_formula(find_preset("gpt2-xl")))
    2·V·d + 4·L·d² + 3·L·d·f + 2·L·d + d
    """
    L, V, d = symbols("L V d")  # noqa: N806
    attention, ffn, norm = (_to_expression(config, one.parameters) for one in _reference_costs(config))
    num_norms, has_final = _count_norms(config)
    final = norm if has_final else 0
    return (1 if config.tie_embeddings else 2) * V * d + L * (attention + ffn + num_norms * norm) + final


def activations_formula(config: ModelConfig) -> Expression:
    """Return the formula of the bytes of activations of one sequence."""
    T, L, V = symbols("T L V")  # noqa: N806
    attention, ffn, norm = (_to_expression(config, one.textbook) for one in _reference_costs(config))
    num_norms, has_final = _count_norms(config)
    final = norm if has_final else 0
    return FLOAT32 * (L * T * (attention + ffn + num_norms * norm) + T * (final + 2 * V))


def _count_norms(config: ModelConfig) -> tuple[int, bool]:
    """Return the number of norms of a block, and whether there is a final norm."""
    return 0 if config.norm == "none" else 2, config.norm == "pre"


def _reference_costs(config: ModelConfig) -> tuple[Costs, Costs, Costs]:
    """Return the costs of attention, feed-forward layer and norm."""
    x = StepShape(
        config=dataclasses.replace(config, implementation="reference"),
        batch_size=1,
        num_tokens=config.context_length,
        precision="fp32",
    )
    return costs_of("attention", x), costs_of("ffn", x), costs_of("norm", x)


def _to_expression(config: ModelConfig, formula: Mapping[str, int]) -> Expression:
    """Return a formula of a part; the width of all key heads, c, is d unless query heads share key heads."""
    total = Expression({})
    for letters, factor in formula.items():
        term = _as_expression(factor)
        for letter in letters:
            term = term * symbols(letter if letter != "c" or config.kv_heads != config.num_heads else "d")[0]
        total = total + term
    return total


@dataclass(frozen=True)
class Expression:
    """A polynomial with integer coefficients that can be printed and evaluated.

    >>> T, d, L = symbols("T d L")
    >>> memory = 4 * L * T * (2 * d + T)
    >>> print(memory)
    8·L·T·d + 4·L·T²
    >>> memory.evaluate({"L": 48, "T": 1024, "d": 1600})
    830472192
    """

    terms: Mapping[Powers, int]

    def __add__(self, other: Expression | int) -> Expression:
        terms = dict(self.terms)
        for powers, coefficient in _as_expression(other).terms.items():
            terms[powers] = terms.get(powers, 0) + coefficient
        return Expression({powers: value for powers, value in terms.items() if value})

    def __mul__(self, other: Expression | int) -> Expression:
        product = Expression({})
        for left, a in self.terms.items():
            for right, b in _as_expression(other).terms.items():
                powers = dict(left)
                for name, power in right:
                    powers[name] = powers.get(name, 0) + power
                product += Expression({tuple(sorted(powers.items())): a * b})
        return product

    __radd__, __rmul__ = __add__, __mul__

    def evaluate(self, values: Mapping[str, int]) -> int:
        """Return the value of the polynomial for the given values of its symbols."""
        return sum(
            coefficient * math.prod(values[name] ** power for name, power in powers)
            for powers, coefficient in self.terms.items()
        )

    def __str__(self) -> str:
        """Return the formula, with the terms in the order in which they were added."""
        return " + ".join(_format_term(powers, value) for powers, value in self.terms.items()) or "0"


def symbols(names: str) -> tuple[Expression, ...]:
    """Return one expression for each name."""
    return tuple(Expression({((name, 1),): 1}) for name in names.split())


def _as_expression(value: Expression | int) -> Expression:
    return value if isinstance(value, Expression) else Expression({(): value} if value else {})


def _format_term(powers: Powers, coefficient: int) -> str:
    factors = [name + (str(power).translate(SUPERSCRIPTS) if power > 1 else "") for name, power in powers]
    return "·".join([str(coefficient), *factors] if coefficient != 1 or not factors else factors)

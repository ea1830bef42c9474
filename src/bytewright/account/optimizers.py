"""What one update of the weights costs: operations and bytes, for AdamW and for Muon.

AdamW does the same for each of P parameters; an operation is an addition, a product, a quotient or a root:

    θ ← θ - lr λ θ                       2
    m ← β₁ m + (1 - β₁) g                3
    v ← β₂ v + (1 - β₂) g²               4
    θ ← θ - rate · m / (√v + ε)          5      together 14·P

At best it reads θ, g, m and v and writes θ, m and v, 7·4 bytes a parameter: half an operation per byte, so
memory bounds it everywhere.

Muon takes the matrices inside blocks, AdamW the rest. A matrix of r x c, r the shorter side, costs in each of
five rounds x xᵀ (2·r²·c), its square (2·r³) and the product with x (2·r²·c), and elementwise

    m 3, direction 3, norm 2 and quotient 1, θ 4 for each of r·c;  in each round 2·r·c and 3·r²

Exact: tests count the operations of the readable rules, and the bytes that the fused ones move when nothing
compiles them and each operation is a pass over memory (`eager_update_bytes`). Knows nothing of time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from bytewright.account.devices import DeviceKind
from bytewright.account.parameters import count_parameters
from bytewright.model.config import ModelConfig

OptimizerName = Literal["adamw", "muon", "sgd"]

ADAMW_OPERATIONS = 14
ADAMW_BYTES = 7 * 4
MUON_ROUNDS = 5
MUON_BYTES = 5 * 4
"""θ, g and m read, θ and m written; the rounds in between add passes that depend on the implementation."""
SGD_BYTES = 3 * 4

EAGER_BYTES: Mapping[OptimizerName, int] = {"adamw": 53 * 4, "sgd": 15 * 4, "muon": 39 * 4}
"""For each weight: norm and clipping of the gradient, the rule, the choice whether its result is accepted."""
EAGER_ROUNDS = 5 + MUON_ROUNDS * 5
"""Numbers that Muon reads and writes for each weight to orthogonalise; those of the products are not here."""
EAGER_GRAM = MUON_ROUNDS * 7
"""The same for each number of x xᵀ."""


@dataclass(frozen=True, kw_only=True)
class UpdateCost:
    """Operations of one update, and the fewest bytes that it can move."""

    matmul_flops: int
    elementwise_flops: int
    num_bytes: int

    @property
    def flops(self) -> int:
        """All operations."""
        return self.matmul_flops + self.elementwise_flops

    def __add__(self, other: UpdateCost) -> UpdateCost:
        return UpdateCost(
            matmul_flops=self.matmul_flops + other.matmul_flops,
            elementwise_flops=self.elementwise_flops + other.elementwise_flops,
            num_bytes=self.num_bytes + other.num_bytes,
        )


def adamw_cost(num_parameters: int) -> UpdateCost:
    """Cost of one step of AdamW.

    >>> adamw_cost(1_000).flops, adamw_cost(1_000).num_bytes
    (14000, 28000)
    """
    return UpdateCost(
        matmul_flops=0,
        elementwise_flops=ADAMW_OPERATIONS * num_parameters,
        num_bytes=ADAMW_BYTES * num_parameters,
    )


def muon_matrix_cost(rows: int, columns: int) -> UpdateCost:
    """Cost of one step of Muon on one matrix.

    >>> muon_matrix_cost(2, 3).matmul_flops  # five rounds of 24 + 16 + 24
    320
    """
    r, c = min(rows, columns), max(rows, columns)
    return UpdateCost(
        matmul_flops=MUON_ROUNDS * (2 * r * r * c + 2 * r**3 + 2 * r * r * c),
        elementwise_flops=13 * r * c + MUON_ROUNDS * (2 * r * c + 3 * r * r),
        num_bytes=MUON_BYTES * r * c,
    )


def update_cost(config: ModelConfig, optimizer: OptimizerName = "adamw") -> UpdateCost:
    """Cost of one update of all parameters of the model that `config` describes."""
    total = count_parameters(config).total
    if optimizer == "adamw":
        return adamw_cost(total)
    if optimizer == "sgd":
        return UpdateCost(matmul_flops=0, elementwise_flops=2 * total, num_bytes=SGD_BYTES * total)
    matrices = block_matrices(config)
    taken = config.num_layers * sum(rows * columns for rows, columns in matrices)
    cost = adamw_cost(total - taken)
    for rows, columns in matrices:
        one = muon_matrix_cost(rows, columns)
        cost += UpdateCost(
            matmul_flops=config.num_layers * one.matmul_flops,
            elementwise_flops=config.num_layers * one.elementwise_flops,
            num_bytes=config.num_layers * one.num_bytes,
        )
    return cost


def eager_update_bytes(config: ModelConfig, optimizer: OptimizerName, device: DeviceKind) -> int:
    """Bytes that the operations of a fused rule move if each is a pass of its own, from the norm on.

    On a GPU Muon's rounds run in two bytes a number, to which the direction is cast and from which it comes
    back, 12 bytes a weight.

    >>> base = ModelConfig(vocab_size=10_000, context_length=256, d_model=512, num_layers=4, num_heads=16)
    >>> [eager_update_bytes(base, rule, "cpu") // count_parameters(base).total for rule in ("adamw", "sgd")]
    [212, 60]
    """
    total = count_parameters(config).total
    if optimizer != "muon":
        return EAGER_BYTES[optimizer] * total
    taken, grams = 0, 0
    for rows, columns in block_matrices(config):
        taken += config.num_layers * rows * columns
        grams += config.num_layers * min(rows, columns) ** 2
    size, casts = (2, 12) if device == "cuda" else (4, 0)
    rounds = size * (EAGER_ROUNDS * taken + EAGER_GRAM * grams)
    return EAGER_BYTES["adamw"] * (total - taken) + (EAGER_BYTES["muon"] + casts) * taken + rounds


def block_matrices(config: ModelConfig) -> list[tuple[int, int]]:
    """List the shapes of the matrices of one block: q, k, v, output, w1, w2 and, if gated, w3."""
    d, c, f = config.d_model, config.kv_heads * config.d_head, config.ffn_width
    gate = [(f, d)] if config.ffn == "swiglu" else []
    return [(d, d), (c, d), (c, d), (d, d), (f, d), (d, f), *gate]

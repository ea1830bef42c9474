"""The cost of one update of the weights: operations, bytes moved, and memory, for AdamW, Muon and SGD.

AdamW does the same for each of P parameters; additions, products, quotients and roots count as one operation:

    θ ← θ - lr λ θ                       2
    m ← β₁ m + (1 - β₁) g                3
    v ← β₂ v + (1 - β₂) g²               4
    θ ← θ - rate · m / (√v + ε)          5      together 14·P

At best it reads θ, g, m and v and writes θ, m and v: 7·4 bytes per parameter. This is half an operation per
byte, so memory bandwidth limits it on every device.

Muon updates the matrices of the blocks, AdamW the rest. For a matrix of r x c, where r is the shorter side,
each of five rounds computes x xᵀ (2·r²·c), its square (2·r³) and the product with x (2·r²·c). Elementwise
operations per number:

    m 3, direction 3, norm 2 and quotient 1, θ 4 for each of r·c;  in each round 2·r·c and 3·r²

The counts are exact. Tests count the operations of the reference rules, and the bytes that the fused rules
move without a compiler, when each operation is one pass over memory (`eager_update_bytes`).

The state of AdamW is two numbers per weight, of Muon one per weight of its matrices, of SGD none. The
reference rules update one parameter at a time and need little temporary memory. The fused rules update whole
groups. Without a compiler, each operation allocates a tensor of that size. Compiled, they are one kernel, and
only Muon's products need temporaries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from bytewright.account.activations import WIDE, StepShape
from bytewright.account.devices import DeviceKind
from bytewright.account.parameters import count_parameters
from bytewright.model.config import ModelConfig

OptimizerName = Literal["adamw", "muon", "sgd"]

ADAMW_OPERATIONS = 14
ADAMW_BYTES = 7 * 4
MUON_ROUNDS = 5
MUON_BYTES = 5 * 4
"""Reads θ, g and m, writes θ and m. The passes of the rounds depend on the implementation."""
SGD_BYTES = 3 * 4

EAGER_BYTES: Mapping[OptimizerName, int] = {"adamw": 53 * 4, "sgd": 15 * 4, "muon": 39 * 4}
"""Per weight: norm and clipping of the gradient, the update rule, and selecting the accepted result."""
EAGER_ROUNDS = 5 + MUON_ROUNDS * 5
"""Numbers that Muon reads and writes per weight to orthogonalise, without those of the products."""
EAGER_GRAM = MUON_ROUNDS * 7
"""The same per number of x xᵀ."""


@dataclass(frozen=True, kw_only=True)
class UpdateCost:
    """The operations of one update, and the minimum of bytes that it moves."""

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
    """Return the cost of one step of AdamW.

    >>> adamw_cost(1_000).flops, adamw_cost(1_000).num_bytes
    (14000, 28000)
    """
    return UpdateCost(
        matmul_flops=0,
        elementwise_flops=ADAMW_OPERATIONS * num_parameters,
        num_bytes=ADAMW_BYTES * num_parameters,
    )


def muon_matrix_cost(rows: int, columns: int) -> UpdateCost:
    """Return the cost of one step of Muon on one matrix.

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
    """Return the cost of one update of all parameters of a model."""
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
    """Return the bytes that a fused rule moves without a compiler, from the norm of the gradients on.

    On a GPU, Muon's rounds use bf16: the casts of the direction move another 12 bytes per weight.

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
    """Return the shapes of the matrices of one block: q, k, v, output, w1, w2 and, if gated, w3."""
    d, c, f = config.d_model, config.kv_heads * config.d_head, config.ffn_width
    gate = [(f, d)] if config.ffn == "swiglu" else []
    return [(d, d), (c, d), (c, d), (d, d), (f, d), (d, f), *gate]


def state_bytes(config: ModelConfig, optimizer: OptimizerName) -> int:
    """Return the bytes of the optimizer state."""
    total = WIDE * count_parameters(config).total
    match optimizer:
        case "adamw":
            return 2 * total
        case "muon":
            return 2 * total - sum(_muon_groups(config).values())
        case "sgd":
            return 0


def update_temporaries(x: StepShape, optimizer: OptimizerName, *, is_fused: bool) -> int:
    """Return the bytes of temporaries during the update.

    Reference: three tensors of the size of the largest parameter for AdamW, one for SGD, five of the size of
    the largest matrix for Muon. Fused: seven of the size of the whole group for AdamW (the clipped gradient,
    both new means, the decayed weights, and three for the quotient), three for SGD.
    """
    total = WIDE * count_parameters(x.config).total
    largest = WIDE * max(x.V * x.d, x.d * x.f)
    match optimizer:
        case "adamw":
            return 0 if is_fused and x.compiled else 7 * total if is_fused else 3 * largest
        case "sgd":
            return 0 if is_fused and x.compiled else 3 * total if is_fused else largest
        case "muon":
            if is_fused:
                return _muon_temporaries(x)
            return max(5 * WIDE * x.d * x.f, 3 * WIDE * x.V * x.d)


def _muon_temporaries(x: StepShape) -> int:
    """Return the bytes for all matrices of one shape at a time, then for AdamW with the other parameters.

    The clipped gradient and the mean are in float32. The rounds need five tensors of the size of the group
    and one of x xᵀ, on a GPU in bf16. The new weights and mean of the previous group exist until they are
    copied.
    """
    groups = _muon_groups(x.config)
    rest = WIDE * count_parameters(x.config).total - sum(groups.values())
    bytes_of_rounds = 2 if x.device == "cuda" else WIDE
    peak, before = 0, 0
    for shape, size in groups.items():
        gram = size * min(shape) // max(shape)
        peak = max(peak, 2 * size + (5 * size + gram) * bytes_of_rounds // WIDE + before)
        before = 0 if x.compiled else 2 * size
    return max(peak, 0 if x.compiled else 7 * rest + before)


def _muon_groups(config: ModelConfig) -> dict[tuple[int, int], int]:
    """Return the bytes of the matrices of all blocks, by shape."""
    groups: dict[tuple[int, int], int] = {}
    for shape in block_matrices(config):
        groups[shape] = groups.get(shape, 0) + WIDE * config.num_layers * shape[0] * shape[1]
    return groups

"""What the update of the weights takes in memory: the state that a rule keeps, and its temporaries.

AdamW keeps two numbers for each weight, Muon one for each weight of the matrices that it takes (AdamW has the
rest), SGD none. The readable rules go from parameter to parameter and need little at a time; the fused ones
work on slabs, whole groups of parameters at once, and eager each of their operations makes a tensor of that
size. Compiled they are one kernel, and only Muon's products still need room. Builds no tensor.
"""

from __future__ import annotations

from bytewright.account.activations import WIDE, StepShape
from bytewright.account.optimizers import OptimizerName, block_matrices
from bytewright.account.parameters import count_parameters
from bytewright.model.config import ModelConfig


def state_bytes(config: ModelConfig, optimizer: OptimizerName) -> int:
    """Bytes that the rule remembers from step to step."""
    total = WIDE * count_parameters(config).total
    match optimizer:
        case "adamw":
            return 2 * total
        case "muon":
            return 2 * total - sum(_slabs_of_muon(config).values())
        case "sgd":
            return 0


def update_temporaries(x: StepShape, optimizer: OptimizerName, *, in_slabs: bool) -> int:
    """Bytes that come and go while the weights are updated.

    Readable: three of the size of the largest parameter for AdamW, one for SGD, five of the largest matrix
    for Muon. Fused, AdamW: the clipped gradient, both new means, the decayed weights, and three on the way to
    the quotient, seven of the size of the slab that holds all matrices; SGD: three; Muon: see there.
    """
    total = WIDE * count_parameters(x.config).total
    largest = WIDE * max(x.V * x.d, x.d * x.f)
    match optimizer:
        case "adamw":
            return 0 if in_slabs and x.compiled else 7 * total if in_slabs else 3 * largest
        case "sgd":
            return 0 if in_slabs and x.compiled else 3 * total if in_slabs else largest
        case "muon":
            if in_slabs:
                return _temporaries_of_muon(x)
            return max(5 * WIDE * x.d * x.f, 3 * WIDE * x.V * x.d)


def _temporaries_of_muon(x: StepShape) -> int:
    """Bytes for all matrices of one shape at a time, and then for AdamW with what Muon does not take.

    The clipped gradient and the mean in float32; for the rounds five of the size of the slab and one of x xᵀ,
    on a GPU in two bytes a number; besides, until they are replaced, weights and mean of the slab before.
    """
    slabs = _slabs_of_muon(x.config)
    rest = WIDE * count_parameters(x.config).total - sum(slabs.values())
    bytes_of_rounds = 2 if x.device == "cuda" else WIDE
    peak, before = 0, 0
    for shape, size in slabs.items():
        gram = size * min(shape) // max(shape)
        peak = max(peak, 2 * size + (5 * size + gram) * bytes_of_rounds // WIDE + before)
        before = 0 if x.compiled else 2 * size
    return max(peak, 0 if x.compiled else 7 * rest + before)


def _slabs_of_muon(config: ModelConfig) -> dict[tuple[int, int], int]:
    """Bytes of all matrices inside blocks, by their shape."""
    slabs: dict[tuple[int, int], int] = {}
    for shape in block_matrices(config):
        slabs[shape] = slabs.get(shape, 0) + WIDE * config.num_layers * shape[0] * shape[1]
    return slabs

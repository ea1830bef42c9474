"""The time of training: from a given utilisation, or part by part from the peak rates of a machine.

With a utilisation, seconds = FLOPs / (peak · MFU). The MFU (model FLOPs utilisation) is the share of the peak
that the model's matrix products reach. It must be measured and depends on the sizes. The roofline is computed
for each part of a step. A part takes at least flops / peak seconds for its arithmetic, and at least bytes /
bandwidth seconds for its memory traffic. The larger of the two is its lower bound. The sum of these bounds is
a lower bound of the step. One measured step gives the efficiency: the share of the roofline that a machine
reaches. With it the time of other sizes can be predicted.

The traffic is that of the fused implementation, in the letters of `memory`. A product moves
s·(m·k + k·n + m·n) bytes. Attention reads q, k, v and writes the result; its backward pass moves twice as
much. The other operations, compiled:

    norms           a norm and the residual sum before it: forward 4·s·N·d, backward 6·s·N·d, two of them for
                    the gradient of the gain; a sum without a norm: 3·s·N·d in each direction
    q and k         rotated, unless our attention kernel does it: 2·s·N·(d + c) in each direction; with their
                    own norm, rotated or not: forward 2, backward 5
    gate            forward 3·s·N·f, backward 5·s·N·f (ungated: 2 and 3)
    loss            s·N·V read twice and written once
    weights         cast to s bytes forward and backward, and gradients gathered: (4 + s)·2·P + 8·P
    update          the minimum of its rule (7·4·P for AdamW), and 4·P for the norm of the gradients

Without a compiler every operation is one pass over memory. The parts state the sums of both (`Costs.passes`);
tests compare them with the bytes that the operations of a step read and write. With gradient accumulation,
each part of the batch costs all of this except the update.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bytewright.account.devices import Device, Rate
from bytewright.account.flops import count_flops, count_norms, list_matmuls
from bytewright.account.optimizers import AnyOptimizer, eager_update_bytes, update_cost
from bytewright.account.parameters import count_parameters
from bytewright.account.tracing import costs_of
from bytewright.errors import wrong_value
from bytewright.model.config import ModelConfig
from bytewright.model.costs import WIDE, Pass, Precision, StepShape
from bytewright.model.loss import choose_chunk_size

SECONDS_PER_DAY = 86_400


def seconds_at(flops: float, flops_per_second: float, mfu: float) -> float:
    """Return the seconds of `flops` at the share `mfu` of a peak.

    >>> seconds_at(3e15, 1e12, 0.5)
    6000.0
    """
    if not 0 < mfu <= 1:
        raise wrong_value("mfu", "above 0 and at most 1", mfu)
    return flops / (flops_per_second * mfu)


def training_days(
    config: ModelConfig, *, num_steps: int, batch_size: int, flops_per_second: float, mfu: float = 0.5
) -> float:
    """Return the days of `num_steps` updates with `batch_size` sequences at full context.

    >>> from bytewright.account.shapes import find_preset
    >>> xl = find_preset("gpt2-xl")
    >>> round(training_days(xl, num_steps=400_000, batch_size=1024, flops_per_second=19.5e12))
    6584
    """
    flops = num_steps * count_flops(config, batch_size=batch_size).training
    return seconds_at(flops, flops_per_second, mfu) / SECONDS_PER_DAY


@dataclass(frozen=True, kw_only=True)
class StepPart:
    """A part of a step: its FLOPs, its memory traffic, and the minimum of seconds for each."""

    name: str
    flops: int
    num_bytes: int
    seconds_of_flops: float
    seconds_of_bytes: float

    @property
    def seconds(self) -> float:
        """The lower bound of its time: the longer of both, since arithmetic and traffic overlap."""
        return max(self.seconds_of_flops, self.seconds_of_bytes)

    @property
    def bound(self) -> str:
        """The resource that limits it."""
        return "arithmetic" if self.seconds_of_flops >= self.seconds_of_bytes else "memory"

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.num_bytes


def roofline(
    config: ModelConfig,
    device: Device,
    *,
    batch_size: int = 1,
    num_tokens: int | None = None,
    precision: Precision = "bf16",
    rate: Rate | None = None,
    optimizer: AnyOptimizer = "adamw",
    compiled: bool = True,
    accumulate: int = 1,
) -> list[StepPart]:
    """Return the parts of a training step of the fused implementation, with lower bounds of their time.

    A step processes `accumulate` times `batch_size` sequences one after the other, then updates once.
    """
    x = StepShape(
        config=config,
        batch_size=batch_size,
        num_tokens=config.context_length if num_tokens is None else num_tokens,
        precision=precision,
        compiled=compiled,
        device=device.kind,
    )

    def part(name: str, flops: int, num_bytes: int, rate: Rate) -> StepPart:
        return StepPart(
            name=name,
            flops=flops,
            num_bytes=num_bytes,
            seconds_of_flops=flops / device.peak(rate),
            seconds_of_bytes=num_bytes / device.bytes_per_second,
        )

    repeated = [
        part(name, accumulate * flops, accumulate * num_bytes, rate or precision)
        for name, flops, num_bytes in (*_list_products(x), *_list_other_passes(x))
    ]
    # Muon multiplies in bf16 on a GPU and in fp32 on a CPU, independently of the precision of the model.
    update = part(*_update_traffic(x, optimizer), "bf16" if device.kind == "cuda" else "fp32")
    return [*repeated, part(*_weight_traffic(x, accumulate), rate or precision), update]


def _list_products(x: StepShape) -> Iterator[tuple[str, int, int]]:
    for matmul in list_matmuls(x.config, x.T, x.B):
        if matmul.component not in ("attention_scores", "attention_weighting"):  # computed in a pass
            m, k, n = matmul.m, matmul.k, matmul.n
            traffic = matmul.times * x.s * (m * k + k * n + m * n)
            yield f"{matmul.name} products", 3 * matmul.flops, 3 * traffic


def _list_other_passes(x: StepShape) -> Iterator[tuple[str, int, int]]:
    """Yield the work besides products: kernels, norms and residual sums, elementwise operations, the loss."""
    layers, numbers, num_norms = x.config.num_layers, x.N * x.d, count_norms(x.config)
    attention, ffn = costs_of("attention", x).passes, costs_of("ffn", x).passes
    in_kernels = [one for one in attention if one.name == "attention"]
    yield from _repeat(in_kernels, layers)
    num_sums = 2 * layers
    of_norms = list(_repeat(costs_of("norm", x).passes, num_norms))
    flops, num_bytes = sum(one[1] for one in of_norms), sum(one[2] for one in of_norms)
    if x.compiled:  # a norm and the residual sum before it are one pass
        num_sums = max(0, num_sums - num_norms)
        flops += 2 * num_sums * numbers
    yield "norms and residual sums", flops, num_bytes + 6 * num_sums * x.s * numbers
    yield from _repeat([one for one in attention if one not in in_kernels], layers)
    yield from _repeat(ffn, layers)
    passes = 3 * x.s if x.compiled or x.has_kernels else 8 * WIDE
    yield "loss", 5 * x.N * x.V, passes * x.N * x.V


def _repeat(passes: Iterable[Pass], times: int) -> Iterator[tuple[str, int, int]]:
    for name, flops, num_bytes in passes:
        yield name, times * flops, times * num_bytes


def _weight_traffic(x: StepShape, accumulate: int) -> tuple[str, int, int]:
    """Return the traffic of casts and of gradients, which the first part copies and later parts add."""
    count = count_parameters(x.config)
    if x.compiled:
        casts = 2 * (WIDE + x.s) * count.total if x.precision == "bf16" else 0
    else:
        chunks = -(-x.N // choose_chunk_size(x.device, x.V))
        casts = (30 if x.precision == "bf16" else 16) * count.blocks + (24 + 12 * chunks) * x.V * x.d
    copying, adding = 2 * WIDE * count.total, 3 * WIDE * count.total
    moved = accumulate * casts + copying + (accumulate - 1) * adding
    return "casting weights, gathering gradients", accumulate * count.total, moved


def _update_traffic(x: StepShape, optimizer: AnyOptimizer) -> tuple[str, int, int]:
    cost = update_cost(x.config, optimizer)
    if not x.compiled:
        return "update", cost.flops, eager_update_bytes(x.config, optimizer, x.device)
    return "update", cost.flops, cost.num_bytes + WIDE * count_parameters(x.config).total


def least_seconds(parts: list[StepPart]) -> float:
    """Return the lower bound of the time of a step with these parts."""
    return sum(part.seconds for part in parts)

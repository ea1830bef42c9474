"""How long training takes: by a utilisation that is given, or part by part from what a machine can do.

Two ways. The blunt one divides FLOPs by what a machine does: seconds = FLOPs / (peak · MFU), where the MFU
(model FLOPs utilisation) is the share of the peak that the matrix products of the model get; it has to be
measured, and it differs from shape to shape. The roofline takes each part of a step by itself: it needs at
least flops / peak seconds for its arithmetic and bytes / bandwidth for its traffic, and the larger of the two
bounds it. Their sum is a time that no implementation beats; one measured step says how far from it a machine
stays (the efficiency), and with that, other shapes are predicted.

The traffic is that of the fast twin, in the letters of `activations`. A product moves s·(m·k + k·n + m·n)
bytes, attention reads q, k, v and writes the result, backward twice that. The rest, compiled:

    norms           forward 4·s·N·d a norm with the residual sum before it; backward 6·s·N·d
    gate            forward 3·s·N·f, backward 5·s·N·f (plain: 2 and 3)
    loss            s·N·V read twice and written once
    weights         cast to s bytes forward and backward, and gradients gathered: (4 + s)·2·P + 8·P
    update          7·4·P for AdamW, and 4·P for the norm of the gradients

Eager, every operation is a pass of its own; `EAGER_…` below has their sums, which tests hold against a count
of the bytes that the operations of a step read and write.

Knows nothing of what is measured; `report` puts that beside.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bytewright.account.activations import WIDE, Letters, Precision
from bytewright.account.devices import Device, Rate
from bytewright.account.flops import count_flops, list_matmuls
from bytewright.account.optimizers import OptimizerName, update_cost
from bytewright.account.parameters import count_parameters
from bytewright.errors import UsageError
from bytewright.model.config import ModelConfig
from bytewright.model.fused import choose_chunk_size

SECONDS_PER_DAY = 86_400

EAGER_NORM = {"fp32": 28 + 96, "bf16": 40 + 108}
"""Bytes for each number that is normalised, forward and backward: cast, square, mean, two products, cast."""
EAGER_ROTATION = {"fp32": 36 + 53, "bf16": 32 + 50}
"""Bytes for each number of q and k that is rotated: four products, two sums, one joining, there and back."""
EAGER_UPDATE = 58 * 4
"""Bytes for each parameter that AdamW, operation by operation over slabs, reads and writes."""


def seconds_at(flops: float, flops_per_second: float, mfu: float) -> float:
    """Seconds that so many FLOPs take at a share of a peak.

    >>> seconds_at(3e15, 1e12, 0.5)
    6000.0
    """
    if not 0 < mfu <= 1:
        raise UsageError(f"a utilisation is above 0 and at most 1, not {mfu}")
    return flops / (flops_per_second * mfu)


def training_days(
    config: ModelConfig, *, num_steps: int, batch_size: int, flops_per_second: float, mfu: float = 0.5
) -> float:
    """Days for `num_steps` updates of `batch_size` sequences at full context.

    >>> from bytewright.account.presets import find_preset
    >>> xl = find_preset("gpt2-xl")
    >>> round(training_days(xl, num_steps=400_000, batch_size=1024, flops_per_second=19.5e12))
    6584
    """
    flops = num_steps * count_flops(config, batch_size=batch_size).training
    return seconds_at(flops, flops_per_second, mfu) / SECONDS_PER_DAY


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a step: its operations, its traffic, and the seconds that each needs at least."""

    name: str
    flops: int
    num_bytes: int
    seconds_of_flops: float
    seconds_of_bytes: float

    @property
    def seconds(self) -> float:
        """The least time: both go on side by side, so the longer decides."""
        return max(self.seconds_of_flops, self.seconds_of_bytes)

    @property
    def bound(self) -> str:
        """What limits it."""
        return "arithmetic" if self.seconds_of_flops >= self.seconds_of_bytes else "memory"

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / self.num_bytes


def roofline(
    config: ModelConfig,
    device: Device,
    *,
    batch_size: int = 1,
    num_tokens: int | None = None,
    precision: Precision = "bf16",
    rate: Rate | None = None,
    optimizer: OptimizerName = "adamw",
    compiled: bool = True,
) -> list[Part]:
    """List the parts of a training step of the fast twin with the least time of each on `device`."""
    x = Letters(
        config=config,
        batch_size=batch_size,
        num_tokens=config.context_length if num_tokens is None else num_tokens,
        precision=precision,
        compiled=compiled,
    )
    peak = device.peak(rate or precision)

    def part(name: str, flops: int, num_bytes: int) -> Part:
        return Part(
            name=name,
            flops=flops,
            num_bytes=num_bytes,
            seconds_of_flops=flops / peak,
            seconds_of_bytes=num_bytes / device.bytes_per_second,
        )

    elementwise = _elementwise if compiled else _elementwise_eager
    return [part(*each) for each in (*_products(x), *elementwise(x, optimizer))]


def _products(x: Letters) -> Iterator[tuple[str, int, int]]:
    attention_flops = 0
    for matmul in list_matmuls(x.config, x.T, x.B):
        if matmul.name in ("scores", "weighting"):
            attention_flops += matmul.flops
            continue
        m, k, n = matmul.m, matmul.k, matmul.n
        traffic = matmul.times * x.s * (m * k + k * n + m * n)
        yield f"{matmul.name} products", 3 * matmul.flops, 3 * traffic
    # The kernel skips the masked half, and computes the scores once more on the way back: 7 products, not 6.
    forward = x.s * x.N * (2 * x.d + 2 * x.c)
    flops = attention_flops * 7 // 4 * (x.T + 1) // x.T
    yield "attention", flops, x.config.num_layers * 3 * forward


def _elementwise(x: Letters, optimizer: OptimizerName) -> Iterator[tuple[str, int, int]]:
    layers, stream, inner = x.config.num_layers, x.s * x.N * x.d, x.s * x.N * x.f
    norms = 2 * layers + 1
    yield "norms and residual sums", 10 * norms * x.N * x.d, 10 * norms * stream
    passes = 8 if x.is_gated else 5
    yield "feed-forward gate", 10 * layers * x.N * x.f, passes * layers * inner
    yield "loss", 5 * x.N * x.V, 3 * x.s * x.N * x.V
    total = count_parameters(x.config).total
    casts = 2 * (WIDE + x.s) if x.precision == "bf16" else 0
    yield "casting weights, gathering gradients", total, (casts + 2 * WIDE) * total
    cost = update_cost(x.config, optimizer)
    yield "update", cost.flops, cost.num_bytes + WIDE * total


def _elementwise_eager(x: Letters, optimizer: OptimizerName) -> Iterator[tuple[str, int, int]]:
    layers, half = x.config.num_layers, x.precision == "bf16"
    stream = x.N * x.d
    norms = {"pre": 2 * layers + 1, "post": 2 * layers, "none": 0}[x.config.norm]
    sums = 2 * layers * 6 * x.s  # a residual sum reads two and writes one, forward and backward
    yield "norms and residual sums", 10 * norms * stream, (norms * EAGER_NORM[x.precision] + sums) * stream
    turned = 0
    if x.config.position == "rope" and not x.has_attention_kernel:
        turned = layers * EAGER_ROTATION[x.precision] * x.N * (x.d + x.c)
    yield "rotation", turned // 4, turned
    passes = 8 if x.is_gated and x.has_kernels else 18
    yield "feed-forward gate", 10 * layers * x.N * x.f, passes * layers * x.s * x.N * x.f
    yield "loss", 5 * x.N * x.V, (3 * x.s if x.has_kernels else 8 * WIDE) * x.N * x.V
    count = count_parameters(x.config)
    chunks = -(-x.N // choose_chunk_size(x.device, x.V))
    weights = (30 if half else 16) * count.blocks + (24 + 12 * chunks) * x.V * x.d
    yield "casting weights, gathering gradients", count.total, weights
    yield "update", update_cost(x.config, optimizer).flops, EAGER_UPDATE * count.total


def least_seconds(parts: list[Part]) -> float:
    """Time of a step that no implementation of these parts, one after the other, can beat."""
    return sum(part.seconds for part in parts)

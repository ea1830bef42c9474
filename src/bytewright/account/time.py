"""How long training takes: by a utilisation that is given, or part by part from what a machine can do.

Two ways. The blunt one divides FLOPs by what a machine does: seconds = FLOPs / (peak · MFU), where the MFU
(model FLOPs utilisation) is the share of the peak that the matrix products of the model get; it has to be
measured, and it differs from shape to shape. The roofline takes each part of a step by itself: it needs at
least flops / peak seconds for its arithmetic and bytes / bandwidth for its traffic, and the larger of the two
bounds it. Their sum is a time that nothing beats which takes these passes; one measured step says how far
from it a machine stays (the efficiency), and with that, other shapes are predicted.

The traffic is that of the fast twin, in the letters of `activations`. A product moves s·(m·k + k·n + m·n)
bytes, attention reads q, k, v and writes the result, backward twice that. The rest, compiled:

    norms           a norm and the residual sum before it: forward 4·s·N·d, backward 6·s·N·d, two of them for
                    the gradient of the gain; a sum without a norm: 3·s·N·d each way
    q and k         rotated, unless our attention kernel does it: 2·s·N·(d + c) each way; with a norm of their
                    own, rotated or not: forward 2, backward 5
    gate            forward 3·s·N·f, backward 5·s·N·f (plain: 2 and 3)
    loss            s·N·V read twice and written once
    weights         cast to s bytes forward and backward, and gradients gathered: (4 + s)·2·P + 8·P
    update          the fewest bytes of its rule (7·4·P for AdamW), and 4·P for the norm of the gradients

Eager, every operation is a pass of its own; `EAGER_…` here and in `optimizers` has their sums, which tests
hold against a count of the bytes that the operations of a step read and write. Where a batch is worked
through in parts, each of them takes all this but the update, which comes once.

Knows nothing of what is measured; `report` has the efficiencies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bytewright.account.activations import WIDE, Precision, StepShape
from bytewright.account.devices import Device, Rate
from bytewright.account.flops import count_flops, list_matmuls
from bytewright.account.optimizers import OptimizerName, eager_update_bytes, update_cost
from bytewright.account.parameters import count_parameters
from bytewright.errors import UsageError
from bytewright.model.config import ModelConfig
from bytewright.model.fused import choose_chunk_size

SECONDS_PER_DAY = 86_400

EAGER_NORM = {"fp32": 28 + 96, "bf16": 40 + 108}
"""Bytes for each number that is normalised, forward and backward: cast, square, mean, two products, cast."""
EAGER_ROTATION = {"fp32": 36 + 53, "bf16": 32 + 50}
"""Bytes for each number of q and k that is rotated: four products, two sums, one joining, there and back."""


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
    accumulate: int = 1,
) -> list[Part]:
    """List the parts of a training step of the fast twin with the least time of each on `device`.

    A step takes `accumulate` times `batch_size` sequences, one such part after the other, and updates once.
    """
    x = StepShape(
        config=config,
        batch_size=batch_size,
        num_tokens=config.context_length if num_tokens is None else num_tokens,
        precision=precision,
        compiled=compiled,
        device=device.kind,
    )

    def part(name: str, flops: int, num_bytes: int, rate: Rate) -> Part:
        return Part(
            name=name,
            flops=flops,
            num_bytes=num_bytes,
            seconds_of_flops=flops / device.peak(rate),
            seconds_of_bytes=num_bytes / device.bytes_per_second,
        )

    elementwise = _elementwise if compiled else _elementwise_eager
    repeated = [
        part(name, accumulate * flops, accumulate * num_bytes, rate or precision)
        for name, flops, num_bytes in (*_products(x), *elementwise(x))
    ]
    # Muon multiplies in bf16 on a GPU and in fp32 on a CPU, whatever the model computes in.
    update = part(*_update(x, optimizer), "bf16" if device.kind == "cuda" else "fp32")
    return [*repeated, part(*_weights(x, accumulate), rate or precision), update]


def _products(x: StepShape) -> Iterator[tuple[str, int, int]]:
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


def _elementwise(x: StepShape) -> Iterator[tuple[str, int, int]]:
    layers, stream, inner = x.config.num_layers, x.s * x.N * x.d, x.s * x.N * x.f
    norms, sums = _norms(x), 2 * layers
    alone = max(0, sums - norms)  # sums that no norm follows
    yield "norms and residual sums", (10 * norms + 2 * alone) * x.N * x.d, (10 * norms + 6 * alone) * stream
    if x.config.qk_norm or _is_rotated(x):
        numbers, passes = layers * x.N * (x.d + x.c), 7 if x.config.qk_norm else 4
        yield "norm and rotation of q and k", 10 * numbers, passes * x.s * numbers
    passes = 8 if x.is_gated else 5
    yield "feed-forward gate", 10 * layers * x.N * x.f, passes * layers * inner
    yield "loss", 5 * x.N * x.V, 3 * x.s * x.N * x.V


def _elementwise_eager(x: StepShape) -> Iterator[tuple[str, int, int]]:
    layers, stream, norms = x.config.num_layers, x.N * x.d, _norms(x)
    sums = 2 * layers * 6 * x.s  # a residual sum reads two and writes one, forward and backward
    yield "norms and residual sums", 10 * norms * stream, (norms * EAGER_NORM[x.precision] + sums) * stream
    on_q_and_k = EAGER_NORM[x.precision] if x.config.qk_norm else 0
    on_q_and_k += EAGER_ROTATION[x.precision] if _is_rotated(x) else 0
    if on_q_and_k:
        numbers = layers * x.N * (x.d + x.c)
        yield "norm and rotation of q and k", 10 * numbers, on_q_and_k * numbers
    passes = 8 if x.is_gated and x.has_kernels else 18
    yield "feed-forward gate", 10 * layers * x.N * x.f, passes * layers * x.s * x.N * x.f
    yield "loss", 5 * x.N * x.V, (3 * x.s if x.has_kernels else 8 * WIDE) * x.N * x.V


def _norms(x: StepShape) -> int:
    """Norms of the stream: two in a block, and one after the last of them where they come first."""
    return {"pre": 2 * x.config.num_layers + 1, "post": 2 * x.config.num_layers, "none": 0}[x.config.norm]


def _is_rotated(x: StepShape) -> bool:
    """Whether turning q and k is a pass of its own."""
    return x.config.position == "rope" and not x.has_attention_kernel


def _weights(x: StepShape, accumulate: int) -> tuple[str, int, int]:
    """Casts of weights and gradients, for each part of a batch; gradients are copied, later ones added."""
    count = count_parameters(x.config)
    if x.compiled:
        casts = 2 * (WIDE + x.s) * count.total if x.precision == "bf16" else 0
    else:
        chunks = -(-x.N // choose_chunk_size(x.device, x.V))
        casts = (30 if x.precision == "bf16" else 16) * count.blocks + (24 + 12 * chunks) * x.V * x.d
    copying, adding = 2 * WIDE * count.total, 3 * WIDE * count.total
    moved = accumulate * casts + copying + (accumulate - 1) * adding
    return "casting weights, gathering gradients", accumulate * count.total, moved


def _update(x: StepShape, optimizer: OptimizerName) -> tuple[str, int, int]:
    cost = update_cost(x.config, optimizer)
    if not x.compiled:
        return "update", cost.flops, eager_update_bytes(x.config, optimizer, x.device)
    return "update", cost.flops, cost.num_bytes + WIDE * count_parameters(x.config).total


def least_seconds(parts: list[Part]) -> float:
    """Time of a step that nothing beats which takes these parts, one after the other."""
    return sum(part.seconds for part in parts)

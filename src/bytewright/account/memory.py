"""The peak memory of a training step, from the shape alone: what is alive, and at which moment it is most.

Always there: weights, the optimizer's state and (fused) the slab that gradients are gathered in, 4 bytes a
number. What comes and goes has its peak at one of a few moments, and the answer is the largest of them:

    loss        everything that the forward pass kept, and the logits with what the loss makes of them
    norm        the gradient passes the last norm: what all blocks kept, and five copies of the stream
    ffn         the gradient passes the last feed-forward layer: what all blocks kept, and its temporaries
    attention   the same one sublayer further; in the readable twin seven copies of the scores
    update      all gradients, and the temporaries of the update rule

Going back through the blocks, each gives back what it kept and leaves the gradients of its weights; if those
are the larger, the first block has its moment at a higher level than the last, so both ends are looked at.
The temporaries at each moment are counted in the docstrings below, and tests hold all of it against a count
of the bytes that are alive, operation by operation. Builds no tensor; `activations` has what is kept, and
`update_memory` what the update rules take.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bytewright.account.activations import (
    WIDE,
    Kept,
    Precision,
    StepShape,
    kept_after_blocks,
    kept_by_block,
)
from bytewright.account.devices import DeviceKind
from bytewright.account.optimizers import OptimizerName
from bytewright.account.parameters import count_parameters
from bytewright.account.update_memory import state_bytes, update_temporaries
from bytewright.errors import UsageError
from bytewright.model.config import Implementation, ModelConfig
from bytewright.model.fused import choose_chunk_size

WORKSPACE = {"cuda": 2 * 32 * 2**20, "cpu": 0}
"""Scratch memory of the matrix library, by the device: on a GPU 32 MiB for each thread that multiplies."""

ALLOWANCE = 0.02
"""Share of a memory that is left to what an allocator rounds up and cannot join again."""


@dataclass(frozen=True, kw_only=True)
class Moment:
    """What is alive at one moment of a step, by kind; bytes."""

    name: str
    parts: dict[str, int]

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self.parts.values())


@dataclass(frozen=True, kw_only=True)
class TrainingMemory:
    """The memory of a training step; bytes."""

    parameters: int
    gradients: int
    optimizer_state: int
    kept_by_block: tuple[Kept, ...]
    kept_after_blocks: tuple[Kept, ...]
    num_layers: int
    moments: tuple[Moment, ...]

    @property
    def peak_moment(self) -> Moment:
        """The moment at which most is alive."""
        return max(self.moments, key=lambda moment: moment.total)

    @property
    def peak(self) -> int:
        """The most that is alive at once."""
        return self.peak_moment.total

    @property
    def activations(self) -> int:
        """All that the forward pass keeps before the head."""
        return self.num_layers * _sum(self.kept_by_block) + _sum(self.kept_after_blocks)

    @property
    def attention_matrices(self) -> int:
        """The part of `activations` that grows with the square of the context."""
        return self.num_layers * _sum(self.kept_by_block, kind="attention matrices")


def training_memory(
    config: ModelConfig,
    *,
    batch_size: int = 1,
    num_tokens: int | None = None,
    precision: Precision = "fp32",
    optimizer: OptimizerName = "adamw",
    optimizer_implementation: Implementation | None = None,
    compiled: bool = False,
    device: DeviceKind = "cuda",
) -> TrainingMemory:
    """Predict the memory of one training step of the twin that `config` names, after the first.

    The update rule is of the same twin unless `optimizer_implementation` names the other: eager, the fused
    rules take several times the memory of the readable ones.

    >>> base = ModelConfig(vocab_size=10_000, context_length=256, d_model=512, num_layers=4, num_heads=16)
    >>> memory = training_memory(base, batch_size=32, precision="bf16")
    >>> memory.parameters, memory.peak_moment.name
    (90785792, 'loss')
    """
    if batch_size < 1:
        raise UsageError(f"batch_size must be a positive whole number, not {batch_size}")
    length = config.context_length if num_tokens is None else num_tokens
    if length < 1:
        raise UsageError(f"a sequence has at least one token, not {length}")
    letters = StepShape(
        config=config,
        batch_size=batch_size,
        num_tokens=length,
        precision=precision,
        compiled=compiled,
        device=device,
    )
    return _Step(letters, optimizer, optimizer_implementation or config.implementation).memory()


def largest_batch(
    config: ModelConfig,
    memory_bytes: float,
    *,
    num_tokens: int | None = None,
    precision: Precision = "fp32",
    compiled: bool = False,
    optimizer: OptimizerName = "adamw",
    device: DeviceKind = "cuda",
) -> int:
    """Find the largest batch whose peak fits, with an allowance for an allocator's waste; 0 if none does.

    >>> base = ModelConfig(vocab_size=10_000, context_length=256, d_model=512, num_layers=4, num_heads=16)
    >>> largest_batch(base, 80e9, precision="bf16") > largest_batch(base, 80e9)
    True
    """
    usable = memory_bytes * (1 - ALLOWANCE)

    def fits(batch_size: int) -> bool:
        memory = training_memory(
            config,
            batch_size=batch_size,
            num_tokens=num_tokens,
            precision=precision,
            compiled=compiled,
            optimizer=optimizer,
            device=device,
        )
        return memory.peak <= usable

    if not fits(1):
        return 0
    fitting, too_large = 1, 2
    while fits(too_large):  # the peak grows with the batch, so this ends
        fitting, too_large = too_large, 2 * too_large
    while too_large - fitting > 1:
        middle = (fitting + too_large) // 2
        fitting, too_large = (middle, too_large) if fits(middle) else (fitting, middle)
    return fitting


class _Step:
    """The moments of one step."""

    def __init__(self, x: StepShape, optimizer: OptimizerName, implementation: Implementation) -> None:
        self.x = x
        self.slabs = implementation == "fused"
        count = count_parameters(x.config)
        self.parameters = WIDE * count.total
        self.block_parameters = WIDE * count.blocks // x.config.num_layers
        self.ffn_parameters = WIDE * count.feed_forward // x.config.num_layers
        self.state = state_bytes(x.config, optimizer)
        self.temporaries_of_update = update_temporaries(x, optimizer, in_slabs=self.slabs)
        self.block, self.after = kept_by_block(x), kept_after_blocks(x)

    def memory(self) -> TrainingMemory:
        return TrainingMemory(
            parameters=self.parameters,
            gradients=self.parameters * (2 if self.slabs else 1),
            optimizer_state=self.state,
            kept_by_block=tuple(self.block),
            kept_after_blocks=tuple(self.after),
            num_layers=self.x.config.num_layers,
            moments=tuple(self.moments()),
        )

    def moments(self) -> Iterator[Moment]:
        x, layers = self.x, self.x.config.num_layers
        head = WIDE * x.V * x.d  # the gradient of the head, or of the embeddings that are the head
        yield self._moment("loss", self.loss(), kept=self._kept(layers, self.after))
        if x.config.norm != "none" and not x.compiled:
            last = self.after if x.config.norm == "pre" else [it for it in self.block if "ln2" in it.name]
            passed = [kept for kept in last if not kept.name.endswith("widened")]
            yield self._moment(
                "norm",
                {"temporaries": 5 * WIDE * x.N * x.d},
                kept=self._kept(layers, self.after, passed),
                gradients=head,
            )
        first_input = self.after if x.config.norm == "post" else []
        for name, (freed, temporaries) in (("ffn", self.ffn()), ("attention", self.attention())):
            for ends in (0, layers - 1):  # blocks that the gradient has already passed
                yield self._moment(
                    name,
                    {"temporaries": temporaries},
                    kept=self._kept(layers - ends, first_input, freed),
                    gradients=head
                    + ends * self.block_parameters
                    + (self.ffn_parameters if name == "attention" else 0),
                )
        yield self._moment("update", {"temporaries": self.temporaries_of_update}, gradients=self.gradients())

    def loss(self) -> dict[str, int]:
        """Logits, what becomes of them, and the gradients that are computed with them.

        Readable: the logits less their maximum, the exponentials, and the gradient of the chosen logit's
        column: three times 4·N·V (compiled: logits and gradient, 2·s·N·V). Fused: see `_chunked_loss`, and
        the gradient of the head, which is computed with the loss.
        """
        x = self.x
        copy = x.s * x.V * x.d if x.precision == "bf16" else 0
        if x.is_fused:
            return {"logits": self._chunked_loss(), "gradients": WIDE * x.V * x.d, "weight copies": copy}
        copies = 2 * x.s if x.compiled else 3 * WIDE
        return {"logits": copies * x.N * x.V, "weight copies": copy}

    def _chunked_loss(self) -> int:
        """Logits of the fused loss, a chunk of C rows at a time, and the gradients of the hidden states.

        By our kernel the logits of a chunk, s·C·V, become their own gradient; plainly they are there in
        float32, and once more while their exponentials are summed. Then come the products with the gradient:
        one for the hidden states, and one of the size of the head. Plainly the former are joined at the end.
        """
        x = self.x
        chunk = min(x.N, choose_chunk_size(x.device, x.V))
        num_chunks = -(-x.N // chunk)
        per_logit = x.s if x.has_kernels else 2 * WIDE

        def peak(number: int) -> int:
            rows = min(chunk, x.N - number * chunk)
            rows_done = x.N if x.has_kernels else number * chunk  # whose gradients have their place already
            computing = per_logit * rows * x.V + x.s * rows_done * x.d
            multiplying = x.s * rows * x.V + x.s * x.V * x.d + x.s * max(rows_done, rows) * x.d
            return max(computing, multiplying)

        joining = 0 if x.has_kernels else 2 * x.s * x.N * x.d
        return max(joining, *(peak(number) for number in (0, max(0, num_chunks - 2), num_chunks - 1)))

    def ffn(self) -> tuple[Sequence[Kept], int]:
        """Freed so far, and temporaries, where the gradient passes the last feed-forward layer.

        The gradient of the product (gate and up, or inner and sigmoid), and those of both its factors, less
        the product itself, which is no longer needed: 2·s·N·f; the upstream gradient, s·N·d; that of w2.
        """
        x = self.x
        passed = "ln2" if x.config.norm == "post" else "nothing"
        freed = [kept for kept in self.block if kept.name.startswith(passed)]
        return freed, 2 * x.s * x.N * x.f + x.s * x.N * x.d + WIDE * x.d * x.f

    def attention(self) -> tuple[Sequence[Kept], int]:
        """Freed so far, and temporaries, where the gradient passes the last attention.

        Readable: the weights are freed, and the quotient's gradient holds five times 4·A at once. Fused: the
        gradients of q, k, v and of what was attended to, and dq once more in float32 while it is summed.
        """
        x = self.x
        passed = ("ln1", "ln2") if x.config.norm == "post" else ("ln2",)
        freed = [kept for kept in self.block if kept.sublayer == "ffn" or kept.name.startswith(passed)]
        stream = x.s * x.N * x.d
        if x.has_plain_attention:
            freed += [kept for kept in self.block if kept.name == "attended"]
            return freed, 2 * WIDE * x.A + 2 * stream + WIDE * x.d * x.d
        if x.is_fused:
            gradients = x.s * x.N * (x.d + 2 * x.c)
            in_float32 = 0 if x.precision == "fp32" else WIDE * x.N * x.d
            return freed, 2 * stream + gradients + in_float32 + WIDE * x.d * x.d
        freed += [kept for kept in self.block if kept.name in ("weights of the average", "attended")]
        copies = 2 * x.s if x.compiled else 5 * WIDE
        return freed, copies * x.A + stream + WIDE * x.d * x.d

    def gradients(self) -> int:
        """All gradients of weights, as autograd leaves them.

        Where fp32 rows of q and k were reordered and joined with those of v, the gradient of v is a view of
        the joined one, which stays whole because of it.
        """
        x = self.x
        reordered = x.is_fused and x.precision == "fp32" and x.config.position == "rope"
        return self.parameters + (WIDE * x.config.num_layers * x.d * (x.d + x.c) if reordered else 0)

    def _kept(self, layers: int, after: Sequence[Kept], freed: Sequence[Kept] = ()) -> dict[str, int]:
        parts: dict[str, int] = {}
        for kept in self.block:
            parts[kept.kind] = parts.get(kept.kind, 0) + layers * kept.num_bytes
        for kept in after:
            parts[kept.kind] = parts.get(kept.kind, 0) + kept.num_bytes
        for kept in freed:
            parts[kept.kind] -= kept.num_bytes
        return parts

    def _moment(
        self, name: str, more: dict[str, int], *, kept: dict[str, int] | None = None, gradients: int = 0
    ) -> Moment:
        parts = {
            "parameters": self.parameters,
            "optimizer state": self.state,
            "gradients": gradients + (self.parameters if self.slabs else 0),
            "workspace": WORKSPACE[self.x.device],
        }
        for extra in (kept or {}, more):
            for key, value in extra.items():
                parts[key] = parts.get(key, 0) + value
        return Moment(name=name, parts=parts)


def _sum(kept: Sequence[Kept], kind: str | None = None) -> int:
    return sum(one.num_bytes for one in kept if kind is None or one.kind == kind)

"""The peak memory of a training step, computed from the config.

Weights, optimizer state and (fused) the buffer of the gradients exist during the whole step, 4 bytes per
number. The other tensors peak at one of a few moments, and the result is the largest of these:

    loss        all tensors that the forward pass keeps, the logits, and the temporaries of the loss
    norm        backward pass of the last norm: the tensors of all blocks, and five copies of the stream
    ffn         backward pass of the last feed-forward layer: the tensors of all blocks, and its temporaries
    attention   backward pass of the last attention; in the reference model seven copies of the scores
    update      all gradients, and the temporaries of the update rule

The backward pass of a block frees the block's tensors and adds the gradients of its weights. If the gradients
are larger, the peak is in the first block instead of the last, so both are computed. The docstrings below
count the temporaries of each moment. Tests compare all figures with the bytes that are alive after every
operation. `optimizers` has the memory of the update rules.

Autograd keeps the inputs of gradients, each storage once. With N = batch·tokens, d = d_model, f = d_ff,
H heads, c = the width of all key heads, A = N·T·H scores, and s bytes per number of the computation (4 in
fp32, 2 in bf16; norms and softmax always use 4):

    norm          (4 + 4 + s)·N·d     its input in float32, the input divided by its rms, the output
    attention     reference: q, k, v of every head and the merged result, 4·s·N·d, and
                  (4 + 4 + s)·A       scores, their exponentials, the weights
                  fused: the joined projection s·N·(d + 2c), q and k again if rotated or normalised,
                  the result s·N·d, a normaliser per row and head 4·N·H, and no scores
    ffn           gated, reference: gate, its sigmoid, SiLU, up, their product: 5·s·N·f
                  gated, fused: gate and up joined, SiLU, product: 4·s·N·f (3 with our kernel)
                  ungated: 3·s·N·f
    weights       in bf16 a copy of each matrix, and for joined matrices a joined copy: s each

A compiler keeps less, because the backward pass recomputes cheap operations. It keeps 2·s·N·d of a norm (the
residual stream and the output), 2·s·A of the reference scores, 3·s·N·f of a gated layer, and 2·s·N·f of an
ungated one.

The kept bytes are exact to a few per mille: rotary tables and one number per token and norm are left out. The
formulas are in the classes of the parts (`model.layers`, `model.attention`, `model.fused`); a part that
states none is traced (`tracing`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bytewright.account.optimizers import AnyOptimizer, has_fused_update, state_bytes, update_temporaries
from bytewright.account.parameters import count_parameters
from bytewright.account.tracing import PartKind, costs_of
from bytewright.errors import wrong_value
from bytewright.model.config import Implementation, ModelConfig
from bytewright.model.costs import WIDE, DeviceKind, Kept, Precision, StepShape
from bytewright.model.loss import choose_chunk_size

WORKSPACE = {"cuda": 2 * 32 * 2**20, "cpu": 0}
"""Workspaces of the matrix library: on a GPU 32 MiB for each of two threads."""

ALLOWANCE = 0.02
"""Share of the memory that is reserved for the allocator's rounding and fragmentation."""


@dataclass(frozen=True, kw_only=True)
class Moment:
    """The bytes that are alive at one moment of a step, by kind."""

    name: str
    parts: dict[str, int]

    @property
    def total(self) -> int:
        """The sum of all parts."""
        return sum(self.parts.values())


@dataclass(frozen=True, kw_only=True)
class TrainingMemory:
    """The memory of a training step, in bytes."""

    parameters: int
    gradients: int
    optimizer_state: int
    kept_by_block: tuple[Kept, ...]
    kept_after_blocks: tuple[Kept, ...]
    num_layers: int
    moments: tuple[Moment, ...]

    @property
    def peak_moment(self) -> Moment:
        """The moment with the most bytes alive."""
        return max(self.moments, key=lambda moment: moment.total)

    @property
    def peak(self) -> int:
        """The most bytes that are alive at once."""
        return self.peak_moment.total

    @property
    def activations(self) -> int:
        """Bytes that the forward pass keeps, without the head."""
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
    optimizer: AnyOptimizer = "adamw",
    optimizer_implementation: Implementation | None = None,
    compiled: bool = False,
    device: DeviceKind = "cuda",
) -> TrainingMemory:
    """Return the memory of a training step after the first one, with the implementation of `config`.

    `optimizer_implementation` is that of the update rule (default: the model's). Without a compiler, the
    fused rules need several times the memory of the reference rules.

    >>> base = ModelConfig(vocab_size=10_000, context_length=256, d_model=512, num_layers=4, num_heads=16)
    >>> memory = training_memory(base, batch_size=32, precision="bf16")
    >>> memory.parameters, memory.peak_moment.name
    (90785792, 'loss')
    """
    shape = StepShape(
        config=config,
        batch_size=batch_size,
        num_tokens=config.context_length if num_tokens is None else num_tokens,
        precision=precision,
        compiled=compiled,
        device=device,
    )
    return StepMemory(shape, optimizer, optimizer_implementation or config.implementation).memory()


def largest_batch(
    config: ModelConfig,
    memory_bytes: float,
    *,
    num_tokens: int | None = None,
    precision: Precision = "fp32",
    compiled: bool = False,
) -> int:
    """Return the largest batch that fits into `memory_bytes` of a GPU, less `ALLOWANCE`; 0 if none fits.

    >>> base = ModelConfig(vocab_size=10_000, context_length=256, d_model=512, num_layers=4, num_heads=16)
    >>> largest_batch(base, 80e9, precision="bf16") > largest_batch(base, 80e9)
    True
    """
    usable = memory_bytes * (1 - ALLOWANCE)

    def fits(batch_size: int) -> bool:
        memory = training_memory(
            config, batch_size=batch_size, num_tokens=num_tokens, precision=precision, compiled=compiled
        )
        return memory.peak <= usable

    return largest_fitting(fits)


def largest_fitting(fits: Callable[[int], bool]) -> int:
    """Return the largest batch that fits, or 0; `fits` must be false from some batch on."""
    if not fits(1):
        return 0
    fitting, too_large = 1, 2
    while fits(too_large):  # ends, because the peak grows with the batch
        fitting, too_large = too_large, 2 * too_large
    while too_large - fitting > 1:
        middle = (fitting + too_large) // 2
        fitting, too_large = (middle, too_large) if fits(middle) else (fitting, middle)
    return fitting


class StepMemory:
    """The moments of one step and the bytes that are alive at each."""

    def __init__(self, x: StepShape, optimizer: AnyOptimizer, implementation: Implementation) -> None:
        for name in ("batch_size", "num_tokens"):
            if getattr(x, name) < 1:
                raise wrong_value(name, "at least 1", getattr(x, name))
        self.x = x
        self.has_fused_update = implementation == "fused" and has_fused_update(x.config, optimizer)
        count = count_parameters(x.config)
        self.parameters = WIDE * count.total
        self.gradient_buffer = self.parameters if self.has_fused_update else 0
        self.block_parameters = WIDE * count.blocks // x.config.num_layers
        self.ffn_parameters = WIDE * count.feed_forward // x.config.num_layers
        self.state = state_bytes(x.config, optimizer)
        self.temporaries_of_update = update_temporaries(x, optimizer, is_fused=self.has_fused_update)
        self.block, self.after = _kept_by_block(x), _kept_after_blocks(x)
        self.norm_costs = costs_of("norm", x)
        self.attention_costs, self.ffn_costs = costs_of("attention", x), costs_of("ffn", x)

    def memory(self) -> TrainingMemory:
        """Return all figures."""
        return TrainingMemory(
            parameters=self.parameters,
            gradients=self.parameters * (2 if self.has_fused_update else 1),
            optimizer_state=self.state,
            kept_by_block=tuple(self.block),
            kept_after_blocks=tuple(self.after),
            num_layers=self.x.config.num_layers,
            moments=tuple(self.moments()),
        )

    def moments(self) -> Iterator[Moment]:
        """Yield the moments at which the memory can peak."""
        x, layers = self.x, self.x.config.num_layers
        head = WIDE * x.V * x.d  # the gradient of the head, or of the tied embeddings
        yield self._moment("loss", self.loss(), kept=self._kept(layers, self.after))
        if x.config.norm != "none" and not x.compiled:
            last = self.after if x.config.norm == "pre" else self._of("ln2")
            freed_by_norm = [kept for kept in last if kept.is_freed_early]
            yield self._moment(
                "norm",
                {"temporaries": self.norm_costs.backward_bytes},
                kept=self._kept(layers, self.after, freed_by_norm),
                gradients=head,
            )
        first_input = self.after if x.config.norm == "post" else []
        for name, (freed, temporaries) in (("ffn", self.ffn()), ("attention", self.attention())):
            for num_passed in (0, layers - 1):  # blocks whose backward pass is finished
                yield self._moment(
                    name,
                    {"temporaries": temporaries},
                    kept=self._kept(layers - num_passed, first_input, freed),
                    gradients=head
                    + num_passed * self.block_parameters
                    + (self.ffn_parameters if name == "attention" else 0),
                )
        yield self._moment("update", {"temporaries": self.temporaries_of_update}, gradients=self.gradients())

    def loss(self) -> dict[str, int]:
        """Return the bytes of the logits, of their temporaries, and of gradients computed with the loss.

        Reference: the logits minus their maximum, the exponentials, and the gradient of the target logits,
        three times 4·N·V (compiled: logits and gradient, 2·s·N·V). Fused: see `_chunked_loss`, and the
        gradient of the head, which is computed with the loss.
        """
        x = self.x
        copy = x.s * x.V * x.d if x.precision == "bf16" else 0
        if x.is_fused:
            return {"logits": self._chunked_loss(), "gradients": WIDE * x.V * x.d, "weight copies": copy}
        copies = 2 * x.s if x.compiled else 3 * WIDE
        return {"logits": copies * x.N * x.V, "weight copies": copy}

    def _chunked_loss(self) -> int:
        """Return the bytes of the fused loss: logits in chunks of C rows, and gradients of hidden states.

        Our kernel overwrites the logits of a chunk, s·C·V, with their gradient. Without it they exist in
        float32, twice while their exponentials are summed. Two products follow: the gradient of the hidden
        states, and a tensor of the size of the head. Without the kernel the former are joined at the end.
        """
        x = self.x
        chunk = min(x.N, choose_chunk_size(x.device, x.V))
        num_chunks = -(-x.N // chunk)
        per_logit = x.s if x.has_kernels else 2 * WIDE

        def peak(number: int) -> int:
            rows = min(chunk, x.N - number * chunk)
            rows_done = x.N if x.has_kernels else number * chunk  # whose gradients are allocated
            computing = per_logit * rows * x.V + x.s * rows_done * x.d
            multiplying = x.s * rows * x.V + x.s * x.V * x.d + x.s * max(rows_done, rows) * x.d
            return max(computing, multiplying)

        joining = 0 if x.has_kernels else 2 * x.s * x.N * x.d
        return max(joining, *(peak(number) for number in (0, max(0, num_chunks - 2), num_chunks - 1)))

    def ffn(self) -> tuple[Sequence[Kept], int]:
        """Return the tensors freed before, and the temporaries of, the backward pass of the last ffn."""
        freed = self._of("ln2") if self.x.config.norm == "post" else []
        return freed, self.ffn_costs.backward_bytes

    def attention(self) -> tuple[Sequence[Kept], int]:
        """Return the same for the backward pass of the last attention."""
        is_post = self.x.config.norm == "post"
        freed = [*self._of("ffn"), *self._of("ln2"), *(self._of("ln1") if is_post else [])]
        freed += [kept for kept in self._of("attention") if kept.is_freed_early]
        return freed, self.attention_costs.backward_bytes

    def gradients(self) -> int:
        """Return the bytes of the gradients of all weights, as autograd stores them."""
        in_block = self.attention_costs.gradient_bytes + self.ffn_costs.gradient_bytes
        return self.parameters + self.x.config.num_layers * in_block

    def _of(self, sublayer: str) -> list[Kept]:
        """Return the tensors that a block keeps for one of its sublayers."""
        return [kept for kept in self.block if kept.sublayer == sublayer]

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
            "gradients": gradients + self.gradient_buffer,
            "workspace": WORKSPACE[self.x.device],
        }
        for extra in (kept or {}, more):
            for key, value in extra.items():
                parts[key] = parts.get(key, 0) + value
        return Moment(name=name, parts=parts)


def _kept_by_block(x: StepShape) -> list[Kept]:
    """Return the tensors that one block keeps."""
    kept = [*_kept_by("attention", x, "attention"), *_kept_by("ffn", x, "ffn")]
    if x.config.norm == "none":
        stream = x.s * x.N * x.d
        kept.append(Kept("residual stream before attention", stream, sublayer="attention"))
        kept.append(Kept("residual stream before ffn", stream, sublayer="ffn"))
    else:
        kept += [*_kept_by("norm", x, "ln1"), *_kept_by("norm", x, "ln2")]
    return kept


def _kept_after_blocks(x: StepShape) -> list[Kept]:
    """Return the tensors that are kept once: of the final norm, the embeddings or the last hidden states."""
    if x.config.norm == "pre":
        return _kept_by("norm", x, "ln_final")
    name = "embeddings of the tokens" if x.config.norm == "post" else "hidden states"
    return [Kept(name, x.s * x.N * x.d, sublayer="head")]


def _kept_by(kind: PartKind, x: StepShape, sublayer: str) -> list[Kept]:
    prefix = f"{sublayer}: " if kind == "norm" else ""
    return [kept._replace(name=prefix + kept.name, sublayer=sublayer) for kept in costs_of(kind, x).kept]


def _sum(kept: Sequence[Kept], kind: str | None = None) -> int:
    return sum(one.num_bytes for one in kept if kind is None or one.kind == kind)

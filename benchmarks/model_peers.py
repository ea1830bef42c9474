"""The training steps that `training.py` and `learning.py` compare: ours, a plain baseline and a Llama.

For `training.py`, a contestant is a function from a `Shape` to a step: (ids, targets) → loss. All contestants
start from the same weights, read the same batches, clip at the same norm and use AdamW with the same
settings, so their losses must agree. For `learning.py`, a `Learner` is built and compiled once and restarted
for every setting that differs only in its learning rates. All learners start from the same weights and return
them under our names, so the same code evaluates them.
"""

from __future__ import annotations

import dataclasses
import importlib
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from bytewright.data.sampler import Batch
from bytewright.model import ModelConfig, TransformerLM
from bytewright.model.fused import halves_from_pairs, pairs_from_halves
from bytewright.model.hf_llama import write_llama
from bytewright.optim.build import build_optimizer
from bytewright.system import keep_freed_memory
from bytewright.train.config import OptimizerConfig, TrainConfig
from bytewright.train.session.engine import StepEngine
from bytewright.train.setup import build_model, choose_backend
from bytewright.train.step import TrainStep

LR, BETAS, EPS, WEIGHT_DECAY, MAX_NORM = 1e-3, (0.9, 0.95), 1e-8, 0.1, 1.0

Step = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Model shape, device and precision; the defaults are those of the base experiment."""

    vocab_size: int = 10_000
    context_length: int = 256
    d_model: int = 512
    d_ff: int = 1344
    num_layers: int = 4
    num_heads: int = 16
    device: str = "cpu"
    precision: str = "fp32"
    compile: bool = True

    @property
    def is_bf16(self) -> bool:
        """Return whether the matrix products use bfloat16."""
        return self.precision == "bf16"

    def model_config(self) -> ModelConfig:
        """Return the config of our model of this shape."""
        return ModelConfig(
            vocab_size=self.vocab_size,
            context_length=self.context_length,
            d_model=self.d_model,
            d_ff=self.d_ff,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
        )


def initial_weights(shape: Shape) -> dict[str, Tensor]:
    """Return the initial weights of all contestants."""
    torch.manual_seed(0)
    return dict(TransformerLM(shape.model_config()).state_dict())


def ours(shape: Shape) -> Step:
    """Build our step from the fused model, loss and optimizer, as a run does."""
    compute_dtype = torch.bfloat16 if shape.is_bf16 else None
    model = TransformerLM(shape.model_config(), compute_dtype=compute_dtype)
    model.load_state_dict(initial_weights(shape))
    model.to(shape.device)
    config = OptimizerConfig(lr=LR, beta1=BETAS[0], beta2=BETAS[1], eps=EPS, weight_decay=WEIGHT_DECAY)
    backend = "inductor" if shape.compile else None
    step = TrainStep(model, build_optimizer(model, config), max_grad_norm=MAX_NORM, backend=backend)
    if shape.device == "cpu":
        keep_freed_memory().__enter__()  # as in a run; here until the process ends
    return lambda ids, targets: step([(ids, targets)]).loss


class PlainBlock(nn.Module):
    """A pre-norm block of torch's own layers."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        d = shape.d_model
        self.num_heads = shape.num_heads
        self.ln1, self.ln2 = nn.RMSNorm(d, eps=1e-5), nn.RMSNorm(d, eps=1e-5)
        self.qkv, self.output = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.w1, self.w3 = nn.Linear(d, shape.d_ff, bias=False), nn.Linear(d, shape.d_ff, bias=False)
        self.w2 = nn.Linear(shape.d_ff, d, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Apply attention, then the feed-forward layer."""
        batch, length, d = x.shape
        qkv = self.qkv(self.ln1(x)).view(batch, length, 3, self.num_heads, -1).transpose(1, 3)
        q, k, v = rotate(qkv[:, :, 0], cos, sin), rotate(qkv[:, :, 1], cos, sin), qkv[:, :, 2]
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.output(attended.transpose(1, 2).reshape(batch, length, d))
        y = self.ln2(x)
        out: Tensor = x + self.w2(F.silu(self.w1(y)) * self.w3(y))
        return out


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary position embedding to the two halves of each head."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


class PlainModel(nn.Module):
    """The baseline: torch's layers and attention, and the output head over all positions at once."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocab_size, shape.d_model)
        self.blocks = nn.ModuleList(PlainBlock(shape) for _ in range(shape.num_layers))
        self.norm = nn.RMSNorm(shape.d_model, eps=1e-5)
        self.head = nn.Linear(shape.d_model, shape.vocab_size, bias=False)
        half = shape.d_model // shape.num_heads // 2
        angles = torch.arange(shape.context_length)[:, None] * 10_000.0 ** (-torch.arange(half) / half)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of the batch."""
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def plain(shape: Shape) -> Step:
    """Build the step of the plain compiled baseline: autocast, torch's attention and fused AdamW."""
    model = PlainModel(shape)
    model.load_state_dict(plain_weights(initial_weights(shape), shape), strict=False)  # cos, sin are computed
    model.to(shape.device)
    return library_step(shape, model, torch.compile(model) if shape.compile else model)


def plain_weights(ours: Mapping[str, Tensor], shape: Shape) -> dict[str, Tensor]:
    """Convert our weights to the names and the row order of the baseline."""
    d_head = shape.d_model // shape.num_heads
    theirs = {plain: ours[name] for name, plain in plain_names(shape).items()}
    for i in range(shape.num_layers):
        q, k, v = (ours[f"layers.{i}.attn.{name}_proj.weight"] for name in "qkv")
        joined = torch.cat([halves_from_pairs(q, d_head), halves_from_pairs(k, d_head), v])
        theirs[f"blocks.{i}.qkv.weight"] = joined
    return theirs


def weights_of_plain(theirs: Mapping[str, Tensor], shape: Shape) -> dict[str, Tensor]:
    """Convert the baseline's weights to our names and row order; the inverse of `plain_weights`."""
    d_head = shape.d_model // shape.num_heads
    ours = {name: theirs[plain] for name, plain in plain_names(shape).items()}
    for i in range(shape.num_layers):
        q, k, v = theirs[f"blocks.{i}.qkv.weight"].chunk(3)
        ours[f"layers.{i}.attn.q_proj.weight"] = pairs_from_halves(q, d_head)
        ours[f"layers.{i}.attn.k_proj.weight"] = pairs_from_halves(k, d_head)
        ours[f"layers.{i}.attn.v_proj.weight"] = v
    return ours


def plain_names(shape: Shape) -> dict[str, str]:
    """Map our weight names to the baseline's, except for the q, k and v projections, which it joins."""
    names = {"token_embeddings": "embedding", "ln_final": "norm", "lm_head": "head"}
    for i in range(shape.num_layers):
        parts = {"ln1": "ln1", "ln2": "ln2", "attn.output_proj": "output"}
        parts |= {f"ffn.{name}": name for name in ("w1", "w2", "w3")}
        names |= {f"layers.{i}.{ours}": f"blocks.{i}.{theirs}" for ours, theirs in parts.items()}
    return {f"{ours}.weight": f"{theirs}.weight" for ours, theirs in names.items()}


def llama(shape: Shape) -> Step:
    """Build the step of a compiled `LlamaForCausalLM` with torch's fused AdamW."""
    transformers = importlib.import_module("transformers")  # only this peer needs it
    exported = TransformerLM(shape.model_config())
    exported.load_state_dict(initial_weights(shape))
    with tempfile.TemporaryDirectory() as folder:
        write_llama(exported, folder, replace=True)
        model = transformers.LlamaForCausalLM.from_pretrained(
            folder, attn_implementation="sdpa", dtype=torch.float32, use_cache=False
        )
    model.to(shape.device)

    def forward(ids: Tensor, targets: Tensor) -> Tensor:
        logits = model(input_ids=ids).logits
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    return library_step(shape, model, torch.compile(forward) if shape.compile else forward)


def library_step(shape: Shape, model: nn.Module, loss_of: Callable[[Tensor, Tensor], Tensor]) -> Step:
    """Return a step of torch's parts: autocast, gradient clipping and fused AdamW."""
    optimizer = library_adamw(model)

    def step(ids: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast(torch.device(shape.device).type, torch.bfloat16, enabled=shape.is_bf16):
            loss = loss_of(ids, targets)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def library_adamw(
    model: nn.Module,
    *,
    lr: float = LR,
    betas: tuple[float, float] = BETAS,
    eps: float = EPS,
    weight_decay: float = WEIGHT_DECAY,
) -> torch.optim.AdamW:
    """Return torch's fused AdamW without weight decay on the gains, as in ours."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    gains = [p for p in model.parameters() if p.ndim < 2]
    return torch.optim.AdamW(
        [{"params": matrices, "weight_decay": weight_decay}, {"params": gains, "weight_decay": 0.0}],
        lr=lr,
        betas=betas,
        eps=eps,
        fused=True,
    )


OURS = "bytewright"
CONTESTANTS: Mapping[str, tuple[Callable[[Shape], Step], str]] = {
    OURS: (ours, "bytewright"),
    "plain compiled": (plain, "torch"),
    "transformers Llama": (llama, "transformers"),
}
"""For each name: the function that builds the step, and the package that it needs."""


class Learner(Protocol):
    """A model with its optimizer that `learning.py` can train and restart."""

    def start(self, config: TrainConfig) -> None:
        """Reset to the initial weights of `config` and set its learning rates."""

    def step(self, batch: Batch, factor: float) -> Tensor:
        """Train on a batch at `factor` times the peak learning rates; return the loss on the device."""

    def weights(self) -> Mapping[str, Tensor]:
        """Return the current weights under our names."""


def make_learner(name: str, config: TrainConfig, device: torch.device) -> Learner:
    """Build the learner of a contestant."""
    torch._dynamo.reset()  # the previous learner would count towards the compiler's cache limit
    return PlainLearner(config, device) if name == "plain" else OurLearner(config, device)


def compiled_settings(name: str, config: TrainConfig) -> object:
    """Return the settings that are compiled into a learner: configs with equal ones can share a learner."""
    optimizer = dataclasses.replace(config.optimizer, lr=1.0, muon_lr=1.0)
    return name == "plain", optimizer, config.batch_size, config.precision, config.model


class OurLearner:
    """Our model, loss and optimizer as a run uses them."""

    def __init__(self, config: TrainConfig, device: torch.device) -> None:
        self._engine = StepEngine(config, device)
        self._rates: list[float] = []

    def start(self, config: TrainConfig) -> None:
        """Restart the engine for another run, as a sweep does."""
        self._engine.start_over(config)
        self._rates = [group["lr"] for group in self._engine.optimizer.param_groups]

    def step(self, batch: Batch, factor: float) -> Tensor:
        """Run one training step."""
        for group, rate in zip(self._engine.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor
        return self._engine.step([batch]).loss

    def weights(self) -> Mapping[str, Tensor]:
        """Return the current weights."""
        return self._engine.model.state_dict()


class PlainLearner:
    """The plain baseline: torch's layers and attention, autocast and fused AdamW, compiled."""

    def __init__(self, config: TrainConfig, device: torch.device) -> None:
        sizes = config.model
        self.shape = Shape(
            vocab_size=sizes.vocab_size,
            context_length=sizes.context_length,
            d_model=sizes.d_model,
            d_ff=sizes.ffn_width,
            num_layers=sizes.num_layers,
            num_heads=sizes.num_heads,
            device=device.type,
            precision=config.precision,
        )
        self.model = PlainModel(self.shape).to(device)
        backend = choose_backend(config, device)
        self._loss = torch.compile(self.model, backend=backend, dynamic=False) if backend else self.model
        self._settings: OptimizerConfig = config.optimizer
        self._optimizer = library_adamw(self.model)

    def start(self, config: TrainConfig) -> None:
        """Load the initial weights and create a new optimizer, whose step is not compiled."""
        fresh = build_model(config, torch.device("cpu")).state_dict()
        self.model.load_state_dict(plain_weights(fresh, self.shape), strict=False)  # cos and sin stay
        self._settings = config.optimizer
        self._optimizer = library_adamw(
            self.model,
            lr=config.optimizer.lr,
            betas=(config.optimizer.beta1, config.optimizer.beta2),
            eps=config.optimizer.eps,
            weight_decay=config.optimizer.weight_decay,
        )

    def step(self, batch: Batch, factor: float) -> Tensor:
        """Run forward, backward, clipping and the update."""
        for group in self._optimizer.param_groups:
            group["lr"] = self._settings.lr * factor
        with torch.autocast(self.shape.device, torch.bfloat16, enabled=self.shape.is_bf16):
            loss: Tensor = self._loss(*batch)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self._settings.max_grad_norm)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss.detach()

    def weights(self) -> Mapping[str, Tensor]:
        """Return the current weights under our names."""
        return weights_of_plain(self.model.state_dict(), self.shape)

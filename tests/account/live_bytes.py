"""Count the bytes that are alive during a training step, operation by operation, without computing anything.

The step runs on torch's meta device, where tensors have shapes and storages but no contents, so any size can
be counted. A dispatch mode records the storages that each operation of forward, backward and update creates,
and when the last reference to one is deleted. It cannot record temporary storages inside an operation;
`INSIDE` lists them for the few operations where they matter, as a real allocator shows them. Run-time type
checks keep references to arguments, so tests that use this module run without them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bytewright.model import ModelConfig, TransformerLM, language_model_loss
from bytewright.model.kernels import cross_entropy
from bytewright.optim.build import build_optimizer
from bytewright.optim.clip import clip_gradients
from bytewright.optim.fused import apply_clipped, fused_updates
from bytewright.train.config import OptimizerConfig


def _flash_backward(arguments: tuple[Any, ...]) -> int:
    """Inside the flash kernel's backward: dq is summed in float32, rows to 128 and columns to 32."""
    batch, heads, length, width = arguments[1].shape
    return int(batch * heads * _up(length, 128) * (_up(width, 32) * 4 + 4))


INSIDE: Mapping[str, Callable[[tuple[Any, ...]], int]] = {
    "aten.logsumexp.default": lambda arguments: int(arguments[0].nbytes),  # exp(x - max) as a whole
    "aten._scaled_dot_product_flash_attention_backward.default": _flash_backward,
    "bytewright.rotary_attention_backward.default": lambda arguments: 2 * int(arguments[0].nbytes),
}
"""Bytes that an operation allocates and frees before it returns."""

IN_PLACE_BACKWARD = {"aten.add.Tensor", "aten.scatter_add.default", "aten.index_put.default"}
"""Operations that autograd does in place, except under a dispatch mode like this one."""

PRODUCTS = ("aten.mm.", "aten.bmm.", "aten.addmm.", "attention")
"""Operations that are not elementwise."""

MOVES_NOTHING = ("aten._unsafe_view.", "aten.empty", "aten.new_empty")
"""Operations that create a tensor without reading or writing its contents."""


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


@dataclass
class Measured:
    """The memory and the traffic of a step."""

    peak: int = 0
    phase: str = ""
    """The phase of the peak: forward, backward or update."""
    operation: str = ""
    moved: dict[str, int] = field(default_factory=dict)
    """Bytes that the elementwise operations of each phase read and wrote, in one step."""


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes alive inside a `with` block; `hold` adds storages that existed before."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = 0
        self.measured = Measured()
        self.phase = "before"
        self._live: dict[int, int] = {}

    def hold(self, tensor: Tensor) -> None:
        """Count the storage of `tensor` until its last reference is deleted."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._live:
            self._live[key] = storage.nbytes()
            self.now += storage.nbytes()
            weakref.finalize(storage, self._release, key)

    def _release(self, key: int) -> None:
        self.now -= self._live.pop(key)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation and count the storages of its results."""
        results = func(*args, **(kwargs or {}))
        is_view: bool = func.is_view
        made = _tensors(results)
        for tensor in made:
            self.hold(tensor)
        name = str(func)
        if self.phase != "backward" or name not in IN_PLACE_BACKWARD:
            self._note(name, self.now + (INSIDE[name](args) if name in INSIDE else 0))
        if not is_view and not any(word in name for word in (*PRODUCTS, *MOVES_NOTHING)):
            read = args[1:] if name == "aten.copy_.default" else args  # a copy does not read its target
            moved = sum(tensor.numel() * tensor.itemsize for tensor in [*_tensors((read, kwargs)), *made])
            self.measured.moved[self.phase] = self.measured.moved.get(self.phase, 0) + moved
        return results

    def _note(self, operation: str, now: int) -> None:
        if now > self.measured.peak:
            self.measured.peak, self.measured.phase, self.measured.operation = now, self.phase, operation


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def measure_step(
    config: ModelConfig,
    *,
    batch_size: int,
    precision: str = "fp32",
    optimizer: str = "adamw",
    optimizer_implementation: str | None = None,
) -> Measured:
    """Return the bytes alive during a training step like that of `TrainStep` on a GPU, after the first."""
    compute_dtype = torch.bfloat16 if precision == "bf16" else None
    model = TransformerLM(config, device="meta", compute_dtype=compute_dtype)
    implementation: Any = optimizer_implementation or config.implementation
    stepper = build_optimizer(model, OptimizerConfig(name=optimizer, implementation=implementation))
    flat_groups = [flat for part in fused_updates(stepper) for flat in part.flat_groups]
    parameters = [one for flat in flat_groups for one in flat.parameters] or list(model.parameters())
    windows = torch.zeros(batch_size, config.context_length + 1, dtype=torch.int64, device="meta")
    counter = LiveBytes()
    states: list[dict[str, Tensor]] = list(stepper.state.values())
    for tensor in (windows, *model.parameters(), *model.buffers(), *(flat.gradients for flat in flat_groups)):
        counter.hold(tensor.data)
    for state in states:
        for tensor in state.values():
            if isinstance(tensor, Tensor):
                counter.hold(tensor)
    with _as_on_a_gpu(), counter:
        for _ in range(2):
            counter.phase, counter.measured.moved = "forward", {}
            stepper.zero_grad()
            loss = language_model_loss(model, windows[:, :-1], windows[:, 1:])
            counter.phase = "backward"
            if flat_groups:
                gradients = torch.autograd.grad(loss, parameters)
            else:
                torch.autograd.backward(loss)
            counter.phase = "update"
            with torch.no_grad():
                if flat_groups:
                    torch._foreach_copy_(
                        [view for flat in flat_groups for view in flat.gradient_views], gradients
                    )
                    apply_clipped(fused_updates(stepper), loss.detach(), 1.0)
                else:
                    clip_gradients(parameters, 1.0)
                    stepper.step()
            del loss
            gradients = ()
    return counter.measured


@contextmanager
def _as_on_a_gpu() -> Iterator[None]:
    """Make the model use its GPU code, and count inside the operator of the loss."""

    def losses_of(logits: Tensor, targets: Tensor, **options: object) -> Tensor:
        return logits.new_empty(len(logits), dtype=torch.float32)

    opened = cross_entropy.total_cross_entropy._init_fn
    with (
        patch("bytewright.model.fused.scaled_dot_product_attention", _library_attention),
        patch("bytewright.model.kernels.on_gpu", lambda x: True),
        patch.object(cross_entropy, "total_cross_entropy", opened),
        patch.object(cross_entropy, "cross_entropy_", losses_of),
    ):
        yield


def _library_attention(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool, enable_gqa: bool) -> Tensor:
    """Call the kernel that torch selects on a GPU: flash in half precision, else efficient or none."""
    attended: Tensor
    if q.dtype == torch.bfloat16:
        attended = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, is_causal)[0]
    elif enable_gqa:
        attended = torch._scaled_dot_product_attention_math(q, k, v, is_causal=True, enable_gqa=True)[0]
    else:
        efficient = torch.ops.aten._scaled_dot_product_efficient_attention
        attended = efficient(q, k, v, None, True, 0.0, is_causal)[0]
    return attended

"""The costs of a part: as it states them, or measured by tracing one module on the meta device.

Tracing runs the forward and backward pass of the module on tensors that have shapes and storages but no
contents. It counts matrix products as `torch.utils.flop_counter` does, and the tensors that autograd saves.
It also counts the bytes that are alive during the backward pass, and those that all other operations read and
write. A trace is that of an eager step: a compiler keeps and moves less. A part that cannot be traced counts
as free, except for its parameters, and one warning states that.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import warnings
import weakref
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from bytewright.errors import first_line, wrong_value
from bytewright.model.config import PARTS
from bytewright.model.costs import Component, Costs, Kept, Matmul, Pass, StepShape
from bytewright.model.parts import class_for, make_attention, make_ffn, make_norm, make_position, stated
from bytewright.plugins import errors_of_part

PartKind = Literal["norm", "attention", "ffn"]

COMPONENTS: dict[PartKind, Component] = {"norm": "other", "attention": "other", "ffn": "feed_forward"}

MOVES_NOTHING = {torch.ops.aten._unsafe_view, torch.ops.aten.empty, torch.ops.aten.new_empty}
"""Operations that create a tensor without reading or writing its contents."""


class AccountWarning(UserWarning):
    """A part states no costs and cannot be traced."""


def costs_of(kind: PartKind, x: StepShape) -> Costs:
    """Return the costs of one module of the part that a config names."""
    part = PARTS[kind]
    name = getattr(x.config, part.name)
    statement = stated(class_for(part.class_of(x.config), x.config.implementation), "costs")
    with errors_of_part(part.registry, name, "states costs that cannot be computed"):
        costs = None if statement is None else statement(x)
    if costs is not None and not isinstance(costs, Costs):
        raise wrong_value(
            f"the result of `costs` of the {part.registry.kind} {name!r}", "Costs or None", costs
        )
    return trace_part(kind, x) if costs is None else costs


@functools.lru_cache(maxsize=256)
def trace_part(kind: PartKind, x: StepShape) -> Costs:
    """Return the costs of one module, measured on the meta device."""
    name = getattr(x.config, PARTS[kind].name)
    module = _make_module(kind, x)
    num_parameters = sum(parameter.numel() for parameter in module.parameters())
    formula = {"": num_parameters} if num_parameters else {}
    dtype = torch.bfloat16 if x.precision == "bf16" else torch.float32
    stream = torch.zeros(x.B, x.T, x.d, dtype=dtype, device="meta", requires_grad=True)
    try:
        trace = _Trace(module, stream)
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        message = (
            f"the costs of {name!r} are not counted, because it states none and cannot be traced on the meta"
            f" device: {first_line(error)}"
        )
        warnings.warn(message, AccountWarning, stacklevel=2)
        return Costs(parameters=formula)
    saved = trace.saved
    if kind == "norm":
        saved[_storage_id(trace.output)] = trace.output.untyped_storage().nbytes()
    else:
        saved.pop(_storage_id(stream), None)  # kept by the sublayer before it
    return Costs(
        parameters=formula,
        matmuls=[
            dataclasses.replace(one, name=f"{name} {number}", component=COMPONENTS[kind])
            for number, one in enumerate(trace.matmuls, start=1)
        ],
        kept=[Kept(f"tensors of {name}", sum(saved.values()))],
        backward_bytes=trace.peak_of_backward,
        passes=[Pass(f"{name}, traced", trace.num_results, trace.moved)],
        textbook={"": sum(saved.values()) // (x.s * x.N)},
    )


def _make_module(kind: PartKind, x: StepShape) -> Module:
    if kind == "attention":
        return make_attention(x.config, make_position(x.config, "heads", "meta"), "meta")
    return (make_norm if kind == "norm" else make_ffn)(x.config, "meta")


def _storage_id(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


class StorageTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of storages that operations create, now and at the peak."""

    def __init__(self, existing: Sequence[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._alive = {_storage_id(tensor): 0 for tensor in existing}

    def hold(self, tensors: Sequence[Tensor]) -> None:
        """Count the storages of new tensors until they are freed."""
        for tensor in tensors:
            storage, key = tensor.untyped_storage(), _storage_id(tensor)
            if key not in self._alive:
                self._alive[key] = storage.nbytes()
                self.now += storage.nbytes()
                weakref.finalize(storage, self._release, key)
        self.peak = max(self.peak, self.now)

    def _release(self, key: int) -> None:
        self.now -= self._alive.pop(key)


class _Trace(StorageTracker):  # type: ignore[no-untyped-call]
    """One forward and backward pass of a module: its products, and the storages that each operation makes."""

    def __init__(self, module: Module, stream: Tensor) -> None:
        super().__init__()
        self.matmuls: list[Matmul] = []
        self.moved = self.num_results = 0
        self.saved: dict[int, int] = {}
        """Bytes of the storages that autograd saved, without the parameters."""
        self._is_forward = True
        parameters = {_storage_id(tensor) for tensor in (*module.parameters(), *module.buffers())}

        def save(tensor: Tensor) -> Tensor:
            if _storage_id(tensor) not in parameters:
                self.saved[_storage_id(tensor)] = tensor.untyped_storage().nbytes()
            return tensor

        with self, torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
            self.output: Tensor = module(stream)
        upstream = torch.zeros_like(self.output)
        self._is_forward = False
        before = self.peak = self.now
        with self:
            torch.autograd.backward(self.output, upstream)
        self.peak_of_backward = max(0, self.peak - before)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        results = func(*args, **(kwargs or {}))
        made = tensors_in(results)
        self.hold(made)
        if count := flop_registry.get(func._overloadpacket):
            if self._is_forward:
                self.matmuls.append(_as_matmul(args, count(*args, **(kwargs or {}), out_val=results)))
        elif not func.is_view and func._overloadpacket not in MOVES_NOTHING:
            read = tensors_in((args, kwargs))
            self.moved += sum(tensor.numel() * tensor.itemsize for tensor in (*read, *made))
            self.num_results += sum(tensor.numel() for tensor in made)
        return results


def tensors_in(values: Any) -> list[Tensor]:
    """Return the tensors in nested tuples, lists and dicts."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _as_matmul(args: tuple[Any, ...], flops: int) -> Matmul:
    """Return the product of an operation; those that are not products of two matrices have one column."""
    shapes = [tuple(leaf.shape) for leaf in args if isinstance(leaf, Tensor)]
    left, right = (((), ()), *itertools.pairwise(shapes))[-1]
    if len(left) in (2, 3) and len(left) == len(right) and left[-1] == right[-2]:
        times = left[0] if len(left) == 3 else 1
        product = Matmul(name="", component="other", times=times, m=left[-2], k=left[-1], n=right[-1])
        if product.flops == flops:
            return product
    return Matmul(name="", component="other", times=1, m=flops // 2, k=1, n=1)

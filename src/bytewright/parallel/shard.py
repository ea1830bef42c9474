"""Strategy "shard": every rank stores a share of the rows of every parameter (FSDP2, `fully_shard`).

A rank computes whole parts of the batch. Before a block is computed, forward or backward, its rows are
gathered from all ranks; afterwards they are released. After the backward pass of a block the ranks exchange
its gradients, and each rank keeps the sum for its own rows. So a rank stores 1/R of weights, gradients and
optimizer state. It has one or two whole blocks, the embeddings or the head in memory only while they are
used.

Reduction "exact": in round i, rank r computes part i·R + r. The R parts of a round are adjacent, so the owner
of a row receives them in one all-to-all. It adds them in their order to the tree of `tree`, and never keeps
the gradient of a single part. The sum has the same bits for every number of ranks, and for "replicate".
Reduction "fast": the reduce-scatter of FSDP2, whose order of additions depends on the number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from torch.nn import Module, Parameter

from bytewright.errors import UsageError
from bytewright.model import TransformerLM
from bytewright.parallel.rank_group import RankGroup, all_gather_single, reduce_scatter_single
from bytewright.parallel.rows import Rows, Shape
from bytewright.parallel.tree import TreeSum


class ShardedModel:
    """A model whose parameters are sharded over the ranks; it changes `model` in place.

    `model` is complete, on the host: its blocks are moved to `device` one after the other. Or its parameters
    are on torch's meta device, which stores nothing. Then `weights` yields all of them with their names, on
    the host, and a rank copies its rows of one after the other.
    """

    def __init__(
        self,
        model: TransformerLM,
        ranks: RankGroup,
        device: torch.device,
        *,
        num_parts: int,
        is_exact: bool,
        weights: Iterable[tuple[str, Tensor]] = (),
    ) -> None:
        self.model, self.ranks, self.num_parts = model, ranks, num_parts
        self.shapes: dict[str, Shape] = {name: tuple(p.shape) for name, p in model.named_parameters()}
        mesh = _make_mesh(ranks, device)
        modules: list[Module] = [*model.layers]
        if model.lm_head is not None:  # tied embeddings belong to the root, which keeps them for the head
            modules.insert(0, model.token_embeddings)
        for module in (*modules, model):
            defined_in = type(module).__module__
            is_blank = any(parameter.is_meta for parameter in module.parameters())
            fully_shard(module if is_blank else module.to(device), mesh=mesh)
            type(module).__module__ = defined_in  # FSDP2 derives a class, which is as built-in as its base

        def allocate(tensor: Tensor) -> Tensor:
            return torch.empty_like(tensor, device=device) if tensor.is_meta else tensor

        model._apply(allocate)  # type: ignore[no-untyped-call]
        _gather_for_hidden_states(model)
        self._reductions: list[ExactReduction] = []
        for unit in cast("list[FSDPModule]", [*modules, model]):
            self._set_communication(unit, is_exact)
        if model.lm_head is not None:  # the gradient of an embedding does not depend on its weights
            cast("FSDPModule", model.token_embeddings).set_unshard_in_backward(False)
        self.rows: dict[str, Rows] = {
            name: Rows(Parameter(_local(parameter)), self.shapes[name], ranks)
            for name, parameter in model.named_parameters()
        }
        for name, whole in weights:
            self.rows[name].fill(whole)

    def _set_communication(self, module: FSDPModule, is_exact: bool) -> None:
        module.set_custom_all_gather(GatherRows(self.ranks))  # type: ignore[arg-type]  # torch's base is private
        # A loss is divided by the number of parts, so gradients are added, not averaged.
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
        if not is_exact:
            module.set_custom_reduce_scatter(FastReduction(self.ranks))  # type: ignore[arg-type]
            return
        reduction = ExactReduction(self.ranks, self.num_parts)
        self._reductions.append(reduction)
        module.set_custom_reduce_scatter(reduction)  # type: ignore[arg-type]
        if self.ranks.num_ranks == 1:  # FSDP2 then has nothing to reduce, and calls this hook only
            module.set_all_reduce_hook(reduction.add_own)

    def find_part(self, number: int) -> int:
        """Return the number in the batch of a part of this rank, the parts of each rank counted from 0."""
        return number * self.ranks.num_ranks + self.ranks.rank

    def start_step(self) -> None:
        """Discard the gradients of the previous step."""
        for reduction in self._reductions:
            reduction.start_step()
        for parameter in self.model.parameters():
            parameter.grad = None

    def finish_round(self, number: int) -> None:
        """Finish the backward pass of a round, counted from 0; in exact mode only the last has gradients."""
        is_last = (number + 1) * self.ranks.num_ranks == self.num_parts
        if self._reductions and not is_last:
            for parameter in self.model.parameters():
                parameter.grad = None

    def gradients(self) -> dict[str, Float[Tensor, ...]]:
        """Return the own rows of the gradient of every parameter, summed over all parts."""
        found: dict[str, Tensor] = {}
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                if parameter.grad is None:
                    message = (
                        f"the loss does not depend on the parameter {name!r}, which parallel.strategy"
                        ' = "shard" does not support; use "replicate"'
                    )
                    raise UsageError(message, key="parallel.strategy", found=name)
                found[name] = _local(parameter.grad)
        return found

    def release(self) -> None:
        """Release rows of other ranks that a forward pass without a backward pass has left."""
        cast("FSDPModule", self.model).reshard()

    def gather_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every parameter in the host memory of rank 0, one after the other; the others get nothing."""
        for name, rows in self.rows.items():
            whole = rows.gather()
            if whole is not None:
                yield name, whole


class _Collective:
    """A collective that FSDP2 calls with tensors of a block; it counts the bytes that this rank sends."""

    def __init__(self, ranks: RankGroup) -> None:
        self.ranks = ranks

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return memory for the tensors."""
        return torch.empty(tuple(size), dtype=dtype, device=device)

    def _run(
        self, collective: Callable[..., Any], out: Tensor, own: Tensor, *, num_bytes: int, **options: Any
    ) -> Any:
        """Call a collective of torch that sends `num_bytes` to each other rank.

        gloo exchanges CPU memory only.
        """
        self.ranks.num_bytes_sent += (self.ranks.num_ranks - 1) * num_bytes
        with self.ranks.collective():
            if own.device.type == "cpu" or self.ranks.backend != "gloo":
                return collective(out, own, **options)
            staged = torch.empty_like(out, device="cpu")
            collective(staged, own.cpu(), **{**options, "async_op": False})
            out.copy_(staged)
            return None


class GatherRows(_Collective):
    """Gathers the rows of a block from all ranks."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False
    ) -> Any:
        """Start or run the collective."""
        options = {"group": group, "async_op": async_op}
        return self._run(
            all_gather_single, output_tensor, input_tensor, num_bytes=input_tensor.nbytes, **options
        )


class FastReduction(_Collective):
    """Adds the gradients of all ranks in the order of the communication library."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> Any:
        """Start or run the collective."""
        options = {"op": op, "group": group, "async_op": async_op}
        return self._run(
            reduce_scatter_single, output_tensor, input_tensor, num_bytes=output_tensor.nbytes, **options
        )


class ExactReduction(_Collective):
    """Adds the gradients of all parts in the order of the tree; FSDP2 calls it once per block and round.

    The last round of a step returns the sum of all parts. What the other rounds return is not used.
    """

    def __init__(self, ranks: RankGroup, num_parts: int) -> None:
        super().__init__(ranks)
        self._num_parts = num_parts
        self.start_step()

    def start_step(self) -> None:
        """Discard the parts of the previous step."""
        self._tree = TreeSum(self._num_parts)
        self._num_added = 0

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> Any:
        """Exchange the parts of this round, and write the sum into `output_tensor` if it is complete."""
        received = torch.empty_like(input_tensor)
        self._run(dist.all_to_all_single, received, input_tensor, num_bytes=output_tensor.nbytes, group=group)
        self._add(received.view(self.ranks.num_ranks, -1), output_tensor)
        return None

    def add_own(self, gradient: Tensor) -> None:
        """Add the part of a single rank, and replace it by the sum if it is complete."""
        self._add(gradient.unsqueeze(0), gradient)

    def _add(self, parts: Float[Tensor, "ranks numbers"], out: Float[Tensor, " numbers"]) -> None:
        for part in parts:
            self._tree.add([part])
        self._num_added += len(parts)
        if self._num_added == self._num_parts:
            ((total,),) = self._tree.sums
            out.copy_(total)
            self._tree = TreeSum(self._num_parts)
            return
        # A part that no other was added to is a view of the memory of all parts, which would stay allocated.
        memory = parts.untyped_storage().data_ptr()
        self._tree.sums = [
            [tensor.clone() if tensor.untyped_storage().data_ptr() == memory else tensor for tensor in sums]
            for sums in self._tree.sums
        ]


def _gather_for_hidden_states(model: TransformerLM) -> None:
    """Let FSDP2 gather the root also for `hidden_states`, unless `forward` calls it: then it has done so."""
    in_forward = False

    def note(entered: bool) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            nonlocal in_forward
            in_forward = entered

        return hook

    without_hooks = model.hidden_states
    register_fsdp_forward_method(model, "hidden_states")
    with_hooks = model.hidden_states
    model.register_forward_pre_hook(note(True))
    model.register_forward_hook(note(False), always_call=True)

    def hidden_states(ids: Tensor) -> Tensor:
        return (without_hooks if in_forward else with_hooks)(ids)

    model.hidden_states = hidden_states  # type: ignore[method-assign]


def _make_mesh(ranks: RankGroup, device: torch.device) -> DeviceMesh:
    """Return the mesh of all ranks; by default FSDP2 would choose the backend by the hardware."""
    numbers = list(range(ranks.num_ranks))
    return DeviceMesh.from_group(ranks.open_data_group(device), device.type, mesh=numbers)


def _local(tensor: Tensor) -> Tensor:
    """Return the rows of a distributed tensor that this rank stores, without a copy."""
    local: Tensor = cast("DTensor", tensor.detach()).to_local()
    return local

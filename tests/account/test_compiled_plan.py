"""The compiler keeps for the backward pass the tensors that the accountant predicts."""

from __future__ import annotations

import warnings
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from bytewright.account import training_memory
from bytewright.model import ModelConfig, TransformerLM, language_model_loss
from bytewright.model.costs import WIDE, Precision
from bytewright.model.loss import LOGITS_AT_ONCE
from runs import rerun_unchecked

pytest.importorskip("triton", reason="Triton is not installed")

BATCH_SIZE = 8


def bytes_kept(config: ModelConfig, precision: Precision) -> int:
    """Trace a step with fake tensors and return what the compiler's partition keeps."""
    from torch._functorch.aot_autograd import aot_function
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table
    from torch._subclasses.fake_tensor import FakeTensorMode

    plans: list[torch.fx.GraphModule] = []

    def note(gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
        plans.append(gm)
        return gm.forward

    with (
        warnings.catch_warnings(),
        FakeTensorMode(allow_non_fake_inputs=True),
        patch("bytewright.model.kernels.on_gpu", lambda x: True),
        patch.dict(LOGITS_AT_ONCE, cpu=LOGITS_AT_ONCE["cuda"]),
    ):
        warnings.simplefilter("ignore")
        compute_dtype = torch.bfloat16 if precision == "bf16" else None
        model = TransformerLM(config, device="cpu", compute_dtype=compute_dtype)
        names, tensors = zip(*model.named_parameters(), *model.named_buffers(), strict=True)
        windows = torch.zeros(BATCH_SIZE, config.context_length + 1, dtype=torch.int64)

        def forward(values: list[Tensor], ids: Tensor, targets: Tensor) -> Tensor:
            with torch.nn.utils.stateless._reparametrize_module(model, dict(zip(names, values, strict=True))):
                return language_model_loss(model, ids, targets)

        traced = aot_function(
            forward,
            fw_compiler=note,
            partition_fn=min_cut_rematerialization_partition,
            decompositions=select_decomp_table(),
        )
        traced(list(tensors), windows[:, :-1], windows[:, 1:])
    (results,) = (node.args[0] for node in plans[0].graph.nodes if node.op == "output")
    given = {_storage(node)._cdata for node in plans[0].graph.nodes if node.op == "placeholder"}
    kept = {_storage(node)._cdata: _storage(node).nbytes() for node in results if node is not None}
    return sum(num_bytes for key, num_bytes in kept.items() if key not in given)


def _storage(node: torch.fx.Node) -> torch.UntypedStorage:
    storage: torch.UntypedStorage = node.meta["val"].untyped_storage()
    return storage


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["fused", "reference"])
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("num_heads", [16, 32])  # with our attention kernel and without
def test_the_compiler_keeps_the_predicted_tensors(
    request: pytest.FixtureRequest, implementation: Any, precision: Precision, num_heads: int
) -> None:
    if rerun_unchecked(request):
        return
    config = ModelConfig(
        vocab_size=1000,
        context_length=256,
        d_model=512,
        num_layers=3,
        num_heads=num_heads,
        d_ff=1344,
        implementation=implementation,
    )
    predicted = training_memory(config, batch_size=BATCH_SIZE, precision=precision, compiled=True)
    numbers = BATCH_SIZE * config.context_length
    s = 2 if precision == "bf16" else WIDE
    if implementation == "fused":  # the gradients that are computed with the loss
        at_the_head = s * numbers * config.d_model + WIDE * config.vocab_size * config.d_model
        unneeded = s * numbers * config.d_model  # so the output of the final norm is not kept
    else:  # the logits, and in bf16 a copy of the head
        at_the_head = s * numbers * config.vocab_size
        at_the_head += s * config.vocab_size * config.d_model if precision == "bf16" else 0
        unneeded = 0
    expected = predicted.activations + at_the_head - unneeded
    assert bytes_kept(config, precision) == pytest.approx(expected, rel=0.1)

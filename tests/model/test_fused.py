"""Each fused layer equals its reference layer, forward and backward, for every choice of the config."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.utils._python_dispatch import TorchDispatchMode

from bytewright.model import TransformerLM
from bytewright.model.fused import (
    FusedSelfAttention,
    FusedSwiGLU,
    halves_from_pairs,
    linear_cross_entropy,
    pairs_from_halves,
)
from model_choices import CHOICES, SMALL, small_config

F64 = torch.float64

# Largest allowed difference as a share of the largest value of a tensor. In bfloat16 one rounding is 1/256;
# two layers round about ten times in the forward pass and again in the backward pass.
TOLERANCES = {
    "float64": (F64, None, 1e-12),
    "float32": (torch.float32, None, 1e-5),
    "bfloat16": (torch.float32, torch.bfloat16, 4e-2),
}


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    torch.manual_seed(0)


def reference_loss(logits: Tensor, targets: Tensor) -> Tensor:
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return (logits.exp().sum(dim=-1).log() - logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)).mean()


def make_pair(choice: str, dtype: torch.dtype, compute_dtype: torch.dtype | None) -> list[TransformerLM]:
    """Build both implementations with the same random weights and gains."""
    reference, fused = (
        TransformerLM(
            small_config(choice, implementation=implementation), dtype=dtype, compute_dtype=compute_dtype
        ).to(dtype)
        for implementation in ("reference", "fused")
    )
    with torch.no_grad():
        for parameter in reference.parameters():
            if parameter.ndim == 1:
                parameter.uniform_(0.5, 1.5)
    fused.load_state_dict(reference.state_dict())
    return [reference, fused]


def assert_near(ours: Tensor, expected: Tensor, tolerance: float, what: str) -> None:
    difference = (ours.double() - expected.double()).abs().max().item()
    largest = expected.abs().max().item()
    assert difference <= tolerance * max(largest, 1e-3), f"{what}: off by {difference} of {largest}"


@pytest.mark.parametrize("precision", TOLERANCES)
@pytest.mark.parametrize("choice", CHOICES)
def test_reference_and_fused_agree_forward_and_backward(choice: str, precision: str) -> None:
    dtype, compute_dtype, tolerance = TOLERANCES[precision]
    reference, fused = make_pair(choice, dtype, compute_dtype)
    ids, targets = torch.randint(0, SMALL.vocab_size, (2, 3, SMALL.context_length))
    assert_near(fused(ids), reference(ids), tolerance, "logits")
    expected = reference_loss(reference(ids), targets)
    loss = linear_cross_entropy(fused.hidden_states(ids), fused.output_weight, targets, chunk_size=20)
    assert_near(loss.detach(), expected.detach(), tolerance, "loss")
    torch.autograd.backward(expected)
    torch.autograd.backward(loss)
    for (name, ours), other in zip(fused.named_parameters(), reference.parameters(), strict=True):
        assert ours.grad is not None
        assert other.grad is not None
        assert_near(ours.grad, other.grad, tolerance, name)


@pytest.mark.parametrize("choice", CHOICES)
def test_reference_and_fused_load_each_others_state_dicts(choice: str) -> None:
    reference, fused = make_pair(choice, torch.float32, None)
    for source, target in ((fused, reference), (reference, fused)):
        with torch.no_grad():
            for parameter in source.parameters():
                parameter.uniform_(-1, 1)
        target.load_state_dict(source.state_dict())
        for name, tensor in target.state_dict().items():
            assert torch.equal(tensor, source.state_dict()[name])


@pytest.mark.parametrize("batch", [(), (4,), (2, 2)])
def test_reference_and_fused_agree_for_any_leading_dimensions(batch: tuple[int, ...]) -> None:
    reference, fused = make_pair("default", F64, None)
    ids = torch.randint(0, SMALL.vocab_size, (*batch, 5))
    assert_near(fused(ids), reference(ids), 1e-12, "logits")


def test_reference_and_fused_agree_at_positions_that_do_not_start_at_zero() -> None:
    reference, fused = make_pair("qk-norm", F64, None)
    x = torch.randn(2, 4, SMALL.d_model, dtype=F64)
    positions = torch.tensor([[3, 4, 5, 6], [0, 1, 9, 15]])
    ours = fused.get_submodule("layers.0.attn")(x, positions)
    assert_near(ours, reference.get_submodule("layers.0.attn")(x, positions), 1e-12, "attention")


def test_gradients_of_the_fused_layers_pass_gradcheck() -> None:
    attention = FusedSelfAttention(4, 2, num_kv_heads=1, qk_norm=True, dtype=F64)
    feed_forward = FusedSwiGLU(4, 6, dtype=F64)
    x = torch.randn(3, 4, dtype=F64, requires_grad=True)
    for layer in (attention, feed_forward):
        names, values = zip(*layer.named_parameters(), strict=True)

        def call(x: Tensor, *parameters: Tensor, layer: Any = layer, names: Any = names) -> Tensor:
            output: Tensor = torch.func.functional_call(
                layer, dict(zip(names, parameters, strict=True)), (x,)
            )
            return output

        assert gradcheck(call, (x, *values))


@pytest.mark.parametrize("d_head", [2, 4, 6])
def test_halves_and_pairs_are_inverse(d_head: int) -> None:
    rows = torch.randn(3 * d_head, 5)
    assert torch.equal(pairs_from_halves(halves_from_pairs(rows, d_head), d_head), rows)
    assert torch.equal(halves_from_pairs(rows, d_head)[: d_head // 2], rows[:d_head:2])


# Head and loss.


@pytest.mark.parametrize("chunk_size", [1, 3, 7, 100])
def test_the_chunked_loss_passes_gradcheck_for_any_chunk(chunk_size: int) -> None:
    hidden = torch.randn(7, 4, dtype=F64, requires_grad=True)
    weight = torch.randn(5, 4, dtype=F64, requires_grad=True)
    targets = torch.randint(0, 5, (7,))
    assert gradcheck(
        lambda h, w: 3 * linear_cross_entropy(h, w, targets, chunk_size=chunk_size), (hidden, weight)
    )
    expected = reference_loss(hidden @ weight.T, targets)
    loss = linear_cross_entropy(hidden, weight, targets, chunk_size=chunk_size)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)


def test_the_chunked_loss_of_huge_logits_stays_finite() -> None:
    hidden = torch.full((2, 4), 1e4, requires_grad=True)
    weight = torch.tensor([[1.0] * 4, [-1.0] * 4], requires_grad=True)
    loss = linear_cross_entropy(hidden, weight, torch.tensor([0, 1]))
    torch.autograd.backward(loss)
    assert loss.item() == pytest.approx(4e4)
    assert hidden.grad is not None
    assert hidden.grad.isfinite().all()


class LargestTensor(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the largest number of elements of any result."""

    most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, Tensor):
                self.most = max(self.most, tensor.numel())
        return result


def test_the_logits_of_a_whole_batch_never_exist() -> None:
    hidden = torch.randn(256, 8, requires_grad=True)
    weight = torch.randn(100, 8, requires_grad=True)
    targets = torch.randint(0, 100, (256,))
    with LargestTensor() as largest:  # type: ignore[no-untyped-call]
        torch.autograd.backward(linear_cross_entropy(hidden, weight, targets, chunk_size=32))
    assert largest.most == max(32 * 100, 256 * 8)


def test_without_grad_mode_the_loss_computes_no_gradient() -> None:
    hidden, weight = torch.randn(8, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    with torch.no_grad():
        loss = linear_cross_entropy(hidden, weight, torch.zeros(8, dtype=torch.long))
    assert not loss.requires_grad


COMPILED = """
import torch
from bytewright.model import Linear, ModelConfig, TransformerLM
from bytewright.model.fused import linear_cross_entropy
from bytewright.registry import feed_forwards, positions

@feed_forwards.register("relu2")
class SquaredReLU(torch.nn.Module):
    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.up, self.down = Linear(d_model, d_ff), Linear(d_ff, d_model)

    def forward(self, x):
        return self.down(self.up(x).relu() ** 2)

@positions.register("learned")
class Learned(torch.nn.Module):
    place = "embeddings"

    def __init__(self, d_model: int, max_seq_len: int) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(max_seq_len, d_model))

    def forward(self, x, token_positions):
        return x + self.table[token_positions]

sizes = dict(vocab_size=50, context_length=12, d_model=16, num_layers=1, num_heads=4)
ids, targets = torch.randint(0, 50, (2, 3, 12)).to(torch.uint16)
for parts in (dict(num_kv_heads=2, qk_norm=True), dict(ffn="relu2", position="learned")):
    model = TransformerLM(ModelConfig(**sizes, **parts))

    def loss(ids, targets):
        return linear_cross_entropy(model.hidden_states(ids), model.output_weight, targets, chunk_size=20)

    def gradients(function):
        model.zero_grad()
        function(ids, targets).backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    for ours, expected in zip(gradients(compiled), gradients(loss)):
        torch.testing.assert_close(ours, expected)
"""


def test_the_fused_model_compiles_into_one_graph() -> None:
    # In a separate process, because the run-time type checks of the tests must not be traced.
    source = Path(__file__).parents[2] / "src"
    environment = {**os.environ, "PYTHONPATH": str(source)}
    result = subprocess.run(
        [sys.executable, "-c", COMPILED], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr

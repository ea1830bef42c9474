"""The Triton kernels equal tensor operations: on a GPU, or in Triton's interpreter."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot, scaled_dot_product_attention, silu

from bytewright.generate.decoder import Decoder
from bytewright.model import ModelConfig, TransformerLM, kernels
from bytewright.model.fused import rotate_halves
from bytewright.model.layers import EPSILON, rms_norm

pytest.importorskip("triton")
ON_GPU = torch.cuda.is_available()
DEVICE, DTYPE = ("cuda", torch.bfloat16) if ON_GPU else ("cpu", torch.float32)
TOLERANCE = 1e-2 if ON_GPU else 1e-5
"""‖ours - exact‖ / ‖exact‖: bfloat16 keeps 8 bits; the interpreter computes in float32."""


def kernel(name: str) -> ModuleType:
    return importlib.import_module(f"bytewright.model.kernels.{name}")


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, DTYPE)


def assert_close(ours: Tensor, exact: Tensor) -> None:
    assert (ours.double() - exact).norm() <= TOLERANCE * exact.norm()


def with_gradient(function: Any, x: Tensor, upstream: Tensor) -> tuple[Tensor, Tensor]:
    x = x.detach().requires_grad_()
    out = function(x)
    (gradient,) = torch.autograd.grad(out, x, upstream.to(out.dtype))
    return out.detach(), gradient


def assert_attention_is_exact(length: int, num_heads: int, d_head: int, rotates: bool) -> None:
    """Compare the kernel, forward and backward, with tensor operations in float64."""
    angles = torch.outer(torch.arange(length + 3), 0.7 ** torch.arange(d_head // 2)).to(DEVICE)
    cos, sin = (angles.cos(), angles.sin()) if rotates else (None, None)
    qkv, upstream = draw(2, length, 3 * num_heads * d_head), draw(2, length, num_heads * d_head, seed=1)

    def exact(qkv: Tensor) -> Tensor:
        q, k, v = qkv.view(2, length, 3, num_heads, d_head).unbind(2)
        if cos is not None and sin is not None:
            q, k = (rotate_halves(x, cos[:length].double(), sin[:length].double()) for x in (q, k))
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)

    attend = kernel("attention").rotary_attention
    ours = with_gradient(lambda x: attend(x, cos, sin, num_heads)[0], qkv, upstream)
    for left, right in zip(ours, with_gradient(exact, qkv.double(), upstream), strict=True):
        assert_close(left, right)


@pytest.mark.parametrize("d_model", [1, 64, 100])
def test_a_norm_with_float32_gains(d_model: int) -> None:
    x, gains = draw(5, d_model), draw(d_model, seed=1).float() + 1
    ours = kernel("decoding").rms_norm_rows(x, gains, eps=EPSILON)
    assert ours.dtype == x.dtype
    torch.testing.assert_close(ours, rms_norm(x, gains, EPSILON))


@pytest.mark.parametrize("rotates", [True, False])
@pytest.mark.parametrize("length", [1, 16, 33, 40])
@pytest.mark.parametrize("d_head", [32, 64, 128])
def test_attention_and_its_gradient(
    monkeypatch: pytest.MonkeyPatch, d_head: int, length: int, rotates: bool
) -> None:
    if not ON_GPU:  # small blocks, so that a short sequence has several
        attention = kernel("attention")
        small = attention.Blocks(32, 16, 4), attention.Blocks(16, 32, 4)
        monkeypatch.setitem(attention.BLOCKS, d_head, small)
    assert_attention_is_exact(length, 2, d_head, rotates)


@pytest.mark.parametrize("length", [150, 257, 512] if ON_GPU else [150])
@pytest.mark.parametrize("d_head", [32, 64, 128])
def test_attention_over_several_blocks_of_the_size_that_a_gpu_uses(d_head: int, length: int) -> None:
    assert d_head in kernel("attention").BLOCKS
    for rotates in (True, False) if ON_GPU else (True,):
        assert_attention_is_exact(length, 3 if ON_GPU else 1, d_head, rotates)


def test_block_sizes_are_multiples_that_the_kernels_require() -> None:
    for forward, backward in kernel("attention").BLOCKS.values():
        for size in (*forward, *backward):
            assert size.bit_count() == 1
        assert backward.keys % backward.queries == 0
        assert min(forward[:2] + backward[:2]) >= 16  # the minimum of a matrix unit


def test_the_gated_unit_and_its_gradient() -> None:
    joined, upstream = draw(3, 50, 2 * 48), draw(3, 50, 48, seed=1)

    def exact(joined: Tensor) -> Tensor:
        gate, up = joined.chunk(2, dim=-1)
        return silu(gate) * up

    ours = with_gradient(kernel("swiglu").silu_gate, joined, upstream)
    for left, right in zip(ours, with_gradient(exact, joined.double(), upstream), strict=True):
        assert_close(left, right)


@pytest.mark.parametrize("vocab_size", [50, 3000])
def test_losses_and_the_gradient_of_logits(vocab_size: int) -> None:
    logits = 5 * draw(7, vocab_size)
    targets = torch.arange(7, device=DEVICE) * vocab_size // 7
    exact = logits.double()
    losses = kernel("cross_entropy").cross_entropy_(logits, targets, with_gradient=True)
    assert_close(losses, cross_entropy(exact, targets, reduction="none"))
    assert_close(logits, exact.softmax(-1) - one_hot(targets, vocab_size))


@pytest.mark.parametrize("vocab_size", [48, 50])  # rows of 50 are padded
def test_head_and_loss_in_chunks(vocab_size: int) -> None:
    hidden, weight = draw(13, 24), draw(vocab_size, 24, seed=1)
    targets = torch.arange(vocab_size - 13, vocab_size, device=DEVICE)
    total, *gradients = kernel("cross_entropy").total_cross_entropy(hidden, weight, targets, 4, True)
    inputs = [tensor.double().requires_grad_() for tensor in (hidden, weight)]
    exact = cross_entropy(inputs[0] @ inputs[1].T, targets, reduction="sum")
    assert_close(total, exact.detach())
    for ours, right in zip(gradients, torch.autograd.grad(exact, inputs), strict=True):
        assert_close(ours, right)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # from the interpreter, at inf - inf
def test_a_loss_that_is_not_finite_stays_so() -> None:
    for bad in (float("nan"), float("inf")):
        logits = draw(2, 50)
        logits[0, 3] = bad
        losses = kernel("cross_entropy").cross_entropy_(
            logits, torch.zeros(2, dtype=torch.long, device=DEVICE), with_gradient=False
        )
        assert not losses[0].isfinite()
        assert losses[1].isfinite()


def test_rows_of_an_id_add_up() -> None:
    weight, ids = draw(11, 70).float(), (torch.arange(280, device=DEVICE) ** 2 % 9).view(4, 70)
    upstream = draw(4, 70, 70, seed=1).float()
    rows, gradient = with_gradient(lambda x: kernel("embedding").embed(x, ids), weight, upstream)
    assert torch.equal(rows, weight[ids])
    exact = torch.zeros(11, 70, dtype=torch.float64, device=DEVICE)
    assert_close(gradient, exact.index_add_(0, ids.flatten(), upstream.double().flatten(0, 1)))


@pytest.mark.parametrize("settings", [{}, {"qk_norm": True, "num_kv_heads": 2}, {"position": "none"}])
def test_the_decoding_kernel_equals_tensor_operations(settings: dict[str, Any]) -> None:
    torch.manual_seed(0)
    config = ModelConfig(vocab_size=50, context_length=160, d_model=64, num_layers=2, num_heads=4, **settings)
    model = TransformerLM(config).to(DEVICE, DTYPE)
    ids = torch.randint(50, (3, 140), device=DEVICE)
    lengths = torch.tensor([140, 7, 64], device=DEVICE)
    scores = []
    for has_kernel in (False, True):
        decoder = Decoder(model, 3)
        cache = decoder.new_cache(3, 160)
        decoder.read(cache, ids, lengths)
        decoder.has_kernel = has_kernel
        steps = [decoder.step(cache, ids[:, step], lengths + step) for step in range(3)]
        scores.append(torch.stack(steps).double())
    assert (scores[1] - scores[0]).norm() <= 3 * TOLERANCE * scores[0].norm()


@pytest.mark.parametrize(("capability", "served"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_old_gpus_are_detected_while_a_step_is_compiled(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], served: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    torch.compiler.reset()
    tell = torch.compile(
        lambda x: x + 1 if kernels._is_supported_gpu() else x, backend="eager", fullgraph=True
    )
    assert tell(torch.zeros(1)).item() == served

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


def with_gradients(function: Any, inputs: list[Tensor], upstreams: list[Tensor]) -> list[Tensor]:
    """Return the outputs of a function and the gradients of all inputs."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    outputs = function(*inputs)
    upstreams = [gradient.to(out.dtype) for out, gradient in zip(outputs, upstreams, strict=True)]
    return [*(out.detach() for out in outputs), *torch.autograd.grad(outputs, inputs, upstreams)]


def draw_angles(length: int, d_head: int, rotates: bool) -> tuple[Tensor, Tensor] | tuple[None, None]:
    angles = torch.outer(torch.arange(length + 3), 0.7 ** torch.arange(d_head // 2)).to(DEVICE)
    return (angles.cos(), angles.sin()) if rotates else (None, None)


def split_exactly(
    qkv: Tensor, gains: list[Tensor], cos: Tensor | None, sin: Tensor | None, heads: tuple[int, int]
) -> list[Tensor]:
    """Return q, k and v of a joined projection, normalised and rotated by tensor operations."""
    num_heads, kv_heads = heads
    qkv = qkv.reshape(*qkv.shape[:2], num_heads + 2 * kv_heads, -1)
    qk, v = torch.split(qkv, [num_heads + kv_heads, kv_heads], dim=2)
    if gains:
        qk = rms_norm(qk, gains[0], EPSILON)
    if cos is not None and sin is not None:
        length = qkv.shape[1]
        qk = rotate_halves(qk, cos[:length].double(), sin[:length].double())
    return [*torch.split(qk, [num_heads, kv_heads], dim=2), v]


def assert_attention_is_exact(
    length: int,
    num_heads: int,
    d_head: int,
    rotates: bool,
    *,
    kv_heads: int | None = None,
    has_norm: bool = False,
) -> None:
    """Compare the kernel, forward and backward, with tensor operations in float64."""
    cos, sin = draw_angles(length, d_head, rotates)
    heads = num_heads, kv_heads or num_heads
    qkv = draw(2, length, (num_heads + 2 * heads[1]) * d_head)
    gains = [1 + draw(sum(heads), d_head, seed=2).float() / 2] if has_norm else []
    upstream = draw(2, length, num_heads * d_head, seed=1)

    def exact(qkv: Tensor, *gains: Tensor) -> list[Tensor]:
        q, k, v = (x.transpose(1, 2) for x in split_exactly(qkv, list(gains), cos, sin, heads))
        attended = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return [attended.transpose(1, 2).flatten(2)]

    def ours(qkv: Tensor, *gains: Tensor) -> list[Tensor]:
        attend = kernel("attention").rotary_attention
        return [attend(qkv, cos, sin, *heads, gains[0] if gains else None, EPSILON)[0]]

    inputs = [qkv, *gains]
    right = with_gradients(exact, [x.double() for x in inputs], [upstream])
    for left, exactly in zip(with_gradients(ours, inputs, [upstream]), right, strict=True):
        assert_close(left, exactly)


@pytest.mark.parametrize(
    ("num_heads", "kv_heads", "has_norm", "rotates"),
    [(3, 3, True, True), (9, 1, True, False), (9, 1, False, True)],
)
def test_norm_and_rotation_of_the_heads(num_heads: int, kv_heads: int, has_norm: bool, rotates: bool) -> None:
    """The gradients of q, k and v have strides of their own, as those of torch's attention do."""
    length, d_head, heads = 11, 32, (num_heads, kv_heads)
    cos, sin = draw_angles(length, d_head, rotates)
    inputs = [draw(2, length, (num_heads + 2 * kv_heads) * d_head)]
    inputs += [1 + draw(sum(heads), d_head, seed=2).float() / 2] if has_norm else []
    upstreams = [
        draw(2, count, length, d_head, seed=3 + i).transpose(1, 2)
        for i, count in enumerate((num_heads, kv_heads, kv_heads))
    ]

    def ours(qkv: Tensor, *gains: Tensor) -> list[Tensor]:
        split = kernel("heads").SplitHeads.apply
        return list(split(qkv, gains[0] if gains else None, cos, sin, num_heads, d_head, EPSILON))

    def exact(qkv: Tensor, *gains: Tensor) -> list[Tensor]:
        return split_exactly(qkv, list(gains), cos, sin, heads)

    right = with_gradients(exact, [x.double() for x in inputs], upstreams)
    for left, exactly in zip(with_gradients(ours, inputs, upstreams), right, strict=True):
        assert_close(left, exactly)


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


@pytest.mark.parametrize("d_head", [32, 64] if ON_GPU else [32])
@pytest.mark.parametrize(("kv_heads", "has_norm"), [(2, False), (1, True)])
def test_attention_with_grouped_heads_and_norms(
    monkeypatch: pytest.MonkeyPatch, d_head: int, kv_heads: int, has_norm: bool
) -> None:
    if not ON_GPU:
        attention = kernel("attention")
        small = attention.Blocks(32, 16, 4), attention.Blocks(16, 32, 4)
        monkeypatch.setitem(attention.BLOCKS, d_head, small)
    assert_attention_is_exact(257 if ON_GPU else 40, 4, d_head, True, kv_heads=kv_heads, has_norm=has_norm)


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


def test_columns_beyond_the_vocabulary_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel("cross_entropy"), "SHORT_ROW", 0)  # the blocks of long rows
    logits, targets = 5 * draw(7, 3008), torch.arange(7, device=DEVICE) * 3000 // 7
    exact = logits[:, :3000].double()
    losses = kernel("cross_entropy").cross_entropy_(logits, targets, with_gradient=True, vocab_size=3000)
    assert_close(losses, cross_entropy(exact, targets, reduction="none"))
    assert_close(logits[:, :3000], exact.softmax(-1) - one_hot(targets, 3000))
    assert not logits[:, 3000:].any()


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


@pytest.mark.parametrize(
    ("num_ids", "num_embeddings", "power"), [(280, 11, 2), (32, 4, 1), (300, 2, 3), (5, 9, 1), (64, 1, 1)]
)
def test_sums_of_sorted_rows(num_ids: int, num_embeddings: int, power: int) -> None:
    """Frequent ids extend over several chunks of positions; some have no position."""
    uniform = torch.rand(num_ids, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    ids, upstream = (uniform**power * num_embeddings).long(), draw(num_ids, 70)
    exact = torch.zeros(num_embeddings, 70, dtype=torch.float64, device=DEVICE)
    exact.index_add_(0, ids, upstream.double())
    assert_close(kernel("embedding").embed_backward(upstream, ids, num_embeddings), exact)


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


@pytest.mark.parametrize(("capability", "is_supported"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_old_gpus_are_detected_while_a_step_is_compiled(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], is_supported: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    torch.compiler.reset()
    add_if_supported = torch.compile(
        lambda x: x + 1 if kernels._is_supported_gpu() else x, backend="eager", fullgraph=True
    )
    assert add_if_supported(torch.zeros(1)).item() == is_supported

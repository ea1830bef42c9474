"""Each reference layer equals an independent float64 computation with numpy and loops."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator

import jaxtyping
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn import Module

from bytewright.errors import UsageError
from bytewright.model import (
    Embedding,
    Linear,
    MultiHeadSelfAttention,
    RMSNorm,
    RotaryPositionalEmbedding,
    SwiGLU,
    scaled_dot_product_attention,
    silu,
    softmax,
)
from bytewright.model.fused import FusedEmbedding, FusedSelfAttention
from bytewright.model.layers import EPSILON, LayerNorm, SiLUFeedForward, truncated_normal_
from rejection import rejects
from runs import rerun_unchecked

F64 = torch.float64
BATCHES = [(), (3,), (2, 3)]


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    torch.manual_seed(0)


def array(x: Tensor) -> np.ndarray:
    return x.detach().numpy()


def assert_equal(ours: Tensor, expected: np.ndarray, tolerance: float = 1e-12) -> None:
    assert ours.shape == expected.shape
    np.testing.assert_allclose(array(ours), expected, rtol=tolerance, atol=tolerance)


# Independent definitions, one vector or one head at a time.


def numpy_silu(x: np.ndarray) -> np.ndarray:
    return np.array([value / (1 + math.exp(-value)) for value in x.ravel()]).reshape(x.shape)


def numpy_rms_norm(x: np.ndarray, gain: np.ndarray, eps: float) -> np.ndarray:
    return np.asarray(x / math.sqrt(sum(value * value for value in x) / len(x) + eps) * gain)


def numpy_rotate(x: np.ndarray, position: int, theta: float) -> np.ndarray:
    """Rotate each pair as a complex number."""
    pairs = x[0::2] + 1j * x[1::2]
    turned = np.array(
        [pair * np.exp(1j * position / theta ** (2 * i / len(x))) for i, pair in enumerate(pairs)]
    )
    return np.stack((turned.real, turned.imag), axis=-1).ravel()


def numpy_attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    """Return the attention of one head by definition, query by query, over the allowed keys."""
    rows = []
    for number, query in enumerate(q):
        seen = [j for j in range(len(k)) if mask is None or mask[number, j]]
        weights = np.array([math.exp(query @ k[j] / math.sqrt(len(query))) for j in seen])
        rows.append(sum(w * v[j] for w, j in zip(weights / weights.sum(), seen, strict=True)))
    return np.array(rows)


def each_vector(function: Callable[[np.ndarray], np.ndarray], x: np.ndarray) -> np.ndarray:
    flat = x.reshape(-1, x.shape[-1])
    return np.array([function(row) for row in flat]).reshape(*x.shape[:-1], -1)


# Comparison of the layers with these definitions.


@pytest.mark.parametrize("batch", BATCHES)
def test_linear_is_one_dot_product_per_output(batch: tuple[int, ...]) -> None:
    layer = Linear(5, 7, dtype=F64)
    x = torch.randn(*batch, 5, dtype=F64)
    w = array(layer.weight)
    assert w.shape == (7, 5)
    assert_equal(
        layer(x),
        each_vector(
            lambda row: np.array([sum(a * b for a, b in zip(o, row, strict=True)) for o in w]), array(x)
        ),
    )


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint16, torch.uint8])
def test_embedding_picks_rows_for_ids_of_any_integer_type(batch: tuple[int, ...], dtype: torch.dtype) -> None:
    table = Embedding(11, 4, dtype=F64)
    ids = torch.randint(0, 11, batch).to(dtype)
    expected = np.array([array(table.weight)[int(id)] for id in ids.reshape(-1)]).reshape(*batch, 4)
    assert_equal(table(ids), expected, tolerance=0)


@pytest.mark.parametrize("batch", BATCHES)
def test_rms_norm_scales_each_vector_to_unit_root_mean_square(batch: tuple[int, ...]) -> None:
    norm = RMSNorm(6, eps=1e-3, dtype=F64)
    torch.nn.init.normal_(norm.weight)
    x = torch.randn(*batch, 6, dtype=F64)
    assert_equal(norm(x), each_vector(lambda row: numpy_rms_norm(row, array(norm.weight), 1e-3), array(x)))


@pytest.mark.parametrize("batch", BATCHES)
def test_layer_norm_equals_that_of_torch_without_a_bias(batch: tuple[int, ...]) -> None:
    norm = LayerNorm(6, eps=1e-3, dtype=F64)
    torch.nn.init.normal_(norm.weight)
    x = torch.randn(*batch, 6, dtype=F64) + 5
    assert_equal(norm(x), array(torch.nn.functional.layer_norm(x, (6,), norm.weight, eps=1e-3)))


def test_rms_norm_of_large_half_precision_values_does_not_overflow() -> None:
    x = torch.full((4,), 6e4, dtype=torch.float16)
    assert torch.equal(RMSNorm(4)(x), torch.ones(4, dtype=torch.float16))


def test_the_gain_of_a_norm_is_applied_before_it_is_rounded() -> None:
    norm, x = RMSNorm(64), torch.randn(64, generator=torch.Generator().manual_seed(0)).bfloat16()
    torch.nn.init.uniform_(norm.weight, 0.5, 2.0, torch.Generator().manual_seed(1))
    exact = numpy_rms_norm(array(x.double()), array(norm.weight.double()), EPSILON)
    half_a_unit = np.exp2(np.floor(np.log2(np.abs(exact))) - 8)  # bfloat16 has 8 significant bits
    assert (np.abs(array(norm(x).double()) - exact) <= 1.0001 * half_a_unit).all()


def test_initial_weights_are_truncated_at_three_standard_deviations() -> None:
    torch.manual_seed(0)
    std = 0.3
    drawn = truncated_normal_(torch.empty(3_000_000), std)
    assert 2.99 * std < drawn.abs().max() <= torch.tensor(3 * std)
    assert drawn.std().item() == pytest.approx(0.98658 * std, rel=2e-3)  # the std of a normal truncated at 3
    edge = torch.full((), math.erf(3 / math.sqrt(2))).erfinv() * math.sqrt(2)
    assert edge > 3, "without the cut by hand, the edge itself would be outside"


def test_invalid_ids_and_head_counts_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # so that the layer itself checks
    for implementation in (Embedding, FusedEmbedding):
        with rejects(UsageError, key="ids", found=torch.float32):
            implementation(5, 4)(torch.tensor([1.9]))
        for ids, found in (([-1, 2], -1), ([3, 5], 5)):
            with rejects(UsageError, key="ids", found=found):
                implementation(5, 4)(torch.tensor(ids))
    for heads, key in (((3, None), "num_heads"), ((0, None), "num_heads"), ((5, 2), "num_kv_heads")):
        with pytest.raises(UsageError) as rejection:
            MultiHeadSelfAttention(10, heads[0], num_kv_heads=heads[1])
        assert rejection.value.key == key
    with rejects(UsageError, key="num_kv_heads", found=0):
        MultiHeadSelfAttention(10, 5, num_kv_heads=0)


@pytest.mark.parametrize("attention", [MultiHeadSelfAttention, FusedSelfAttention])
def test_positions_outside_the_rotary_tables_are_rejected(attention: type[MultiHeadSelfAttention]) -> None:
    rope = RotaryPositionalEmbedding(10_000.0, 4, max_seq_len=6)
    layer, x = attention(8, 2, rope=rope), torch.randn(1, 3, 8)
    layer(x, torch.tensor([[3, 4, 5]]))
    for positions, found in (([[-1, 0, 1]], -1), ([[4, 5, 6]], 6)):
        with rejects(UsageError, key="token positions", found=found):
            layer(x, torch.tensor(positions))
    with rejects(UsageError, expected=6, found=7):
        layer(torch.randn(1, 7, 8))


def test_rotary_embeddings_require_an_even_head_size() -> None:
    for d_k in (3, 0, -2):
        with rejects(UsageError, key="d_k", found=d_k):
            RotaryPositionalEmbedding(10_000.0, d_k, 5)
    with rejects(UsageError, key="rope.d_k", found=2):
        MultiHeadSelfAttention(8, 2, rope=RotaryPositionalEmbedding(10_000.0, 2, 5))


def test_theta_can_be_an_integer_of_any_size() -> None:
    whole, real = (RotaryPositionalEmbedding(theta, 8, 5) for theta in (10**40, 1e40))
    assert torch.equal(whole.cos, real.cos)


def test_the_repr_of_a_model_has_its_sizes() -> None:
    assert [str(layer) for layer in (Linear(3, 4), Embedding(5, 4), RMSNorm(4))] == [
        "Linear(3 -> 4)",
        "Embedding(5 ids -> 4)",
        "RMSNorm(4)",
    ]


@pytest.mark.parametrize("batch", BATCHES)
def test_feed_forward_layers_follow_their_equations(batch: tuple[int, ...]) -> None:
    x = torch.randn(*batch, 4, dtype=F64)
    gated, plain = SwiGLU(4, 6, dtype=F64), SiLUFeedForward(4, 6, dtype=F64)
    w1, w2, w3 = (array(w.weight) for w in (gated.w1, gated.w2, gated.w3))
    assert_equal(gated(x), each_vector(lambda row: w2 @ (numpy_silu(w1 @ row) * (w3 @ row)), array(x)))
    v1, v2 = array(plain.w1.weight), array(plain.w2.weight)
    assert_equal(plain(x), each_vector(lambda row: v2 @ numpy_silu(v1 @ row), array(x)))


def test_silu_follows_its_equation() -> None:
    x = torch.linspace(-30, 30, 61, dtype=F64)
    assert_equal(silu(x), numpy_silu(array(x)))


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_softmax_follows_its_equation_along_any_dimension(dim: int) -> None:
    x = torch.randn(3, 4, 5, dtype=F64)
    weights = np.exp(array(x))
    assert_equal(softmax(x, dim), weights / weights.sum(axis=dim, keepdims=True))


def test_softmax_of_huge_scores_stays_finite() -> None:
    assert softmax(torch.tensor([1e30, -1e30, 1e30]), dim=0).tolist() == [0.5, 0.0, 0.5]


@pytest.mark.parametrize("batch", BATCHES)
def test_rope_rotates_interleaved_pairs_by_their_position(batch: tuple[int, ...]) -> None:
    rope = RotaryPositionalEmbedding(100.0, 6, 20).double()
    x = torch.randn(*batch, 4, 6, dtype=F64)
    positions = torch.randint(0, 20, (*batch, 4))
    expected = np.array(
        [
            numpy_rotate(row, int(position), 100.0)
            for row, position in zip(array(x).reshape(-1, 6), positions.reshape(-1), strict=True)
        ]
    )
    assert_equal(rope(x, positions), expected.reshape(x.shape))


def test_rotated_dot_products_depend_only_on_distance() -> None:
    rope = RotaryPositionalEmbedding(10_000.0, 8, 64).double()
    q, k = torch.randn(2, 1, 8, dtype=F64)

    def product(query_position: int, key_position: int) -> float:
        turned = rope(q, torch.tensor([query_position])) * rope(k, torch.tensor([key_position]))
        return turned.sum().item()

    assert product(5, 2) == pytest.approx(product(60, 57), rel=1e-12)
    assert product(5, 2) != pytest.approx(product(5, 3), rel=1e-3)


def test_rotary_tables_are_never_saved_and_never_rounded() -> None:
    rope = RotaryPositionalEmbedding(10_000.0, 8, 2048)
    assert rope.state_dict() == {}
    rope.to(torch.bfloat16)
    assert rope.cos.dtype == torch.float32
    assert torch.equal(rope.sin, RotaryPositionalEmbedding(10_000.0, 8, 2048).sin)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("masked", [False, True])
def test_attention_averages_values_by_matching_keys(batch: tuple[int, ...], masked: bool) -> None:
    q, k = torch.randn(*batch, 3, 4, dtype=F64), torch.randn(*batch, 5, 4, dtype=F64)
    v = torch.randn(*batch, 5, 6, dtype=F64)
    mask = (torch.rand(*batch, 3, 5) < 0.5) | (torch.arange(5) == 2) if masked else None
    flat = [array(x).reshape(-1, *x.shape[-2:]) for x in (q, k, v)]
    masks = [None] * len(flat[0]) if mask is None else list(array(mask).reshape(-1, 3, 5))
    expected = np.array([numpy_attend(a, b, c, m) for a, b, c, m in zip(*flat, masks, strict=True)])
    assert_equal(scaled_dot_product_attention(q, k, v, mask), expected.reshape(*batch, 3, 6))


@pytest.mark.parametrize("num_kv_heads", [4, 2, 1])
@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("rotated", [False, True])
@pytest.mark.parametrize("batch", [(), (2, 2)])
def test_self_attention_concatenates_its_heads(
    num_kv_heads: int, qk_norm: bool, rotated: bool, batch: tuple[int, ...]
) -> None:
    d_model, num_heads, d_head, length, theta = 16, 4, 4, 5, 50.0
    rope = RotaryPositionalEmbedding(theta, d_head, 16) if rotated else None
    layer = MultiHeadSelfAttention(
        d_model, num_heads, num_kv_heads=num_kv_heads, rope=rope, qk_norm=qk_norm, dtype=F64
    ).double()
    if layer.q_norm is not None and layer.k_norm is not None:
        torch.nn.init.normal_(layer.q_norm.weight)
        torch.nn.init.normal_(layer.k_norm.weight)
    x = torch.randn(*batch, length, d_model, dtype=F64)
    positions = torch.arange(3, 3 + length)

    def one_sequence(tokens: np.ndarray) -> np.ndarray:
        def head_of(weight: Tensor, gain: RMSNorm | None, number: int, turned: bool) -> np.ndarray:
            rows = tokens @ array(weight)[number * d_head : (number + 1) * d_head].T
            if gain is not None:
                rows = np.array([numpy_rms_norm(row, array(gain.weight), gain.eps) for row in rows])
            if turned and rotated:
                rows = np.array(
                    [numpy_rotate(row, int(p), theta) for row, p in zip(rows, positions, strict=True)]
                )
            return np.asarray(rows)

        outputs = []
        for number in range(num_heads):
            shared = number // (num_heads // num_kv_heads)
            q = head_of(layer.q_proj.weight, layer.q_norm, number, True)
            k = head_of(layer.k_proj.weight, layer.k_norm, shared, True)
            v = head_of(layer.v_proj.weight, None, shared, False)
            outputs.append(numpy_attend(q, k, v, np.tril(np.ones((length, length), dtype=bool))))
        return np.asarray(np.concatenate(outputs, axis=-1) @ array(layer.output_proj.weight).T)

    expected = np.array([one_sequence(tokens) for tokens in array(x).reshape(-1, length, d_model)])
    assert_equal(layer(x, positions), expected.reshape(x.shape))


# Gradients.


@pytest.mark.parametrize(
    "function",
    [
        silu,
        lambda x: softmax(x, dim=0),
        RMSNorm(4, dtype=F64),
        Linear(4, 3, dtype=F64),
        SwiGLU(4, 6, dtype=F64),
        SiLUFeedForward(4, 6, dtype=F64),
        lambda x: RotaryPositionalEmbedding(10.0, 4, 9).double()(x, torch.tensor([0, 4, 8])),
        lambda x: scaled_dot_product_attention(
            x, x.flip(0), x * 2, torch.ones(3, 3, dtype=torch.bool).tril()
        ),
        MultiHeadSelfAttention(
            4, 2, num_kv_heads=1, rope=RotaryPositionalEmbedding(10.0, 2, 8), qk_norm=True, dtype=F64
        ).double(),
    ],
    ids=[
        "silu",
        "softmax",
        "rms-norm",
        "linear",
        "swiglu",
        "silu-ffn",
        "rotary",
        "attention",
        "self-attention",
    ],
)
def test_gradients_pass_gradcheck(function: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(3, 4, dtype=F64, requires_grad=True)
    if isinstance(function, Module):
        names, values = zip(*function.named_parameters(), strict=True)

        def with_parameters(x: Tensor, *parameters: Tensor) -> Tensor:
            replaced = dict(zip(names, parameters, strict=True))
            output: Tensor = torch.func.functional_call(function, replaced, (x,))
            return output

        assert gradcheck(with_parameters, (x, *values))
    else:
        assert gradcheck(function, (x,))


def test_embedding_gradients_add_up_over_repeated_ids() -> None:
    table = Embedding(4, 2, dtype=F64)
    torch.autograd.backward(table(torch.tensor([1, 3, 1])).sum())
    assert table.weight.grad is not None
    assert table.weight.grad.tolist() == [[0, 0], [2, 2], [0, 0], [1, 1]]


# Initialisation, device and dtype.


@pytest.mark.parametrize(("d_in", "d_out"), [(300, 500), (64, 2000)])
def test_linear_starts_as_a_truncated_normal_of_the_stated_spread(d_in: int, d_out: int) -> None:
    weight = Linear(d_in, d_out).weight.detach()
    std = math.sqrt(2 / (d_in + d_out))
    assert weight.abs().max() <= 3 * std
    assert weight.abs().max() > 2.9 * std
    # A normal truncated at 3 standard deviations keeps 98.66 % of its std.
    assert weight.std().item() == pytest.approx(0.98658 * std, rel=0.02)
    assert weight.mean().item() == pytest.approx(0, abs=0.02 * std)
    assert (weight.abs() < std).float().mean().item() == pytest.approx(0.6845, abs=0.01)


def test_embedding_starts_with_unit_spread_cut_at_three() -> None:
    weight = Embedding(1000, 50).weight.detach()
    assert weight.abs().max() <= 3
    assert weight.std().item() == pytest.approx(0.98658, rel=0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_layers_have_the_given_device_and_dtype(dtype: torch.dtype) -> None:
    layers: list[Module] = [
        Linear(4, 6, device="meta", dtype=dtype),
        Embedding(4, 6, device="meta", dtype=dtype),
        RMSNorm(4, device="meta", dtype=dtype),
        SwiGLU(4, 6, device="meta", dtype=dtype),
        MultiHeadSelfAttention(4, 2, qk_norm=True, device="meta", dtype=dtype),
    ]
    for layer in layers:
        assert {(p.device.type, p.dtype) for p in layer.parameters()} == {("meta", dtype)}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # from the compiler
@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
def test_the_gradient_of_an_embedding_is_deterministic(
    request: pytest.FixtureRequest, compiled: bool
) -> None:
    """A few ids occur thousands of times: threads that add in any order would round differently."""
    if compiled and rerun_unchecked(request):
        return
    torch.manual_seed(0)
    embedding = Embedding(50, 64)
    ids = (torch.rand(4000) ** 3 * 50).long()
    upstream = torch.randn(4000, 64)
    look_up = torch.compile(embedding) if compiled else embedding
    gradients: list[Tensor] = []
    with threads(4):
        for _ in range(20):
            embedding.zero_grad()
            torch.autograd.backward(look_up(ids), upstream)
            assert embedding.weight.grad is not None
            gradients.append(embedding.weight.grad.clone())
    expected = torch.zeros(50, 64, dtype=torch.float64).index_add_(0, ids, upstream.double())
    torch.testing.assert_close(gradients[0], expected.float(), atol=1e-4, rtol=1e-5)
    assert all(torch.equal(gradient, gradients[0]) for gradient in gradients)


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)

"""The public API answers the adapters of the course CS336 (assignment 1, 2025 and 2026), one expression each.

The names and arguments of the adapters are those that the course's tests call. Each adapter is one statement:
`apply` calls a module with given weights. The checks compare them with torch or with the equations.
"""
# mypy: disable-error-code="call-arg, no-untyped-call, arg-type, no-any-return"

from __future__ import annotations

import ast
import inspect
import io
import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call as apply
from torch.nn import functional

from bytewright.model import (
    Embedding,
    Linear,
    ModelConfig,
    MultiHeadSelfAttention,
    RMSNorm,
    RotaryPositionalEmbedding,
    SwiGLU,
    TransformerBlock,
    TransformerLM,
    scaled_dot_product_attention,
    silu,
    softmax,
)
from bytewright.tokenizer import Tokenizer, train_bpe
from bytewright.train import (
    AdamW,
    clip_gradients,
    cosine_schedule,
    cross_entropy,
    get_batch,
    load_checkpoint,
    save_checkpoint,
)


def run_linear(d_in: int, d_out: int, weights: Tensor, in_features: Tensor) -> Tensor:
    return apply(Linear(d_in, d_out), {"weight": weights}, in_features)


def run_embedding(vocab_size: int, d_model: int, weights: Tensor, token_ids: Tensor) -> Tensor:
    return apply(Embedding(vocab_size, d_model), {"weight": weights}, token_ids)


def run_swiglu(
    d_model: int, d_ff: int, w1_weight: Tensor, w2_weight: Tensor, w3_weight: Tensor, in_features: Tensor
) -> Tensor:
    return apply(SwiGLU(d_model, d_ff), named(w1=w1_weight, w2=w2_weight, w3=w3_weight), in_features)


def run_scaled_dot_product_attention(
    Q: Tensor,  # noqa: N803
    K: Tensor,  # noqa: N803
    V: Tensor,  # noqa: N803
    mask: Tensor | None = None,
) -> Tensor:
    return scaled_dot_product_attention(Q=Q, K=K, V=V, mask=mask)


def run_multihead_self_attention(
    d_model: int,
    num_heads: int,
    q_proj_weight: Tensor,
    k_proj_weight: Tensor,
    v_proj_weight: Tensor,
    o_proj_weight: Tensor,
    in_features: Tensor,
) -> Tensor:
    return apply(
        MultiHeadSelfAttention(d_model, num_heads),
        named(q_proj=q_proj_weight, k_proj=k_proj_weight, v_proj=v_proj_weight, output_proj=o_proj_weight),
        in_features,
    )


def run_multihead_self_attention_with_rope(
    d_model: int,
    num_heads: int,
    max_seq_len: int,
    theta: float,
    q_proj_weight: Tensor,
    k_proj_weight: Tensor,
    v_proj_weight: Tensor,
    o_proj_weight: Tensor,
    in_features: Tensor,
    token_positions: Tensor | None = None,
) -> Tensor:
    return apply(
        MultiHeadSelfAttention(
            d_model,
            num_heads,
            rope=RotaryPositionalEmbedding(theta, d_model // num_heads, max_seq_len),
        ),
        named(q_proj=q_proj_weight, k_proj=k_proj_weight, v_proj=v_proj_weight, output_proj=o_proj_weight),
        (in_features, token_positions),
    )


def run_rope(
    d_k: int, theta: float, max_seq_len: int, in_query_or_key: Tensor, token_positions: Tensor
) -> Tensor:
    return RotaryPositionalEmbedding(theta, d_k, max_seq_len)(in_query_or_key, token_positions)


def run_transformer_block(
    d_model: int,
    num_heads: int,
    d_ff: int,
    max_seq_len: int,
    theta: float,
    weights: dict[str, Tensor],
    in_features: Tensor,
) -> Tensor:
    return apply(
        TransformerBlock(
            ModelConfig(
                vocab_size=1,
                context_length=max_seq_len,
                d_model=d_model,
                num_layers=1,
                num_heads=num_heads,
                d_ff=d_ff,
                rope_theta=theta,
            )
        ),
        weights,
        in_features,
    )


def run_transformer_lm(
    vocab_size: int,
    context_length: int,
    d_model: int,
    num_layers: int,
    num_heads: int,
    d_ff: int,
    rope_theta: float,
    weights: dict[str, Tensor],
    in_indices: Tensor,
) -> Tensor:
    return apply(
        TransformerLM(
            ModelConfig(
                vocab_size=vocab_size,
                context_length=context_length,
                d_model=d_model,
                num_layers=num_layers,
                num_heads=num_heads,
                d_ff=d_ff,
                rope_theta=rope_theta,
            )
        ),
        weights,
        in_indices,
    )


def run_rmsnorm(d_model: int, eps: float, weights: Tensor, in_features: Tensor) -> Tensor:
    return apply(RMSNorm(d_model, eps), {"weight": weights}, in_features)


def run_silu(in_features: Tensor) -> Tensor:
    return silu(in_features)


def run_get_batch(
    dataset: np.ndarray, batch_size: int, context_length: int, device: str
) -> tuple[Tensor, Tensor]:
    return get_batch(dataset=dataset, batch_size=batch_size, context_length=context_length, device=device)


def run_softmax(in_features: Tensor, dim: int) -> Tensor:
    return softmax(in_features, dim=dim)


def run_cross_entropy(inputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(inputs=inputs, targets=targets)


def run_gradient_clipping(parameters: Iterable[torch.nn.Parameter], max_l2_norm: float) -> None:
    clip_gradients(parameters, max_l2_norm=max_l2_norm)


def get_adamw_cls() -> Any:
    return AdamW


def run_get_lr_cosine_schedule(
    it: int,
    max_learning_rate: float,
    min_learning_rate: float,
    warmup_iters: int,
    cosine_cycle_iters: int,
) -> float:
    return cosine_schedule(
        it=it,
        max_learning_rate=max_learning_rate,
        min_learning_rate=min_learning_rate,
        warmup_iters=warmup_iters,
        cosine_cycle_iters=cosine_cycle_iters,
    )


def run_save_checkpoint(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, iteration: int, out: Any
) -> None:
    save_checkpoint(model, optimizer, iteration, out)


def run_load_checkpoint(src: Any, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    return load_checkpoint(src, model, optimizer)


def get_tokenizer(
    vocab: dict[int, bytes],
    merges: list[tuple[bytes, bytes]],
    special_tokens: list[str] | None = None,
) -> Any:
    return Tokenizer(vocab, merges, special_tokens)


def run_train_bpe(
    input_path: Any, vocab_size: int, special_tokens: list[str], **kwargs: Any
) -> tuple[dict[int, bytes], list[tuple[bytes, bytes]]]:
    return train_bpe(input_path, vocab_size, special_tokens, **kwargs)


def named(**weights: Tensor) -> dict[str, Tensor]:
    return {f"{name}.weight": weight for name, weight in weights.items()}


ADAPTERS = [name for name in dir(sys.modules[__name__]) if name.startswith(("run_", "get_"))]
ADAPTERS.remove("get_batch")


@pytest.mark.parametrize("name", ADAPTERS)
def test_each_adapter_is_one_statement(name: str) -> None:
    (definition,) = ast.parse(inspect.getsource(globals()[name])).body
    assert isinstance(definition, ast.FunctionDef)
    assert len(definition.body) == 1


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_layers_equal_those_of_torch() -> None:
    x, w = random(2, 5, 8), random(12, 8, seed=1)
    torch.testing.assert_close(run_linear(8, 12, w, x), functional.linear(x, w))
    ids = torch.tensor([[0, 11], [3, 3]])
    torch.testing.assert_close(run_embedding(12, 8, w, ids), functional.embedding(ids, w))
    torch.testing.assert_close(run_silu(x), functional.silu(x))
    torch.testing.assert_close(run_rmsnorm(8, 1e-5, w[0], x), functional.rms_norm(x, (8,), w[0], 1e-5))
    torch.testing.assert_close(
        run_softmax(x + 1000, dim=1), functional.softmax(x, dim=1), rtol=1e-3, atol=1e-4
    )
    w2, w3 = random(8, 12, seed=2), random(12, 8, seed=3)
    expected = functional.linear(functional.silu(functional.linear(x, w)) * functional.linear(x, w3), w2)
    torch.testing.assert_close(run_swiglu(8, 12, w, w2, w3, x), expected)


def test_attention_equals_that_of_torch() -> None:
    q, k, v = random(2, 4, 6, 8), random(2, 4, 7, 8, seed=1), random(2, 4, 7, 8, seed=2)
    mask = random(2, 4, 6, 7, seed=3) > -0.5
    mask[..., 0] = True
    expected = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    torch.testing.assert_close(run_scaled_dot_product_attention(q, k, v, mask), expected)


def project(weights: list[Tensor], x: Tensor, num_heads: int) -> list[Tensor]:
    return [functional.linear(x, w).unflatten(-1, (num_heads, -1)).transpose(-2, -3) for w in weights]


def rotate(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotate pairs as complex numbers."""
    turns = theta ** (-torch.arange(0, x.shape[-1], 2).double() / x.shape[-1])
    angles = positions[..., None].double() * turns
    pairs = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2).float()


def attend(weights: list[Tensor], x: Tensor, num_heads: int, theta: float | None) -> Tensor:
    q, k, v = project(weights[:3], x, num_heads)
    if theta is not None:
        positions = torch.arange(x.shape[-2])
        q, k = rotate(q, positions, theta), rotate(k, positions, theta)
    heads = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return functional.linear(heads.transpose(-2, -3).flatten(-2), weights[3])


def test_multi_head_attention_equals_its_equations() -> None:
    x, weights = random(2, 6, 16), [random(16, 16, seed=n) / 4 for n in range(1, 5)]
    plain = run_multihead_self_attention(16, 4, *weights, x)
    torch.testing.assert_close(plain, attend(weights, x, 4, None))
    rotated = run_multihead_self_attention_with_rope(16, 4, 10, 10_000.0, *weights, x, torch.arange(6)[None])
    torch.testing.assert_close(rotated, attend(weights, x, 4, 10_000.0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        run_multihead_self_attention_with_rope(16, 4, 10, 10_000.0, *weights, x), rotated
    )


def test_rope_rotates_pairs_by_their_positions() -> None:
    x, positions = random(2, 6, 8), torch.tensor([3, 1, 4, 1, 5, 9])
    torch.testing.assert_close(run_rope(8, 100.0, 12, x, positions), rotate(x, positions, 100.0))


def make_weights(layers: int) -> dict[str, Tensor]:
    def block(first: int) -> dict[str, Tensor]:
        names = ["q_proj", "k_proj", "v_proj", "output_proj"]
        weights = {f"attn.{name}.weight": random(16, 16, seed=first + i) / 4 for i, name in enumerate(names)}
        weights["ln1.weight"], weights["ln2.weight"] = random(16, seed=first + 5), random(16, seed=first + 6)
        weights["ffn.w1.weight"] = random(24, 16, seed=first + 7) / 4
        weights["ffn.w2.weight"] = random(16, 24, seed=first + 8) / 4
        weights["ffn.w3.weight"] = random(24, 16, seed=first + 9) / 4
        return weights

    weights = {
        f"layers.{layer}.{name}": weight
        for layer in range(layers)
        for name, weight in block(10 * layer).items()
    }
    weights["token_embeddings.weight"] = random(20, 16, seed=91)
    weights["ln_final.weight"] = random(16, seed=92)
    weights["lm_head.weight"] = random(20, 16, seed=93) / 4
    return weights


def by_hand(weights: dict[str, Tensor], x: Tensor, theta: float) -> Tensor:
    """Compute a pre-norm block with torch's functions."""
    matrices = [weights[f"attn.{name}.weight"] for name in ("q_proj", "k_proj", "v_proj", "output_proj")]
    x = x + attend(matrices, functional.rms_norm(x, (16,), weights["ln1.weight"], 1e-5), 4, theta)
    y = functional.rms_norm(x, (16,), weights["ln2.weight"], 1e-5)
    gate, up = functional.linear(y, weights["ffn.w1.weight"]), functional.linear(y, weights["ffn.w3.weight"])
    return x + functional.linear(functional.silu(gate) * up, weights["ffn.w2.weight"])


def part_of(weights: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)}


def test_a_block_and_a_model_equal_the_equations() -> None:
    weights, x = make_weights(2), random(2, 6, 16)
    block = part_of(weights, "layers.0.")
    torch.testing.assert_close(
        run_transformer_block(16, 4, 24, 8, 10_000.0, block, x),
        by_hand(block, x, 10_000.0),
        rtol=1e-4,
        atol=1e-5,
    )
    ids = torch.randint(20, (2, 6), generator=torch.Generator().manual_seed(0))
    logits = run_transformer_lm(20, 8, 16, 2, 4, 24, 10_000.0, weights, ids)
    x = functional.embedding(ids, weights["token_embeddings.weight"])
    for layer in range(2):
        x = by_hand(part_of(weights, f"layers.{layer}."), x, 10_000.0)
    expected = functional.linear(
        functional.rms_norm(x, (16,), weights["ln_final.weight"], 1e-5), weights["lm_head.weight"]
    )
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    shorter = run_transformer_lm(20, 8, 16, 2, 4, 24, 10_000.0, weights, ids[:, :3])
    torch.testing.assert_close(shorter, expected[:, :3], rtol=1e-4, atol=1e-4)


def test_batches_can_be_viewed_and_follow_the_data() -> None:
    x, y = run_get_batch(np.arange(100), 32, 7, "cpu")
    assert x.shape == y.shape == (32, 7)
    assert torch.equal(x + 1, y)
    assert x.view(-1).shape == y.view(-1).shape == (32 * 7,)
    starts = torch.cat([run_get_batch(np.arange(100), 32, 7, "cpu")[0][:, 0] for _ in range(100)])
    assert set(starts.tolist()) == set(range(93))
    with pytest.raises((RuntimeError, AssertionError)):
        run_get_batch(np.arange(100), 32, 7, "cuda:99")


def test_the_loss_is_that_of_torch_also_for_large_logits() -> None:
    logits, targets = random(6, 10), torch.tensor([0, 9, 3, 3, 1, 5])
    torch.testing.assert_close(run_cross_entropy(logits, targets), functional.cross_entropy(logits, targets))
    large = 1000 * logits
    torch.testing.assert_close(run_cross_entropy(large, targets), functional.cross_entropy(large, targets))


def test_clipping_is_that_of_torch() -> None:
    ours = [torch.nn.Parameter(random(4, 5, seed=n)) for n in range(3)]
    theirs = [torch.nn.Parameter(random(4, 5, seed=n)) for n in range(3)]
    for n in range(2):  # the third has no gradient
        ours[n].grad, theirs[n].grad = random(4, 5, seed=10 + n), random(4, 5, seed=10 + n)
    run_gradient_clipping(ours, 0.1)
    torch.nn.utils.clip_grad_norm_(theirs, 0.1)
    for one, other in zip(ours[:2], theirs[:2], strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    assert ours[2].grad is None


def train_a_little(optimizer_class: Any) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(3, 2, bias=False)
    model.weight.data.copy_(random(2, 3))
    optimizer = optimizer_class(model.parameters(), lr=1e-3, weight_decay=0.01, betas=(0.9, 0.999), eps=1e-8)
    for step in range(200):
        optimizer.zero_grad()
        x = random(3, seed=step)
        torch.autograd.backward(((model(x) - torch.stack([x[0] + x[1], -x[2]])) ** 2).sum())
        optimizer.step()
    return model, optimizer


def test_adamw_is_an_optimizer_of_torch_and_gives_the_same_weights() -> None:
    assert issubclass(get_adamw_cls(), torch.optim.Optimizer)
    (ours, _), (theirs, _) = train_a_little(get_adamw_cls()), train_a_little(torch.optim.AdamW)
    torch.testing.assert_close(ours.weight, theirs.weight, atol=1e-5, rtol=1e-4)


def test_the_schedule_warms_up_falls_and_stays() -> None:
    rates = [run_get_lr_cosine_schedule(t, 1.0, 0.1, 7, 21) for t in range(25)]
    assert rates[:8] == pytest.approx([t / 7 for t in range(8)])
    assert rates[14] == pytest.approx(0.55)
    assert rates[10] == pytest.approx(0.1 + 0.45 * (1 + math.cos(math.pi * 3 / 14)))
    assert rates[21:] == pytest.approx([0.1] * 4)


@pytest.mark.parametrize("kind", [get_adamw_cls(), torch.optim.AdamW])
@pytest.mark.parametrize("where", ["path", "stream"])
def test_a_checkpoint_restores_model_and_optimizer(tmp_path: Path, kind: Any, where: str) -> None:
    model, optimizer = train_a_little(kind)
    target: Any = tmp_path / "checkpoint.pt" if where == "path" else io.BytesIO()
    run_save_checkpoint(model, optimizer, 10, target)
    if isinstance(target, io.BytesIO):
        target.seek(0)
    other = torch.nn.Linear(3, 2, bias=False)
    again = kind(other.parameters(), lr=1e-3)
    assert run_load_checkpoint(target, other, again) == 10
    assert torch.equal(other.weight, model.weight)
    before, after = optimizer.state_dict(), again.state_dict()
    assert before["param_groups"] == after["param_groups"]
    for name, value in before["state"][0].items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(after["state"][0][name]))


def test_a_tokenizer_is_trained_and_used(tmp_path: Path) -> None:
    text = "low low low lower lower newest newest newest widest <|endoftext|> low lowest\n" * 20
    (tmp_path / "corpus.txt").write_text(text)
    vocab, merges = run_train_bpe(tmp_path / "corpus.txt", 270, ["<|endoftext|>"])
    assert len(vocab) == 270
    assert b"<|endoftext|>" in vocab.values()
    assert len(merges) == 270 - 257
    assert all(left + right in vocab.values() for left, right in merges)
    tokenizer = get_tokenizer(vocab, merges, ["<|endoftext|>"])
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert list(tokenizer.encode_iterable(io.StringIO(text))) == ids
    assert [vocab[i] for i in ids].count(b"<|endoftext|>") == 20


def test_the_same_argument_under_two_names_is_rejected() -> None:
    with pytest.raises(TypeError, match="both"):
        clip_gradients([], max_norm=1.0, max_l2_norm=1.0)

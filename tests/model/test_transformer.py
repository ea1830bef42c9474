"""The model as a whole: names, composition of its blocks, causality, precision, and errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from bytewright.errors import UsageError
from bytewright.model import ModelConfig, TransformerBlock, TransformerLM
from model_choices import CHOICES, SMALL, small_config
from rejection import rejects

IMPLEMENTATIONS = ["reference", "fused"]
BLOCK_NAMES = [
    "ln1",
    "attn.q_proj",
    "attn.k_proj",
    "attn.v_proj",
    "attn.output_proj",
    "ln2",
    "ffn.w1",
    "ffn.w2",
    "ffn.w3",
]


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    torch.manual_seed(0)


def names_of(**changes: Any) -> set[str]:
    return set(TransformerLM(small_config("default", **changes), device="meta").state_dict())


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_parameters_have_the_usual_names(implementation: str) -> None:
    standard = {"token_embeddings.weight", "ln_final.weight", "lm_head.weight"}
    standard |= {f"layers.{layer}.{name}.weight" for layer in (0, 1) for name in BLOCK_NAMES}
    assert names_of(implementation=implementation) == standard

    def without(*parts: str) -> set[str]:
        return {name for name in standard if not any(part in name for part in parts)}

    assert names_of(implementation=implementation, norm="post") == without("ln_final")
    assert names_of(implementation=implementation, norm="none") == without("ln")
    assert names_of(implementation=implementation, position="none") == standard
    assert names_of(implementation=implementation, ffn="silu") == without("w3")
    assert names_of(implementation=implementation, tie_embeddings=True) == without("lm_head")
    qk_norms = {f"layers.{layer}.attn.{which}_norm.weight" for layer in (0, 1) for which in "qk"}
    assert names_of(implementation=implementation, qk_norm=True) == standard | qk_norms


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_norms_are_at_the_configured_place(implementation: str) -> None:
    x = torch.randn(2, 5, SMALL.d_model)
    blocks = {
        norm: TransformerBlock(small_config("default", norm=norm, implementation=implementation))
        for norm in ("pre", "post", "none")
    }
    pre, post, none = blocks["pre"], blocks["post"], blocks["none"]
    middle = x + pre.attn(pre.ln1(x))
    torch.testing.assert_close(pre(x), middle + pre.ffn(pre.ln2(middle)))
    middle = post.ln1(x + post.attn(x))
    torch.testing.assert_close(post(x), post.ln2(middle + post.ffn(middle)))
    middle = x + none.attn(x)
    torch.testing.assert_close(none(x), middle + none.ffn(middle))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_single_block_creates_its_own_rope(implementation: str) -> None:
    config = small_config("default", implementation=implementation)
    model = TransformerLM(config)
    inside = model.get_submodule("layers.0")
    alone = TransformerBlock(config)
    alone.load_state_dict(inside.state_dict())
    x = torch.randn(2, 5, SMALL.d_model)
    assert torch.equal(alone(x), inside(x))
    assert not torch.allclose(alone(x)[:, -1], alone(x.flip(1).roll(-1, 1))[:, -1], atol=1e-4)
    shared = inside.get_submodule("attn.rope")
    assert TransformerBlock(config, shared).attn.rope is shared
    assert model.get_submodule("layers.1.attn.rope") is shared
    assert TransformerBlock(small_config("position-none", implementation=implementation)).attn.rope is None


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("choice", CHOICES)
def test_the_model_is_embedding_blocks_norm_and_head_in_that_order(choice: str, implementation: str) -> None:
    model = TransformerLM(small_config(choice, implementation=implementation))
    ids = torch.randint(0, SMALL.vocab_size, (2, 7))
    x: Tensor = model.token_embeddings(ids)
    for layer in model.layers:
        x = layer(x)
    if model.config.norm == "pre":
        x = model.get_submodule("ln_final")(x)
    head = model.token_embeddings.weight if model.config.tie_embeddings else model.output_weight
    torch.testing.assert_close(model(ids), x @ head.T)
    torch.testing.assert_close(model.hidden_states(ids), x)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("choice", CHOICES)
def test_logits_do_not_depend_on_later_tokens(choice: str, implementation: str) -> None:
    model = TransformerLM(small_config(choice, implementation=implementation))
    ids = torch.randint(0, SMALL.vocab_size, (12,))
    changed = ids.clone()
    changed[8:] = (changed[8:] + 1) % SMALL.vocab_size
    before, after = model(ids), model(changed)
    torch.testing.assert_close(before[:8], after[:8])
    assert not torch.allclose(before[8:], after[8:], atol=1e-3)


def test_without_positions_the_order_of_tokens_does_not_matter() -> None:
    ids = torch.tensor([3, 5, 7, 9])
    swapped = torch.tensor([5, 3, 7, 9])
    with_positions = TransformerLM(small_config("default"))
    # Without positions, the last token of one block attends to a set.
    without = TransformerLM(small_config("position-none", num_layers=1))
    assert not torch.allclose(with_positions(ids)[-1], with_positions(swapped)[-1], atol=1e-4)
    torch.testing.assert_close(without(ids)[-1], without(swapped)[-1])


def test_the_initial_loss_is_that_of_a_uniform_guess() -> None:
    sizes: dict[str, Any] = {
        "vocab_size": 2000,
        "context_length": 32,
        "d_model": 64,
        "num_layers": 2,
        "num_heads": 4,
    }
    ids = torch.randint(0, 2000, (4, 32))
    for tied in (False, True):
        logits = TransformerLM(ModelConfig(**sizes, tie_embeddings=tied))(ids).detach()
        loss = -logits.log_softmax(dim=-1)[:, :-1].gather(-1, ids[:, 1:, None]).mean()
        assert loss.item() == pytest.approx(torch.tensor(2000.0).log().item(), abs=0.3)


def test_reference_and_fused_have_the_same_initial_weights() -> None:
    models = []
    for implementation in IMPLEMENTATIONS:
        torch.manual_seed(7)
        models.append(TransformerLM(small_config("default", implementation=implementation)))
    for (name, ours), (other_name, other) in zip(*(m.state_dict().items() for m in models), strict=True):
        assert name == other_name
        assert torch.equal(ours, other)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_parameters_stay_wide_while_the_model_computes_in_half_precision(implementation: str) -> None:
    model = TransformerLM(
        small_config("default", implementation=implementation), compute_dtype=torch.bfloat16
    )
    logits = model(torch.randint(0, SMALL.vocab_size, (2, 5)))
    assert logits.dtype == torch.bfloat16
    torch.autograd.backward(logits.float().sum())
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert {p.grad.dtype for p in model.parameters() if p.grad is not None} == {torch.float32}


def test_the_model_works_with_torch_autocast() -> None:
    model = TransformerLM(small_config("default"))
    ids = torch.randint(0, SMALL.vocab_size, (2, 5))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = model(ids)
    torch.testing.assert_close(half.float(), model(ids), atol=0.05, rtol=0.05)


def test_more_tokens_than_the_context_are_rejected() -> None:
    model = TransformerLM(small_config("default"))
    with rejects(UsageError, key="ids", expected=16, found=17):
        model(torch.zeros(17, dtype=torch.long))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_batch_without_sequences_has_no_logits_and_no_gradient(implementation: str) -> None:
    model = TransformerLM(small_config("default", implementation=implementation))
    logits = model(torch.zeros(0, 3, dtype=torch.long))
    assert logits.shape == (0, 3, model.config.vocab_size)
    torch.autograd.backward(logits.sum())
    assert all(not weight.grad.any() for weight in model.parameters() if weight.grad is not None)


def test_token_ids_can_have_any_integer_type() -> None:
    model = TransformerLM(small_config("default"))
    ids = torch.randint(0, SMALL.vocab_size, (2, 5))
    for dtype in (torch.int32, torch.uint16):
        assert torch.equal(model(ids.to(dtype)), model(ids))

"""Inspected values of a model equal those that the model computes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bytewright.errors import UsageError
from bytewright.generate import Generator, SamplingConfig, generate
from bytewright.generate.interpret import (
    attention_weights_by_layer,
    logit_lens,
    predict_next_token,
    residual_norms,
    stream_with_logits,
    token_losses,
)
from bytewright.generate.reference import generate_reference
from bytewright.generate.scoring import plan_windows
from bytewright.model import TransformerLM
from bytewright.model.attention import MultiHeadSelfAttention, split_heads
from model_choices import CHOICES, SMALL, small_config

IDS = [3, 1, 4, 1, 5, 9, 2, 6]


def make_model(choice: str = "default", implementation: str = "fused") -> TransformerLM:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return TransformerLM(small_config(choice, implementation=implementation)).double()


def test_greedy_generation_chooses_the_likeliest_next_token() -> None:
    model = make_model()
    probabilities = predict_next_token(model, IDS)
    greedy = generate_reference(model, IDS, SamplingConfig(max_new_tokens=1, temperature=0.0))
    assert probabilities.shape == (model.config.vocab_size,)
    assert probabilities.sum().item() == pytest.approx(1)
    assert [int(probabilities.argmax())] == greedy.ids


def test_losses_of_a_short_text_are_those_of_one_forward_pass() -> None:
    model = make_model()
    expected = torch.nn.functional.cross_entropy(
        model(torch.tensor(IDS[:-1])), torch.tensor(IDS[1:]), reduction="none"
    )
    torch.testing.assert_close(token_losses(model, IDS), expected)


@pytest.mark.parametrize("extra", [0, 1, 2, 7, 40])
def test_losses_of_a_long_text_use_at_least_half_a_context(extra: int) -> None:
    model = make_model()
    length = model.config.context_length
    ids = [(7 * i) % SMALL.vocab_size for i in range(length + 1 + extra)]
    seen: list[tuple[int, int]] = []
    losses = token_losses(model, ids, progress=lambda done, total: seen.append((done, total)))
    assert len(losses) == len(ids) - 1
    assert seen[-1] == (len(ids) - 1, len(ids) - 1)
    for start, first, end in plan_windows(len(ids), length):
        assert end - start <= length + 1
        for place in range(first, end):
            assert place - start >= min(place, length // 2)
            last = model(torch.tensor(ids[start:place]))[-1]
            torch.testing.assert_close(losses[place - 1], last.logsumexp(-1) - last[ids[place]])


def test_every_id_but_the_first_is_predicted_once() -> None:
    for num_ids in range(2, 40):
        for context in range(1, 9):
            windows = list(plan_windows(num_ids, context))
            predicted = [place for each in windows for place in range(each.first, each.end)]
            assert predicted == list(range(1, num_ids))
            assert all(each.start >= 0 for each in windows)


@pytest.mark.parametrize("implementation", ["fused", "reference"])
@pytest.mark.parametrize("choice", CHOICES)
def test_attention_weights_reproduce_the_output_of_the_attention(choice: str, implementation: str) -> None:
    model = make_model(choice, implementation)
    weights = attention_weights_by_layer(model, IDS)
    config = model.config
    assert weights.shape == (config.num_layers, config.num_heads, len(IDS), len(IDS))
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    assert not weights.triu(1).any()

    calls: list[tuple[Tensor, Tensor]] = []
    attention = model.layers[-1].get_submodule("attn")
    assert isinstance(attention, MultiHeadSelfAttention)
    handle = attention.register_forward_hook(lambda _, inputs, output: calls.append((inputs[0], output)))
    model(torch.tensor(IDS))
    handle.remove()
    ((x, output),) = calls
    values = split_heads(x @ attention.v_proj.weight.T, attention.d_head)
    values = values.repeat_interleave(config.num_heads // config.kv_heads, dim=-3)
    attended = (weights[-1] @ values).transpose(-3, -2).flatten(-2)
    torch.testing.assert_close(attended @ attention.output_proj.weight.T, output)


def test_attention_without_weights_is_named_in_the_error() -> None:
    class Opaque(torch.nn.Module):
        pass

    model = make_model()
    model.layers[0].attn = Opaque()
    with pytest.raises(UsageError) as caught:
        attention_weights_by_layer(model, IDS)
    assert (caught.value.key, caught.value.found) == ("attention", "Opaque")


@pytest.mark.parametrize("choice", CHOICES)
def test_the_last_layer_of_the_lens_has_the_predictions_of_the_model(choice: str) -> None:
    model = make_model(choice)
    layers = logit_lens(model, IDS, top=3)
    assert len(layers) == model.config.num_layers + 1
    best = torch.softmax(model(torch.tensor(IDS)), dim=-1).topk(3, dim=-1)
    assert layers[-1].ids.equal(best.indices)
    torch.testing.assert_close(layers[-1].probabilities, best.values)
    assert not layers[0].probabilities.equal(layers[-1].probabilities)


def test_no_hook_remains_on_the_model() -> None:
    model = make_model()
    attention_weights_by_layer(model, IDS)
    logit_lens(model, IDS)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_ids_that_the_model_cannot_read_are_rejected() -> None:
    model = make_model()
    too_long = [0] * (model.config.context_length + 1)
    for ids in ([], [-1], [SMALL.vocab_size], too_long):
        with pytest.raises(UsageError):
            predict_next_token(model, ids)
    with pytest.raises(UsageError):
        token_losses(model, [1])
    with pytest.raises(UsageError):
        logit_lens(model, IDS, top=0)


@pytest.mark.parametrize("choice", CHOICES)
def test_residual_norms_are_those_of_the_embeddings_and_of_every_layer(choice: str) -> None:
    model = make_model(choice)
    norms = residual_norms(model, IDS)
    assert norms.shape == (model.config.num_layers + 1, len(IDS))
    outputs: list[Tensor] = []
    handles = [
        layer.register_forward_hook(lambda _, __, output: outputs.append(output)) for layer in model.layers
    ]
    model.hidden_states(torch.tensor(IDS))
    for handle in handles:
        handle.remove()
    torch.testing.assert_close(norms[1:], torch.stack([output.square().sum(-1).sqrt() for output in outputs]))


@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "sampled"])
@pytest.mark.parametrize("choice", CHOICES)
def test_streamed_tokens_are_those_of_generate_with_the_logits_of_the_model(
    choice: str, temperature: float
) -> None:
    model = make_model(choice)
    sampling = SamplingConfig(max_new_tokens=12, temperature=temperature, top_k=20, seed=5)
    (expected,) = generate(model, [IDS], sampling)
    chosen = list(stream_with_logits(Generator(model), IDS, sampling))
    assert [token.id for token in chosen] == expected.ids
    whole = model(torch.tensor(IDS + expected.ids[:-1]))[len(IDS) - 1 :]
    torch.testing.assert_close(torch.stack([token.logits for token in chosen]), whole)


def test_streamed_tokens_end_with_the_stop_token_or_the_context() -> None:
    model = make_model()
    sampling = SamplingConfig(max_new_tokens=100, seed=1)
    room = model.config.context_length - len(IDS)
    chosen = [token.id for token in stream_with_logits(Generator(model), IDS, sampling)]
    assert len(chosen) == room
    stop = chosen[room // 2]
    stopped = SamplingConfig(max_new_tokens=100, seed=1, stop_tokens=(stop,))
    expected = chosen[: chosen.index(stop) + 1]
    assert [token.id for token in stream_with_logits(Generator(model), IDS, stopped)] == expected


def test_a_model_without_a_decoder_streams_by_its_own_forward() -> None:
    model = make_model()
    generator = Generator(model)
    sampling = SamplingConfig(max_new_tokens=6, temperature=0.0)
    expected = [token.id for token in stream_with_logits(generator, IDS, sampling)]
    generator._decoder = None
    assert [token.id for token in stream_with_logits(generator, IDS, sampling)] == expected

"""Cached, batched and streamed generation return the ids of the reference."""

from __future__ import annotations

import dataclasses
from itertools import islice, repeat
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bytewright.errors import DivergenceError, UsageError
from bytewright.generate import Completion, Generator, SamplingConfig, generate, stream
from bytewright.generate.decoder import Decoder
from bytewright.generate.generator import _Batch
from bytewright.generate.reference import generate_reference
from bytewright.model import TransformerLM
from model_choices import CHOICES, SMALL, small_config
from rejection import rejects

PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 11], [3] * 15]
GREEDY = SamplingConfig(max_new_tokens=30, temperature=0.0)
RANDOM = SamplingConfig(max_new_tokens=12, top_k=30, top_p=0.95, min_p=0.01, stop_tokens=(5, 6, 7), seed=3)


def make_model(choice: str = "default", implementation: str = "fused") -> TransformerLM:
    """Build a fixed small model with large weights, so that its output depends on its input.

    It is in float64, so that rounding never changes a token.
    """
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = TransformerLM(small_config(choice, implementation=implementation))
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 1:
                    parameter.uniform_(0.5, 1.5)
                else:
                    parameter.mul_(3)
    return model.double()


def by_definition(
    model: TransformerLM, prompts: list[list[int]], sampling: SamplingConfig
) -> list[Completion]:
    return [generate_reference(model, prompt, sampling, row) for row, prompt in enumerate(prompts)]


@pytest.mark.parametrize("sampling", [GREEDY, RANDOM], ids=["greedy", "random"])
@pytest.mark.parametrize(
    ("choice", "implementation"), [*((choice, "fused") for choice in CHOICES), ("default", "reference")]
)
def test_cached_generation_gives_the_ids_of_the_definition(
    choice: str, implementation: str, sampling: SamplingConfig
) -> None:
    model = make_model(choice, implementation)
    assert generate(model, PROMPTS, sampling) == by_definition(model, PROMPTS, sampling)
    assert generate(model, PROMPTS[:1], sampling) == by_definition(model, PROMPTS[:1], sampling)


@settings(max_examples=12)
@given(
    st.lists(st.lists(st.integers(0, SMALL.vocab_size - 1), min_size=1, max_size=15), min_size=1, max_size=5),
    st.integers(0, 1000),
    st.integers(1, 20),
)
def test_completions_do_not_depend_on_the_batch_size(
    prompts: list[list[int]], seed: int, max_new_tokens: int
) -> None:
    model = make_model()
    sampling = SamplingConfig(seed=seed, max_new_tokens=max_new_tokens, stop_tokens=(0, 1), top_p=0.9)
    together = generate(model, prompts, sampling)
    generator = Generator(model)
    for batch_size in (1, 2):
        assert list(generator.generate_many(prompts, sampling, batch_size)) == together


def test_prompts_are_read_one_batch_at_a_time() -> None:
    """`generate --count 1000000000000` must not create all prompts before the first completion."""
    model = make_model()
    without_end = Generator(model).generate_many(repeat(PROMPTS[0]), RANDOM, 2)
    assert list(islice(without_end, 5)) == generate(model, [PROMPTS[0]] * 5, RANDOM)


@pytest.mark.parametrize("sampling", [GREEDY, RANDOM], ids=["greedy", "random"])
def test_a_stream_gives_the_same_ids_step_by_step(sampling: SamplingConfig) -> None:
    model = make_model()
    steps = list(stream(model, PROMPTS, sampling))
    assert all(any(id is not None for id in step) for step in steps)
    for row, completion in enumerate(generate(model, PROMPTS, sampling)):
        column = [step[row] for step in steps]
        assert column[: len(completion.ids)] == completion.ids
        assert all(id is None for id in column[len(completion.ids) :])


@pytest.mark.parametrize("sampling", [GREEDY, RANDOM], ids=["greedy", "random"])
def test_logits_that_are_not_finite_raise_a_divergence_error(sampling: SamplingConfig) -> None:
    model = make_model()
    with torch.no_grad():
        model.token_embeddings.weight[2] = torch.nan
    for write in (
        generate_reference,
        lambda model, prompt, sampling: generate(model, [[3], prompt], sampling),
    ):
        with pytest.raises(DivergenceError):
            write(model, [1, 2], sampling)


@pytest.mark.parametrize("steps_between_checks", [2, 5, 100])
def test_the_interval_between_checks_does_not_change_the_ids(steps_between_checks: int) -> None:
    generator = Generator(make_model())
    for sampling in (GREEDY, RANDOM):
        batch = _Batch(generator.decoder.config, PROMPTS, sampling)
        steps = list(generator._run(batch, steps_between_checks))
        assert steps == list(generator.stream(PROMPTS, sampling))
        assert batch.completions() == generator.generate(PROMPTS, sampling)


def test_a_stream_computes_only_the_requested_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = Generator(make_model())
    calls: list[None] = []
    step = generator.decoder.step

    def counted(*args: Any, **kwargs: Any) -> Tensor:
        calls.append(None)
        return step(*args, **kwargs)

    monkeypatch.setattr(generator.decoder, "step", counted)
    steps = generator.stream([[1, 2]], GREEDY)
    next(steps)
    assert len(calls) == 0
    next(steps)
    assert len(calls) == 1
    generator.generate([[1, 2]], dataclasses.replace(GREEDY, max_new_tokens=1))
    assert len(calls) == 1


def test_completions_depend_on_their_prompts() -> None:
    completions = generate(make_model(), [[first, 2] for first in range(10, 20)], GREEDY)
    assert len({tuple(completion.ids) for completion in completions}) > 5
    assert all(len(set(completion.ids)) > 3 for completion in completions)


def test_a_sequence_ends_at_a_stop_token_which_is_not_part_of_it() -> None:
    model = make_model()
    free = generate(model, [[1, 2, 3]], GREEDY)[0]
    stop = free.ids[4]
    stopped = generate(model, [[1, 2, 3]], dataclasses.replace(GREEDY, stop_tokens=(stop,)))[0]
    assert stopped == Completion(free.ids[: free.ids.index(stop)], "stop")


def test_a_sequence_ends_at_the_limit_or_when_the_context_is_full() -> None:
    model = make_model()
    short, full = generate(model, [[1] * 8, [1] * 14], dataclasses.replace(GREEDY, max_new_tokens=5))
    assert (len(short.ids), short.reason) == (5, "length")
    assert (len(full.ids), full.reason) == (2, "context")
    assert generate(model, [[1]], dataclasses.replace(GREEDY, max_new_tokens=0)) == [Completion([], "length")]


def test_rows_of_a_batch_differ_and_a_seed_repeats() -> None:
    model = make_model()
    sampling = SamplingConfig(max_new_tokens=10, seed=5)
    first = generate(model, [[1, 2]] * 3, sampling)
    assert len({tuple(completion.ids) for completion in first}) == 3
    assert generate(model, [[1, 2]] * 3, sampling) == first
    assert generate(model, [[1, 2]] * 3, dataclasses.replace(sampling, seed=99)) != first


def test_adjacent_seeds_have_different_streams() -> None:
    model = make_model()
    texts = [
        tuple(completion.ids)
        for seed in range(4)
        for completion in generate(model, [[1, 2]] * 8, SamplingConfig(max_new_tokens=10, seed=seed))
    ]
    assert len(set(texts)) == 4 * 8


def test_generation_changes_neither_random_state_nor_model() -> None:
    model = make_model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.random.get_rng_state()
    generate(model, PROMPTS, RANDOM)
    assert torch.equal(torch.random.get_rng_state(), state)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_a_generator_is_a_snapshot_for_any_batch_size() -> None:
    model = make_model()
    expected = {size: generate(model, PROMPTS[:size], GREEDY) for size in (1, 2, 4)}
    generator = Generator(model, batch_size=2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    for size, completions in expected.items():
        assert generator.generate(PROMPTS[:size], GREEDY) == completions


@pytest.mark.parametrize(
    ("batch_size", "dtype", "tolerance"),
    [(1, torch.float32, 1e-5), (4, torch.float32, 1e-5), (4, torch.float64, 1e-13)],
)
@pytest.mark.parametrize("choice", CHOICES)
def test_the_decoder_has_the_logits_of_the_model(
    choice: str, batch_size: int, dtype: torch.dtype, tolerance: float
) -> None:
    model = make_model(choice).to(dtype)
    decoder = Decoder(model, batch_size)
    ids = torch.randint(0, SMALL.vocab_size, (batch_size, 12), generator=torch.Generator().manual_seed(0))
    expected = model(ids).detach()
    tolerance *= expected.abs().max().item()
    for ragged in (False, True):
        cache = decoder.new_cache(batch_size, 12)
        lengths = torch.arange(batch_size) % 3 + 4 if ragged else torch.full((batch_size,), 4)
        rows = torch.arange(batch_size)
        scores = decoder.read(cache, ids[:, :7], lengths)
        torch.testing.assert_close(scores, expected[rows, lengths - 1], rtol=0, atol=tolerance)
        for step in range(5):
            positions = lengths + step
            num_positions = int(positions.max()) + 1
            scores = decoder.step(cache, ids[rows, positions], positions, num_positions, aligned=not ragged)
            torch.testing.assert_close(scores, expected[rows, positions], rtol=0, atol=tolerance)


def test_the_decoder_computes_in_the_precision_of_the_model() -> None:
    model = make_model().float()
    model.compute_dtype = torch.bfloat16
    generator = Generator(model, len(PROMPTS))
    assert generator.decoder.embeddings.dtype == torch.bfloat16
    completions = generator.generate(PROMPTS, GREEDY)
    assert [len(completion.ids) for completion in completions] == [13, 15, 9, 1]


@pytest.mark.parametrize("name", ["ln1", "ln2", "attn.q_norm", "attn.k_norm", "ln_final"])
def test_the_decoder_does_not_round_gains_to_the_precision_of_the_computation(name: str) -> None:
    """In bfloat16, 1 + 2⁻⁹ would become 1."""
    model = make_model("qk-norm").float()
    model.compute_dtype = torch.bfloat16
    gains = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    ids = torch.randint(0, SMALL.vocab_size, (4, 8), generator=torch.Generator().manual_seed(0))

    def scores() -> tuple[Tensor, Tensor]:
        decoder = Decoder(model, 4)
        cache = decoder.new_cache(4, 9)
        first = decoder.read(cache, ids, torch.full((4,), 8))
        return first, decoder.step(cache, ids[:, 0], torch.full((4,), 8), aligned=True)

    with torch.no_grad():
        for gain in gains:
            gain.fill_(1.0)
        plain = scores()
        for each, gain in model.named_parameters():
            if f".{name}." in f".{each}":
                gain.fill_(1 + 2**-9)
    for one, other in zip(scores(), plain, strict=True):
        assert not torch.equal(one, other)


def test_the_cache_has_the_stated_number_of_bytes() -> None:
    cache = Decoder(make_model("two-kv-heads").float()).new_cache(3, 16)
    assert (
        cache.num_bytes == 2 * 2 * 3 * 2 * 16 * 8 * 4
    )  # k and v, layers, batch, heads, positions, d_head, bytes


@pytest.mark.parametrize(
    ("prompts", "found", "words"),
    [
        ([], None, "at least one prompt"),
        ([[1], []], None, "prompt 1 is empty"),
        ([[1] * 16], 16, "prompt 0 has 16 tokens"),
        ([[1], [2, 61]], 61, "prompt 1 has the id 61 at position 1"),
        ([[-1]], -1, "prompt 0 has the id -1"),
    ],
)
def test_a_prompt_that_the_model_cannot_continue_is_rejected_before_any_step(
    prompts: list[list[int]], found: int | None, words: str
) -> None:
    model = make_model()
    for call in (generate, stream):
        with rejects(UsageError, key="prompts", found=found) as rejection:
            call(model, prompts, GREEDY)
        assert words in str(rejection.value)


@pytest.mark.parametrize(
    "prompt",
    [b"\1\2", b"\1\2\0\0\0\0\0\0", bytearray(b"\1\2"), np.array([1, 2], np.uint16), torch.tensor([1, 2])],
)
def test_a_prompt_can_be_any_sequence_of_whole_numbers(prompt: Any) -> None:
    """`array` would read bytes as the memory of its numbers: eight of them as one id."""
    model = make_model()
    expected = generate(model, [[int(id) for id in prompt]], GREEDY)
    assert generate(model, [prompt], GREEDY) == expected
    assert generate_reference(model, prompt, GREEDY) == expected[0]


@pytest.mark.parametrize("prompt", [torch.tensor([1.0, 2.0]), torch.tensor([[1, 2]]), np.array([[1, 2]])])
def test_ids_that_are_not_whole_numbers_are_rejected(prompt: Any) -> None:
    """Tensors of fractions have `__index__`, which raises."""
    for call in (generate, stream):
        with rejects(UsageError, key="prompts"):
            call(make_model(), [prompt], GREEDY)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("sampling", [GREEDY, RANDOM], ids=["greedy", "random"])
@pytest.mark.parametrize("choice", CHOICES)
def test_captured_graphs_give_the_ids_of_the_definition(choice: str, sampling: SamplingConfig) -> None:
    model = make_model(choice).float().cuda()
    generator = Generator(model, len(PROMPTS))
    for _ in range(2):  # the second time from the captured graph
        assert generator.generate(PROMPTS, sampling) == by_definition(model, PROMPTS, sampling)

"""Generation does not ignore changed modules, and its ids are those of the reference generator."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parametrize

from bytewright.errors import UsageError
from bytewright.generate import Generator, SamplingConfig, generate, stream
from bytewright.generate.generator import GenerationWarning
from bytewright.generate.model_check import reason_against_cache
from bytewright.generate.reference import Completion, generate_reference
from bytewright.generate.text import make_text_sampler
from bytewright.model import Linear, MultiHeadSelfAttention, RMSNorm, SwiGLU, TransformerLM
from bytewright.registry import feed_forwards, norms, positions
from bytewright.tokenizer import Tokenizer
from model_choices import CHOICES, SMALL, small_config
from rejection import rejects

PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 11], [3] * 15]
SAMPLINGS = {
    "greedy": SamplingConfig(max_new_tokens=6, temperature=0.0),
    "random": SamplingConfig(max_new_tokens=5, temperature=0.7, seed=3),
    "top-k": SamplingConfig(max_new_tokens=5, top_k=7, seed=1),
    "top-p": SamplingConfig(max_new_tokens=5, top_p=0.8, seed=2),
    "min-p": SamplingConfig(max_new_tokens=5, min_p=0.05, seed=3),
    "stop": SamplingConfig(max_new_tokens=8, stop_tokens=tuple(range(20, 40)), seed=4),
    "few-ids": SamplingConfig(max_new_tokens=5, num_ids=11, seed=5),
    "slide": SamplingConfig(max_new_tokens=6, slide=True, seed=6, stop_tokens=(5,)),
    "slide-greedy": SamplingConfig(max_new_tokens=9, slide=True, temperature=0.0),
}
EVERYTHING = SamplingConfig(max_new_tokens=5, top_k=30, top_p=0.95, min_p=0.01, stop_tokens=(5, 6), seed=3)


class SquaredReLU(nn.Module):
    """States that it acts per position, so that a cache can be used."""

    acts_per_position = True

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.up, self.down = Linear(d_model, d_ff), Linear(d_ff, d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x).relu().square())


class ShiftedReLU(SquaredReLU):
    """Mixes each position with the one before it, so it inherits no statement."""

    def forward(self, x: Tensor) -> Tensor:
        before = torch.cat((torch.zeros_like(x[..., :1, :]), x[..., :-1, :]), dim=-2)
        return super().forward(x + before)


class MeanNorm(nn.Module):
    acts_per_position = True

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(-1, keepdim=True)) * self.weight


class Learned(nn.Module):
    place = "embeddings"

    def __init__(self, d_model: int, max_seq_len: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(max_seq_len, d_model))

    def forward(self, x: Tensor, token_positions: Tensor) -> Tensor:
        return x + self.table[token_positions]


USERS: list[tuple[Any, str, type[nn.Module]]] = [
    (feed_forwards, "relu2", SquaredReLU),
    (feed_forwards, "shifted", ShiftedReLU),
    (norms, "mean", MeanNorm),
    (positions, "learned", Learned),
]


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    for registry, name, part in USERS:
        registry.register(name)(part)
    yield
    for registry, name, _ in USERS:
        registry.remove(name)


def make_model(**changes: Any) -> TransformerLM:
    """Build a fixed small model in float64, in which rounding does not change a token."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = TransformerLM(dataclasses.replace(SMALL, **changes))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(3) if parameter.ndim > 1 else parameter.uniform_(0.5, 1.5)
    return model.double()


class OtherGate(SwiGLU):
    def forward(self, x: Tensor) -> Tensor:
        return self.w2(torch.tanh(self.w1(x)) * self.w3(x))


class OtherNorm(RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).tanh()


class OtherAttention(MultiHeadSelfAttention):
    def forward(self, x: Tensor, token_positions: Tensor | None = None) -> Tensor:
        return super().forward(x, token_positions).tanh()


class LowRank(Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x.mean(-1, keepdim=True)


class OtherModel(TransformerLM):
    def hidden_states(self, ids: Tensor) -> Tensor:
        return super().hidden_states(ids).tanh()


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


def with_weights_of(old: nn.Module, new: nn.Module) -> nn.Module:
    new.double().load_state_dict(old.state_dict())
    return new


def subclass_of_ffn(model: Any) -> None:
    block = model.layers[1]
    block.ffn = with_weights_of(block.ffn, OtherGate(SMALL.d_model, SMALL.ffn_width))


def subclass_of_norm(model: Any) -> None:
    model.ln_final = with_weights_of(model.ln_final, OtherNorm(SMALL.d_model))


def subclass_of_attention(model: Any) -> None:
    block = model.layers[0]
    attention = OtherAttention(SMALL.d_model, SMALL.num_heads, rope=block.attn.rope)
    block.attn = with_weights_of(block.attn, attention)


def subclass_of_matrix(model: Any) -> None:
    attention = model.layers[0].attn
    attention.v_proj = with_weights_of(attention.v_proj, LowRank(SMALL.d_model, SMALL.d_model))


def hook(model: Any) -> None:
    model.layers[0].ffn.register_forward_hook(lambda module, inputs, output: output.tanh())


def pre_hook(model: Any) -> None:
    model.layers[1].attn.output_proj.register_forward_pre_hook(lambda module, inputs: (inputs[0].tanh(),))


def hook_of_head(model: Any) -> None:
    model.lm_head.register_forward_hook(lambda module, inputs, output: -output)


def own_forward(model: Any) -> None:
    norm = model.layers[1].ln2
    forward = norm.forward
    norm.forward = lambda x: forward(x).tanh()


def parametrization(model: Any) -> None:
    parametrize.register_parametrization(model.layers[0].ffn.w2, "weight", Doubled())


def other_rope(model: Any) -> None:
    cls = type(model.layers[0].attn.rope)
    model.layers[1].attn.rope = cls(7.0, SMALL.d_head, SMALL.context_length).double()


def dropped_layer(model: Any) -> None:
    model.layers = model.layers[:1]


def subclass_of_model(model: Any) -> None:
    model.__class__ = OtherModel


CHANGES = [
    *(subclass_of_ffn, subclass_of_norm, subclass_of_attention, subclass_of_matrix, hook, pre_hook),
    *(hook_of_head, own_forward, parametrization, other_rope, dropped_layer, subclass_of_model),
]


def assert_ids_are_those_of_the_reference(model: TransformerLM, sampling: SamplingConfig) -> list[Completion]:
    """Compare `generate` and `stream` with the reference; return the completions."""
    expected = [generate_reference(model, prompt, sampling, row) for row, prompt in enumerate(PROMPTS)]
    assert generate(model, PROMPTS, sampling) == expected
    steps = list(stream(model, PROMPTS, sampling))
    for row, completion in enumerate(expected):
        assert [step[row] for step in steps if step[row] is not None] == completion.ids
    return expected


@pytest.mark.parametrize("implementation", ["reference", "fused"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_module_is_not_ignored(change: Callable[[Any], None], implementation: str) -> None:
    model = make_model(implementation=implementation)
    for sampling in (EVERYTHING, SAMPLINGS["slide-greedy"])[: 1 if implementation == "reference" else 2]:
        before = generate(model, PROMPTS, sampling)
        changed = copy.deepcopy(model)
        change(changed)
        with pytest.warns(GenerationWarning, match="the model's own forward, without a cache"):
            written = assert_ids_are_those_of_the_reference(changed, sampling)
        assert written != before


def other_eps_of_queries(attention: Any) -> None:
    attention.q_norm.eps = 5.0


def other_projections(attention: Any) -> None:
    project = attention._project
    attention._project = lambda x, positions: [part.tanh() for part in project(x, positions)]


@pytest.mark.parametrize("change", [other_eps_of_queries, other_projections])
def test_a_changed_setting_or_method_of_the_attention_is_not_ignored(change: Callable[[Any], None]) -> None:
    model = make_model(qk_norm=True, implementation="reference")
    before = generate(model, PROMPTS, EVERYTHING)
    block: Any = model.layers[0]
    change(block.attn)
    with pytest.warns(GenerationWarning, match=r"without a cache: layers\.0\.attn has"):
        assert_ids_are_those_of_the_reference(model, EVERYTHING)
    assert generate_reference(model, PROMPTS[0], EVERYTHING, 0) != before[0]


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=list(SAMPLINGS))
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ffn": "relu2"}, "with a cache, and with the unpacked forward of SquaredReLU"),
        ({"ffn": "relu2", "norm_kind": "mean", "norm": "post"}, "unpacked forward of MeanNorm, SquaredReLU"),
        ({"ffn": "shifted"}, "layers.0.ffn is a ShiftedReLU, which does not state that it acts per position"),
        ({"position": "learned"}, "the position encoding Learned is added to the embeddings"),
    ],
)
def test_a_part_of_a_user_generates_the_ids_of_the_reference(
    changes: dict[str, Any], words: str, sampling: SamplingConfig
) -> None:
    with pytest.warns(GenerationWarning, match=words):
        assert_ids_are_those_of_the_reference(make_model(**changes), sampling)


def test_the_cache_is_used_where_a_part_acts_per_position() -> None:
    with pytest.warns(GenerationWarning):
        generator = Generator(make_model(ffn="relu2"))
    lengths: list[int] = []
    ffn: Any = generator.model.get_submodule("layers.0.ffn")
    inner = ffn.up.forward

    def counted(x: Tensor) -> Tensor:
        lengths.append(len(x))
        result: Tensor = inner(x)
        return result

    ffn.up.forward = counted
    generator.generate([[1, 2, 3, 4, 5]], SamplingConfig(max_new_tokens=4, temperature=0.0))
    assert lengths == [5, 1, 1, 1]


@pytest.mark.parametrize("choice", CHOICES)
def test_the_decoder_runs_every_built_in_part(choice: str) -> None:
    for implementation in ("reference", "fused"):
        model = TransformerLM(small_config(choice, implementation=implementation))
        assert reason_against_cache(model) is None
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert Generator(model).notice is None


def test_a_replaced_forward_of_a_class_is_not_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model(implementation="reference")
    forward = SwiGLU.forward
    monkeypatch.setattr(SwiGLU, "forward", lambda self, x: forward(self, x).tanh())
    with pytest.warns(GenerationWarning):
        assert_ids_are_those_of_the_reference(model, SAMPLINGS["random"])


def test_a_global_hook_is_not_ignored() -> None:
    model = make_model()

    def hook(module: nn.Module, inputs: Any, output: Any) -> Any:
        return output.tanh() if isinstance(module, RMSNorm) else output

    handle = nn.modules.module.register_module_forward_hook(hook)
    try:
        with pytest.warns(GenerationWarning):
            assert_ids_are_those_of_the_reference(model, SAMPLINGS["random"])
    finally:
        handle.remove()


@pytest.mark.parametrize("choice", CHOICES)
def test_a_sliding_window_gives_the_ids_of_the_reference(choice: str) -> None:
    model = make_model(**CHOICES[choice])
    for name in ("slide", "slide-greedy"):
        assert_ids_are_those_of_the_reference(model, SAMPLINGS[name])


@settings(max_examples=10)
@given(
    st.lists(st.lists(st.integers(0, SMALL.vocab_size - 1), min_size=1, max_size=20), min_size=1, max_size=4),
    st.integers(0, 20),
)
def test_prompts_of_any_length_are_continued_by_a_sliding_window(
    prompts: list[list[int]], max_new_tokens: int
) -> None:
    model = make_model()
    sampling = SamplingConfig(max_new_tokens=max_new_tokens, slide=True, stop_tokens=(7,), top_p=0.9)
    expected = [generate_reference(model, prompt, sampling, row) for row, prompt in enumerate(prompts)]
    assert generate(model, prompts, sampling) == expected
    assert {completion.reason for completion in expected} <= {"stop", "length"}


def test_without_a_sliding_window_a_full_context_ends_the_text() -> None:
    model = make_model()
    sampling = SamplingConfig(max_new_tokens=20, temperature=0.0)
    (ended,) = generate(model, [[1, 2, 3]], sampling)
    assert (ended.reason, len(ended.ids)) == ("context", SMALL.context_length - 3)
    (continued,) = generate(model, [[1, 2, 3]], dataclasses.replace(sampling, slide=True))
    assert (continued.reason, len(continued.ids)) == ("length", 20)
    assert continued.ids[: len(ended.ids)] == ended.ids
    with rejects(UsageError, key="prompts", expected=SMALL.context_length - 1, found=16):
        generate(model, [[1] * 16], sampling)


def test_a_sample_in_training_uses_the_own_modules_in_evaluation_mode() -> None:
    modes: list[bool] = []

    class WithDropout(SquaredReLU):
        def forward(self, x: Tensor) -> Tensor:
            modes.append(self.training)
            return nn.functional.dropout(super().forward(x), training=self.training)

    feed_forwards.register("dropout")(WithDropout)
    try:
        vocabulary = Tokenizer({id: bytes([id]) for id in range(256)}, []).vocabulary
        model = make_model(ffn="dropout", vocab_size=256)
        sample = make_text_sampler(model.config, vocabulary, "ab")
        with pytest.warns(GenerationWarning):
            texts = {sample(model, step) for step in (1, 2)}
    finally:
        feed_forwards.remove("dropout")
    assert len(texts) == 1
    assert set(modes) == {False}
    assert model.training

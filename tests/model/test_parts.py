"""A user's part is selected by its name, and gets the arguments and options that it declares.

Every registry is covered by its names, so that a new part is tested without a change here.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bytewright.errors import UsageError
from bytewright.model import Linear, ModelConfig, MultiHeadSelfAttention, SwiGLU, TransformerLM
from bytewright.model.config import PARTS
from bytewright.model.exports import find_obstacles, reasons_against_export
from bytewright.model.parts import class_for, fused_version_of, stated
from bytewright.model.transformer import weight_shapes
from bytewright.registry import Registry, attentions, feed_forwards, norms, positions
from model_choices import CHOICES, SMALL, small_config
from rejection import rejects

IDS = torch.arange(24).reshape(2, 12) % SMALL.vocab_size


class SquaredReLU(nn.Module):
    def __init__(
        self, d_model: int, d_ff: int, power: float = 2.0, *, scales: tuple[float, ...] = ()
    ) -> None:
        super().__init__()
        self.power = power
        self.up, self.down = Linear(d_model, d_ff), Linear(d_ff, d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x).relu() ** self.power)


class Learned(nn.Module):
    """Added to the embeddings of the tokens."""

    place = "embeddings"

    def __init__(self, d_model: int, max_seq_len: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(max_seq_len, d_model))

    def forward(self, x: Tensor, token_positions: Tensor) -> Tensor:
        return x + self.table[token_positions]


class ScaledHeads(nn.Module):
    """Scales queries and keys by a learned factor for each position."""

    def __init__(self, max_seq_len: int, device: Any = None) -> None:
        super().__init__()
        self.factors = nn.Parameter(torch.linspace(0.5, 2.0, max_seq_len, device=device))

    def forward(self, x: Tensor, token_positions: Tensor) -> Tensor:
        return x * self.factors[token_positions].unsqueeze(-1)


class MeanAttention(nn.Module):
    """The mean of all positions up to each; without heads."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.mix = Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        counts = torch.arange(1, x.shape[-2] + 1, device=x.device).unsqueeze(-1)
        return self.mix(x.cumsum(-2) / counts)


PARTS_OF_USERS: list[tuple[Registry, str, type[nn.Module]]] = [
    (feed_forwards, "relu2", SquaredReLU),
    (positions, "learned", Learned),
    (positions, "scaled_heads", ScaledHeads),
    (attentions, "mean", MeanAttention),
]


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    for registry, name, part in PARTS_OF_USERS:
        registry.register(name)(part)
    yield
    for registry, name, _ in PARTS_OF_USERS:
        registry.remove(name)


USERS: list[dict[str, Any]] = [
    {"ffn": "relu2"},
    {"ffn": "relu2", "ffn_options": {"power": 3}},
    {"position": "learned"},
    {"position": "scaled_heads"},
    {"attention": "mean", "position": "none"},
    {"attention": "mean", "position": "learned", "ffn": "relu2", "norm": "post"},
]


@pytest.mark.parametrize("implementation", ["reference", "fused"])
@pytest.mark.parametrize("changes", USERS)
def test_a_registered_class_is_part_of_the_model_at_once(
    changes: dict[str, Any], implementation: Any
) -> None:
    config = dataclasses.replace(SMALL, **changes, implementation=implementation)
    torch.manual_seed(0)
    model = TransformerLM(config)
    torch.autograd.backward(model(IDS).sum())
    assert all(parameter.grad is not None for parameter in model.parameters())
    shapes = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
    assert weight_shapes(config) == shapes
    name: Any = {"reference": "fused", "fused": "reference"}[implementation]
    other = TransformerLM(dataclasses.replace(config, implementation=name))
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(model(IDS), other(IDS))


def test_options_reach_the_constructor_with_the_declared_type() -> None:
    config = dataclasses.replace(SMALL, ffn="relu2", ffn_options={"power": 3, "scales": [1.0]})
    assert config.ffn_options == {"power": 3.0, "scales": (1.0,)}
    ffn: Any = TransformerLM(config).get_submodule("layers.1.ffn")
    assert ffn.power == 3.0
    assert hash(config) == hash(dataclasses.replace(config))
    assert config != dataclasses.replace(config, ffn_options={})


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"ffn_options": {"powr": 3.0}}, "ffn_options.powr"),
        ({"ffn_options": {"power": "high"}}, "ffn_options.power"),
        ({"ffn_options": {"d_ff": 3}}, "ffn_options.d_ff"),
        ({"position_options": {"base": 3}}, "position_options.base"),
        ({"attention": "mean", "position": "none", "num_kv_heads": 2}, "num_kv_heads"),
        ({"attention": "mean", "position": "none", "qk_norm": True}, "qk_norm"),
    ],
)
def test_an_option_that_the_part_does_not_declare_is_rejected(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(UsageError) as rejection:
        dataclasses.replace(SMALL, **{"ffn": "relu2", **changes})
    assert rejection.value.key == key


def test_an_attention_that_does_not_use_the_position_encoding_is_rejected() -> None:
    with pytest.raises(UsageError) as rejection:
        TransformerLM(dataclasses.replace(SMALL, attention="mean"))
    assert rejection.value.key == "position"


@pytest.mark.parametrize("part", list(PARTS.values()), ids=list(PARTS))
def test_an_unknown_name_is_rejected_with_its_key(part: Any) -> None:
    with rejects(UsageError, key=part.name, expected=part.registry.names(), found="unknown"):
        ModelConfig(**{**SMALL.to_dict(), part.name: "unknown"})


def test_the_width_of_a_feed_forward_layer_is_four_times_d_model_unless_it_states_another() -> None:
    assert dataclasses.replace(SMALL, ffn="relu2", d_ff=None).ffn_width == 4 * SMALL.d_model


def test_a_fused_version_is_used_for_exactly_its_class() -> None:
    @fused_version_of(SquaredReLU)
    class Faster(SquaredReLU):
        pass

    assert class_for(SquaredReLU, "fused") is Faster
    assert class_for(SquaredReLU, "reference") is SquaredReLU

    class OtherGate(SwiGLU):
        pass

    assert class_for(OtherGate, "fused") is OtherGate


def test_fused_versions_are_used_without_an_import_of_their_module() -> None:
    program = """
from bytewright.model import ModelConfig, TransformerLM
config = ModelConfig(vocab_size=50, context_length=8, d_model=16, num_layers=1, num_heads=2)
print(*sorted({type(module).__name__ for module in TransformerLM(config).modules()}))
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert {"FusedEmbedding", "FusedSelfAttention", "FusedSwiGLU"} <= set(done.stdout.split())


def test_a_subclass_does_not_inherit_what_its_base_states() -> None:
    class OtherGate(SwiGLU):
        pass

    assert stated(SwiGLU, "acts_per_position") is True
    assert stated(OtherGate, "acts_per_position") is None


@pytest.mark.parametrize("format", ["hf", "gguf"])
@pytest.mark.parametrize("changes", USERS)
def test_a_part_that_does_not_state_its_export_is_rejected(changes: dict[str, Any], format: Any) -> None:
    config = dataclasses.replace(SMALL, **changes)
    reasons = reasons_against_export(config, format)
    assert len(reasons) == len({"ffn", "position", "attention", "norm"} & changes.keys())


def test_a_subclass_of_an_exported_part_is_rejected() -> None:
    feed_forwards.register("other_gate")(type("OtherGate", (SwiGLU,), {}))
    try:
        assert len(reasons_against_export(dataclasses.replace(SMALL, ffn="other_gate"), "hf")) == 1
    finally:
        feed_forwards.remove("other_gate")


def test_a_model_with_other_modules_than_its_config_names_is_rejected() -> None:
    model = TransformerLM(SMALL)
    assert reasons_against_export(model, "hf") == []

    class Doubled(Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    block: Any = model.layers[1]
    block.ffn.w1 = Doubled(SMALL.d_model, SMALL.ffn_width)
    (reason,) = reasons_against_export(model, "hf")
    assert "layers.1.ffn.w1" in reason
    hooked = TransformerLM(SMALL)
    hooked.layers[0].register_forward_hook(lambda module, inputs, output: 2 * output)
    assert len(reasons_against_export(hooked, "gguf")) == 1


def test_a_model_with_other_settings_than_its_config_is_rejected() -> None:
    model: Any = TransformerLM(SMALL)
    model.layers[1].ln2.eps = 1e-3
    model.layers[0].norm = "post"
    obstacles = list(find_obstacles(model, "gguf"))
    assert [(each.key, each.found) for each in obstacles] == [
        ("layers.0.norm", "post"),
        ("layers.1.ln2.eps", 1e-3),
    ]


def test_norms_of_queries_with_another_eps_than_the_others_are_rejected() -> None:
    config = dataclasses.replace(SMALL, qk_norm=True)
    assert reasons_against_export(config, "gguf") == []
    (obstacle,) = find_obstacles(dataclasses.replace(config, norm_options={"eps": 1e-3}), "gguf")
    assert (obstacle.key, obstacle.expected, obstacle.found) == ("norm_options.eps", 1e-5, 1e-3)


def test_an_option_that_a_llama_lacks_is_rejected() -> None:
    class Mixed(MultiHeadSelfAttention):
        llama_weights = MultiHeadSelfAttention.llama_weights

        def __init__(self, d_model: int, num_heads: int, *, rope: Any = None, share: float = 0.0) -> None:
            super().__init__(d_model, num_heads, rope=rope)

    attentions.register("mixed")(Mixed)
    try:
        config = dataclasses.replace(SMALL, attention="mixed")
        assert reasons_against_export(config, "hf") == []
        assert (
            reasons_against_export(dataclasses.replace(config, attention_options={"share": 0.0}), "hf") == []
        )
        changed = dataclasses.replace(config, attention_options={"share": 0.5})
        assert len(reasons_against_export(changed, "hf")) == 1
    finally:
        attentions.remove("mixed")


@pytest.mark.parametrize("choice", CHOICES)
def test_every_built_in_part_states_its_export_or_why_there_is_none(choice: str) -> None:
    for part in PARTS.values():
        cls = part.class_of(small_config(choice))
        assert (stated(cls, "llama_weights") is None) == isinstance(stated(cls, "no_llama_because"), str)


@pytest.mark.parametrize("name", list(norms))
def test_every_norm_acts_on_each_vector_separately_and_keeps_its_type(name: str) -> None:
    norm: Any = norms[name](SMALL.d_model)
    x = torch.randn(3, 5, SMALL.d_model)
    torch.testing.assert_close(norm(x)[1, 2], norm(x[1, 2]))
    assert norm(x.bfloat16()).dtype == torch.bfloat16


def test_config_fields_survive_a_round_trip() -> None:
    config = dataclasses.replace(SMALL, ffn="relu2", ffn_options={"power": 3.0})
    assert ModelConfig(**config.to_dict()) == config

"""Initial weights depend on the seed and the name of a module alone."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from bytewright.model import ModelConfig, TransformerLM
from bytewright.model.initialisation import find_initialised, initialise
from bytewright.model.layers import Linear

CONFIG = ModelConfig(vocab_size=30, context_length=8, d_model=16, num_layers=2, num_heads=2)


def initial_weights(config: ModelConfig, seed: int = 0) -> dict[str, Tensor]:
    model = TransformerLM(config)
    initialise(model, seed)
    return model.state_dict()


def test_weights_depend_on_seed_and_name_alone() -> None:
    weights, deeper = (
        initial_weights(CONFIG),
        initial_weights(dataclasses.replace(CONFIG, num_layers=3, tie_embeddings=False)),
    )
    assert all(torch.equal(weights[name], deeper[name]) for name in weights)
    assert not torch.equal(weights["layers.0.ffn.w1.weight"], weights["layers.1.ffn.w1.weight"])
    other = initial_weights(CONFIG, seed=1)
    drawn = [name for name in weights if "ln" not in name]
    assert not any(torch.equal(weights[name], other[name]) for name in drawn)


def test_all_weights_of_built_in_models_are_drawn_by_name() -> None:
    model = TransformerLM(CONFIG)
    drawn = {id(p) for _, module in find_initialised(model) for p in module.parameters()}
    assert drawn == {id(p) for p in model.parameters()}


def test_the_global_random_state_is_unchanged() -> None:
    before = torch.get_rng_state()
    initialise(TransformerLM(CONFIG, device="meta"), seed=0)
    assert torch.equal(torch.get_rng_state(), before)


class ZeroLinear(Linear):
    """A subclass whose constructor sets other weights than the `reset_parameters` that it inherits."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        torch.nn.init.zeros_(self.weight)


class OwnPart(Module):
    """A part that changes the weights of its child, and has no `reset_parameters`."""

    def __init__(self) -> None:
        super().__init__()
        self.child = torch.nn.Linear(2, 2)
        torch.nn.init.zeros_(self.child.weight)


class ResettingPart(Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = Parameter(torch.empty(4))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        torch.nn.init.normal_(self.weight)


def test_constructors_of_users_have_the_last_word() -> None:
    for part in (ZeroLinear(), OwnPart()):
        initialise(part, seed=3)
        assert not any(p.any() for name, p in part.named_parameters() if "weight" in name)


def test_a_part_of_a_user_with_reset_parameters_is_drawn_by_name() -> None:
    first, second = ResettingPart(), ResettingPart()
    assert not torch.equal(first.weight, second.weight)
    for part in (first, second):
        initialise(part, seed=3)
    assert torch.equal(first.weight, second.weight)

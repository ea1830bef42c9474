"""The examples compute what they claim, and the handbook shows their code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bytewright.model import ModelConfig, TransformerLM, language_model_loss
from bytewright.model.fused import make_loss
from bytewright.plugins import load_plugin, unload_plugin
from bytewright.registry import feed_forwards, optimizers
from conftest import RunCommand

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
MODEL: dict[str, Any] = {
    "vocab_size": 40,
    "context_length": 8,
    "d_model": 16,
    "num_layers": 1,
    "num_heads": 2,
}


@pytest.fixture(autouse=True)
def loaded() -> Iterator[None]:
    for path in EXAMPLES:
        load_plugin(path)
    yield
    for path in EXAMPLES:
        unload_plugin(path)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_handbook_shows_the_code_of_the_example(path: Path) -> None:
    source = path.read_text()
    code = source[source.index("\n@") + 1 :]
    assert f"```py\n{code}```" in (ROOT / "docs/handbook/plugins.md").read_text()


def test_lion_steps_by_the_sign_of_the_mean_of_momentum_and_gradient() -> None:
    parameter = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = optimizers["lion"]([parameter], lr=0.1, betas=(0.5, 0.75), weight_decay=0.5)
    parameter.grad = torch.tensor([4.0, -4.0])
    optimizer.step()
    torch.testing.assert_close(parameter.data, torch.tensor([0.95 - 0.1, -1.9 + 0.1]))
    parameter.grad = torch.tensor([-0.5, 4.0])  # momentum [1, -1]: means [0.25, 1.5]
    optimizer.step()
    torch.testing.assert_close(parameter.data, torch.tensor([0.85 * 0.95 - 0.1, -1.8 * 0.95 - 0.1]))
    torch.testing.assert_close(
        optimizer.state[parameter]["momentum"], torch.tensor([0.75 - 0.125, -0.75 + 1.0])
    )


def test_relu_squared_is_the_square_of_relu_between_two_matrices() -> None:
    layer = feed_forwards["relu_squared"](4, 8)
    x = torch.randn(3, 4)
    expected = torch.relu(x @ layer.w1.weight.T).square() @ layer.w2.weight.T
    torch.testing.assert_close(layer(x), expected)
    config = ModelConfig(**MODEL, ffn="relu_squared", ffn_options={"power": 3})
    assert config.ffn_width == 4 * config.d_model
    model = TransformerLM(config)
    assert model(torch.zeros(1, 8, dtype=torch.long)).isfinite().all()


def test_the_z_loss_adds_the_square_of_the_logarithm_of_the_normaliser() -> None:
    model = TransformerLM(ModelConfig(**MODEL))
    ids, targets = torch.randint(40, (2, 8)), torch.randint(40, (2, 8))
    value = make_loss("z_loss", {"weight": 0.5})(model, ids, targets)
    penalty = model(ids).logsumexp(-1).square().mean()
    torch.testing.assert_close(value, language_model_loss(model, ids, targets) + 0.5 * penalty)


def test_the_command_lists_the_parts_of_plugins_with_their_options(run: RunCommand) -> None:
    listed = run("parts", "loss.name", "--plugin", ROOT / "examples/z_loss.py")
    assert listed.code == 0, listed
    assert "cross_entropy" in listed.out
    assert "weight=0.0001" in listed.out
    assert "swiglu" not in listed.out
    assert run("parts", "loss.nmae").code == 2

"""A part of a user that fails or gives a wrong result is rejected before the folder of a run is created."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bytewright.errors import UsageError
from bytewright.model.config import PARTS
from bytewright.plugins import load_plugin, unload_plugin
from bytewright.registry import REGISTRIES
from bytewright.train import train
from bytewright.train.session.costs import count_on_model
from bytewright.train.session.part_check import check_parts
from conftest import RunCommand
from rejection import rejects
from runs import RECIPE, make_config, write_tokens

CPU = torch.device("cpu")

LAYER = """
import torch
from bytewright.registry import attentions, feed_forwards, norms, positions

class Layer(torch.nn.Module):
    {statement}

    def __init__(self, d_model, scale: float = 1.0):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((d_model,), scale))
        {construction}

    def forward(self, x, positions=None):
        y = x * self.weight
        {forward}

{registry}.register("mine")(Layer)
"""
ROOMS = {"norm": "norms", "ffn": "feed_forwards", "attention": "attentions", "position": "positions"}

FUNCTION = """
import torch
from bytewright.registry import losses, samplers, schedules
from bytewright.model.loss import of_logits

@{registry}.register("mine")
{decorator}
def mine({parameters}):
    {body}
"""

Config = Callable[..., Any]


@pytest.fixture
def with_plugin(tmp_path: Path) -> Iterator[Config]:
    """Return a function that loads a plugin and returns a config with these settings."""
    path = tmp_path / "lab.py"

    def load(source: str, **settings: Any) -> Any:
        path.write_text(source)
        load_plugin(path)
        return make_config(tmp_path, **settings)

    yield load
    unload_plugin(path)
    assert not any("mine" in registry for registry in REGISTRIES)


def layer_config(
    with_plugin: Config, kind: str, forward: str, *, statement: str = "pass", construction: str = "pass"
) -> Any:
    place = 'place = "embeddings"' if kind == "position" else "pass"
    source = LAYER.format(
        registry=ROOMS[kind],
        forward=forward,
        statement=f"{place}\n    {statement}",
        construction=construction,
    )
    name = PARTS[kind].name
    position = {"position": "none"} if kind == "attention" else {}
    return with_plugin(source, model={name: "mine"} | position)


@pytest.mark.parametrize("kind", ROOMS)
@pytest.mark.parametrize(
    "forward",
    [
        "return None",
        "return y, y",
        "return y[..., :1]",
        "return y.double()",
        "return y.long()",
        "return 1 / 0",
        "return [][0]",
        "return y.no_such_method()",
    ],
)
def test_a_layer_that_fails_or_returns_another_shape_or_type_is_rejected(
    with_plugin: Config, kind: str, forward: str
) -> None:
    config = layer_config(with_plugin, kind, forward)
    with rejects(UsageError, key=PARTS[kind].registry.key):
        check_parts(config, CPU)


@pytest.mark.parametrize("kind", ROOMS)
def test_a_layer_that_uses_later_positions_is_rejected(with_plugin: Config, kind: str) -> None:
    for forward in ("return y.flip(-2)", "return y + y.mean(dim=-2, keepdim=True)"):
        config = layer_config(with_plugin, kind, forward)
        with rejects(UsageError, key=PARTS[kind].registry.key, found="mine"):
            check_parts(config, CPU)


def test_a_layer_that_states_wrongly_that_it_acts_per_position_is_rejected(with_plugin: Config) -> None:
    forward = "return y.cumsum(dim=-2)"
    config = layer_config(with_plugin, "ffn", forward, statement="acts_per_position = True")
    with rejects(UsageError, key="model.ffn", found="mine"):
        check_parts(config, CPU)
    check_parts(layer_config(with_plugin, "ffn", forward), CPU)


@pytest.mark.parametrize("kind", ROOMS)
@pytest.mark.parametrize(
    "forward",
    [
        "return y",
        "return torch.nn.functional.dropout(y, 0.5)",
        "return y + torch.randn_like(y)",
        "return y.add_(1)",
        "self.weight.data += 1; return x + y.sum() * self.weight",
        "return y.detach()",
    ],
)
def test_a_layer_that_can_be_trained_is_accepted(with_plugin: Config, kind: str, forward: str) -> None:
    state = torch.random.get_rng_state()
    check_parts(layer_config(with_plugin, kind, forward), CPU)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_layer_that_cannot_be_built_is_rejected_with_its_place(with_plugin: Config, tmp_path: Path) -> None:
    config = layer_config(with_plugin, "ffn", "return y", construction="raise KeyError('width')")
    with rejects(UsageError, path=tmp_path / "lab.py", key="model.ffn", found="mine") as caught:
        check_parts(config, CPU)
    assert f"{tmp_path / 'lab.py'}, line 12: " in str(caught.value)


@pytest.mark.parametrize("statement", ["costs = 3", "costs = classmethod(lambda cls, x: 1 / 0)"])
def test_costs_that_cannot_be_computed_are_rejected(
    with_plugin: Config, tmp_path: Path, statement: str
) -> None:
    config = layer_config(with_plugin, "ffn", "return y", statement=statement)
    with rejects(UsageError):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("width", ["'wide'", "-3", "0", "None"])
def test_a_default_width_that_is_not_a_size_is_rejected(with_plugin: Config, width: str) -> None:
    statement = f"default_width = staticmethod(lambda d_model: {width})"
    with rejects(UsageError):
        check_parts(layer_config(with_plugin, "ffn", "return y", statement=statement), CPU)


def test_the_flops_of_a_layer_that_reads_values_are_not_counted(with_plugin: Config) -> None:
    config = layer_config(with_plugin, "ffn", "return y * (1 if y.sum().item() > 0 else 2)")
    check_parts(config, CPU)
    assert set(count_on_model(config.model)) == {"parameters"}


MEAN = "(hidden @ output_weight.T).square().mean()"


@pytest.mark.parametrize(
    ("body", "decorator"),
    [
        ("return 3.0", ""),
        ("return None", ""),
        (f"return {MEAN}.detach()", ""),
        (f"return {MEAN}.reshape(1)", ""),
        ("return torch.tensor(3)", ""),
        ("raise RuntimeError('two\\nlines')", ""),
        ("return None", "@of_logits"),
        ("return logits.sum()", "@of_logits"),
    ],
)
def test_a_loss_that_cannot_be_minimised_is_rejected(with_plugin: Config, body: str, decorator: str) -> None:
    parameters = "logits, targets" if decorator else "hidden, output_weight, targets"
    source = FUNCTION.format(registry="losses", decorator=decorator, parameters=parameters, body=body)
    with rejects(UsageError, key="loss.name"):
        check_parts(with_plugin(source, loss={"name": "mine"}), CPU)


def test_a_loss_of_other_arguments_is_rejected(with_plugin: Config) -> None:
    source = FUNCTION.format(registry="losses", decorator="", parameters="", body="return 1")
    with rejects(UsageError, key="loss.name", found="mine"):
        check_parts(with_plugin(source, loss={"name": "mine"}), CPU)


@pytest.mark.parametrize(
    "body", ["return None", "return 'fast'", "return -1", "return 1j", "return 1 / (t - 24)"]
)
def test_a_schedule_without_a_rate_at_the_first_or_last_step_is_rejected(
    with_plugin: Config, body: str
) -> None:
    source = FUNCTION.format(registry="schedules", decorator="", parameters="t", body=body)
    with rejects(UsageError):
        check_parts(with_plugin(source, schedule={"kind": "mine"}), CPU)


@pytest.mark.parametrize(
    "body", ["return None", "return -probabilities", "return probabilities[:, :1]", "1 / 0"]
)
def test_a_sampler_of_a_run_that_fails_is_rejected(with_plugin: Config, body: str) -> None:
    source = FUNCTION.format(registry="samplers", decorator="", parameters="probabilities", body=body)
    config = with_plugin(source, sampler={"name": "mine"}, sample_every=8)
    with rejects(UsageError):
        check_parts(config, CPU)


def test_an_error_of_a_plugin_during_a_run_is_one_sentence_with_its_place(
    tmp_path: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train", "validation"):
        write_tokens(tmp_path / f"{name}.npy", np.arange(200, dtype=np.uint16) % 40)
    Path("recipe.toml").write_text(RECIPE)
    body = "return max_lr / abs(t - 5)"  # the first step and the last one work
    Path("lab.py").write_text(
        FUNCTION.format(registry="schedules", decorator="", parameters="t, max_lr", body=body)
    )
    try:
        outcome = run(
            *("train", "recipe.toml", "--out", "lab", "--plugin", "lab.py", "--set", "schedule.kind=mine")
        )
    finally:
        unload_plugin("lab.py")
    assert outcome.code == 2
    assert f"{tmp_path}/lab.py, line 9: ZeroDivisionError" in outcome.err
    assert "Traceback" not in outcome.err

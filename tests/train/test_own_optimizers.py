"""Any torch optimizer trains a model, by its registered name or by a factory, also after kill and resume."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor

from bytewright.account import predict_training, state_bytes, training_memory, update_cost
from bytewright.account.optimizers import eager_update_bytes, has_fused_update
from bytewright.account.parameters import count_parameters
from bytewright.account.predict import TrainingSetup
from bytewright.errors import UsageError
from bytewright.model import ModelConfig, TransformerLM, language_model_loss
from bytewright.optim.build import build_optimizer
from bytewright.optim.fused import FusedOptimizer
from bytewright.optim.reference import AdamW, Group, Optimizer
from bytewright.registry import optimizers
from bytewright.storage.config_reader import build
from bytewright.train import resume, train
from bytewright.train.config import OptimizerConfig
from bytewright.train.session.engine import CompiledStepCache
from bytewright.train.setup import build_model, checkpoint_bytes
from bytewright.train.step import TrainStep
from rejection import rejects
from runs import digest, make_config, metrics_without_clock


class Lion(torch.optim.Optimizer):
    """Sign of an interpolated mean; also keeps state of other types, which must survive a checkpoint."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        count_in: str = "int",
        history: int = 2,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})
        self.count_in, self.history = count_in, history

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Apply one update."""
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["mean"] = torch.zeros_like(parameter)
                    state["signs"] = torch.zeros_like(parameter, dtype=torch.int8)
                    state["count"] = 0
                    state["recent"] = {"factors": [], "none": None, "pair": (1, 0.5), "flag": True}
                direction = (beta1 * state["mean"] + (1 - beta1) * parameter.grad).sign()
                state["signs"].copy_(direction.to(torch.int8))
                state["count"] += 1
                factors = state["recent"]["factors"]
                factors[:] = [*factors, 1 / state["count"]][-self.history :]
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.sub_(direction, alpha=group["lr"] * (1 + 0.01 * sum(factors)))
                state["mean"].mul_(beta2).add_(parameter.grad, alpha=1 - beta2)


class Halving(Optimizer):
    """A rule on the base class of Bytewright that does not state its costs."""

    state_names = ("sum",)

    def __init__(self, params: Any, lr: float = 1e-3) -> None:
        super().__init__(params, lr=lr)

    def update(self, weight: Tensor, gradient: Tensor, t: int, state: Any, group: Group) -> None:
        """Subtract half of all gradients so far, each halved once more with every update."""
        state["sum"].mul_(0.5).add_(gradient)
        weight -= group["lr"] * state["sum"]


class Remembering(AdamW):
    """AdamW with further state, which its rule creates itself."""

    def update(self, weight: Tensor, gradient: Tensor, t: int, state: Any, group: Group) -> None:
        """Average the weights, and move them a little towards the average."""
        super().update(weight, gradient, t, state, group)
        state["average"] = state.get("average", weight.clone()) * 0.9 + weight * 0.1
        state["times"] = state.get("times", 0) + 1
        weight += 0.01 * (state["average"] - weight) / state["times"]


class FusedHalving(FusedOptimizer, Halving):
    """`Halving` on flat groups."""

    @staticmethod
    def update_group(flat: Any, gradient: Tensor, t: Tensor) -> Any:
        """Apply the same rule."""
        total = 0.5 * flat.state["sum"] + gradient
        return flat.weights - flat.lr * total, {"sum": total}


def reads_values(
    model: TransformerLM, config: OptimizerConfig, *, limit: float = 1.0
) -> torch.optim.Optimizer:
    class Careful(torch.optim.SGD):
        """SGD that reads values of tensors, so that it cannot be traced without contents."""

        def step(self, closure: Any = None) -> Any:
            if max(float(p.grad.abs().max()) for group in self.param_groups for p in group["params"]) < limit:
                return super().step(closure)
            return None

    return Careful(model.parameters(), lr=config.lr, momentum=0.5)


TORCH: dict[str, Any] = {
    "torch_adam": torch.optim.Adam,
    "torch_adamw": torch.optim.AdamW,
    "torch_sgd": torch.optim.SGD,
    "torch_rmsprop": torch.optim.RMSprop,
    "torch_nadam": torch.optim.NAdam,
    "torch_adafactor": torch.optim.Adafactor,
    "torch_rprop": torch.optim.Rprop,
    "torch_asgd": torch.optim.ASGD,
    "torch_radam": torch.optim.RAdam,
    "torch_adagrad": torch.optim.Adagrad,
}
OF_EVERY_KIND = ("torch_adamw", "torch_asgd", "torch_adafactor")
"""Those whose states differ in kind: tensors only, tensors with numbers, and factored tensors."""
OWN: dict[str, Any] = {
    "lion": Lion,
    "halving": Halving,
    "remembering": Remembering,
    "reads_values": reads_values,
}


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    for name, part in (TORCH | OWN).items():
        optimizers.register(name)(part)
    yield
    for name in TORCH | OWN:
        optimizers.remove(name)


def kill_and_resume(tmp_path: Path, quiet: Console, config: Any, **options: Any) -> None:
    """Assert that a run with several signals has the bits of an uninterrupted one."""
    train(config, tmp_path / "whole", console=quiet, **options)
    calls_until_signal = [3]

    def interrupting(model: TransformerLM, ids: Tensor, targets: Tensor) -> Tensor:
        calls_until_signal[0] -= 1
        if calls_until_signal[0] == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return language_model_loss(model, ids, targets)

    result = train(config, tmp_path / "parts", console=quiet, loss=interrupting, **options)
    sessions = 1
    while result.received:
        calls_until_signal[0] = 6
        result = resume(tmp_path / "parts", console=quiet, loss=interrupting, **options)
        sessions += 1
    assert sessions > 2
    assert metrics_without_clock(tmp_path / "parts") == metrics_without_clock(tmp_path / "whole")
    assert digest(tmp_path / "parts") == digest(tmp_path / "whole")


@pytest.mark.parametrize(
    "name",
    [
        *(name if name in OF_EVERY_KIND else pytest.param(name, marks=pytest.mark.slow) for name in TORCH),
        *OWN,
    ],
)
def test_a_killed_and_resumed_run_has_the_same_bits_with_every_optimizer(
    tmp_path: Path, quiet: Console, name: str
) -> None:
    config = make_config(
        tmp_path, optimizer={"name": name, "lr": 0.003}, budget={"steps": 16}, save_every=50, eval_every=50
    )
    kill_and_resume(tmp_path, quiet, config)


def test_a_factory_gives_the_run_of_the_registered_optimizer(tmp_path: Path, quiet: Console) -> None:
    def factory(model: TransformerLM, config: OptimizerConfig) -> torch.optim.Optimizer:
        matrices = [p for p in model.parameters() if p.ndim >= 2]
        gains = [p for p in model.parameters() if p.ndim < 2]
        groups: list[dict[str, Any]] = [
            {"params": matrices, "weight_decay": config.weight_decay},
            {"params": gains, "weight_decay": 0.0},
        ]
        return Lion(groups, lr=config.lr, betas=(config.beta1, config.beta2))

    config = make_config(tmp_path, budget={"steps": 12}, optimizer={"lr": 0.003})
    kill_and_resume(tmp_path, quiet, config, optimizer=factory)
    registered = dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, name="lion"))
    train(registered, tmp_path / "registered", console=quiet)
    assert digest(tmp_path / "registered")["weights"] == digest(tmp_path / "whole")["weights"]


def test_options_reach_the_constructor_and_the_schedule_scales_every_group(
    tmp_path: Path, quiet: Console
) -> None:
    config = make_config(
        tmp_path,
        optimizer={"name": "lion", "lr": 0.01, "weight_decay": 0.3, "options": {"history": 5}},
        schedule={"kind": "linear", "warmup": 2, "final": 0.0},
        budget={"steps": 4},
    )
    model = build_model(config, torch.device("cpu"))
    built = build_optimizer(model, config.optimizer)
    assert isinstance(built, Lion)
    assert built.history == 5
    assert [group["weight_decay"] for group in built.param_groups] == [0.3, 0.0]
    assert all(p.ndim >= 2 for p in built.param_groups[0]["params"])
    used: list[list[float]] = []

    def watching(model: TransformerLM, config: OptimizerConfig) -> torch.optim.Optimizer:
        optimizer = Lion([{"params": [p], "lr": 0.01 * (i + 1)} for i, p in enumerate(model.parameters())])
        optimizer.register_step_pre_hook(
            lambda *_: used.append([group["lr"] for group in optimizer.param_groups][:2])
        )
        return optimizer

    train(config, tmp_path / "run", console=quiet, optimizer=watching)
    assert used == [[pytest.approx(0.01 * f), pytest.approx(0.02 * f)] for f in (0.5, 1.0, 0.5, 0.0)]


def test_a_step_with_a_loss_that_is_not_finite_changes_nothing() -> None:
    torch.manual_seed(0)
    model = TransformerLM(build_small())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    poison = [1.0]
    step = TrainStep(model, optimizer, loss=lambda *batch: poison[0] * language_model_loss(*batch))
    ids = torch.arange(8).view(2, 4)
    assert bool(step([(ids, ids + 1)]).accepted)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    poison[0] = float("nan")
    assert not bool(step([(ids, ids + 1)]).accepted)
    assert all(map(torch.equal, before, model.parameters()))
    assert all(state["step"] == 1 for state in optimizer.state.values())


def build_small() -> Any:
    from bytewright.model import ModelConfig

    return ModelConfig(vocab_size=11, context_length=4, d_model=8, num_layers=3, num_heads=2, d_ff=8)


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"name": "lionn"}, "optimizer.name"),
        ({"name": "lion", "options": {"histry": 3}}, "optimizer.options.histry"),
        ({"name": "lion", "options": {"history": "many"}}, "optimizer.options.history"),
        ({"name": "lion", "options": {"lr": 0.1}}, "optimizer.options.lr"),
        ({"name": "lion", "options": {"betas": [0.1, 0.2]}}, "optimizer.options.betas"),
        ({"name": "reads_values", "options": {"limt": 2.0}}, "optimizer.options.limt"),
        ({"name": "adamw", "options": {"amsgrad": True}}, "optimizer.options.amsgrad"),
        ({"name": "muon", "options": {"rounds": 3}}, "optimizer.options.rounds"),
    ],
)
def test_an_unknown_optimizer_or_option_is_rejected_with_its_key(fields: dict[str, Any], key: str) -> None:
    with pytest.raises(UsageError) as rejection:
        build(OptimizerConfig, fields, source="lab.toml", path="optimizer.")
    assert (rejection.value.path, rejection.value.key) == (Path("lab.toml"), key)


class Unsavable(torch.optim.SGD):
    """An optimizer with a state that no file can hold."""

    def step(self, closure: Any = None) -> Any:
        """Keep an object in the state."""
        super().step(closure)
        self.state[self.param_groups[0]["params"][0]]["object"] = object()


class WithoutRate(torch.optim.Optimizer):
    """An optimizer without a learning rate."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    def step(self, closure: Any = None) -> Any:
        """Do nothing."""


@pytest.mark.parametrize("rate", [None, "fast", -0.1, float("nan"), float("inf"), torch.ones(2)], ids=str)
def test_a_rate_that_is_not_a_number_of_at_least_0_is_rejected(rate: Any) -> None:
    model = TransformerLM(ModelConfig(vocab_size=9, context_length=4, d_model=8, num_layers=1, num_heads=2))

    def make(model: Any, config: Any) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        optimizer.param_groups[0]["lr"] = rate
        return optimizer

    with pytest.raises(UsageError) as caught:
        build_optimizer(model, OptimizerConfig(), make)
    assert caught.value.key == "optimizer.name"
    assert caught.value.found is rate


def test_a_builder_that_fails_or_freezes_all_parameters_is_rejected() -> None:
    model = TransformerLM(ModelConfig(vocab_size=9, context_length=4, d_model=8, num_layers=1, num_heads=2))

    def freeze(model: Any, config: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.requires_grad_(False).parameters(), lr=1.0)

    def fail(model: Any, config: Any) -> torch.optim.Optimizer:
        raise KeyError("width")

    for function in (fail, freeze):
        optimizers.register("broken")(function)
        try:
            with rejects(UsageError, key="optimizer.name", found="broken"):
                build_optimizer(model, OptimizerConfig(name="broken"))
        finally:
            optimizers.remove("broken")


@pytest.mark.parametrize(
    ("factory", "fields"),
    [
        (lambda model, _: torch.optim.LBFGS(model.parameters()), {"found": "closure"}),
        (lambda model, _: WithoutRate(model.parameters()), {"expected": "lr"}),
        (lambda model, _: torch.optim.SGD(list(model.parameters())[:-1]), {"found": "lm_head.weight"}),
        (lambda model, _: "sgd", {"expected": "torch.optim.Optimizer", "found": "str"}),
        (
            lambda model, _: Unsavable(model.parameters()),
            {"key": "optimizer.state.0.object", "found": "object"},
        ),
    ],
    ids=["closure", "no rate", "incomplete", "not an optimizer", "unsavable"],
)
def test_an_optimizer_that_a_run_cannot_use_is_rejected(
    tmp_path: Path, quiet: Console, factory: Any, fields: dict[str, Any]
) -> None:
    with rejects(UsageError, **{"key": "optimizer.name", **fields}):
        train(make_config(tmp_path), tmp_path / "run", console=quiet, optimizer=factory)


def test_a_constructor_that_rejects_its_options_is_reported_with_a_sentence() -> None:
    config = OptimizerConfig(name="torch_adam", options={"fused": True, "foreach": True})
    with pytest.raises(UsageError) as rejection:
        build_optimizer(TransformerLM(build_small()), config)
    assert (rejection.value.key, rejection.value.found) == ("optimizer.name", "torch_adam")


def test_frozen_parameters_stay_unchanged() -> None:
    for name in (*optimizers.names(),):
        model = TransformerLM(build_small())
        model.token_embeddings.weight.requires_grad_(False)
        if name == "reads_values":
            continue  # it passes all parameters
        optimizer = build_optimizer(model, OptimizerConfig(name=name))
        ids = torch.arange(8).view(2, 4)
        before = model.token_embeddings.weight.clone()
        assert bool(TrainStep(model, optimizer)([(ids, ids + 1)]).accepted), name
        assert torch.equal(before, model.token_embeddings.weight), name


def test_a_subclass_with_another_rule_does_not_use_the_fused_version_of_its_base() -> None:
    class Plain(AdamW):
        def update(self, weight: Tensor, gradient: Tensor, t: int, state: Any, group: Group) -> None:
            weight -= group["lr"] * gradient

    optimizers.register("plain")(Plain)
    try:
        model = TransformerLM(build_small())
        assert type(build_optimizer(model, OptimizerConfig(name="plain"))) is Plain
        cost = update_cost(build_small(), "plain")
        assert cost.elementwise_flops < 14 * count_parameters(build_small()).total
    finally:
        optimizers.remove("plain")


def test_a_rule_with_a_fused_version_uses_it(tmp_path: Path, quiet: Console) -> None:
    assert has_fused_update(build_small(), "halving")
    assert not has_fused_update(build_small(), "lion")
    runs = {}
    for implementation in ("fused", "reference"):
        rule = {"name": "halving", "lr": 0.05, "implementation": implementation}
        config = make_config(tmp_path, optimizer=rule, budget={"steps": 10})
        runs[implementation] = train(config, tmp_path / implementation, console=quiet).validation_loss
    assert runs["fused"] == pytest.approx(runs["reference"], rel=1e-4)


@pytest.mark.parametrize("name", [*optimizers.names(), *TORCH, *OWN])
def test_the_state_of_every_optimizer_is_predicted(name: str) -> None:
    config = build_small()
    model = TransformerLM(config)
    optimizer = build_optimizer(model, OptimizerConfig(name=name, implementation="reference"))
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 0.01)
    optimizer.step()
    held = sum(
        tensor.numel() * tensor.itemsize
        for state in optimizer.state.values()
        for tensor in state.values()
        if isinstance(tensor, Tensor)
    )
    assert state_bytes(config, name) == pytest.approx(held, rel=0.02)


@pytest.mark.parametrize("name", ["adamw", "muon", "sgd"])
def test_the_traced_costs_of_our_rules_are_those_that_they_state(name: str) -> None:
    from bytewright.account.optimizers import trace_update

    config = build_small()
    traced = trace_update(config, OptimizerConfig(name=name, implementation="reference"))
    stated = update_cost(config, name)
    clipping = 3 * count_parameters(config).total  # squares, their sum, and the product with the factor
    assert traced.matmul_flops == stated.matmul_flops
    assert traced.elementwise_flops == pytest.approx(stated.elementwise_flops + clipping, rel=0.1)
    assert traced.state_bytes == pytest.approx(state_bytes(config, name), rel=0.01)


@pytest.mark.parametrize("name", ["lion", "reads_values", "torch_adafactor"])
def test_a_run_with_any_optimizer_is_predicted(tmp_path: Path, name: str) -> None:
    config = make_config(tmp_path, optimizer={"name": name})
    setup = TrainingSetup(batch_size=4, optimizer=config.optimizer, device_kind="cpu")
    assert (predict_training(config.model, setup)["peak_memory"] or 0) > 0
    memory = training_memory(config.model, batch_size=4, optimizer=name)
    assert memory.gradients == memory.parameters  # no flat copies of the gradients
    assert eager_update_bytes(config.model, name, "cpu") > 0
    assert checkpoint_bytes(config) > 4 * count_parameters(config.model).total


def test_a_reused_engine_starts_with_a_fresh_optimizer(tmp_path: Path, quiet: Console) -> None:
    config = make_config(tmp_path, optimizer={"name": "lion"}, budget={"steps": 6})
    train(config, tmp_path / "alone", console=quiet)
    engines = CompiledStepCache()
    train(dataclasses.replace(config, seed=3), tmp_path / "first", console=quiet, engines=engines)
    train(config, tmp_path / "second", console=quiet, engines=engines)
    assert digest(tmp_path / "second") == digest(tmp_path / "alone")

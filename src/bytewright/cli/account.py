"""`bytewright account`: predict what a model costs, without building or running it."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from bytewright.cli import options
from bytewright.errors import UsageError, wrong_value
from bytewright.formatting import parse_bytes
from bytewright.shipped_recipes import find_recipe

if TYPE_CHECKING:
    from bytewright.account import Account, Device, TimeAccount, TrainingCosts, TrainingSetup
    from bytewright.model import ModelConfig
    from bytewright.train.config import TrainConfig


def _from_recipe(metavar: str, default: str) -> Any:
    return options.arg(metavar, f"(default: the recipe's, or {default})")


FROM_PRESET = "(default: the preset's)"
MOST = 1e30
"""The largest number of an option; products of such numbers still fit into a float."""
Size = Annotated[int | None, options.arg("INT", FROM_PRESET)]
Switch = Annotated[bool | None, options.arg("{True,False}", FROM_PRESET)]
Part = Annotated[str | None, options.arg("NAME", FROM_PRESET)]
Number = Annotated[float | None, options.arg("NUMBER")]
Bytes = Annotated[str | None, options.arg("SIZE")]
Count = Annotated[int | None, _from_recipe("INT", "1")]


@dataclass(frozen=True, kw_only=True)
class AccountFor:
    """Predict the parameters, FLOPs, memory, time and energy of training a model. Nothing is built or run.

    Start from a preset, a recipe or a number of parameters, and change any size. With a recipe, the batch,
    the budget and all other settings are the recipe's. GB is 10⁹ bytes, GiB is 2³⁰ bytes.

    For example:
      bytewright account --config base --device rtx4090
      bytewright account --config tiny --set batch_size=64 optimizer.name=muon
      bytewright account --parameters 1e9 --device h100 --batch 8
      bytewright account --preset gpt2-xl --device a100 --precision fp32 --mfu 0.5 --tokens 419e9
      bytewright account --preset base --device-tflops 71 --device-bandwidth 936GB --device-memory 24GB
      bytewright account --preset gpt2-xl --d-ff 4288 --context 16384 --batch 4 --memory 80GB --details
      bytewright account --preset gpt2-xl --device h200 --ranks 8 --strategy shard --batch 64
      bytewright account --family --plot shares.svg
    """

    preset: Annotated[str | None, options.arg("NAME", "(default: gpt2-small)")] = None
    """base, gpt2-small, gpt2-medium, gpt2-large or gpt2-xl (the sizes of GPT-2, our architecture)."""
    config: options.FileOption = None
    """Instead of a preset: a recipe, the name of one that comes with Bytewright, or a run's config.json."""
    set: options.Overrides = ()
    """With --config: values to replace in the recipe, such as model.ffn=silu."""
    parameters: Number = None
    """Propose a shape with this number of parameters, and print it as a table for a recipe."""
    vocab_size: Size = None
    context_length: Annotated[int | None, options.arg("INT", FROM_PRESET, aliases=["--context"])] = None
    d_model: Size = None
    num_layers: Size = None
    num_heads: Size = None
    d_ff: Size = None
    num_kv_heads: Size = None
    rope_theta: Annotated[float | None, options.arg("FLOAT", FROM_PRESET)] = None
    norm: Annotated[Literal["pre", "post", "none"] | None, options.arg("{pre,post,none}", FROM_PRESET)] = None
    norm_kind: Part = None
    position: Part = None
    attention: Part = None
    ffn: Part = None
    tie_embeddings: Switch = None
    qk_norm: Switch = None
    batch: Count = None
    """The number of sequences in a batch."""
    accumulate: Count = None
    """The number of parts of a batch that are computed one after the other."""
    ranks: Annotated[int, tyro.conf.arg(metavar="INT")] = 1
    """Predict the memory of one of several ranks, and what it sends to the others in a step."""
    strategy: Annotated[
        Literal["replicate", "shard"] | None, _from_recipe("{replicate,shard}", "replicate")
    ] = None
    """Whether a rank holds the whole model, or a share of the rows of every parameter."""
    reduction: Annotated[Literal["exact", "fast"] | None, _from_recipe("{exact,fast}", "exact")] = None
    """How the ranks add their gradients."""
    tokens: Annotated[float | None, _from_recipe("NUMBER", "20 per parameter")] = None
    """The number of training tokens."""
    optimizer: Annotated[str | None, _from_recipe("NAME", "adamw")] = None
    """The update rule."""
    compile: Annotated[Literal["auto", "on", "off"] | None, _from_recipe("{auto,on,off}", "auto")] = None
    """Whether steps are compiled; auto: on a GPU only."""
    precision: Annotated[
        Literal["fp32", "tf32", "bf16"] | None, _from_recipe("{fp32,tf32,bf16}", "bf16, on a CPU fp32")
    ] = None
    """The precision of matrix products."""
    device: Annotated[
        str | None,
        options.arg(
            "NAME",
            help="Predict the time on a100, h100, h200, b200, rtx3060, rtx3090, rtx4060, rtx4070, rtx4080,"
            " rtx4090, rtx5070, rtx5080, rtx5090 or cpu; measure: time this machine first.",
        ),
    ] = None
    device_tflops: Number = None
    """Describe another device, or change the named one: TFLOP/s of dense products in the given precision."""
    device_bandwidth: Bytes = None
    """Bytes per second of its memory, such as 936GB."""
    device_memory: Bytes = None
    """Its memory, such as 24GB."""
    device_watts: Number = None
    """Its power limit in watts, for the energy."""
    memory: Bytes = None
    """Print the largest batch for this memory, such as 80GB or 24GiB, instead of the device's."""
    mfu: Annotated[float | None, options.arg("SHARE")] = None
    """The share of peak FLOPs that is reached; by default it is predicted where such steps were measured."""
    family: bool = False
    """Print instead how the FLOPs divide over parts, for the GPT-2 family and several context lengths."""
    plot: options.FileOption = None
    """With --family: write a chart as SVG."""
    plugin: options.Plugins = ()
    details: bool = False
    """Also print all tables: parameters, products, memory of each implementation, generation, roofline."""
    json: bool = False
    """Print all figures as JSON."""

    def run(self) -> None:
        """Compute the figures and print them."""
        self._check_options()
        if self.family:
            self._show_family()
            return
        if self.config is not None:
            options.require_file(find_recipe(self.config))
        from bytewright.account import account, largest_batches, time_on, training_costs
        from bytewright.account.shapes import format_table
        from bytewright.cli import account_tables

        model, plan = self._model()
        device = self._device()
        if self.mfu is not None and device is None:
            raise UsageError("--mfu needs --device, which determines the peak", key="--mfu")
        setup = self._setup(model, plan, device)
        memory = None if self.memory is None else parse_bytes(self.memory, key="--memory")
        costs = training_costs(model, setup, available_bytes=memory)
        counted = account(model, batch_size=setup.batch_size) if self.json or self.details else None
        batches = largest_batches(counted, memory) if counted and memory else {}
        time = None
        if counted and device:
            time = time_on(counted, device, rate=setup.rate, mfu=self.mfu, setup=setup)
        if counted and self.json:
            print(json.dumps(_to_dict(counted, setup, costs, batches, time), allow_nan=False))
            return
        account_tables.print_answer(model, setup, costs)
        if self.parameters is not None:
            print(f"\n{format_table(model)}")
        if counted:
            account_tables.print_details(counted, memory=self.memory, batches=batches, time=time)

    def _check_options(self) -> None:
        """Raise if options contradict each other or are out of range."""
        if self.plot is not None and not self.family:
            raise UsageError("--plot needs --family", key="--plot")
        for name, lowest in (("ranks", 1), ("tokens", 1.0), ("device_tflops", 1e-6), ("device_watts", 1e-6)):
            value = getattr(self, name)
            if value is not None and not lowest <= value <= MOST:
                raise wrong_value(options.flag_of(name), f"a number from {lowest:g} to {MOST:g}", value)
        sources = [name for name in ("preset", "config", "parameters") if getattr(self, name) is not None]
        if len(sources) > 1:
            message = f"give either --{sources[0]} or --{sources[1]}, not both"
            raise UsageError(message, key=f"--{sources[0]}")
        if self.set and self.config is None:
            raise UsageError("--set needs --config, whose values it replaces", key="--set")
        if self.family:
            self._check_family_options()

    def _model(self) -> tuple[ModelConfig, TrainConfig | None]:
        """Return the model with the given sizes, and the run of the recipe, if it has one."""
        from bytewright.account import find_preset, propose_shape
        from bytewright.model import ModelConfig

        fields = [field.name for field in dataclasses.fields(ModelConfig)]
        changes = _given(**{name: getattr(self, name, None) for name in fields})
        if self.parameters is not None:
            return propose_shape(self.parameters, **changes), None
        if self.config is None:
            return dataclasses.replace(find_preset(self.preset or "gpt2-small"), **changes), None
        from bytewright.train.recipe import read_plan

        recipe = options.require_file(find_recipe(self.config))
        overrides = options.list_overrides(self.set)
        with options.errors_of_overrides(overrides):
            base, plan = read_plan(recipe, overrides)
        return dataclasses.replace(base, **changes), plan

    def _device(self) -> Device | None:
        """Return the named device with the given rates, or a device of these rates alone."""
        from bytewright.account import Device, find_device

        changes: dict[str, Any] = {}
        if self.device_tflops is not None:
            changes["flops_per_second"] = dict.fromkeys(("fp32", "tf32", "bf16"), self.device_tflops * 1e12)
        if self.device_bandwidth is not None:
            text = self.device_bandwidth.removesuffix("/s")
            changes["bytes_per_second"] = parse_bytes(text, key="--device-bandwidth")
        if self.device_memory is not None:
            changes["memory_bytes"] = parse_bytes(self.device_memory, key="--device-memory")
        if self.device_watts is not None:
            changes["watts"] = self.device_watts
        if self.device is not None:
            return dataclasses.replace(find_device(self.device), **changes)
        if not changes:
            return None
        for name in ("tflops", "bandwidth", "memory"):
            if getattr(self, f"device_{name}") is None:
                option = f"--device-{name}"
                raise UsageError(f"{option} is missing; set it, or name a device with --device", key=option)
        return Device(name="own device", **changes)

    def _setup(self, model: ModelConfig, plan: TrainConfig | None, device: Device | None) -> TrainingSetup:
        """Return the settings of the recipe, or the defaults, with the given options."""
        import torch

        from bytewright.train.config import BudgetConfig, DataConfig, TrainConfig
        from bytewright.train.session.costs import training_setup

        on_gpu = device.kind == "cuda" if device else _would_use_gpu(plan)
        has_budget = plan is not None or self.tokens is not None
        if plan is None:  # the checks of a run apply to the options too; its data is not opened
            plan = TrainConfig(
                model=model,
                data=DataConfig(train=Path("tokens.npy")),
                budget=BudgetConfig(steps=1),
                batch_size=1,
                precision="bf16" if on_gpu else "fp32",
            )
        changes: dict[str, Any] = {}
        if self.ranks > 1 and plan.accumulate == 1:  # each rank computes at least one part
            changes["accumulate"] = self.ranks
            if plan.batch_size == 1:
                changes["batch_size"] = self.ranks
        changes |= _given(
            batch_size=self.batch,
            accumulate=self.accumulate,
            compile=self.compile,
            precision="fp32" if self.precision == "tf32" else self.precision,
            optimizer=self.optimizer and dataclasses.replace(plan.optimizer, name=self.optimizer),
            budget=None if self.tokens is None else BudgetConfig(tokens=int(self.tokens)),
        )
        parallel = dataclasses.replace(
            plan.parallel, **_given(strategy=self.strategy, reduction=self.reduction)
        )
        plan = dataclasses.replace(plan, model=model, parallel=parallel, **changes)
        setup = training_setup(plan, device, torch.device("cuda" if on_gpu else "cpu"))
        return dataclasses.replace(
            setup,
            num_tokens=int(self.tokens) if self.tokens else setup.num_tokens if has_budget else 0,
            rate=self.precision or plan.precision,
            mfu=self.mfu,
            num_ranks=self.ranks,
            strategy=parallel.strategy,
        )

    def _check_family_options(self) -> None:
        """Raise if an option is given that has no effect with --family."""
        allowed = ("family", "plot", "json")
        others = [field for field in dataclasses.fields(self) if field.name not in allowed]
        given = [field.name for field in others if getattr(self, field.name) != field.default]
        if given:
            option = options.flag_of(given[0])
            message = f"{option} has no effect with --family, which uses the sizes of GPT-2"
            raise UsageError(message, key=option)

    def _show_family(self) -> None:
        from bytewright.account.flops import growth
        from bytewright.cli import account_tables

        rows = growth()
        if self.plot is not None:
            account_tables.write_plot(self.plot)
        if not self.json:
            account_tables.print_growth(rows)
            return
        names = ("model", "context_length", "forward", "shares")
        values = [(row.name, row.context_length, row.flops.forward, dict(row.shares())) for row in rows]
        print(json.dumps([dict(zip(names, figures, strict=True)) for figures in values]))


def _given(**values: Any) -> dict[str, Any]:
    """Return the values of options that are given."""
    return {name: value for name, value in values.items() if value is not None}


def _would_use_gpu(plan: TrainConfig | None) -> bool:
    """Return whether to predict for a GPU if no device is given: for a run, where `train` would run it."""
    import torch

    if plan is None:
        return True
    return plan.device == "cuda" or (plan.device == "auto" and torch.cuda.is_available())


def _to_dict(
    counted: Account,
    setup: TrainingSetup,
    costs: TrainingCosts,
    batches: dict[str, int],
    time: TimeAccount | None,
) -> dict[str, Any]:
    figures = counted.to_dict()
    figures["setup"] = {
        "batch_size": setup.accumulate * setup.batch_size,
        "accumulate": setup.accumulate,
        "precision": setup.rate,
        "compiled": setup.compiled,
        "optimizer": setup.optimizer_name,
        "device_kind": setup.device_kind,
        "ranks": setup.num_ranks,
        "strategy": setup.strategy,
        "reduction": setup.reduction,
    }
    figures["answer"] = costs.to_dict()
    if batches:
        figures["largest_batches"] = batches
    if time is not None:
        figures["time"] = time.to_dict(None if costs.has_assumed_tokens else costs.num_tokens)
    return figures

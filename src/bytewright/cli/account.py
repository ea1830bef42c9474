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

if TYPE_CHECKING:
    from bytewright.account import Account, TimeAccount
    from bytewright.model import ModelConfig

FROM_PRESET = "(default: the preset's)"
Size = Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint=FROM_PRESET)]
Switch = Annotated[bool | None, tyro.conf.arg(metavar="{True,False}", help_behavior_hint=FROM_PRESET)]


@dataclass(frozen=True, kw_only=True)
class AccountFor:
    """Predict the parameters, FLOPs, memory and training time of a model. Nothing is built or run.

    Start from a preset or a recipe, and change any size. GB is 10⁹ bytes, GiB is 2³⁰ bytes.

    For example:
      bytewright account --preset gpt2-xl --memory 80GB --device h100
      bytewright account --preset gpt2-xl --d-ff 4288 --context 16384 --batch 4
      bytewright account --preset gpt2-xl --device a100 --precision fp32 --mfu 0.5 --tokens 419e9
      bytewright account --config recipes/base.toml --batch 128 --device measure --tokens 327680000
      bytewright account --family --plot shares.svg
    """

    preset: Annotated[
        str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="(default: gpt2-small)")
    ] = None
    """base, gpt2-small, gpt2-medium, gpt2-large or gpt2-xl (the sizes of GPT-2, our architecture)."""

    config: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(optional)")] = None
    """A recipe, or the config.json of a run, instead of a preset."""

    vocab_size: Size = None
    context_length: Annotated[
        int | None,
        tyro.conf.arg(metavar="INT", aliases=["--context"], help_behavior_hint=FROM_PRESET),
    ] = None
    d_model: Size = None
    num_layers: Size = None
    num_heads: Size = None
    d_ff: Size = None
    num_kv_heads: Size = None
    rope_theta: Annotated[float | None, tyro.conf.arg(metavar="FLOAT", help_behavior_hint=FROM_PRESET)] = None
    norm: Annotated[
        Literal["pre", "post", "none"] | None,
        tyro.conf.arg(metavar="{pre,post,none}", help_behavior_hint=FROM_PRESET),
    ] = None
    position: Annotated[
        Literal["rope", "none"] | None,
        tyro.conf.arg(metavar="{rope,none}", help_behavior_hint=FROM_PRESET),
    ] = None
    ffn: Annotated[
        Literal["swiglu", "silu"] | None,
        tyro.conf.arg(metavar="{swiglu,silu}", help_behavior_hint=FROM_PRESET),
    ] = None
    tie_embeddings: Switch = None
    qk_norm: Switch = None

    batch: int = 1
    """The number of sequences in a batch."""

    memory: Annotated[str | None, tyro.conf.arg(metavar="SIZE", help_behavior_hint="(optional)")] = None
    """Print the largest batch that fits into this amount of memory, such as 80GB or 24GiB."""

    device: Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="(optional)")] = None
    """Predict the training time on a100, h100, h200, b200 or cpu; measure: time this machine first."""

    precision: Annotated[
        Literal["fp32", "tf32", "bf16"] | None,
        tyro.conf.arg(metavar="{fp32,tf32,bf16}", help_behavior_hint="(default: bf16, on a CPU fp32)"),
    ] = None
    """The precision of matrix products, for the prediction of time."""

    mfu: Annotated[float | None, tyro.conf.arg(metavar="SHARE", help_behavior_hint="(optional)")] = None
    """The share of peak FLOPs that is reached; by default it is predicted where such steps were measured."""

    tokens: Annotated[float | None, tyro.conf.arg(metavar="NUMBER", help_behavior_hint="(optional)")] = None
    """The number of training tokens: print how many days they take."""

    family: bool = False
    """Print instead how the FLOPs divide over parts, for the GPT-2 family and several context lengths."""

    plot: options.OutputFile = None
    """With --family: write a chart as SVG."""

    plugin: options.Plugins = ()

    json: bool = False
    """Print all figures as JSON."""

    def run(self) -> None:
        """Compute the figures and print them."""
        if self.plot is not None and not self.family:
            raise UsageError("--plot needs --family", key="--plot")
        if self.tokens is not None and not 1 <= self.tokens < float("inf"):
            raise wrong_value("--tokens", "a number of at least 1", self.tokens)
        if self.tokens is not None and self.device is None:
            raise UsageError("--tokens needs --device, which determines the time", key="--tokens")
        if self.mfu is not None and self.device is None:
            raise UsageError("--mfu needs --device, which determines the peak", key="--mfu")
        if self.preset is not None and self.config is not None:
            raise UsageError("give either --preset or --config, not both", key="--preset")
        if self.family:
            self._check_family_options()
            self._show_family()
            return
        if self.config is not None:
            options.require_file(self.config)
        from bytewright.account import account, find_device, largest_batches, time_on
        from bytewright.cli import account_tables

        counted = account(self._model(), batch_size=self.batch)
        batches = largest_batches(counted, parse_bytes(self.memory, key="--memory")) if self.memory else {}
        time = None
        if self.device is not None:
            time = time_on(counted, find_device(self.device), rate=self.precision, mfu=self.mfu)
        if self.json:
            print(json.dumps(self._to_dict(counted, batches, time), allow_nan=False))
            return
        account_tables.print_account(
            counted, memory=self.memory, batches=batches, time=time, tokens=self.tokens
        )

    def _model(self) -> ModelConfig:
        from bytewright.account.presets import find_preset, read_shape
        from bytewright.model import ModelConfig

        base = find_preset(self.preset or "gpt2-small") if self.config is None else read_shape(self.config)
        fields = [field.name for field in dataclasses.fields(ModelConfig)]
        changes = {name: getattr(self, name) for name in fields if getattr(self, name, None) is not None}
        return dataclasses.replace(base, **changes)

    def _to_dict(self, counted: Account, batches: dict[str, int], time: TimeAccount | None) -> dict[str, Any]:
        figures = counted.to_dict()
        if batches:
            figures["largest_batches"] = batches
        if time is not None:
            figures["time"] = time.to_dict(self.tokens)
        return figures

    def _check_family_options(self) -> None:
        """Raise if an option is given that has no effect with --family."""
        allowed = ("family", "plot", "json")
        others = [field for field in dataclasses.fields(self) if field.name not in allowed]
        given = [field.name for field in others if getattr(self, field.name) != field.default]
        if given:
            option = "--" + given[0].replace("_", "-")
            message = f"{option} has no effect with --family, which uses the sizes of GPT-2"
            raise UsageError(message, key=option)

    def _show_family(self) -> None:
        from bytewright.account.flops import growth
        from bytewright.cli import account_tables

        rows = growth()
        if self.plot is not None:
            account_tables.write_plot(self.plot)
        if self.json:
            figures = [
                {
                    "model": row.name,
                    "context_length": row.context_length,
                    "forward": row.flops.forward,
                    "shares": dict(row.shares()),
                }
                for row in rows
            ]
            print(json.dumps(figures))
            return
        account_tables.print_growth(rows)

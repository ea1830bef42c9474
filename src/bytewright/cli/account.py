"""`bytewright account`: what a model costs, before anything runs."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from bytewright.cli import options

if TYPE_CHECKING:
    from bytewright.account import Account, TimeAccount
    from bytewright.model import ModelConfig

UNLESS_GIVEN = "(default: the preset's)"
Size = Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint=UNLESS_GIVEN)]
Switch = Annotated[bool | None, tyro.conf.arg(metavar="{True,False}", help_behavior_hint=UNLESS_GIVEN)]


@dataclass(frozen=True, kw_only=True)
class AccountFor:
    """Account for a model: parameters, FLOPs, memory, and time on a machine. Nothing is built or run.

    Start from a preset or from a recipe, and change any size. GB is 10⁹ bytes, GiB is 2³⁰.

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
    """base, gpt2-small, gpt2-medium, gpt2-large or gpt2-xl (GPT-2's sizes, our architecture)."""

    config: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(optional)")] = None
    """A recipe, or the config.json of a run, instead of a preset."""

    vocab_size: Size = None
    context_length: Annotated[
        int | None,
        tyro.conf.arg(metavar="INT", aliases=["--context"], help_behavior_hint=UNLESS_GIVEN),
    ] = None
    d_model: Size = None
    num_layers: Size = None
    num_heads: Size = None
    d_ff: Size = None
    num_kv_heads: Size = None
    rope_theta: Annotated[float | None, tyro.conf.arg(metavar="FLOAT", help_behavior_hint=UNLESS_GIVEN)] = (
        None
    )
    norm: Annotated[
        Literal["pre", "post", "none"] | None,
        tyro.conf.arg(metavar="{pre,post,none}", help_behavior_hint=UNLESS_GIVEN),
    ] = None
    position: Annotated[
        Literal["rope", "none"] | None,
        tyro.conf.arg(metavar="{rope,none}", help_behavior_hint=UNLESS_GIVEN),
    ] = None
    ffn: Annotated[
        Literal["swiglu", "silu"] | None,
        tyro.conf.arg(metavar="{swiglu,silu}", help_behavior_hint=UNLESS_GIVEN),
    ] = None
    tie_embeddings: Switch = None
    qk_norm: Switch = None

    batch: int = 1
    """Sequences of a batch."""

    memory: Annotated[str | None, tyro.conf.arg(metavar="SIZE", help_behavior_hint="(optional)")] = None
    """Name the largest batch that fits into this: 80GB, 24GiB."""

    device: Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="(optional)")] = None
    """Say how long training takes on a100, h100, h200, b200 or this cpu; measure: time this machine first."""

    precision: Annotated[
        Literal["fp32", "tf32", "bf16"] | None,
        tyro.conf.arg(metavar="{fp32,tf32,bf16}", help_behavior_hint="(default: bf16, on a CPU fp32)"),
    ] = None
    """Of the products, for the time."""

    mfu: Annotated[float | None, tyro.conf.arg(metavar="SHARE", help_behavior_hint="(optional)")] = None
    """Share of the peak that the products get; without it, the roofline decides, if such steps were timed."""

    tokens: Annotated[float | None, tyro.conf.arg(metavar="NUMBER", help_behavior_hint="(optional)")] = None
    """Tokens to train on: say how many days."""

    family: bool = False
    """Show instead where the FLOPs go over the GPT-2 family and over contexts."""

    plot: options.OutputFile = None
    """With --family: draw it, as SVG."""

    json: bool = False
    """Print all figures as JSON."""

    def run(self) -> None:
        """Count and print."""
        from bytewright.errors import UsageError

        if self.plot is not None and not self.family:
            raise UsageError("--plot draws the shares of --family; give both")
        if self.tokens is not None and not 1 <= self.tokens < float("inf"):
            raise UsageError(f"--tokens must be a number from 1 on, not {self.tokens:g}")
        if self.tokens is not None and self.device is None:
            raise UsageError("--tokens asks how long they take, which --device decides; give both")
        if self.mfu is not None and self.device is None:
            raise UsageError("--mfu is a share of the peak of a --device; give both")
        if self.preset is not None and self.config is not None:
            raise UsageError("--preset and --config each name a model; give one of them")
        if self.family:
            self._refuse_beside_family()
            self._show_family()
            return
        from bytewright.account import account, find_device, largest_batches, parse_bytes, time_on
        from bytewright.cli import account_tables

        counted = account(self._model(), batch_size=self.batch)
        batches = largest_batches(counted, parse_bytes(self.memory)) if self.memory else {}
        time = None
        if self.device is not None:
            time = time_on(counted, find_device(self.device), rate=self.precision, mfu=self.mfu)
        if self.json:
            print(json.dumps(self._to_dict(counted, batches, time), allow_nan=False))
            return
        account_tables.show(counted, memory=self.memory, batches=batches, time=time, tokens=self.tokens)

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

    def _refuse_beside_family(self) -> None:
        """Refuse options that the table of the family, which is always the same, would not heed."""
        from bytewright.errors import UsageError

        heeded = ("family", "plot", "json")
        others = [field for field in dataclasses.fields(self) if field.name not in heeded]
        given = [field.name for field in others if getattr(self, field.name) != field.default]
        if given:
            option = "--" + given[0].replace("_", "-")
            raise UsageError(f"--family shows GPT-2's own sizes, so {option} means nothing beside it")

    def _show_family(self) -> None:
        from bytewright.account.flops import growth
        from bytewright.cli import account_tables

        rows = growth()
        if self.plot is not None:
            account_tables.write_plot(self.plot)
        if self.json:
            print(
                json.dumps(
                    [
                        {
                            "model": row.name,
                            "context_length": row.context_length,
                            "forward": row.flops.forward,
                            "shares": dict(row.shares()),
                        }
                        for row in rows
                    ]
                )
            )
            return
        account_tables.show_growth(rows)

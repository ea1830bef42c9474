"""`bytewright train`: a recipe to a run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from bytewright.cli import options
from bytewright.errors import BytewrightError, UsageError

if TYPE_CHECKING:
    from bytewright.train import TrainConfig, TrainResult


@dataclass(frozen=True, kw_only=True)
class Train:
    """Train a model as a recipe says, and keep all of it in a new folder.

    A recipe is a TOML file (see recipes/); --set replaces any value of it. The run can be stopped at any
    time: Ctrl-C and SIGTERM save a checkpoint first (a second one does not wait for that), and `bytewright
    resume` continues exactly where it was, also after a crash.

    For example:
      bytewright train recipes/tiny.toml --out runs/tiny
      bytewright train recipes/base.toml --out runs/short --set budget.tokens=10_000_000 optimizer.lr=1e-3
    """

    recipe: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE")]
    """The recipe: a TOML file."""

    out: options.OutputFolder
    """The folder of the run; it must be new or empty."""

    set: options.Overrides = ()
    """Values to replace in the recipe, such as optimizer.lr=3e-4."""

    def run(self) -> int:
        """Train, and say how it ended."""
        from bytewright.cli import console
        from bytewright.train import read_recipe, train

        config = read_recipe(self.recipe, options.list_overrides(self.set))
        check_data_exists(config, self.recipe)
        with interruption_told(self.out):
            return report(train(config, self.out, console=console.stderr()))


def check_data_exists(config: TrainConfig, recipe: Path) -> None:
    """Raise if a file of the recipe's data is missing, and name its key: often it has not been made yet."""
    for key in ("train", "validation", "tokenizer"):
        path = getattr(config.data, key)
        if path is not None and not path.exists():
            raise UsageError(
                f"data.{key} is {path}, which does not exist;"
                f" the comments at the top of {recipe} say how to make the data of the recipe"
            )


class InterruptedRunError(BytewrightError):
    """Ctrl-C ended a run at once: the first before it had begun, or the second before it had saved."""

    exit_code = 130


@contextlib.contextmanager
def interruption_told(run: Path) -> Iterator[None]:
    """Say of a run that Ctrl-C ended at once what is kept of it."""
    try:
        yield
    except KeyboardInterrupt:
        from bytewright.train.checkpoint import CheckpointFolder
        from bytewright.train.run import CONFIG

        if not (run / CONFIG).is_file():
            raise
        steps = CheckpointFolder(run / "checkpoints").steps()
        where = f"goes on from step {steps[-1]:,}, the last that is saved" if steps else "starts anew"
        raise InterruptedRunError(f"interrupted at once; `bytewright resume {run}` {where}") from None


def report(result: TrainResult) -> int:
    """Say how a session ended; return the exit code."""
    from bytewright.cli import console
    from bytewright.train.signals import exit_code_of

    loss = "" if result.validation_loss is None else f", validation loss {result.validation_loss:.4f}"
    best = "" if result.best_step is None else f" (best checkpoint: step {result.best_step})"
    sentence = f"{result.run}: {result.step:,} steps{loss}{best}."
    if not result.num_new_steps:
        sentence = f"{result.run}: is complete; all of its {result.step:,} steps were taken before{best}."
    if result.received:
        sentence = (
            f"{result.run}: saved step {result.step:,} after {result.received.name};"
            f" continue with `bytewright resume {result.run}`."
        )
    console.stdout().print(sentence, markup=False, soft_wrap=True)
    return exit_code_of(result.received)

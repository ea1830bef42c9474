"""`bytewright train`, `resume` and `demo`: train a model, continue a run, and run the demo."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from bytewright.cli import Terminated, console, options
from bytewright.cli.recipes import require_data
from bytewright.errors import BytewrightError, ReportedError, UsageError
from bytewright.shipped_recipes import find_recipe

if TYPE_CHECKING:
    from bytewright.parallel.rank_group import RankGroup
    from bytewright.train import InitialWeights, TrainConfig, TrainResult


IS_ALONE = "RANK" not in os.environ
"""Whether this process was not started by torchrun."""


@dataclass(frozen=True, kw_only=True)
class Train:
    """Train a model from a recipe, and save everything in a new folder.

    A recipe is a TOML file, or the name of one that comes with Bytewright (`bytewright recipes` lists them).
    The option --set replaces any of its values, and --make-data makes the data of such a recipe. The run can
    be stopped at any time: Ctrl-C and SIGTERM save a checkpoint first; a second signal stops at once.
    `bytewright resume` continues with identical results, also after a crash.

    With --init the run starts from the weights of another model, for fine-tuning with a schedule of its own.
    The recipe can then leave [model] out. Weights and tokenizer must fit; a larger model.vocab_size adds
    rows, each the mean of the existing rows.

    For example:
      bytewright train tiny --make-data
      bytewright train base --out runs/short --set budget.tokens=10_000_000 optimizer.lr=1e-3
      bytewright train tiny --out runs/z --plugin examples/z_loss.py --set loss.name=z_loss
      bytewright train tune.toml --init runs/base --out runs/tuned
      bytewright train tune.toml --init llama-folder --out runs/tuned --set model.context_length=512
    """

    recipe: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE")]
    """The recipe: a TOML file, or the name of a recipe that comes with Bytewright."""
    out: Annotated[Path | None, options.arg("FOLDER", "(default: runs/NAME of the recipe)")] = None
    """The folder of the run; it must be new or empty."""
    make_data: bool = False
    """Make missing data of a recipe that comes with Bytewright; after an interruption, it continues."""
    set: options.Overrides = ()
    """Values to replace in the recipe, such as optimizer.lr=3e-4."""
    init: Annotated[Path | None, options.arg("SOURCE")] = None
    """Start from these weights: a run, a checkpoint, a file of save_checkpoint, or a Hugging Face Llama."""
    init_which: Literal["best", "last"] = "best"
    """The checkpoint of the run that --init names."""
    init_optimizer: bool = False
    """Start with the optimizer state of that checkpoint, too."""
    plugin: options.Plugins = ()

    def run(self) -> int:
        """Train, and print how the session ended."""
        if IS_ALONE:  # a mistyped path is rejected before torch is imported; of several ranks, one rejects it
            options.require_file(find_recipe(self.recipe))
        from bytewright.parallel.rank_group import RankGroup

        with RankGroup.open() as ranks:
            with ranks.agree():
                recipe = options.require_file(find_recipe(self.recipe))
                out = self.out or Path("runs", recipe.stem)
                config, init = self._read(recipe, out, ranks)
            for is_maker in (True, False):  # rank 0 makes missing data, which the others need
                with ranks.agree():
                    if ranks.is_main == is_maker:
                        require_data(config, recipe, make=self.make_data and is_maker)
            from bytewright.train import train

            with report_interruption(out, ranks):
                result = train(config, out, init=init, console=console.stderr(), ranks=ranks)
                return report_result(result, ranks)

    def _read(self, recipe: Path, out: Path, ranks: RankGroup) -> tuple[TrainConfig, InitialWeights | None]:
        from bytewright.train import InitialWeights, read_recipe
        from bytewright.train.run_files import check_new_run

        init = None
        if self.init is not None:
            source = options.require_exists(self.init)
            if ranks.is_main:
                console.print_remark(f"reading the weights of {source}")
            init = InitialWeights.read(
                source, which=self.init_which, with_optimizer=self.init_optimizer, mapped=ranks.num_ranks > 1
            )
        elif self.init_optimizer:
            raise UsageError("--init-optimizer needs --init with a source", key="--init-optimizer")
        model = None if init is None else init.model
        overrides = options.list_overrides(self.set)
        with options.errors_of_overrides(overrides):
            config = read_recipe(recipe, overrides, model=model)
        if not ranks.restart_count:  # torchrun starts a failed run again, which then resumes
            check_new_run(out)
        return config, init


class InterruptedRunError(BytewrightError):
    """A signal ended a run without a save: before the first step, or a second signal during the save."""


@contextlib.contextmanager
def report_interruption(run: Path, ranks: RankGroup) -> Iterator[None]:
    """Raise an error that states where a resume continues if a signal ends the block without a save."""
    try:
        yield
    except (KeyboardInterrupt, Terminated) as signal:
        from bytewright.train import Run

        if not Run(run).exists:
            raise
        word, code = ("terminated", 143) if isinstance(signal, Terminated) else ("interrupted", 130)
        if not ranks.is_main:
            raise ReportedError(word, exit_code=code) from None
        step = max(Run(run).checkpoints.steps(), default=0)
        error = InterruptedRunError(
            f"{word} at once; `bytewright resume {run}` continues from step {step:,}", path=run, found=step
        )
        error.exit_code = code
        raise error from None


def report_result(result: TrainResult, ranks: RankGroup) -> int:
    """Print how a session ended, on rank 0, and return the exit code."""
    from bytewright.train import Run
    from bytewright.train.outcome import exit_code_of

    if not ranks.is_main:
        return exit_code_of(result.received)
    status = Run(result.run).status
    loss = "" if result.validation_loss is None else f", validation loss {result.validation_loss:.4f}"
    best = "" if result.best_step is None else f" (best checkpoint: step {result.best_step})"
    again = "" if result.num_new_steps else "already "
    detail = f" ({status.detail})" if status.state == "diverged" else ""
    sentence = (
        f"{result.run}: {again}{status.state}{detail} after {result.step:,} steps, its budget of"
        f" {result.ending.label} is spent{loss}{best}."
    )
    if result.received:
        sentence = (
            f"{result.run}: saved step {result.step:,} after {result.received.name};"
            f" continue with `bytewright resume {result.run}`."
        )
    console.print_line(sentence)
    return exit_code_of(result.received)


@dataclass(frozen=True, kw_only=True)
class Resume:
    """Continue a run from its last checkpoint; the result is bit-identical to that of an uninterrupted run.

    --set changes settings of the run: the intervals of logging, evaluation and saving, the paths of the data,
    device, compile and accumulate. Budget and schedule may change if the learning rates of all completed
    steps stay the same. So a finished run can be lengthened if its schedule is constant or wsd; with wsd it
    continues from its last checkpoint before the decay. Other changes are rejected.

    For example:
      bytewright resume runs/base
      bytewright resume runs/base --set budget.tokens=200_000_000
    """

    path: options.RunFolder
    set: options.Overrides = ()
    """Settings to change, such as budget.steps=2000."""
    plugin: options.Plugins = ()

    def run(self) -> int:
        """Resume, and print how the session ended."""
        if IS_ALONE:
            options.require_exists(self.path)
        from bytewright.parallel.rank_group import RankGroup

        with RankGroup.open() as ranks:
            with ranks.agree():
                run = options.require_exists(self.path)
                from bytewright.train import resume
                from bytewright.train.recipe import parse_override

                overrides = options.list_overrides(self.set)
                changes = dict(map(parse_override, overrides))
            with report_interruption(run, ranks), options.errors_of_overrides(overrides):
                result = resume(run, changes=changes, console=console.stderr(), ranks=ranks)
                return report_result(result, ranks)


@dataclass(frozen=True, kw_only=True)
class Demo:
    """Generate stories, train a tokenizer and a small model on them, check its stories, and write a report.

    Takes about four minutes on two cores and downloads nothing. Before each stage it prints what the stage
    does and how long it takes. After an interruption, the same command continues; finished stages are kept.

    For example:
      bytewright demo
      bytewright demo --out elsewhere
    """

    out: options.OutputFolder = Path("demo")
    """The folder for all results: a new one, or that of an earlier demo, which is continued."""

    def run(self) -> int:
        """Run all stages."""
        from bytewright.demo import run_demo
        from bytewright.train.outcome import exit_code_of

        return exit_code_of(run_demo(self.out, out=console.stdout(), progress=console.progress).received)

"""`bytewright train`, `resume` and `evaluate`: train a model, continue a run, measure a model."""

from __future__ import annotations

import contextlib
import dataclasses
import json
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
    from bytewright.train.run_evaluation import RecordedLoss


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

    out: Annotated[
        Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="(default: runs/NAME of the recipe)")
    ] = None
    """The folder of the run; it must be new or empty."""

    make_data: bool = False
    """Make missing data of a recipe that comes with Bytewright; after an interruption, it continues."""

    set: options.Overrides = ()
    """Values to replace in the recipe, such as optimizer.lr=3e-4."""

    init: Annotated[Path | None, tyro.conf.arg(metavar="SOURCE", help_behavior_hint="(optional)")] = None
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
        config = read_recipe(recipe, options.list_overrides(self.set), model=model)
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

                changes = dict(map(parse_override, options.list_overrides(self.set)))
            with report_interruption(run, ranks):
                result = resume(run, changes=changes, console=console.stderr(), ranks=ranks)
                return report_result(result, ranks)


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Measure the loss, perplexity and bits per byte of a run's model on a token file.

    The whole file is measured in windows of the model's context; tokens after the last whole window are left
    out. Training measures at most eval_tokens of the file, so its figures can differ. Losses of different
    tokenizers cannot be compared; bits per byte can. With --stories, each story of a text is measured as a
    whole. If the text is from the storybook or the world book, the result is compared with the known entropy.
    For the latter, tables show which choices cost the model more bits than the true probabilities.

    For example:
      bytewright evaluate runs/base
      bytewright evaluate runs/base other.npy --which last --json
      bytewright evaluate runs/base --stories stories-valid.txt
      bytewright evaluate runs/base --endings tasks
    """

    path: options.RunPath

    file: options.OptionalFile = None
    """The token file; the default is the validation data of the run."""

    stories: options.FileOption = None
    """Measure the stories of this text file instead, each with its end token."""

    endings: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="(optional)")] = None
    """Answer the questions of this folder of `corpus storybook-tasks` instead: which ending is consistent?"""

    which: options.Which = "best"

    device: options.DeviceName = "auto"

    plugin: options.Plugins = ()

    json: bool = False
    """Print the figures as JSON."""

    def run(self) -> None:
        """Measure, and print the figures."""
        for path in (self.path, self.file, self.stories):
            if path is not None:
                options.require_exists(path)
        if [self.file, self.stories, self.endings].count(None) < 2:
            raise UsageError("give only one of a token file, --stories and --endings")
        if self.stories is not None:
            self._evaluate_stories(self.stories)
            return
        if self.endings is not None:
            self._answer_questions(self.endings)
            return
        from bytewright.train.metrics import finite
        from bytewright.train.run_evaluation import evaluate_run

        with console.phase_progress("measure", "tokens") as progress:
            measured = evaluate_run(
                self.path, self.file, which=self.which, device=self.device, progress=progress
            )
        evaluation, recorded = measured.evaluation, measured.recorded
        figures = {
            "checkpoint": str(measured.checkpoint),
            "file": str(measured.file),
            "loss": evaluation.loss,
            "perplexity": evaluation.perplexity,
            "bits_per_byte": evaluation.bits_per_byte,
            "num_tokens": evaluation.num_tokens,
            "training_validation_loss": recorded and recorded.validation_loss,
            "training_bits_per_byte": recorded and recorded.bits_per_byte,
        }
        if self.json:
            print(json.dumps(finite(figures), allow_nan=False))
            return
        rows = {"checkpoint": str(measured.checkpoint), "file": str(measured.file)}
        rows["loss (nats per token)"] = f"{evaluation.loss:.4f}"
        rows["perplexity"] = f"{evaluation.perplexity:.3f}"
        if evaluation.bits_per_byte is not None:
            rows["bits per byte"] = f"{evaluation.bits_per_byte:.4f}"
        rows["tokens, in whole windows"] = f"{evaluation.num_tokens:,}"
        console.print_table(("", ""), rows.items())
        if recorded and f"{recorded.validation_loss:.4f}" != f"{evaluation.loss:.4f}":
            console.print_line(describe_recorded(recorded))

    def _evaluate_stories(self, text: Path) -> None:
        from bytewright.cli.texts.books import print_excess
        from bytewright.experiments.evaluation.story_eval import evaluate_text
        from bytewright.train.metrics import finite
        from bytewright.train.run import open_model

        with console.phase_progress("measure", "stories") as progress:
            measured = evaluate_text(
                self.path, options.require_file(text), which=self.which, device=self.device, progress=progress
            )
        checkpoint = open_model(self.path, which=self.which).checkpoint
        gap, error = measured.gap or (None, None)
        figures: dict[str, object] = {
            "checkpoint": str(checkpoint),
            "file": str(text),
            "bits_per_byte": measured.evaluation.bits_per_byte,
            "floor": measured.floor,
            "above_floor": gap,
            "standard_error": error,
            "loss": measured.evaluation.loss,
            "num_stories": len(measured.evaluation.bits),
        }
        if measured.excess is not None:
            figures["excess"] = {
                name: {label: dataclasses.asdict(row) for label, row in table.items()}
                for name, table in measured.excess.tables.items()
            }
        if self.json:
            print(json.dumps(finite(figures), allow_nan=False))
            return
        rows = {"checkpoint": str(checkpoint), "file": str(text)}
        rows["bits per byte, whole stories"] = f"{measured.evaluation.bits_per_byte:.4f}"
        if gap is not None:
            rows["entropy of these stories"] = f"{measured.floor:.4f}"
            several = len(measured.evaluation.bits) > 1
            rows["above it"] = f"{gap:.4f} ± {error:.4f}" if several else f"{gap:.4f}"
        rows["loss (nats per token)"] = f"{measured.evaluation.loss:.4f}"
        rows["stories"] = f"{len(measured.evaluation.bits):,}"
        console.print_table(("", ""), rows.items())
        if measured.excess is not None:
            print_excess(measured.excess, len(measured.evaluation.bits))

    def _answer_questions(self, folder: Path) -> None:
        from bytewright.interop.endings import read_tasks, score_questions
        from bytewright.train.run import open_model
        from bytewright.train.setup import select_device

        questions = read_tasks(options.require_exists(folder))
        saved = open_model(options.require_exists(self.path), which=self.which)
        tokenizer = saved.run.tokenizer
        model = saved.load(device=select_device(self.device), precision=saved.training_precision)
        with console.phase_progress("measure", "endings") as progress:
            scores = score_questions(model, tokenizer, questions, progress=progress)
        if self.json:
            by_distance = {
                str(distance): {"num_questions": count, "accuracy": accuracy}
                for distance, (count, accuracy) in scores.by_distance().items()
            }
            figures = {
                "num_questions": len(questions),
                "accuracy": scores.accuracy,
                "by_distance": by_distance,
            }
            print(json.dumps({"checkpoint": str(saved.checkpoint), "folder": str(folder), **figures}))
            return
        rows = []
        for distance, (count, accuracy) in scores.by_distance().items():
            back = "1 sentence back" if distance == 1 else f"{distance} sentences back"
            rows.append((back, f"{count:,}", f"{accuracy:.1%}"))
        rows.append(("all questions", f"{len(questions):,}", f"{scores.accuracy:.1%}"))
        console.print_table(("the fact was stated", "questions", "correct"), rows)


def describe_recorded(recorded: RecordedLoss) -> str:
    """Return the figures that training recorded for a checkpoint, and why they can differ."""
    bits = f" and {recorded.bits_per_byte:.4f} bits per byte" if recorded.bits_per_byte is not None else ""
    kind = "windows that begin with documents," if recorded.windows == "documents" else "windows"
    return (
        f"At step {recorded.step:,} training recorded a loss of {recorded.validation_loss:.4f}{bits}: it"
        f" measures {kind} spread over this file (eval_tokens = {recorded.eval_tokens:,}), not all of it."
    )

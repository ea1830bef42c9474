"""`bytewright evaluate`: how good a run's model is on a token file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bytewright.cli import options
from bytewright.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Measure loss, perplexity and bits per byte of a run's model on a token file.

    All of the file is measured, in whole windows of the model's context; the tokens after the last window
    are left out. Training measures at most eval_tokens of it, so its figure can differ. Losses under
    different tokenizers cannot be compared; bits per byte can. With --stories each story of a text is
    measured whole, and compared with the known entropy if the text is from the storybook.

    For example:
      bytewright evaluate runs/base
      bytewright evaluate runs/base other.npy --which last --json
      bytewright evaluate runs/base --stories stories-valid.txt
    """

    path: options.RunPath

    file: options.OptionalFile = None
    """The token file; by default the validation data of the run."""

    stories: options.GivenFile = None
    """Measure on the stories of this text instead, each from the end token before it to its own."""

    which: Literal["best", "last"] = "best"
    """Which checkpoint of the run."""

    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"

    json: bool = False
    """Print the figures as JSON."""

    def run(self) -> None:
        """Measure and print."""
        from bytewright.cli import console, inputs
        from bytewright.train.evaluate_run import evaluate_run
        from bytewright.train.metrics import finite

        if self.stories is not None:
            self._evaluate_stories(self.stories)
            return
        with console.progress() as report:
            measured = evaluate_run(
                inputs.require_exists(self.path),
                self.file,
                which=self.which,
                device=self.device,
                progress=lambda done, total: report("measure", done, total, "tokens"),
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
        }
        if self.json:
            print(json.dumps(finite(figures), allow_nan=False))
            return
        table = _begin_table(measured.checkpoint, measured.file)
        table.add_row("loss (nats per token)", f"{evaluation.loss:.4f}")
        table.add_row("perplexity", f"{evaluation.perplexity:.3f}")
        if evaluation.bits_per_byte is not None:
            table.add_row("bits per byte", f"{evaluation.bits_per_byte:.4f}")
        table.add_row("tokens, in whole windows", f"{evaluation.num_tokens:,}")
        console.stdout().print(table)
        if recorded and f"{recorded.validation_loss:.4f}" != f"{evaluation.loss:.4f}":
            kind = "windows that begin with documents," if recorded.windows == "documents" else "windows"
            sentence = (
                f"At step {recorded.step:,} training recorded {recorded.validation_loss:.4f}: it measures"
                f" {kind} spread over this file (eval_tokens = {recorded.eval_tokens:,}), not all of it."
            )
            console.stdout().print(sentence, soft_wrap=True)

    def _evaluate_stories(self, text: Path) -> None:
        from bytewright.cli import console, inputs
        from bytewright.experiments.story_eval import evaluate_text
        from bytewright.train.checkpoint import find_checkpoint
        from bytewright.train.metrics import finite

        if self.file is not None:
            raise UsageError("give either a token file or --stories with a text, not both")
        with console.progress() as report:
            measured = evaluate_text(
                inputs.require_exists(self.path),
                inputs.require_file(text),
                which=self.which,
                device=self.device,
                progress=lambda done, total: report("measure", done, total, "stories"),
            )
        checkpoint = find_checkpoint(self.path, which=self.which)
        gap, error = measured.gap or (None, None)
        figures = {
            "checkpoint": str(checkpoint),
            "file": str(text),
            "bits_per_byte": measured.evaluation.bits_per_byte,
            "floor": measured.floor,
            "above_floor": gap,
            "standard_error": error,
            "loss": measured.evaluation.loss,
            "num_stories": len(measured.evaluation.bits),
        }
        if self.json:
            print(json.dumps(finite(figures), allow_nan=False))
            return
        table = _begin_table(checkpoint, text)
        table.add_row("bits per byte, whole stories", f"{measured.evaluation.bits_per_byte:.4f}")
        if gap is not None:
            table.add_row("entropy of these stories", f"{measured.floor:.4f}")
            several = len(measured.evaluation.bits) > 1
            table.add_row("above it", f"{gap:.4f} ± {error:.4f}" if several else f"{gap:.4f}")
        table.add_row("loss (nats per token)", f"{measured.evaluation.loss:.4f}")
        table.add_row("stories", f"{len(measured.evaluation.bits):,}")
        console.stdout().print(table)


def _begin_table(checkpoint: Path, file: Path) -> Table:
    """Begin the table of an evaluation with what was measured on what."""
    from bytewright.cli import console

    table = console.table("", "")
    table.add_row("checkpoint", str(checkpoint))
    table.add_row("file", str(file))
    return table

"""`bytewright evaluate`: how good a run's model is on a token file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bytewright.cli import options
from bytewright.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Measure loss, perplexity and bits per byte of a run's model on a token file.

    The file is read in whole windows of the model's context; the few tokens behind the last are left out.
    Losses under different tokenizers cannot be compared; bits per byte can. With --stories each story of a
    text is read whole, and set beside the known entropy if the text is from the storybook.

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
        evaluation = evaluate_run(
            inputs.require_exists(self.path), self.file, which=self.which, device=self.device
        )
        figures = {
            "loss": evaluation.loss,
            "perplexity": evaluation.perplexity,
            "bits_per_byte": evaluation.bits_per_byte,
            "num_tokens": evaluation.num_tokens,
        }
        if self.json:
            print(json.dumps(finite(figures), allow_nan=False))
            return
        table = console.table("", "")
        table.add_row("loss (nats per token)", f"{evaluation.loss:.4f}")
        table.add_row("perplexity", f"{evaluation.perplexity:.3f}")
        if evaluation.bits_per_byte is not None:
            table.add_row("bits per byte", f"{evaluation.bits_per_byte:.4f}")
        table.add_row("tokens, in whole windows", f"{evaluation.num_tokens:,}")
        console.stdout().print(table)

    def _evaluate_stories(self, text: Path) -> None:
        from bytewright.cli import console, inputs
        from bytewright.lab.whole_stories import evaluate_text
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
        gap, error = measured.gap or (None, None)
        figures = {
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
        table = console.table("", "")
        table.add_row("bits per byte, whole stories", f"{measured.evaluation.bits_per_byte:.4f}")
        if gap is not None:
            table.add_row("entropy of these stories", f"{measured.floor:.4f}")
            several = len(measured.evaluation.bits) > 1
            table.add_row("above it", f"{gap:.4f} ± {error:.4f}" if several else f"{gap:.4f}")
        table.add_row("loss (nats per token)", f"{measured.evaluation.loss:.4f}")
        table.add_row("stories", f"{len(measured.evaluation.bits):,}")
        console.stdout().print(table)

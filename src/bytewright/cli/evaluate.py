"""`bytewright evaluate`: how good a run's model is on a token file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

from bytewright.cli import options


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Measure loss, perplexity and bits per byte of a run's model on a whole token file.

    Losses under different tokenizers cannot be compared; bits per byte can.

    For example:
      bytewright evaluate runs/base
      bytewright evaluate runs/base other.npy --which last --json
    """

    path: options.RunPath

    file: options.OptionalFile = None
    """The token file; by default the validation data of the run."""

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
        table.add_row("tokens", f"{evaluation.num_tokens:,}")
        console.stdout().print(table)

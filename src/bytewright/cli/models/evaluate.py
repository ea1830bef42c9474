"""`bytewright evaluate`: measure the model of a run on a token file, on whole stories, or on questions."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from bytewright.cli import console, options
from bytewright.errors import FormatError, UsageError

if TYPE_CHECKING:
    from bytewright.experiments.evaluation.world_eval import ExcessReport
    from bytewright.train.run_model import RecordedLoss

EXCESS_TITLES = {
    "kind": "kind of choice",
    "rule": "rule",
    "rank": "rank of the person",
    "distance": "characters since the holder was stated",
    "depth": "depth of nesting",
    "moves": "moves of the thing",
}
ROWS_SHOWN = 16
"""How many rows of a table of excess bits are shown."""


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
    endings: Annotated[Path | None, options.arg("FOLDER")] = None
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
            self._evaluate_documents(self.stories)
            return
        if self.endings is not None:
            self._answer_questions(self.endings)
            return
        from bytewright.train.metrics import finite
        from bytewright.train.run_model import evaluate_run

        try:
            with console.phase_progress("measure", "tokens") as progress:
                measured = evaluate_run(
                    self.path, self.file, which=self.which, device=self.device, progress=progress
                )
        except FormatError as error:
            if error.key != "magic":
                raise
            message = f"{error}, or measure its stories with --stories"
            raise FormatError(message, path=error.path, key=error.key, found=error.found) from None
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

    def _evaluate_documents(self, text: Path) -> None:
        from bytewright.experiments.evaluation.document_eval import evaluate_text
        from bytewright.train.metrics import finite
        from bytewright.train.run_model import open_model

        with console.phase_progress("measure", "stories") as progress:
            measured = evaluate_text(
                self.path, options.require_file(text), which=self.which, device=self.device, progress=progress
            )
        if measured.mismatch:
            console.print_remark(f"{text} is compared with no entropy: {measured.mismatch}.")
        checkpoint = open_model(self.path, which=self.which).checkpoint
        num_documents = len(measured.evaluation.bits)
        if measured.num_long:
            console.print_remark(
                f"{measured.num_long:,} of {num_documents:,} documents"
                f" {'is' if measured.num_long == 1 else 'are'} longer than the context of"
                f" {measured.context_length:,} tokens. Their last tokens are predicted from a part of"
                " the document only."
            )
        gap, error = measured.gap or (None, None)
        figures: dict[str, object] = {
            "checkpoint": str(checkpoint),
            "file": str(text),
            "bits_per_byte": measured.evaluation.bits_per_byte,
            "floor": measured.floor,
            "above_floor": gap,
            "standard_error": error,
            "loss": measured.evaluation.loss,
            "num_stories": num_documents,
            "num_longer_than_context": measured.num_long,
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
            rows["above it"] = f"{gap:.4f} ± {error:.4f}" if num_documents > 1 else f"{gap:.4f}"
        rows["loss (nats per token)"] = f"{measured.evaluation.loss:.4f}"
        rows["stories"] = f"{num_documents:,}"
        console.print_table(("", ""), rows.items())
        if measured.excess is not None:
            print_excess(measured.excess, num_documents)

    def _answer_questions(self, folder: Path) -> None:
        from bytewright.interop.endings import read_tasks, score_questions
        from bytewright.train.run_model import open_model
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


def print_excess(report: ExcessReport, num_documents: int) -> None:
    """Print the tables of excess bits; the rows of each table add up to the same total."""
    from bytewright.experiments.evaluation.world_eval import add_rows

    console.print_line("Means per document; excess = model bits - true bits:")
    for name, title in EXCESS_TITLES.items():
        rows = list(report.tables[name].items())
        if len(rows) > ROWS_SHOWN:
            rows = [*rows[: ROWS_SHOWN - 1], ("others", add_rows(row for _, row in rows[ROWS_SHOWN - 1 :]))]
        lines = []
        for label, row in [*rows, ("all", report.total(name))]:
            figures = (row.true_bits, row.model_bits, row.excess)
            cells = [f"{figure / num_documents:.3f}" for figure in figures]
            lines.append(
                ["none" if label == "-" else label, f"{row.num_choices / num_documents:.2f}", *cells]
            )
        console.print_line("")
        console.print_table((title, "choices", "true bits", "model bits", "excess"), lines)

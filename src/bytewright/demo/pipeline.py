"""Run the demo: prepare a corpus, train a model, evaluate it, sample stories from it, and check them.

An interrupted demo continues where it stopped: `prepare_corpus` reuses its files, and training resumes from
the last checkpoint. `results.json` records the results of the last three stages and the settings that
determine them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.text import Text

import bytewright
from bytewright.account import count_parameters
from bytewright.account.devices import machine_of
from bytewright.corpus import SEPARATOR
from bytewright.corpus.storybook import check_story_file, read_stories
from bytewright.demo.page import DemoResults, write_demo_page
from bytewright.demo.plan import Plan
from bytewright.errors import BytewrightError, UsageError, escape_controls
from bytewright.experiments.corpora import prepare_corpus, text_files
from bytewright.experiments.evaluation.document_eval import DocumentTokens, evaluate_text
from bytewright.experiments.evaluation.stories import generate_stories
from bytewright.experiments.records import read_floor
from bytewright.formatting import PhaseProgress, format_seconds
from bytewright.model import TransformerLM
from bytewright.storage import atomic
from bytewright.tokenizer import Tokenizer
from bytewright.train import TrainResult, resume, train
from bytewright.train.config import DataConfig, TrainConfig
from bytewright.train.recipe import to_plain
from bytewright.train.run import Run
from bytewright.train.session.costs import predict_run
from bytewright.train.session.timing import expected_seconds, measure_slowdown

StageProgress = Callable[[], AbstractContextManager[PhaseProgress]]
"""Returns a context manager that shows the progress of a stage."""

NUM_STAGES = 5
PLAN, DATA, RUN = "plan.json", "data", "run"
SAMPLES, RESULTS, REPORT = "samples.txt", "results.json", "report.html"


@dataclass(frozen=True)
class Outcome:
    """The path of the report, and the signal that interrupted the demo, if any."""

    report: Path
    received: signal.Signals | None = None


def run_demo(folder: Path, *, plan: Plan | None = None, out: Console, progress: StageProgress) -> Outcome:
    """Run or continue the demo of `plan` in `folder`, and print its results on `out`."""
    check_demo_folder(folder)
    return _Demo(folder, plan or Plan(), out, progress).run()


def check_demo_folder(folder: Path) -> None:
    """Raise `UsageError` unless the folder is new, empty or that of an earlier demo."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; the demo needs a folder", path=folder)
    if folder.is_dir() and any(folder.iterdir()) and not (folder / PLAN).is_file():
        raise UsageError(f"{folder} is not empty and holds no demo; choose another folder", path=folder)
    atomic.check_target(folder / REPORT, replace=True)
    for name in (PLAN, DATA, RUN):
        atomic.check_no_links(folder / name, within=folder)


@dataclass(frozen=True)
class _Demo:
    folder: Path
    plan: Plan
    out: Console
    progress: StageProgress

    def run(self) -> Outcome:
        report, run = self.folder / REPORT, self.folder / RUN
        self._print(
            f"This trains a small model on generated stories in {self.folder}. It takes about four minutes on"
            " two idle cores. Press Ctrl-C to interrupt it; the same command continues."
        )
        atomic.write_json(self.folder / PLAN, dataclasses.asdict(self.plan))
        data = self._prepare_corpus()
        config = self.plan.train_config(data)
        predicted = None if self._is_trained(config) else _predict_seconds(config)
        trained = self._train(config, predicted)
        if trained.received:
            self._print(f"Saved step {trained.step:,}; the same command continues.")
            return Outcome(report, trained.received)
        results = self._evaluate(config, predicted)
        write_demo_page(
            DemoResults(
                plan=self.plan,
                config=config,
                run=run,
                samples=self.folder / SAMPLES,
                **results,
            ),
            report,
        )
        self.out.print()
        activate = Path(sys.prefix) / "bin" / "activate"
        if shutil.which("bytewright") is None and activate.is_file():
            self._print("The commands below need the virtual environment:")
            self._print(f"  . {os.path.relpath(activate)}")
        self._print("The model is an ordinary run:")
        self._print(f"  bytewright generate {run}")
        self._print(f"  bytewright evaluate {run}")
        self._print("Show its training and generate text in a browser:")
        self._print(f"  bytewright studio {self.folder}")
        self._print("Open the report in a browser:")
        self._print(str(report.absolute()))
        return Outcome(report)

    def _prepare_corpus(self) -> DataConfig:
        size = f"{self.plan.train_bytes / 1e6:g} MB"
        self._announce(
            1, f"Generate {size} of stories, and train a tokenizer of {self.plan.vocab_size:,} tokens", 1.5
        )
        with self.progress() as progress:
            data = prepare_corpus(self.plan.corpus_config(), self.folder / DATA, progress)
        self._print("The first story:")
        self._print_story(next(read_stories(text_files(data)[0])))
        self._print(
            f"The entropy of the validation stories is {read_floor(str(data.validation)):.4f} bits per byte."
            " It is the floor of the loss."
        )
        return data

    def _has_run(self, config: TrainConfig) -> bool:
        """Return whether the folder has a run of this config."""
        run = Run(self.folder / RUN)
        return run.exists and run.config == dataclasses.replace(config, data=config.data.absolute())

    def _is_trained(self, config: TrainConfig) -> bool:
        return self._has_run(config) and Run(self.folder / RUN).status.state == "complete"

    def _train(self, config: TrainConfig, predicted: float | None) -> TrainResult:
        """Train the model, or resume the run if it has the same config."""
        assert config.data.tokenizer is not None
        self._announce(
            2,
            f"Train a model of {count_parameters(config.model).total:,} parameters on the CPU",
            predicted,
            " at the present speed of this machine",
        )
        validation = DocumentTokens.read(text_files(config.data)[1], Tokenizer.load(config.data.tokenizer))

        def probe(model: TransformerLM) -> Mapping[str, float]:
            return {"story_bits_per_byte": validation.evaluate(model).bits_per_byte}

        run = self.folder / RUN
        if self._has_run(config):
            return resume(run, probe=probe, console=self.out)
        if run.exists():
            atomic.remove_folder(run)  # it belongs to an earlier plan
        return train(config, run, probe=probe, console=self.out)

    def _evaluate(self, config: TrainConfig, predicted: float | None) -> dict[str, Any]:
        """Return the results of stages 3 to 5, from `results.json` if they were computed before.

        That file also keeps the predicted time of the training: a later prediction would not be one.
        """
        plan, path = self.plan.sampling_plan(), self.folder / RESULTS
        settings = {
            "bytewright": bytewright.__version__,
            "train": to_plain(config),
            "sampling": dataclasses.asdict(plan),
        }
        kept: dict[str, Any] = {}
        with contextlib.suppress(BytewrightError):  # missing or damaged: compute the results again
            kept = atomic.read_document(path)
        if kept.get("settings") != settings or not (self.folder / SAMPLES).is_file():
            kept = {"settings": settings, "predicted_seconds": predicted, **self._compute_results(config)}
            atomic.write_document(path, kept)
        measured, checked = kept["measured"], kept["checked"]
        self._print(
            f"Loss on whole validation stories: {measured['bits_per_byte']:.4f} bits per byte, which is"
            f" {measured['gap']:.4f} ± {measured['standard_error']:.4f} above the floor of"
            f" {measured['floor']:.4f}."
        )
        self._print("The first generated story:")
        self._print_story(next(read_stories(self.folder / SAMPLES)))
        self._print(
            f"Grammatical sentences: {checked['sound_sentences']:.1%}. Well-formed stories:"
            f" {checked['well_formed']:.1%}. Consistent stories: {checked['consistent']:.1%}."
            f" Copies of training stories: {checked['copies']:.1%}."
        )
        return {
            "measured": measured,
            "checked": checked,
            "predicted_seconds": kept.get("predicted_seconds"),
        }

    def _compute_results(self, config: TrainConfig) -> dict[str, Any]:
        run, plan = self.folder / RUN, self.plan.sampling_plan()
        train_text, validation_text = text_files(config.data)
        self._announce(3, "Evaluate it on whole validation stories", 1)
        with self.progress() as progress:
            found = evaluate_text(
                run,
                validation_text,
                which="last",
                device="cpu",
                progress=lambda done, total: progress("evaluate", done, total, "stories"),
            )
        assert found.gap is not None
        self._announce(4, f"Generate {plan.num_stories} stories with it", 10)
        with self.progress() as progress:
            stories, _ = generate_stories(
                run,
                plan,
                device="cpu",
                progress=lambda done, total: progress("generate", done, total, "stories"),
            )
        atomic.write_text(self.folder / SAMPLES, "".join(story + SEPARATOR for story in stories))
        self._announce(5, "Parse these stories with the grammar", 1)
        with self.progress() as progress:
            checked = check_story_file(
                self.folder / SAMPLES,
                training_path=train_text,
                progress=lambda done, total: progress("check", done, total, "bytes"),
            )
        checks = [dataclasses.asdict(story) for story in checked.stories]
        for check in checks:
            check["bits"] = check["bits"] if math.isfinite(check["bits"]) else None
        measured = {
            "bits_per_byte": found.evaluation.bits_per_byte,
            "floor": found.floor,
            "gap": found.gap[0],
            "standard_error": found.gap[1],
            "num_stories": len(found.evaluation.bits),
            "num_bytes": int(found.evaluation.num_bytes.sum()),
        }
        shares = ("sound_sentences", "well_formed", "consistent", "copies")
        return {
            "measured": measured,
            "checked": {name: getattr(checked, name) for name in shares} | {"stories": checks},
        }

    def _announce(self, number: int, what: str, seconds: float | None, condition: str = "") -> None:
        """Print what a stage does and how long it takes; without a time, it is complete already."""
        time = "already complete" if seconds is None else f"about {format_seconds(seconds)}{condition}"
        self.out.print()
        self.out.print(f"{number} of {NUM_STAGES}. {what} ({time}).", style="bold")

    def _print_story(self, story: str) -> None:
        self.out.print(Text(escape_controls(story, keep="\n")), style="italic")

    def _print(self, sentence: str) -> None:
        self.out.print(sentence, soft_wrap=True)


def _predict_seconds(config: TrainConfig) -> float:
    """Return the expected time of the training, from a few timed steps."""
    cpu = torch.device("cpu")
    by_formula = predict_run(config, machine_of(cpu))
    return expected_seconds(config, by_formula, measure_slowdown(config, by_formula, cpu)) or 0.0

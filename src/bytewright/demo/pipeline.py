"""The demo from its first stage to its last: says what comes, does what is not done yet, shows what came out.

Whatever is done is recognised the next time (`ledger`), so the demo can be interrupted anywhere and started
again, and a second run takes seconds. This module decides the order and the words; the work is in `stages`,
the page in `report`.
"""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from bytewright.account import count_parameters
from bytewright.corpus.storybook import read_stories
from bytewright.demo import stages
from bytewright.demo.ledger import PLAN, STAGES, Record, StageCache
from bytewright.demo.page import Results, write_demo_page
from bytewright.demo.plan import EXPECTED_SECONDS, Plan
from bytewright.demo.stages import Report
from bytewright.errors import UsageError, escape_controls
from bytewright.experiments.records import read_run
from bytewright.formatting import format_seconds
from bytewright.storage.atomic import check_target, refuse_links
from bytewright.train.recipe import to_plain

Progress = Callable[[], AbstractContextManager[Report]]
"""Shows the progress of a block."""

NUM_STAGES = 7
REPORT = "report.html"


@dataclass(frozen=True)
class Outcome:
    """How the demo ended: with a report, or by a signal, after which it can be started again."""

    report: Path
    received: signal.Signals | None = None


def run_demo(folder: Path, *, plan: Plan | None = None, out: Console, progress: Progress) -> Outcome:
    """Make everything that `plan` says in `folder`, and talk about it on `out`."""
    _refuse_foreign(folder)
    for path in (stages.TRAIN, stages.TRAIN_TOKENS, stages.TOKENIZER, stages.RUN, f"{STAGES}/{PLAN}"):
        refuse_links(folder / path, within=folder)
    return _Show(folder, plan or Plan(), out, progress).run()


class _Show:
    def __init__(self, folder: Path, plan: Plan, out: Console, progress: Progress) -> None:
        self.folder, self.plan, self.out, self.progress = folder, plan, out, progress
        self.ledger = StageCache(folder)
        self.records: dict[str, Record] = {}

    def run(self) -> Outcome:
        """Go through the stages."""
        report = self.folder / REPORT
        self._say(
            f"From nothing to a model that tells stories, in {self.folder}: about four minutes on two cores"
            " the first time. Press Ctrl-C at any time; the same command goes on from there."
        )
        self.ledger.open(dataclasses.asdict(self.plan))
        try:
            self._tell_stories()
        except BaseException:
            self.ledger.leave()
            raise
        self._learn_tokens()
        self._encode()
        validation = stages.Validation.open(self.folder, self.records["stories"].facts["floor_bits"])
        received = self._train(validation)
        if received:
            return Outcome(report, received)
        self._measure(validation)
        self._sample()
        self._check()
        write_demo_page(Results(folder=self.folder, plan=self.plan, records=self.records), report)
        run = self.folder / stages.RUN
        self.out.print()
        self._say("The model is a run like any other:")
        self._say(f"  bytewright generate {run}")
        self._say(f"  bytewright evaluate {run}")
        self._say("The report, to be opened in a browser:")
        self._say(str(report.absolute()))
        return Outcome(report)

    def _tell_stories(self) -> None:
        plan = self.plan
        told = self._stage(
            "stories",
            f"Telling {plan.train_bytes / 1e6:g} MB of stories from a grammar that knows how likely each is",
            {"grammar": stages.hash_grammar(), **plan.settings("seed", "train_bytes", "validation_bytes")},
            [stages.TRAIN, stages.VALIDATION],
            lambda report: stages.tell_stories(self.folder, plan, report),
        )
        self._say(f"{told['num_stories']:,} stories. The first:")
        self._show_story(told["first"])

    def _learn_tokens(self) -> None:
        self._stage(
            "tokenizer",
            f"Training a tokenizer on them: from 256 bytes to {self.plan.vocab_size:,} tokens",
            {"stories": self.records["stories"].identity, **self.plan.settings("vocab_size")},
            [f"{stages.TOKENIZER}/{name}" for name in ("manifest.json", "vocabulary.json")],
            lambda report: stages.learn_tokens(self.folder, self.plan),
        )

    def _encode(self) -> None:
        encoded = self._stage(
            "tokens",
            "Encoding the stories with it",
            {"tokenizer": self.records["tokenizer"].identity},
            [stages.TRAIN_TOKENS, stages.VALIDATION_TOKENS, stages.FLOOR],
            lambda report: stages.encode_stories(
                self.folder, self.records["stories"].facts["floor_bits"], report
            ),
        )
        self._say(
            f"{encoded['num_tokens']:,} tokens of {encoded['bytes_per_token']:.2f} bytes each. The validation"
            f" stories carry {encoded['floor']:.4f} bits per byte: their entropy, the floor under the loss."
        )

    def _train(self, validation: stages.Validation) -> signal.Signals | None:
        """Train: a stage of its own kind, which is resumed in its middle and ended by signals."""
        encoded = self.records["tokens"]
        config = self.plan.train_config(self.folder, self.records["tokenizer"].facts["vocab_size"])
        settings = {name: value for name, value in to_plain(config).items() if name != "data"}
        inputs = {"tokens": encoded.identity, "config": settings}
        what = f"Training a model of {count_parameters(config.model).total:,} parameters on the processor"
        found = self.ledger.find("run", inputs)
        if found:
            self._announce(f"{what}: done already, in {format_seconds(found.seconds)}.")
        else:
            per_step = stages.time_step(config)
            left = per_step * stages.count_steps_left(self.folder / stages.RUN, config)
            self._announce(f"{what} (about {format_seconds(left)} at the speed of this machine).")
            result = stages.train_model(self.folder, self.plan, validation, encoded.facts, self.out)
            if result.received:
                self._say(f"Saved step {result.step:,}; the same command goes on from there.")
                return result.received
            record = read_run(self.folder / stages.RUN)
            facts = {"predicted_seconds": per_step * self.plan.num_steps, **record.measured}
            checkpoint = f"{stages.RUN}/checkpoints/step-{result.step:06d}"
            files = [f"{checkpoint}/{name}" for name in ("manifest.json", "model.safetensors")]
            found = self.ledger.keep("run", inputs, files, facts, record.measured["seconds"])
        self.records["run"] = found
        return None

    def _measure(self, validation: stages.Validation) -> None:
        measured = self._stage(
            "measure",
            "Measuring it on whole validation stories",
            {"run": self.records["run"].identity},
            [],
            lambda report: stages.measure_model(self.folder, validation),
        )
        self._say(
            f"{measured['bits_per_byte']:.4f} bits per byte, which is {measured['gap']:.4f} ±"
            f" {measured['standard_error']:.4f} above the floor of {measured['floor']:.4f}."
        )

    def _sample(self) -> None:
        settings = self.plan.settings("seed", "num_samples", "temperature", "top_p")
        self._stage(
            "samples",
            f"Letting it tell {self.plan.num_samples} stories of its own",
            {"run": self.records["run"].identity, **settings},
            [stages.SAMPLES],
            lambda report: stages.sample_stories(self.folder, self.plan, report),
        )
        self._say("The first:")
        self._show_story(next(read_stories(self.folder / stages.SAMPLES)))

    def _check(self) -> None:
        checked = self._stage(
            "check",
            "Parsing them back: which are in the language, and which keep their facts straight",
            {"samples": self.records["samples"].identity},
            [],
            lambda report: stages.check_samples(self.folder, report),
        )
        self._say(
            f"Well-formed sentences: {checked['sound_sentences']:.1%}. Well-formed stories:"
            f" {checked['well_formed']:.1%}. Consistent to the end: {checked['consistent']:.1%}."
            f" Copies of training stories: {checked['copies']:.1%}."
        )

    def _stage(
        self,
        name: str,
        what: str,
        inputs: Mapping[str, Any],
        files: Iterable[str],
        work: Callable[[Report], Mapping[str, Any]],
    ) -> Mapping[str, Any]:
        """Say what a stage will do and how long it takes, do it unless it is done, and give its figures."""
        found = self.ledger.find(name, inputs)
        if found:
            self._announce(f"{what}: done already, in {format_seconds(found.seconds)}.")
        else:
            self._announce(f"{what} (about {format_seconds(EXPECTED_SECONDS[name])}).")
            with self.progress() as report:
                found = self.ledger.do(name, inputs, files, lambda: work(report))
        self.records[name] = found
        return found.facts

    def _announce(self, sentence: str) -> None:
        self.out.print()
        self.out.print(f"{len(self.records) + 1} of {NUM_STAGES}. {sentence}", style="bold")

    def _show_story(self, story: str) -> None:
        self.out.print(Text(escape_controls(story, keep="\n")), style="italic")

    def _say(self, sentence: str) -> None:
        self.out.print(sentence, soft_wrap=True)


def _refuse_foreign(folder: Path) -> None:
    """Refuse a folder that holds something else than an earlier run of the demo."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; the demo needs a folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / STAGES).is_dir():
        raise UsageError(f"{folder} is not empty and holds no demo; choose another folder with --out")
    check_target(folder / REPORT, replace=True)

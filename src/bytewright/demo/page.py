"""The demo's page: the curve above its floor, the stories that were told, their check, the tokens, the cost.

Takes the records of the stages and the run's own metrics, and writes one self-contained HTML file. What is
shown was measured in this run; what was chosen for show is said to be chosen. Computes nothing new.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bytewright.account import count_parameters, training_flops_per_token
from bytewright.corpus.storybook import read_stories
from bytewright.demo import stages
from bytewright.demo.ledger import Record
from bytewright.demo.plan import EXPECTED_SECONDS, Plan
from bytewright.experiments.records import RunRecord, read_run
from bytewright.report.charts import Axis, Chart, Reference, Series
from bytewright.report.page import Figure, KeyFigures, Page, PageSection, Sample, Samples, Table, write_html
from bytewright.tokenizer import Tokenizer
from bytewright.tokenizer.inspect import longest_tokens, show_token, split_text

STORIES_SHOWN = 6
EARLY = 0.08
"""The share of the run whose steep fall leaves the chart at the top, so that the rest can be seen."""


@dataclass(frozen=True, kw_only=True)
class Results:
    """What the stages gave."""

    folder: Path
    plan: Plan
    records: dict[str, Record]

    def facts(self, stage: str) -> Any:
        """Give the figures of a stage."""
        return self.records[stage].facts


def write_demo_page(results: Results, path: Path) -> None:
    """Write the page."""
    write_html(make_page(results), path)


def make_page(results: Results) -> Page:
    """Put the page together."""
    measured, checked = results.facts("measure"), results.facts("check")
    run = read_run(results.folder / stages.RUN)
    return Page(
        title="From nothing to a model that tells stories",
        lead=(
            "A grammar told stories, a tokenizer learned their words, a small Transformer learned to tell"
            " more of them, and what it told was parsed back. The grammar states how probable each story is,"
            " so the loss has a floor: the entropy of the stories."
        ),
        figures=KeyFigures(
            [
                ("floor", f"{measured['floor']:.3f}", "bits per byte, exact"),
                (
                    "model",
                    f"{measured['bits_per_byte']:.3f}",
                    f"{measured['gap']:.3f} ± {measured['standard_error']:.3f} above it",
                ),
                ("sentences", f"{checked['sound_sentences']:.1%}", "well-formed"),
                ("stories", f"{checked['well_formed']:.1%}", "well-formed throughout"),
                ("consistent", f"{checked['consistent']:.1%}", "facts kept to the end, too"),
            ]
        ),
        sections=[
            PageSection("The curve", _curve(results, run)),
            PageSection("Stories it told", _stories(results)),
            PageSection("How they were checked", _check(results)),
            PageSection("On the way", _on_the_way(run, results)),
            PageSection("Tokens", _tokens(results)),
            PageSection("What it cost", _cost(results, run)),
            PageSection("Going on", _going_on(results)),
        ],
        footer="Written by `bytewright demo`; every figure was measured in this run.",
    )


def _curve(results: Results, run: RunRecord) -> list[str | Figure]:
    measured = results.facts("measure")
    bits_per_nat = 1 / results.facts("tokens")["bytes_per_token"] / math.log(2)
    training = [(float(line["tokens"]), loss * bits_per_nat) for line, loss in run.column("loss")]
    stories = [(float(line["tokens"]), bits) for line, bits in run.column("story_bits_per_byte")]
    early = training[min(len(training) - 1, int(EARLY * len(training)))][1] if training else 1.0
    chart = Chart(
        title="Bits per byte while it learned",
        description="Training loss and whole validation stories against tokens, above the entropy floor",
        x=Axis("tokens"),
        y=Axis("bits per byte", limits=(0.85 * measured["floor"], max(1.1 * early, 2 * measured["floor"]))),
        series=[Series("training windows", training), Series("whole validation stories", stories)],
        references=[Reference("entropy floor", measured["floor"])],
    )
    return [
        Figure(
            chart,
            "Training windows begin with a story and end within the next one. Whole stories are read from the"
            " end of the one before to their own end, as the floor is.",
        ),
        f"The floor is the sum of -log2 p of the {measured['num_stories']} validation stories over the sum of"
        f" their {measured['num_bytes']:,} bytes; the model's figure is computed alike, its prediction of the"
        " end of each story included.",
    ]


def _stories(results: Results) -> list[str | Samples]:
    texts = list(read_stories(results.folder / stages.SAMPLES))[:STORIES_SHOWN]
    checks = results.facts("check")["stories"]
    samples = [
        Sample(f"Story {number}", text, note=_verdict(check))
        for number, (text, check) in enumerate(zip(texts, checks, strict=False), start=1)
    ]
    plan = results.plan
    return [
        f"The first {len(samples)} of {plan.num_samples}, not chosen; temperature {plan.temperature}, top-p"
        f" {plan.top_p}. All of them are in `{stages.SAMPLES}`.",
        Samples(samples),
    ]


def _verdict(check: dict[str, Any]) -> str:
    if check["is_consistent"]:
        copied = "; a copy of a training story" if check["is_copy"] else ""
        return f"In the language, facts and all: {check['bits']:.0f} bits{copied}."
    place = f"leaves the language in sentence {check['leaves_at_sentence']} of {check['num_sentences']}"
    about = (
        f"; contradicts itself about {', '.join(check['contradictions'])}" if check["contradictions"] else ""
    )
    shape = "Well-formed, but" if check["has_shape"] else "It"
    return f"{shape} {place}{about}."


def _check(results: Results) -> list[str | Table]:
    checked = results.facts("check")
    counts = Counter(name for story in checked["stories"] for name in story["contradictions"])
    rows: list[Sequence[str | int]] = [
        ["sentences that some rule of the grammar gives", f"{checked['sound_sentences']:.1%}"],
        ["stories whose sentences follow each other as they should", f"{checked['well_formed']:.1%}"],
        ["stories that keep name, pronoun, thing and place to the end", f"{checked['consistent']:.1%}"],
        ["stories that stand in the training text word for word", f"{checked['copies']:.1%}"],
    ]
    blocks: list[str | Table] = [
        f"Each of the {len(checked['stories'])} stories was parsed with the grammar that told the training"
        " stories. A text is in the language, or it is not; nobody has to judge.",
        Table(["share of", "percent"], rows),
    ]
    if counts:
        common = ", ".join(f"{name} ({count})" for name, count in counts.most_common(6))
        blocks.append(f"What stories contradict themselves about most often: {common}.")
    return blocks


def _on_the_way(run: RunRecord, results: Results) -> list[str | Samples]:
    tokens = results.plan.batch_size * results.plan.context_length
    samples = [
        Sample(f"After {step * tokens:,} tokens", text.strip()[:600])
        for step, text in sorted(run.samples.items())
    ]
    return ["The same first draw of chance, at several moments of the training.", Samples(samples)]


def _tokens(results: Results) -> list[str | Table]:
    tokenizer = Tokenizer.load(results.folder / stages.TOKENIZER)
    first = results.facts("stories")["first"]
    sentence = first[: first.find(".", 60) + 1]
    pieces = " | ".join(show_token(piece.token) for piece in split_text(tokenizer, sentence))
    longest: list[Sequence[str | int]] = [
        [show_token(token), id] for id, token in longest_tokens(tokenizer.vocabulary, 10)
    ]
    return [
        f"The tokenizer learned {results.facts('tokenizer')['num_merges']:,} merges; a token stands for"
        f" {results.facts('tokens')['bytes_per_token']:.2f} bytes of these stories on average. How it reads"
        " the beginning of the first story:",
        f"`{pieces}`",
        Table(["longest tokens", "id"], longest, caption="The longest tokens", folded=True),
    ]


def _cost(results: Results, run: RunRecord) -> list[str | Table]:
    plan, trained = results.plan, results.facts("run")
    config = plan.train_config(results.folder, results.facts("tokenizer")["vocab_size"])
    parameters = count_parameters(config.model)
    num_tokens = plan.num_steps * config.tokens_per_step
    flops = training_flops_per_token(config.model) * num_tokens
    seconds: list[Sequence[str | float]] = [
        [name, EXPECTED_SECONDS.get(name) or trained["predicted_seconds"], round(record.seconds, 1)]
        for name, record in results.records.items()
    ]
    speed = run.measured.get("tokens_per_second", 0.0)
    return [
        Table(
            ["stage", "predicted seconds", "measured seconds"],
            seconds,
            caption="Predicted before each stage: from two quiet cores of a server, and for the training from"
            " a few steps on this machine. What was done in an earlier session is told as it was then.",
        ),
        Table(
            ["the model", ""],
            [
                ["parameters", f"{parameters.total:,}"],
                ["tokens it learned from", f"{num_tokens:,}"],
                ["operations of the training, from its shape", f"{flops / 1e12:.2f} TFLOP"],
                ["operations per second, measured", f"{flops / num_tokens * speed / 1e9:.1f} GFLOP/s"],
                ["tokens per second, measured", f"{speed:,.0f}"],
            ],
        ),
    ]


def _going_on(results: Results) -> list[str]:
    run = results.folder / stages.RUN
    return [
        f"`bytewright generate {run}` tells another story; try `--prompt`, `--temperature` and `--seed`.",
        f"`bytewright evaluate {run}` measures it again, by windows; `--stories` reads whole stories.",
        "`bytewright corpus storybook --size 50MB --out stories.txt` tells more stories to learn from, and"
        " `bytewright train` takes a recipe of your own.",
    ]

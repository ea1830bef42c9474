"""The report of the demo: loss curve and floor, generated stories, their check, the tokens, and the cost."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bytewright.account import count_parameters, training_flops_per_token
from bytewright.corpus.storybook import read_stories
from bytewright.data.tokenfile import TokenFile
from bytewright.demo.plan import Plan
from bytewright.experiments.corpora import text_files
from bytewright.experiments.records import RunRecord, read_run
from bytewright.formatting import format_seconds
from bytewright.report.charts import Axis, Chart, ReferenceLine, Series
from bytewright.report.page import (
    Block,
    Figure,
    KeyFigures,
    Page,
    PageSection,
    Sample,
    Samples,
    Table,
    write_html,
)
from bytewright.tokenizer import Tokenizer
from bytewright.tokenizer.inspect import longest_tokens, show_token, split_text
from bytewright.train.config import TrainConfig
from bytewright.train.setup import count_token_bytes

STORIES_SHOWN = 6
EARLY = 0.08
"""The initial share of the run that may exceed the upper limit of the chart, since the loss falls steeply."""


@dataclass(frozen=True, kw_only=True)
class DemoResults:
    """The results of all stages."""

    plan: Plan
    config: TrainConfig
    run: Path
    samples: Path
    measured: dict[str, Any]
    checked: dict[str, Any]
    predicted_seconds: float | None
    """Predicted before the training; None if that is not recorded."""

    def load_tokenizer(self) -> Tokenizer:
        """Return the tokenizer of the run."""
        assert self.config.data.tokenizer is not None
        return Tokenizer.load(self.config.data.tokenizer)

    def bytes_per_token(self) -> float:
        """Return the mean length of a token of the training text."""
        tokens = TokenFile.open(self.config.data.train).tokens
        token_bytes = count_token_bytes(self.load_tokenizer().vocabulary)
        return int(token_bytes[tokens].sum()) / len(tokens)


def write_demo_page(results: DemoResults, path: Path) -> None:
    """Write the page as one self-contained HTML file."""
    measured, checked = results.measured, results.checked
    run, bytes_per_token = read_run(results.run), results.bytes_per_token()
    page = Page(
        title="A small language model, from raw text to checked stories",
        lead=(
            "A grammar generated stories. A tokenizer and a small Transformer were trained on them. The"
            " stories that the model then generated were parsed with the grammar. The grammar gives the"
            " probability of every story, so their entropy is known: it is the floor of the loss."
        ),
        figures=KeyFigures(
            [
                ("floor", f"{measured['floor']:.3f}", "bits per byte, exact"),
                (
                    "model",
                    f"{measured['bits_per_byte']:.3f}",
                    f"{measured['gap']:.3f} ± {measured['standard_error']:.3f} above it",
                ),
                ("sentences", f"{checked['sound_sentences']:.1%}", "grammatical"),
                ("stories", f"{checked['well_formed']:.1%}", "well-formed"),
                ("consistent", f"{checked['consistent']:.1%}", "well-formed without contradictions"),
            ]
        ),
        sections=[
            PageSection("Loss curve", _curve_blocks(results, run, bytes_per_token)),
            PageSection("Generated stories", _story_blocks(results)),
            PageSection("How the stories were checked", _check_blocks(results)),
            PageSection("Samples during training", _sample_blocks(run, results)),
            PageSection("Tokens", _token_blocks(results, bytes_per_token)),
            PageSection("Cost", _cost_blocks(results, run)),
            PageSection("Next steps", _next_step_blocks(results)),
        ],
        footer="Written by `bytewright demo`; all figures were measured in this run.",
    )
    write_html(page, path)


def _curve_blocks(results: DemoResults, run: RunRecord, bytes_per_token: float) -> list[Block]:
    measured, bits_per_nat = results.measured, 1 / bytes_per_token / math.log(2)
    training = [(float(line["tokens"]), loss * bits_per_nat) for line, loss in run.column("loss")]
    stories = [(float(line["tokens"]), bits) for line, bits in run.column("story_bits_per_byte")]
    early = training[min(len(training) - 1, int(EARLY * len(training)))][1] if training else 1.0
    chart = Chart(
        title="Bits per byte during training",
        description="Training loss and loss on whole validation stories by tokens, above the entropy floor",
        x=Axis("tokens"),
        y=Axis("bits per byte", limits=(0.85 * measured["floor"], max(1.1 * early, 2 * measured["floor"]))),
        series=[Series("training windows", training), Series("whole validation stories", stories)],
        references=[ReferenceLine("entropy floor", measured["floor"])],
    )
    return [
        Figure(
            chart,
            "Training windows start with a story and end within the next one. Whole stories are evaluated"
            " from the end of the previous story to their own end, like the floor.",
        ),
        f"The floor is the sum of -log2 p of the {measured['num_stories']} validation stories divided by"
        f" their {measured['num_bytes']:,} bytes. The model's value is computed in the same way, and includes"
        " the prediction of the end of each story.",
    ]


def _story_blocks(results: DemoResults) -> list[Block]:
    texts = list(read_stories(results.samples))[:STORIES_SHOWN]
    samples = [
        Sample(f"Story {number}", text, note=_describe_check(check))
        for number, (text, check) in enumerate(zip(texts, results.checked["stories"], strict=False), start=1)
    ]
    plan = results.plan
    return [
        f"The first {len(samples)} of {plan.num_samples} stories; temperature {plan.temperature}, top-p"
        f" {plan.top_p}. `{results.samples.name}` contains all of them.",
        Samples(samples),
    ]


def _describe_check(check: dict[str, Any]) -> str:
    if check["is_consistent"]:
        copied = "; a copy of a training story" if check["is_copy"] else ""
        return f"Well-formed and consistent: {check['bits']:.0f} bits{copied}."
    place = f"leaves the language in sentence {check['leaves_at_sentence']} of {check['num_sentences']}"
    about = (
        f"; contradicts itself about {', '.join(check['contradictions'])}" if check["contradictions"] else ""
    )
    shape = "Its sentences are well-formed, but it" if check["has_shape"] else "It"
    return f"{shape} {place}{about}."


def _check_blocks(results: DemoResults) -> list[Block]:
    checked = results.checked
    counts = Counter(name for story in checked["stories"] for name in story["contradictions"])
    rows: list[Sequence[str | int]] = [
        ["grammatical sentences", f"{checked['sound_sentences']:.1%}"],
        ["well-formed stories: the sentences are in a valid order", f"{checked['well_formed']:.1%}"],
        ["consistent stories: name, pronoun, object and place do not change", f"{checked['consistent']:.1%}"],
        ["exact copies of training stories", f"{checked['copies']:.1%}"],
    ]
    blocks: list[Block] = [
        f"Each of the {len(checked['stories'])} stories was parsed with the grammar that generated the"
        " training stories. The parser decides whether a text belongs to the language.",
        Table(["share of", "percent"], rows),
    ]
    if counts:
        common = ", ".join(f"{name} ({count})" for name, count in counts.most_common(6))
        blocks.append(f"The most frequent contradictions: {common}.")
    return blocks


def _sample_blocks(run: RunRecord, results: DemoResults) -> list[Block]:
    samples = [
        Sample(f"After {step * results.config.tokens_per_step:,} tokens", text.strip()[:600])
        for step, text in sorted(run.samples.items())
    ]
    return ["Samples with the same random seed at several steps of the training.", Samples(samples)]


def _token_blocks(results: DemoResults, bytes_per_token: float) -> list[Block]:
    tokenizer = results.load_tokenizer()
    first = next(read_stories(text_files(results.config.data)[0]))
    sentence = first[: first.find(".", 60) + 1]
    pieces = " | ".join(show_token(piece.token) for piece in split_text(tokenizer, sentence))
    longest: list[Sequence[str | int]] = [
        [show_token(token), id] for id, token in longest_tokens(tokenizer.vocabulary, 10)
    ]
    return [
        f"The tokenizer has {len(tokenizer.merges):,} merges. A token has {bytes_per_token:.2f} bytes on"
        " average. The beginning of the first story, split into tokens:",
        f"`{pieces}`",
        Table(["longest tokens", "id"], longest, caption="The longest tokens", folded=True),
    ]


def _cost_blocks(results: DemoResults, run: RunRecord) -> list[Block]:
    config = results.config
    num_tokens = results.plan.num_steps * config.tokens_per_step
    flops_per_token = training_flops_per_token(config.model)
    speed = run.measured.get("tokens_per_second", 0.0)
    rows: list[list[str]] = [
        ["parameters", f"{count_parameters(config.model).total:,}"],
        ["training tokens", f"{num_tokens:,}"],
        [
            "training FLOPs, computed from the model's shape",
            f"{flops_per_token * num_tokens / 1e12:.2f} TFLOP",
        ],
        ["training time, measured", format_seconds(run.measured.get("seconds", 0.0))],
        ["tokens per second, measured", f"{speed:,.0f}"],
        ["FLOPs per second, measured", f"{flops_per_token * speed / 1e9:.1f} GFLOP/s"],
    ]
    if results.predicted_seconds is not None:
        predicted = format_seconds(results.predicted_seconds)
        rows.insert(3, ["training time, predicted from a few timed steps", predicted])
    return [Table(["the model", ""], rows)]


def _next_step_blocks(results: DemoResults) -> list[Block]:
    return [
        f"`bytewright generate {results.run}` generates another story; see `--prompt`, `--temperature` and"
        " `--seed`.",
        f"`bytewright evaluate {results.run}` evaluates the model on windows; `--stories` on whole stories.",
        "`bytewright corpus storybook --size 50MB --out stories.txt` generates more stories, and"
        " `bytewright train` trains with a recipe of your own.",
    ]

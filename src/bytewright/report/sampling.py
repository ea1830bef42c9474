"""The report of a sweep that samples: how the way of choosing tokens changes what a model writes.

Every setting wrote as many stories with the same model; the report shows what share of them is sound,
consistent and new, and one story of each. Made of records alone, like every report.
"""

from __future__ import annotations

from collections.abc import Sequence

from bytewright.experiments.groups import Group
from bytewright.experiments.inputs import word_missing
from bytewright.experiments.results import SweepInfo
from bytewright.report.figures import axis_figures
from bytewright.report.metric import Metric
from bytewright.report.page import Block, Cell, Facts, Page, Sample, Samples, Section, Table

METRICS = (
    Metric("consistent", "stories consistent throughout", "share", "", (-0.02, 1.02)),
    Metric("well_formed", "stories with the shape of one", "share", "", (-0.02, 1.02)),
    Metric("sound_sentences", "sound sentences", "share", "", (-0.02, 1.02)),
    Metric("copies", "copies of training stories", "share", "", (-0.02, 1.02)),
    Metric("distinct_stories", "stories that differ", "share", "", (-0.02, 1.02)),
    Metric("distinct_words", "distinct words", "share of all words", ""),
    Metric("words_per_story", "length", "words per story", ""),
    Metric("ended", "stories that the model ended itself", "share", "", (-0.02, 1.02)),
)
DRAWN = ("consistent", "sound_sentences", "distinct_words")
MAX_SAMPLES = 8


def report_sampling(groups: Sequence[Group], about: SweepInfo) -> Page:
    """Compose the page."""
    known = [metric for metric in METRICS if any(group.values(metric.name) for group in groups)]
    best = _best(groups, known[0]) if known else []
    blocks: list[Block] = [f"Expected: {about.expectation}"] if about.expectation else []
    for metric in known:
        if metric.name in DRAWN:
            blocks += axis_figures(groups, metric, about)[:1]
    blocks += [_table(groups, known, best), *word_missing(about)]
    samples = [
        Sample(group.label, text) for group in groups for text in list(group.runs[0].samples.values())[-1:]
    ]
    every = -(-len(samples) // MAX_SAMPLES) if samples else 1
    sections = [
        Section("What came out", blocks),
        Section("The first story of each", [Samples(samples[::every])] if samples else []),
    ]
    return Page(
        title=about.name,
        lead=about.question,
        facts=_facts(groups, known, best),
        sections=[section for section in sections if section.blocks],
    )


def _best(groups: Sequence[Group], metric: Metric) -> list[Group]:
    """Find the settings that reach most: there may be several."""
    means = [group.mean(metric.name) for group in groups if group.values(metric.name)]
    return [group for group in groups if means and group.mean(metric.name) == max(means)]


def _facts(groups: Sequence[Group], known: Sequence[Metric], best: Sequence[Group]) -> Facts:
    if not best:
        return Facts([("settings", str(len(groups)))])
    first, *others = best
    rank = f"first of {len(best)} that are equally good, of {len(groups)}" if others else f"of {len(groups)}"
    facts: list[tuple[str, str, str]] = [("best setting", first.label, rank)]
    for metric in known[:4]:
        unit = metric.unit.removeprefix("share").strip() or "of them"
        facts.append((metric.title, str(_word(metric, first.mean(metric.name))), unit))
    return Facts(facts)


def _word(metric: Metric, value: float) -> str | float:
    """Word a share in percent, and all else as the number that it is."""
    return f"{value:.1%}" if metric.unit.startswith("share") else round(value, 1)


def _table(groups: Sequence[Group], known: Sequence[Metric], best: Sequence[Group]) -> Table:
    rows: list[list[Cell]] = []
    for group in groups:
        rows.append([group.label, *(_word(metric, group.mean(metric.name)) for metric in known)])
    return Table(
        ["setting", *(metric.title for metric in known)],
        rows,
        caption="Shares of the stories, sentences or words that each setting wrote; length in words.",
        best=[groups.index(group) for group in best],
    )

"""The report of one run, of some runs, or of a sweep: what was asked, what came out, and what it took.

`build_report` turns records into a `Page`; `write_report` writes it as `report.html`, as `report.md` with its
figures, and keeps the numbers themselves in `results.json`. Everything on the page comes from the records, so
the same records give the same page. Knows nothing of where records come from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import bytewright
from bytewright.errors import UsageError
from bytewright.experiments.groups import Group, are_of_one_sweep, group_runs, name_after_runs, settled
from bytewright.experiments.inputs import guess_about, word_missing
from bytewright.experiments.records import RunRecord
from bytewright.experiments.results import RESULTS, SweepInfo, common, without_places, write_results
from bytewright.formatting import format_seconds
from bytewright.report.figures import axis_figures, course_of, learning_curves, single_curves, speed_figures
from bytewright.report.markdown import write_markdown
from bytewright.report.metric import BITS, Metric, choose_metric, floor_of, split_by_text, word_differences
from bytewright.report.page import Block, Facts, Figure, Page, Sample, Samples, Section, write_html
from bytewright.report.sampling import report_sampling
from bytewright.report.tables import (
    short_count,
    table_of_costs,
    table_of_environment,
    table_of_groups,
    table_of_odd_ends,
    table_of_predictions,
    table_of_ratios,
    table_of_seeds,
    tables_of_settings,
    word_perplexity,
)

MAX_SAMPLES = 6
FLOOR_NOTE = (
    "The floor is the entropy of the validation stories, each whole and after the end of the one before. The"
    " model is measured on windows; those that begin in mid-story read higher, for want of what came before."
)


def write_report(records: Sequence[RunRecord], about: SweepInfo | None, folder: Path) -> Path:
    """Write report.html, report.md with its figures, and results.json; return the path of the HTML file."""
    records = [without_places(record) for record in records]
    page = build_report(records, about)
    write_results(folder / RESULTS, about, records)
    write_markdown(page, folder / "report.md")
    write_html(page, folder / "report.html")
    return folder / "report.html"


def build_report(records: Sequence[RunRecord], about: SweepInfo | None = None) -> Page:
    """Compose the page: one run tells its course, several are compared."""
    if not records:
        raise UsageError("there are no runs to report: none has begun, or all failed as they did")
    is_alone = len(records) == 1 and not (about and (about.missing or about.unreadable))
    if is_alone and "sampling.temperature" not in records[0].settings:
        return _report_one(records[0], about)
    about = about or guess_about(records)
    if any("sampling.temperature" in record.settings for record in records):
        return report_sampling(_group(records, about), about)
    comparisons = _compare(records, about)
    groups = [group for part in comparisons for group in part.groups]
    sections = [
        Section("What came out", _outcome(comparisons, about)),
        Section("Learning curves", _curves(comparisons, about)),
        Section("Samples", _samples(groups, comparisons[0].best)),
        Section(
            "What it took",
            [*table_of_costs(groups), *table_of_ratios(groups), *speed_figures(groups, about)],
        ),
        Section("Settings", tables_of_settings(records)),
        Section("Where it ran", table_of_environment(records)),
    ]
    return Page(
        title=about.name,
        lead=about.question,
        facts=_facts(comparisons, records, about),
        sections=[section for section in sections if section.blocks],
        footer=_footer(records),
    )


def _report_one(record: RunRecord, about: SweepInfo | None) -> Page:
    steps = sorted(record.samples)
    chosen = sorted({steps[0], steps[len(steps) // 2], steps[-1]}) if steps else []
    samples = [Sample(f"After {step:,} steps", record.samples[step]) for step in chosen]
    blocks: list[Block] = [*single_curves(record)]
    if record.floor is not None:
        blocks.insert(1, FLOOR_NOTE)
    sections = [
        Section("Learning curves", blocks),
        Section("Samples", [Samples(samples)] if samples else []),
        Section("Course", course_of(record)),
        Section("What it took", table_of_predictions(record)),
        Section("Settings", tables_of_settings([record])),
        Section("Where it ran", table_of_environment([record])),
    ]
    status = "" if record.status == "complete" else f"It has {record.status}: {record.reason}."
    if about and about.expectation:
        blocks.insert(0, f"Expected: {about.expectation}")
    if about and about.notes:
        blocks.append(about.notes)
    return Page(
        title=about.name if about else record.name,
        lead=f"{about.question if about else ''} {status}".strip(),
        facts=_facts_of_one(record),
        sections=[section for section in sections if section.blocks],
        footer=_footer([record]),
    )


@dataclass(frozen=True)
class Comparison:
    """Runs that were validated on one text, and what they are compared by."""

    text: str
    groups: Sequence[Group]
    metric: Metric
    best: Group | None

    @property
    def runs(self) -> list[RunRecord]:
        """All runs of all groups."""
        return [run for group in self.groups for run in group.runs]


def _compare(records: Sequence[RunRecord], about: SweepInfo) -> list[Comparison]:
    """Put runs together that can be compared, text by text."""
    texts = split_by_text(records)
    comparisons = []
    for text, runs in texts.items():
        groups = _group(runs, about)
        if len(texts) > 1 and not are_of_one_sweep(records):  # settings name a run only among its like
            groups = name_after_runs(groups)
        metric = choose_metric(runs, prefer_bits=len(texts) > 1)
        comparisons.append(Comparison(text, groups, metric, _best(groups, metric)))
    return comparisons


def _group(records: Sequence[RunRecord], about: SweepInfo) -> list[Group]:
    return group_runs(records, about.axes, about.baseline if about.design == "star" else None)


def _best(groups: Sequence[Group], metric: Metric) -> Group | None:
    """Return the lowest; one that lost seeds only if there is no other, since its survivors say little."""
    reached = [group for group in settled(groups) if group.values(metric.name)]
    sound = [group for group in reached if not group.num_lost]
    return min(sound or reached, key=lambda group: group.mean(metric.name), default=None)


# Key figures


def _facts(comparisons: Sequence[Comparison], records: Sequence[RunRecord], about: SweepInfo) -> Facts:
    facts: list[tuple[str, str, str]] = []
    groups, metric, best = comparisons[0].groups, comparisons[0].metric, comparisons[0].best
    if len(comparisons) > 1:
        facts.append(("validation texts", str(len(comparisons)), "not comparable with each other"))
    elif best:
        is_chosen = any(group.num_lost for group in settled(groups)) and not best.num_lost
        unit = f"{metric.unit}, where no seed diverged" if is_chosen else metric.unit
        facts.append(("lowest " + metric.title, f"{best.mean(metric.name):.4f}", unit))
        facts.append(("reached with", best.label, _of_groups(groups, best)))
        facts += _gap(best.runs, metric, best.mean(metric.name))
    seconds = sum(record.measured.get("seconds", 0.0) for record in records)
    diverged = sum(record.status == "diverged" for record in records)
    remark = f"{diverged} diverged" if diverged else "none diverged"
    if about.unreadable:
        remark += f", {len(about.unreadable)} unreadable"
    num_absent = len(about.missing) + len(about.unreadable)
    count = f"{len(records)} of {len(records) + num_absent}" if num_absent else str(len(records))
    facts.append(("runs", count, remark))
    facts.append(("time in all", format_seconds(seconds), "of training"))
    return Facts(facts)


def _of_groups(groups: Sequence[Group], best: Group) -> str:
    """Say among how many a setting is the best, and whether that is the last word."""
    compared = settled(groups)
    if best.num_lost:
        return f"though {best.num_lost} of {len(best.runs)} seeds diverged"
    if any(group.num_lost for group in compared):
        num_sound = sum(not group.num_diverged for group in compared)
        return f"the best of {num_sound} without a seed that diverged, of {len(groups)} settings"
    if len(compared) < len(groups):
        return f"the best of {len(compared)} that came to their end, of {len(groups)} settings"
    so_far = "" if any(group.status == "complete" for group in groups) else " so far"
    return f"the best of {len(groups)} settings{so_far}" if len(groups) > 1 else so_far.strip()


def _gap(runs: Sequence[RunRecord], metric: Metric, value: float) -> list[tuple[str, str, str]]:
    if floor := floor_of(runs, metric):
        unit = metric.title if metric is BITS else metric.unit
        return [("above the floor", f"{value - floor:.4f}", f"{unit}; the floor is {floor:.4f}")]
    return []


def _facts_of_one(record: RunRecord) -> Facts:
    facts: list[tuple[str, str, str]] = []
    loss, bits = record.last("validation_loss"), record.last("bits_per_byte")
    if loss is not None:
        facts.append(
            ("validation loss", f"{loss:.4f}", f"nats per token; perplexity {word_perplexity(loss)}")
        )
    elif record.loss is not None:
        facts.append(("training loss", f"{record.loss:.4f}", "nats per token"))
    if bits is not None:
        facts.append(("bits per byte", f"{bits:.4f}", BITS.unit))
        facts += _gap([record], BITS, bits)
    tokens = record.lines[-1].get("tokens") if record.lines else None
    if tokens:
        facts.append(("tokens", short_count(tokens), f"{record.num_steps:,} steps"))
    if "seconds" in record.measured:
        speed = record.measured.get("tokens_per_second")
        remark = f"{short_count(speed)} tokens/s" if speed else ""
        facts.append(("time", format_seconds(record.measured["seconds"]), remark))
    return Facts(facts)


# Sections


def _outcome(comparisons: Sequence[Comparison], about: SweepInfo) -> list[Block]:
    blocks: list[Block] = []
    if about.expectation:
        blocks.append(f"Expected: {about.expectation}")
    if len(comparisons) > 1:
        blocks.append(
            f"The runs were validated on {len(comparisons)} different texts. A lower value on one text than"
            " on another may only mean that the text is easier to predict. Each text therefore has its own"
            " tables and charts, and no run is called the best of all."
        )
    for part in comparisons:
        floor = [FLOOR_NOTE] if floor_of(part.runs, part.metric) else []
        table = table_of_groups(part.groups, part.metric, about, part.best if len(part.groups) > 1 else None)
        if len(comparisons) > 1:
            table = replace(table, caption=f"Validated on {part.text}. {table.caption}")
        blocks += _name_text(axis_figures(settled(part.groups), part.metric, about), part, comparisons)
        blocks += [*floor, *word_differences(part.runs, part.metric)]
        blocks += [table, *table_of_seeds(part.groups, part.metric), *table_of_odd_ends(part.groups)]
    blocks += word_missing(about)
    if about.notes:
        blocks.append(about.notes)
    return blocks


def _curves(comparisons: Sequence[Comparison], about: SweepInfo) -> list[Block]:
    """Draw the learning curves of each text; of a run that is alone, only one chart."""
    blocks: list[Block] = []
    for part in comparisons:
        figures = learning_curves(part.groups, part.metric, about)
        is_alone = len(part.groups) == 1 < len(comparisons)
        blocks += _name_text(figures[:1] if is_alone else figures, part, comparisons)
    return blocks


def _name_text(
    figures: Sequence[Figure], part: Comparison, comparisons: Sequence[Comparison]
) -> Sequence[Figure]:
    """Add to the titles of charts which text they are of, if there are several."""
    if len(comparisons) == 1:
        return figures
    of = part.groups[0].label + " on " if len(part.groups) == 1 else ""
    return [
        replace(figure, chart=replace(figure.chart, title=f"{figure.chart.title}: {of}{part.text}"))
        for figure in figures
    ]


def _samples(groups: Sequence[Group], best: Group | None) -> list[Block]:
    """Show the last text of each setting, the best first."""
    ranked = sorted(groups, key=lambda group: group is not best)
    samples = []
    for group in ranked:
        run = next((run for run in group.runs if run.samples), None)
        if run is not None:
            step = max(run.samples)
            samples.append(
                Sample(group.label, run.samples[step], note=f"seed {run.seed}, after {step:,} steps")
            )
    return [Samples(samples[:MAX_SAMPLES])] if samples else []


def _footer(records: Sequence[RunRecord]) -> str:
    environment: Mapping[str, Any] = common([record.environment for record in records])
    commit = environment.get("commit")
    version = environment.get("bytewright", bytewright.__version__)
    return f"Made by bytewright {version}" + (f" at commit `{commit}`." if commit else ".")

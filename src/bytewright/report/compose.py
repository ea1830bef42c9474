"""Compose the report of one run, of several runs, or of a sweep.

`write_report` writes `report.html`, `report.md` with its figures, and the numbers as `results.json`.
`build_report` selects the content. Everything on the page is computed from the records: equal records give
equal pages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import bytewright
from bytewright.errors import UsageError
from bytewright.experiments.groups import Group, settled
from bytewright.experiments.inputs import describe_missing, describe_runs
from bytewright.experiments.loss_metric import BITS, DOCUMENTS, TRAINING, VALIDATION, choose_metric
from bytewright.experiments.records import RunRecord
from bytewright.experiments.results import RESULTS, SweepInfo, common, without_absolute_paths, write_results
from bytewright.formatting import format_count_short, format_seconds
from bytewright.report import compare, tables
from bytewright.report.figures import (
    axis_figures,
    learning_curves,
    schedule_figures,
    single_curves,
    speed_figures,
)
from bytewright.report.markdown import write_markdown
from bytewright.report.page import (
    Block,
    Cell,
    Figure,
    KeyFigures,
    Page,
    PageSection,
    Sample,
    Samples,
    Table,
    write_html,
)
from bytewright.train.metrics import SAMPLING_METRICS, Metric

MAX_SAMPLES = 6
FLOOR_NOTE = (
    "The floor is the entropy of the validation stories, where each follows the end of the previous one. The"
    " model is evaluated on windows; those that begin inside a story lack its beginning, so their loss is"
    " higher."
)


DOCUMENT_NOTE = (
    "The floor is the entropy of the validation documents. The model is evaluated on the same whole"
    " documents, so it cannot be below the floor on average."
)


def write_report(records: Sequence[RunRecord], about: SweepInfo | None, folder: Path) -> Path:
    """Write report.html, report.md with its figures, and results.json; return the path of the HTML file."""
    records = [without_absolute_paths(record) for record in records]
    page = build_report(records, about)
    write_results(folder / RESULTS, about, records)
    write_markdown(page, folder / "report.md")
    write_html(page, folder / "report.html")
    return folder / "report.html"


def build_report(records: Sequence[RunRecord], about: SweepInfo | None = None) -> Page:
    """Return the page: the curves of a single run, or the comparison of several."""
    if not records:
        raise UsageError("no runs to report: no run of the sweep has started, or all failed at the start")
    is_single = len(records) == 1 and not (about and (about.missing or about.unreadable))
    samples_text = any("sampling.temperature" in record.settings for record in records)
    if is_single and not samples_text:
        return _report_one(records[0], about)
    about = about or describe_runs(records)
    if samples_text:
        return _report_sampling(compare.group_by_setting(records, about), about)
    comparisons = compare.compare_runs(records, about)
    groups = [group for part in comparisons for group in part.groups]
    sections = [
        PageSection("Results", _result_blocks(comparisons, about)),
        PageSection("Learning curves", _curve_blocks(comparisons)),
        PageSection("Samples", _sample_blocks(groups, comparisons[0].best)),
        PageSection(
            "Cost",
            [*tables.table_of_costs(groups), *tables.table_of_ratios(groups), *speed_figures(groups, about)],
        ),
        PageSection("Settings", tables.tables_of_settings(records)),
        PageSection("Environment", tables.table_of_environment(records)),
    ]
    return Page(
        title=about.name,
        lead=about.question,
        figures=_figures_of_runs(comparisons, records, about),
        sections=[section for section in sections if section.blocks],
        footer=_format_footer(records),
    )


def _report_one(record: RunRecord, about: SweepInfo | None) -> Page:
    steps = sorted(record.samples)
    chosen = sorted({steps[0], steps[len(steps) // 2], steps[-1]}) if steps else []
    samples = [Sample(f"After {step:,} steps", record.samples[step]) for step in chosen]
    blocks: list[Block] = [*single_curves(record)] if record.status != "imported" else []
    if record.floor is not None:
        blocks.insert(1, FLOOR_NOTE)
    sections = [
        PageSection("Learning curves", blocks),
        PageSection("Samples", [Samples(samples)] if samples else []),
        PageSection("Schedule and gradients", schedule_figures(record)),
        PageSection("Cost", tables.table_of_predictions(record)),
        PageSection("Settings", tables.tables_of_settings([record])),
        PageSection("Environment", tables.table_of_environment([record])),
    ]
    status = ": ".join(filter(None, [f"Status: {record.status}", record.reason])) + "."
    status = "" if record.status == "complete" else status
    if record.origin:
        verb = "Imported from" if record.status == "imported" else "Started from the weights of"
        status = f"{verb} {record.origin}. {'' if record.status == 'imported' else status}".strip()
    if about and about.expectation:
        blocks.insert(0, f"Expected: {about.expectation}")
    if about and about.notes:
        blocks.append(about.notes)
    return Page(
        title=about.name if about else record.name,
        lead=f"{about.question if about else ''} {status}".strip(),
        figures=_figures_of_one(record),
        sections=[section for section in sections if section.blocks],
        footer=_format_footer([record]),
    )


# Key figures


def _figures_of_runs(
    comparisons: Sequence[compare.Comparison], records: Sequence[RunRecord], about: SweepInfo
) -> KeyFigures:
    figures: list[tuple[str, str, str]] = []
    groups, metric, best = comparisons[0].groups, comparisons[0].metric, comparisons[0].best
    if len(comparisons) > 1:
        figures.append(("validation texts", str(len(comparisons)), "not comparable with each other"))
    elif best:
        is_restricted = any(group.num_lost for group in settled(groups)) and not best.num_lost
        unit = f"{metric.unit}, of settings without diverged seeds" if is_restricted else metric.unit
        figures.append(("lowest " + metric.title, f"{best.mean(metric.name):.4f}", unit))
        figures.append(("best setting", best.label, _describe_rank(groups, best)))
        figures += _floor_figures(best.runs, metric, best.mean(metric.name))
    seconds = sum(record.measured.get("seconds", 0.0) for record in records)
    diverged = sum(record.status == "diverged" for record in records)
    remark = f"{diverged} diverged" if diverged else "none diverged"
    if about.unreadable:
        remark += f", {len(about.unreadable)} unreadable"
    num_absent = len(about.missing) + len(about.unreadable)
    count = f"{len(records)} of {len(records) + num_absent}" if num_absent else str(len(records))
    figures.append(("runs", count, remark))
    figures.append(("total time", format_seconds(seconds), "of training"))
    return KeyFigures(figures)


def _describe_rank(groups: Sequence[Group], best: Group) -> str:
    """Return among how many settings one is the best, and whether runs are excluded or unfinished."""
    compared = settled(groups)
    if best.num_lost:
        return f"although {best.num_lost} of {len(best.runs)} seeds diverged"
    if any(group.num_lost for group in compared):
        count = sum(not group.num_diverged for group in compared)
        return f"best of {count} without diverged seeds, of {len(groups)} settings"
    if len(compared) < len(groups):
        return f"best of {len(compared)} finished, of {len(groups)} settings"
    so_far = "" if any(group.status == "complete" for group in groups) else " so far"
    return f"best of {len(groups)} settings{so_far}" if len(groups) > 1 else so_far.strip()


def _floor_figures(runs: Sequence[RunRecord], metric: Metric, value: float) -> list[tuple[str, str, str]]:
    if floor := compare.floor_of(runs, metric):
        unit = metric.unit if metric is VALIDATION else metric.title
        return [("above the floor", f"{value - floor:.4f}", f"{unit}; the floor is {floor:.4f}")]
    return []


def _figures_of_one(record: RunRecord) -> KeyFigures:
    figures: list[tuple[str, str, str]] = []
    if (of_documents := record.last(DOCUMENTS.name)) is not None:
        figures.append(("bits per byte, whole documents", DOCUMENTS.format(of_documents), DOCUMENTS.unit))
    if (loss := record.last(VALIDATION.name)) is not None:
        perplexity = tables.format_perplexity(loss)
        figures.append(
            ("validation loss, windows", f"{loss:.4f}", f"nats per token; perplexity {perplexity}")
        )
    elif (training_loss := record.last(TRAINING.name)) is not None:
        figures.append(("training loss", f"{training_loss:.4f}", TRAINING.unit))
    if (bits := record.last(BITS.name)) is not None:
        figures.append(("bits per byte, windows", f"{bits:.4f}", BITS.unit))
    metric = choose_metric([record], prefer_bits=True)
    if (value := record.last(metric.name)) is not None:
        figures += _floor_figures([record], metric, value)
    if record.status == "imported" and "parameters" in record.measured:
        figures.append(("parameters", format_count_short(record.measured["parameters"]), "imported"))
    tokens = record.lines[-1].get("tokens") if record.lines else None
    if tokens:
        figures.append(("tokens", format_count_short(tokens), f"{record.num_steps:,} steps"))
    if "seconds" in record.measured:
        speed = record.measured.get("tokens_per_second")
        remark = f"{format_count_short(speed)} tokens/s" if speed else ""
        figures.append(("time", format_seconds(record.measured["seconds"]), remark))
    return KeyFigures(figures)


# Sections


def _result_blocks(comparisons: Sequence[compare.Comparison], about: SweepInfo) -> list[Block]:
    blocks: list[Block] = []
    if about.expectation:
        blocks.append(f"Expected: {about.expectation}")
    if len(comparisons) > 1:
        blocks.append(
            f"The runs were validated on {len(comparisons)} different texts. A lower value on one text than"
            " on another may only mean that the text is easier to predict. Each text therefore has its own"
            " tables and charts, and there is no overall best run."
        )
    for part in comparisons:
        note = DOCUMENT_NOTE if part.metric is DOCUMENTS else FLOOR_NOTE
        floor = [note] if compare.floor_of(part.runs, part.metric) else []
        table = tables.table_of_groups(
            part.groups, part.metric, about, part.best if len(part.groups) > 1 else None
        )
        if len(comparisons) > 1:
            table = replace(table, caption=f"Validated on {part.text}. {table.caption}")
        blocks += _add_text_name(axis_figures(settled(part.groups), part.metric, about), part, comparisons)
        blocks += [*floor, *compare.comparison_notes(part.runs, part.metric)]
        blocks += [
            table,
            *tables.table_of_seeds(part.groups, part.metric),
            *tables.table_of_incomplete_runs(part.groups),
        ]
    blocks += describe_missing(about)
    if about.notes:
        blocks.append(about.notes)
    return blocks


def _curve_blocks(comparisons: Sequence[compare.Comparison]) -> list[Block]:
    """Return the learning curves of each text; a text with a single setting has only one chart."""
    blocks: list[Block] = []
    for part in comparisons:
        figures = learning_curves(part.groups, part.curve_metric)
        is_single = len(part.groups) == 1 < len(comparisons)
        blocks += _add_text_name(figures[:1] if is_single else figures, part, comparisons)
    return blocks


def _add_text_name(
    figures: Sequence[Figure], part: compare.Comparison, comparisons: Sequence[compare.Comparison]
) -> Sequence[Figure]:
    """Add the name of the validation text to the titles of charts, if there are several texts."""
    if len(comparisons) == 1:
        return figures
    label = part.groups[0].label + " on " if len(part.groups) == 1 else ""
    return [
        replace(figure, chart=replace(figure.chart, title=f"{figure.chart.title}: {label}{part.text}"))
        for figure in figures
    ]


def _sample_blocks(groups: Sequence[Group], best: Group | None) -> list[Block]:
    """Return the last sample of each setting, the best setting first."""
    samples = []
    for group in sorted(groups, key=lambda group: group is not best):
        run = next((run for run in group.runs if run.samples), None)
        if run is not None:
            step = max(run.samples)
            samples.append(
                Sample(group.label, run.samples[step], note=f"seed {run.seed}, after {step:,} steps")
            )
    return [Samples(samples[:MAX_SAMPLES])] if samples else []


def _format_footer(records: Sequence[RunRecord]) -> str:
    environment: Mapping[str, Any] = common([record.environment for record in records])
    commit = environment.get("commit")
    version = environment.get("bytewright", bytewright.__version__)
    return f"Made by bytewright {version}" + (f" at commit `{commit}`." if commit else ".")


# Sweeps that sample text from one model


MAX_STORIES = 8


def _report_sampling(groups: Sequence[Group], about: SweepInfo) -> Page:
    known = [metric for metric in SAMPLING_METRICS if any(group.values(metric.name) for group in groups)]
    best = _find_highest(groups, known[0]) if known else []
    blocks: list[Block] = [f"Expected: {about.expectation}"] if about.expectation else []
    for metric in known:
        if metric.is_drawn:
            blocks += axis_figures(groups, metric, about)[:1]
    blocks += [_table_of_sampling(groups, known, best), *describe_missing(about)]
    samples = [
        Sample(group.label, text) for group in groups for text in list(group.runs[0].samples.values())[-1:]
    ]
    every = -(-len(samples) // MAX_STORIES) if samples else 1
    sections = [
        PageSection("Results", blocks),
        PageSection("The first story of each setting", [Samples(samples[::every])] if samples else []),
    ]
    return Page(
        title=about.name,
        lead=about.question,
        figures=_figures_of_sampling(groups, known, best),
        sections=[section for section in sections if section.blocks],
    )


def _find_highest(groups: Sequence[Group], metric: Metric) -> list[Group]:
    """Return the settings with the highest mean; several if they are equal."""
    means = [group.mean(metric.name) for group in groups if group.values(metric.name)]
    return [group for group in groups if means and group.mean(metric.name) == max(means)]


def _figures_of_sampling(
    groups: Sequence[Group], known: Sequence[Metric], best: Sequence[Group]
) -> KeyFigures:
    if not best:
        return KeyFigures([("settings", str(len(groups)))])
    first, *others = best
    rank = f"first of {len(best)} equally good, of {len(groups)}" if others else f"of {len(groups)}"
    figures: list[tuple[str, str, str]] = [("best setting", first.label, rank)]
    for metric in known[:4]:
        value = _format_share(metric, first.mean(metric.name))
        figures.append((metric.title, str(value), metric.unit.removeprefix("share").strip()))
    return KeyFigures(figures)


def _format_share(metric: Metric, value: float) -> str | float:
    """Format a share in percent; return any other value rounded."""
    return f"{value:.1%}" if metric.unit.startswith("share") else round(value, 1)


def _table_of_sampling(groups: Sequence[Group], known: Sequence[Metric], best: Sequence[Group]) -> Table:
    rows: list[list[Cell]] = [
        [group.label, *(_format_share(metric, group.mean(metric.name)) for metric in known)]
        for group in groups
    ]
    return Table(
        ["setting", *(metric.title for metric in known)],
        rows,
        caption="Shares of the stories, sentences or words of each setting; length in words.",
        best=[groups.index(group) for group in best],
    )

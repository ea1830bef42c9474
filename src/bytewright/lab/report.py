"""The report of one run, of some runs, or of a sweep: what was asked, what came out, and what it took.

`build_report` turns records into a `Page`; `write_report` writes it as `report.html`, as `report.md` with its
figures, and keeps the numbers themselves in `results.json`. Everything on the page comes from the records, so
the same records give the same page. Knows nothing of where records come from.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import bytewright
from bytewright.errors import UsageError
from bytewright.lab.figures import (
    BITS,
    VALIDATION,
    Metric,
    axis_figures,
    choose_metric,
    course_of,
    floor_of,
    learning_curves,
    single_curves,
    speed_figures,
)
from bytewright.lab.groups import Group, differing, group_runs, word_value
from bytewright.lab.markdown import write_markdown
from bytewright.lab.page import Block, Cell, Facts, Page, Sample, Samples, Section, Table, write_html
from bytewright.lab.records import RunRecord
from bytewright.lab.results import RESULTS, About, common, write_results
from bytewright.lab.sampling_report import report_sampling
from bytewright.lab.scales import format_value

MAX_SAMPLES = 6
FLOOR_NOTE = (
    "The floor is the entropy of the validation stories, each whole and after the end of the one before; the"
    " model is measured on windows, many of which begin in mid-story, and can only read higher for that."
)


def write_report(records: Sequence[RunRecord], about: About | None, folder: Path) -> Path:
    """Write report.html, report.md with its figures, and results.json; return the path of the HTML file."""
    page = build_report(records, about)
    write_results(folder / RESULTS, about, records)
    write_markdown(page, folder / "report.md")
    write_html(page, folder / "report.html")
    return folder / "report.html"


def build_report(records: Sequence[RunRecord], about: About | None = None) -> Page:
    """Compose the page: one run tells its course, several are compared."""
    if not records:
        raise UsageError("there are no runs to report: none has been started yet")
    if len(records) == 1 and about is None:
        return _report_one(records[0])
    about = about or _guess_about(records)
    groups = group_runs(records, about.axes, about.baseline if about.design == "star" else None)
    if any("sampling.temperature" in record.settings for record in records):
        return report_sampling(groups, about)
    metric = choose_metric(records)
    best = _best(groups, metric)
    sections = [
        Section("What came out", _outcome(groups, metric, about, best)),
        Section("Learning curves", learning_curves(groups, metric, about)),
        Section("Samples", _samples(groups, best)),
        Section("What it took", [*_costs(groups), *speed_figures(groups, about)]),
        Section("Settings", _settings(records)),
        Section("Where it ran", _environment(records)),
    ]
    return Page(
        title=about.name.replace("_", " ").capitalize(),
        lead=about.question,
        facts=_facts(groups, records, metric, best),
        sections=[section for section in sections if section.blocks],
        footer=_footer(records),
    )


def _report_one(record: RunRecord) -> Page:
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
        Section("What it took", _costs([Group(record.name, {}, [record])])),
        Section("Settings", _settings([record])),
        Section("Where it ran", _environment([record])),
    ]
    status = "" if record.status == "complete" else f"It has {record.status}: {record.reason}."
    return Page(
        title=record.name,
        lead=status,
        facts=_facts_of_one(record),
        sections=[section for section in sections if section.blocks],
        footer=_footer([record]),
    )


def _guess_about(records: Sequence[RunRecord]) -> About:
    """Describe runs that no sweep made: what differs between them is what was varied."""
    names = ", ".join(record.name for record in records[:4]) + (", …" if len(records) > 4 else "")
    return About(name=f"{len(records)} runs", question=names, axes=differing([r.settings for r in records]))


def _best(groups: Sequence[Group], metric: Metric) -> Group | None:
    reached = [group for group in groups if group.values(metric.name)]
    return min(reached, key=lambda group: group.mean(metric.name)) if reached else None


# Key figures


def _facts(
    groups: Sequence[Group], records: Sequence[RunRecord], metric: Metric, best: Group | None
) -> Facts:
    facts: list[tuple[str, str, str]] = []
    if best:
        facts.append(("lowest " + metric.title, f"{best.mean(metric.name):.4f}", metric.unit))
        facts.append(("reached with", best.label, _of_groups(len(groups))))
        facts += _gap(best.runs, metric, best.mean(metric.name))
    seconds = sum(record.measured.get("seconds", 0.0) for record in records)
    diverged = sum(record.status == "diverged" for record in records)
    remark = f"{diverged} diverged" if diverged else "none diverged"
    facts.append(("runs", str(len(records)), remark))
    facts.append(("time in all", word_seconds(seconds), "of training"))
    return Facts(facts)


def _of_groups(count: int) -> str:
    return f"the best of {count} settings" if count > 1 else ""


def _gap(runs: Sequence[RunRecord], metric: Metric, value: float) -> list[tuple[str, str, str]]:
    if floor := floor_of(runs, metric):
        gap = value - floor[0].value
        return [("above the floor", f"{gap:.4f}", f"{metric.unit}; the floor is {floor[0].value:.4f}")]
    return []


def _facts_of_one(record: RunRecord) -> Facts:
    facts: list[tuple[str, str, str]] = []
    loss, bits = record.last("validation_loss"), record.last("bits_per_byte")
    if loss is not None:
        facts.append(
            ("validation loss", f"{loss:.4f}", f"perplexity {format_value(math.exp(min(loss, 700)))}")
        )
    elif record.loss is not None:
        facts.append(("training loss", f"{record.loss:.4f}", "nats per token"))
    if bits is not None:
        facts.append(("bits per byte", f"{bits:.4f}", ""))
        facts += _gap([record], BITS, bits)
    tokens = record.lines[-1].get("tokens") if record.lines else None
    if tokens:
        facts.append(("tokens", word_count(tokens), f"{record.num_steps:,} steps"))
    if "seconds" in record.measured:
        speed = record.measured.get("tokens_per_second")
        remark = f"{word_count(speed)} tokens/s" if speed else ""
        facts.append(("time", word_seconds(record.measured["seconds"]), remark))
    return Facts(facts)


# Sections


def _outcome(groups: Sequence[Group], metric: Metric, about: About, best: Group | None) -> list[Block]:
    blocks: list[Block] = []
    if about.expectation:
        blocks.append(f"Expected: {about.expectation}")
    blocks += axis_figures(groups, metric, about)
    if floor_of([run for group in groups for run in group.runs], metric):
        blocks.append(FLOOR_NOTE)
    blocks.append(_table_of_groups(groups, metric, about, best))
    if about.notes:
        blocks.append(about.notes)
    return blocks


def _table_of_groups(groups: Sequence[Group], metric: Metric, about: About, best: Group | None) -> Table:
    """One row per setting: the mean and spread over seeds, and the difference to the baseline."""
    baseline = next((g for g in groups if about.baseline and g.labels == about.baseline), None)
    has_bits = metric is not BITS and any(group.values("bits_per_byte") for group in groups)
    columns = ["setting", "seeds", metric.title, "± sd", "perplexity"]
    columns += ["bits/byte"] if has_bits else []
    columns += ["to baseline", "its loss after"] if baseline else []
    columns += ["remark"]
    rows: list[list[Cell]] = []
    for group in groups:
        values = group.values(metric.name)
        mean = group.mean(metric.name) if values else None
        loss = mean if metric is VALIDATION else None
        row: list[Cell] = [
            group.label,
            len(group.runs),
            "diverged" if mean is None and group.status == "diverged" else mean,
            statistics.stdev(values) if len(values) > 1 else None,
            None if loss is None else math.exp(min(loss, 700)),
        ]
        row += [group.mean("bits_per_byte") if group.values("bits_per_byte") else None] if has_bits else []
        row += [_difference(group, baseline, metric), _time_to(group, baseline, metric)] if baseline else []
        rows.append([*row, _remark(group)])
    dropped = {n for n in range(3, len(columns)) if all(row[n] in (None, "") for row in rows)}
    kept = [n for n in range(len(columns)) if n not in dropped]
    return Table(
        [columns[n] for n in kept],
        [[row[n] for n in kept] for row in rows],
        caption=f"Final {metric.axis}; sd is the standard deviation over seeds."
        + (f" Baseline: {baseline.label}." if baseline else ""),
        best=[groups.index(best)] if best else [],
    )


def _difference(group: Group, baseline: Group, metric: Metric) -> str | None:
    """Word the difference of two means, with its standard error where both have several seeds."""
    ours, theirs = group.values(metric.name), baseline.values(metric.name)
    if group is baseline or not ours or not theirs:
        return None
    difference = statistics.fmean(ours) - statistics.fmean(theirs)
    if len(ours) > 1 and len(theirs) > 1:
        error = math.sqrt(statistics.variance(ours) / len(ours) + statistics.variance(theirs) / len(theirs))
        return f"{difference:+.4f} ± {error:.4f}"
    return f"{difference:+.4f}"


def _time_to(group: Group, baseline: Group, metric: Metric) -> str | None:
    """Say how long a setting took to the baseline's final value, as time and as a share of the baseline's."""
    if not baseline.values(metric.name):
        return None
    goal, (points, _) = baseline.mean(metric.name), group.curve(metric.name, "seconds")
    reached = [seconds for seconds, value in points if value <= goal]
    end = baseline.curve(metric.name, "seconds")[0]
    if not reached or not end:
        return None
    return f"{word_seconds(reached[0])} ({reached[0] / end[-1][0]:.0%})"


def _remark(group: Group) -> str:
    odd = [run for run in group.runs if run.status != "complete"]
    if not odd:
        return ""
    count = f"{len(odd)} of {len(group.runs)} " if len(group.runs) > 1 else ""
    return f"{count}{odd[0].status}: {odd[0].reason}" if odd[0].reason else f"{count}{odd[0].status}"


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


def _costs(groups: Sequence[Group]) -> list[Block]:
    """Predicted and measured cost side by side."""
    columns = [
        "setting",
        "tokens/s",
        "ms/step",
        "MFU",
        "time",
        "predicted time",
        "memory",
        "predicted memory",
    ]
    rows: list[list[Cell]] = []
    for group in groups:
        settings = group.runs[0].settings
        speed, mfu = group.measured("tokens_per_second"), group.measured("mfu")
        per_step = settings.get("batch_size", 1) * settings.get("model.context_length", 1)
        predicted = group.runs[0].predicted
        rows.append(
            [
                group.label,
                round(speed) if speed else None,
                1000 * per_step / speed if speed else None,
                f"{mfu:.1%}" if mfu else None,
                _or_none(word_seconds, group.measured("seconds")),
                _or_none(word_seconds, predicted.get("seconds")),
                _or_none(word_bytes, group.measured("memory_bytes")),
                _or_none(word_bytes, predicted.get("memory_bytes")),
            ]
        )
    kept = [n for n in range(len(columns)) if n == 0 or any(row[n] is not None for row in rows)]
    if len(kept) == 1:
        return []
    caption = (
        "Speed and utilisation (MFU) are medians while training; predictions were made before the start."
    )
    return [Table([columns[n] for n in kept], [[row[n] for n in kept] for row in rows], caption=caption)]


def _settings(records: Sequence[RunRecord]) -> list[Block]:
    """Show in what the runs differ, and what they share."""
    blocks: list[Block] = []
    shared = common([record.settings for record in records])
    names = [name for name in dict.fromkeys(n for r in records for n in r.settings) if name not in shared]
    if len(records) > 1 and names:
        rows = [[record.name, *(_word(record.settings.get(name)) for name in names)] for record in records]
        blocks.append(
            Table(["run", *(f"`{name}`" for name in names)], rows, caption="What differs between the runs.")
        )
    rows = [[f"`{name}`", _word(value)] for name, value in shared.items()]
    caption = "What all runs share" if len(records) > 1 else "The resolved configuration"
    blocks.append(Table(["setting", "value"], rows, caption=caption, folded=True))
    return blocks


def _word(value: object) -> str:
    return Path(value).name if isinstance(value, str) and value.startswith("/") else word_value(value)


def _environment(records: Sequence[RunRecord]) -> list[Block]:
    shared = common([record.environment for record in records])
    rows: list[list[Cell]] = [[name, _word_environment(value)] for name, value in shared.items()]
    for name in dict.fromkeys(n for r in records for n in r.environment if n not in shared):
        values = list(dict.fromkeys(_word_environment(r.environment.get(name)) for r in records))
        rows.append(
            [name, ", ".join(values[:2]) + (f", … ({len(values)} values)" if len(values) > 2 else "")]
        )
    return [Table(["", "value"], rows)] if rows else []


def _word_environment(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else word_value(value)


def _footer(records: Sequence[RunRecord]) -> str:
    environment: Mapping[str, Any] = common([record.environment for record in records])
    commit = environment.get("commit")
    version = environment.get("bytewright", bytewright.__version__)
    return f"Made by bytewright {version}" + (f" at commit `{commit}`." if commit else ".")


# Wording


def _or_none(word: Any, value: float | None) -> str | None:
    return None if value is None else word(value)


def word_seconds(seconds: float) -> str:
    """Word a duration.

    >>> word_seconds(0.42), word_seconds(95.0), word_seconds(7300)
    ('0.4 s', '1 min 35 s', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"


def word_count(number: float) -> str:
    """Word a large number.

    >>> word_count(327_680_000), word_count(1234)
    ('327.7M', '1,234')
    """
    for size, prefix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if number >= size:
            return f"{number / (1e3 if prefix == 'k' else size):.1f}{prefix}"
    return f"{number:,.0f}"


def word_bytes(num_bytes: float) -> str:
    """Word an amount of memory, in decimal units.

    >>> word_bytes(2.5e9)
    '2.50 GB'
    """
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.0f} MB"

"""The tables of a report: final values, cost, predictions, settings and environment of runs.

Tables show values with the spread over seeds, the difference to the baseline with its t interval and p-value,
and the prediction next to the measurement.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bytewright.experiments.groups import Group, describe_lost, format_setting
from bytewright.experiments.loss_metric import BITS, DOCUMENTS, VALIDATION
from bytewright.experiments.records import RunRecord
from bytewright.experiments.results import SweepInfo, common
from bytewright.formatting import format_seconds
from bytewright.laws.inference import CONFIDENCE, Difference, compare_means, holm
from bytewright.report.compare import TEST
from bytewright.report.page import Block, Cell, Table
from bytewright.train.metrics import COST_METRICS, METRICS, Metric

MEASUREMENT_NOTE = (
    "Parameters and FLOPs are counted by PyTorch on the reference model. Memory is the peak after the first"
    " step: on a GPU, allocated memory without the data; on a CPU, resident memory including the malloc cache"
    " and the pages of the data that were read. Speed and utilisation (MFU) are medians during training. Time"
    " includes compilation, evaluations and checkpoints."
)


def table_of_groups(groups: Sequence[Group], metric: Metric, about: SweepInfo, best: Group | None) -> Table:
    """Return one row per setting: the mean and spread over seeds, and the difference to the baseline."""
    baseline = next((g for g in groups if about.baseline and g.labels == about.baseline), None)
    judge = TEST if metric is DOCUMENTS and all(g.values(TEST.name) for g in groups) else metric
    has_bits = metric is not BITS and any(group.values("bits_per_byte") for group in groups)
    columns = ["setting", "seeds", metric.title, "± sd", "perplexity"]
    columns += ["bits/byte"] if has_bits else ["bytes/token"]
    more = [
        each for each in METRICS.values() if each.is_reported and not each.is_measured and each is not metric
    ]
    columns += [each.short for each in more]
    columns += ["to baseline", "p", "as good after"] if baseline else []
    differences = {} if baseline is None else compare_with_baseline(groups, baseline, judge)
    p_values = _correct_p_values(differences)
    rows: list[list[Cell]] = []
    for group in groups:
        values = group.values(metric.name)
        mean = group.mean(metric.name) if values else None
        loss = mean if metric is VALIDATION else None
        row: list[Cell] = [
            group.label,
            f"{len(values)} of {len(group.runs)}" if 0 < len(values) < len(group.runs) else len(group.runs),
            _format_final(group, mean),
            f"{statistics.stdev(values):.4f}" if len(values) > 1 else None,
            _or_none(format_perplexity, loss),
        ]
        bits = _or_none("{:.4f}".format, _mean_or_none(group, "bits_per_byte"))
        row.append(bits if has_bits else _format_bytes_per_token(group))
        row += [_or_none(each.format, _mean_or_none(group, each.name)) for each in more]
        if baseline:
            row += [_format_difference(group, baseline, judge, differences.get(group.label))]
            row += [_or_none(format_p, p_values.get(group.label)), _format_time_to(group, baseline, metric)]
        rows.append(row)
    dropped = {n for n in range(3, len(columns)) if all(row[n] in (None, "") for row in rows)}
    kept = [n for n in range(len(columns)) if n not in dropped]
    return Table(
        [columns[n] for n in kept],
        [[row[n] for n in kept] for row in rows],
        caption=" ".join(
            [
                _format_caption(metric, baseline, [columns[n] for n in kept], list(differences.values())),
                *(["Differences are of the test documents."] if baseline and judge is TEST else []),
                *describe_lost(groups),
            ]
        ),
        best=[groups.index(best)] if best else [],
    )


def _format_final(of: Group | RunRecord, value: float | None) -> str | None:
    if value is None:
        return "diverged" if of.status == "diverged" else None
    return f"{value:.4f}" if of.status == "complete" else f"{value:.4f} so far"


def _format_caption(
    metric: Metric, baseline: Group | None, columns: Sequence[str], differences: Sequence[Difference]
) -> str:
    parts = [f"Final {metric.axis}."]
    if "± sd" in columns:
        parts.append("sd: standard deviation over seeds.")
    if baseline and "to baseline" in columns:
        parts.append(f"Differences are to {baseline.label}.")
    if differences:
        paired = "of the differences seed by seed" if all(each.is_paired for each in differences) else ""
        parts.append(f"±: half the {CONFIDENCE:.0%} t interval {paired}".strip() + ".")
        family = (
            f", with Holm's correction for {len(differences)} comparisons" if len(differences) > 1 else ""
        )
        parts.append(f"p: probability of such a difference without an effect{family}.")
    if "as good after" in columns:
        parts.append(
            "As good after: time to reach the baseline's final value, and its share of the baseline's time."
        )
    return " ".join(parts)


def _mean_or_none(group: Group, name: str) -> float | None:
    return group.mean(name) if group.values(name) else None


def _format_bytes_per_token(group: Group) -> str | None:
    """Return the mean length of a token, which is the ratio of loss per token to bits per byte."""
    loss, bits = _mean_or_none(group, "validation_loss"), _mean_or_none(group, "bits_per_byte")
    return f"{loss / bits / math.log(2):.3f}" if loss and bits else None


def compare_with_baseline(groups: Sequence[Group], baseline: Group, metric: Metric) -> dict[str, Difference]:
    """Return the difference of each complete group to the baseline by label, where seeds give an interval."""
    theirs = baseline.values_by_seed(metric.name)
    found = {}
    for group in groups:
        if group is not baseline and group.status == baseline.status == "complete":
            difference = compare_means(group.values_by_seed(metric.name), theirs)
            if difference is not None:
                found[group.label] = difference
    return found


def _correct_p_values(differences: Mapping[str, Difference]) -> dict[str, float]:
    """Return the p-values with Holm's correction for the number of comparisons."""
    p_values = holm([difference.p_value for difference in differences.values()])
    return dict(zip(differences, p_values, strict=True))


def _format_difference(
    group: Group, baseline: Group, metric: Metric, difference: Difference | None
) -> str | None:
    """Format the difference of two means, with half of its interval if there is one."""
    if difference is not None:
        return f"{difference.value:+.4f} ± {difference.half_width():.4f}"
    ours, theirs = group.values(metric.name), baseline.values(metric.name)
    is_final = group.status == baseline.status == "complete"
    if group is baseline or not is_final or not ours or not theirs:
        return None
    return f"{statistics.fmean(ours) - statistics.fmean(theirs):+.4f}"


def format_p(value: float) -> str:
    """Format a p-value.

    >>> format_p(0.0312), format_p(0.00004)
    ('0.03', '< 0.001')
    """
    return "< 0.001" if value < 0.001 else f"{value:.3f}" if value < 0.01 else f"{value:.2f}"


def _format_time_to(group: Group, baseline: Group, metric: Metric) -> str | None:
    """Format the time to reach the baseline's final value, and its share of the baseline's time.

    Return None if a seed diverged, since the value did not last.
    """
    if metric is DOCUMENTS:  # it has no curve
        return None
    if group is baseline or baseline.status != "complete" or not baseline.values(metric.name):
        return None
    if group.num_diverged:
        return None
    goal, (points, _) = baseline.mean(metric.name), group.curve(metric.name, "seconds")
    reached = [seconds for seconds, value in points if value <= goal]
    end = baseline.curve(metric.name, "seconds")[0]
    if not reached or not end:
        return None
    return f"{format_seconds(reached[0])} ({reached[0] / end[-1][0]:.0%})"


def table_of_seeds(groups: Sequence[Group], metric: Metric) -> list[Block]:
    """Return the final value of every seed, if a setting has several."""
    if all(len(group.runs) == 1 for group in groups):
        return []
    rows: list[list[Cell]] = [
        [group.label, run.seed, _format_final(run, run.last(metric.name))]
        for group in groups
        for run in group.runs
    ]
    caption = f"Final {metric.axis}, of every seed"
    return [Table(["setting", "seed", metric.title], rows, caption=caption, folded=True)]


def table_of_incomplete_runs(groups: Sequence[Group]) -> list[Block]:
    """Return the status of every run that is not complete, and the reason."""
    rows: list[list[Cell]] = [
        [group.label, run.seed, run.status, run.reason]
        for group in groups
        for run in group.runs
        if run.status != "complete"
    ]
    caption = "Runs that diverged, stopped or failed."
    return [Table(["setting", "seed", "status", "reason"], rows, caption=caption)] if rows else []


def table_of_costs(groups: Sequence[Group]) -> list[Block]:
    """Return predicted and measured cost per setting."""
    metrics = [metric for metric in COST_METRICS if metric.is_reported]
    columns = ["setting"]
    for metric in metrics:
        columns += [metric.short, *([f"predicted {metric.short}"] if metric.is_predicted else [])]
        columns += ["ms/step"] if metric.name == "tokens_per_second" else []
    rows: list[list[Cell]] = []
    for group in groups:
        settings, predicted = group.runs[0].settings, group.runs[0].predicted
        row: list[Cell] = [group.label]
        for metric in metrics:
            value = group.measured(metric.name) or None
            if metric.name == "tokens_per_second":
                per_step = settings.get("batch_size", 1) * settings.get("model.context_length", 1)
                row += [round(value), 1000 * per_step / value] if value else [None, None]
                continue
            row.append(_or_none(metric.format, value))
            row += [_or_none(metric.format, predicted.get(metric.name))] if metric.is_predicted else []
        rows.append(row)
    kept = [n for n in range(len(columns)) if n == 0 or any(row[n] is not None for row in rows)]
    if len(kept) == 1:
        return []
    caption = (
        "Speed and utilisation (MFU) are medians during training. Predictions use only the settings and the"
        " machine. They were made before the run if its record has them, and with the report otherwise."
    )
    return [Table([columns[n] for n in kept], [[row[n] for n in kept] for row in rows], caption=caption)]


def table_of_ratios(groups: Sequence[Group]) -> list[Block]:
    """Return the ratio of each prediction to the measurement."""
    columns: list[str] = ["setting"]
    rows: list[list[Cell]] = [[group.label] for group in groups]
    for metric in COST_METRICS:
        ratios = [
            _format_ratio(group.runs[0].predicted, metric, group.measured(metric.name)) for group in groups
        ]
        if any(ratios):
            columns.append(metric.short)
            rows = [[*row, ratio] for row, ratio in zip(rows, ratios, strict=True)]
    caption = f"Predicted divided by measured. {MEASUREMENT_NOTE}"
    return [Table(columns, rows, caption=caption)] if len(columns) > 1 else []


def _format_ratio(predicted: Mapping[str, float], metric: Metric, measured: float | None) -> str | None:
    return f"{predicted[metric.name] / measured:.2f}" if metric.name in predicted and measured else None


def table_of_predictions(record: RunRecord) -> list[Block]:
    """Return predictions, measurements and their ratios of one run."""
    predicted, measured = dict(record.predicted), dict(record.measured)
    if "mfu" in measured and measured.get("tokens_per_second") and "tokens_per_second" in predicted:
        predicted["mfu"] = measured["mfu"] * predicted["tokens_per_second"] / measured["tokens_per_second"]
    rows: list[list[Cell]] = []
    for metric in COST_METRICS:
        if metric.name in predicted or metric.name in measured:
            both = (_or_none(metric.format, values.get(metric.name)) for values in (predicted, measured))
            rows.append([metric.title, *both, _format_ratio(predicted, metric, measured.get(metric.name))])
    return [Table(["", "predicted", "measured", "ratio"], rows, caption=MEASUREMENT_NOTE)] if rows else []


def tables_of_settings(records: Sequence[RunRecord]) -> list[Block]:
    """Return the settings in which the runs differ, and those that they share."""
    blocks: list[Block] = []
    shared = common([record.settings for record in records])
    names = [name for name in dict.fromkeys(n for r in records for n in r.settings) if name not in shared]
    if len(records) > 1 and names:
        columns = ["run", *(f"`{name}`" for name in names)]
        rows = [[run.name, *(_to_cell(run.settings.get(name)) for name in names)] for run in records]
        if len(names) > len(records):  # transposed, since many columns do not fit on a page
            columns, *rows = map(list, zip(columns, *rows, strict=True))
        blocks.append(Table(columns, rows, caption="Settings that differ between the runs."))
    rows = [[f"`{name}`", format_setting(value)] for name, value in shared.items()]
    caption = "Settings that all runs share" if len(records) > 1 else "Resolved configuration"
    blocks.append(Table(["setting", "value"], rows, caption=caption, folded=True))
    return blocks


def _to_cell(value: Any) -> Cell:
    """Format a setting, except integers: `Table` formats a column of integers in one way."""
    return value if type(value) is int else format_setting(value)


def table_of_environment(records: Sequence[RunRecord]) -> list[Block]:
    """Return the hardware and software of the runs."""
    shared = common([record.environment for record in records])
    rows: list[list[Cell]] = [[name, _format_environment(value)] for name, value in shared.items()]
    for name in dict.fromkeys(n for r in records for n in r.environment if n not in shared):
        values = list(dict.fromkeys(_format_environment(r.environment.get(name)) for r in records))
        rows.append(
            [name, ", ".join(values[:2]) + (f", … ({len(values)} values)" if len(values) > 2 else "")]
        )
    return [Table(["", "value"], rows)] if rows else []


def _format_environment(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else format_setting(value)


def _or_none(form: Callable[[float], str], value: float | None) -> str | None:
    return None if value is None else form(value)


def format_perplexity(loss: float) -> str:
    """Format the perplexity of a loss in nats per token.

    >>> format_perplexity(1.1870), format_perplexity(9.21)
    ('3.277', '9,997')
    """
    perplexity = math.exp(min(loss, 700))
    return f"{perplexity:.3f}" if perplexity < 1000 else f"{perplexity:,.0f}"

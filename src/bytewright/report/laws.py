"""The report page of a fitted scaling law, and its tables, which the command line prints, too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bytewright.laws.analysis import Analysis, FittedLaw, to_json
from bytewright.laws.bootstrap import Estimate
from bytewright.laws.isoflop import find_levels
from bytewright.laws.law import LAW_FIELDS, SYMBOLS
from bytewright.report.charts import Axis, Chart, Dot, DotChart, ReferenceLine, Series, format_value
from bytewright.report.markdown import write_markdown
from bytewright.report.page import Block, Cell, Figure, KeyFigures, Page, PageSection, Table, write_html
from bytewright.storage import atomic
from bytewright.train.metrics import finite

CURVE_POINTS = 60
MAX_CURVES = 8
INTERVAL_NOTE = (
    "Intervals are of 95 %, by Student's t distribution over resampled seeds. They contain the noise of"
    " seeds, not errors of the form of the law."
)


def write_law_report(analysis: Analysis, folder: Path) -> Path:
    """Write fit.html, fit.md with its figures, and fit.json; return the path of the HTML file."""
    page = build_law_page(analysis)
    atomic.write_json(folder / "fit.json", finite(to_json(analysis)))
    write_markdown(page, folder / "fit.md")
    write_html(page, folder / "fit.html")
    return folder / "fit.html"


def build_law_page(analysis: Analysis) -> Page:
    """Return the page of an analysis."""
    points, law = analysis.points, analysis.main.law
    figures: list[tuple[str, str, str]] = [
        ("a (parameters)", *_format_exponent(analysis.main.estimates["size_exponent"])),
        ("b (tokens)", *_format_exponent(analysis.main.estimates["data_exponent"])),
        ("E", format_value(law.limit), "known" if analysis.main.known_limit else "fitted"),
        ("points", str(len(points)), f"{len(np.unique(points.settings))} settings of N and D"),
    ]
    sections = [
        PageSection("The law", [table_of_laws(analysis), *analysis.notes, *_loss_figures(analysis)]),
        PageSection("Levels of compute", _level_blocks(analysis)),
        PageSection("Recovery of E", _recovery_blocks(analysis)),
        PageSection("Predicted exponents", _prediction_blocks(analysis)),
        PageSection("Residuals", [_residual_figure(analysis)]),
    ]
    return Page(
        title=points.title,
        lead=f"L = E + A/N^a + B/D^b, fitted to {len(points)} runs; losses in {points.unit}.",
        figures=KeyFigures(figures),
        sections=[section for section in sections if section.blocks],
    )


def _format_exponent(estimate: Estimate) -> tuple[str, str]:
    return f"{estimate.value:.3f}", format_interval(estimate, 3) or "no interval: one seed per setting"


def format_interval(estimate: Estimate, digits: int | None = None) -> str:
    """Return an interval as text; empty if there is none.

    >>> format_interval(Estimate(0.31, 0.01, (0.28, 0.34)), 2)
    '0.28 to 0.34'
    """
    if estimate.interval is None:
        return ""
    form = format_value if digits is None else lambda value: f"{value:.{digits}f}"
    return f"{form(estimate.interval[0])} to {form(estimate.interval[1])}"


# Tables


def table_of_laws(analysis: Analysis) -> Table:
    """Return one row per value of each fit."""
    columns = ["fit", *SYMBOLS.values(), "root mean square of ln residuals"]
    rows: list[list[Cell]] = []
    for fit in analysis.fits:
        spread = float(np.sqrt(np.mean(fit.residuals**2)))
        rows.append(
            [fit.name, *(_format_estimate(fit.estimates[name]) for name in LAW_FIELDS), f"{spread:.2g}"]
        )
    return Table(columns, rows, caption=f"Fitted laws, with intervals. {INTERVAL_NOTE}", best=[0])


def _format_estimate(estimate: Estimate) -> str:
    value, interval = format_value(estimate.value), format_interval(estimate)
    return f"{value} ({interval})" if interval else value


def table_of_levels(analysis: Analysis) -> Table:
    """Return the minimum of each level of compute."""
    rows: list[list[Cell]] = [
        [
            f"{level.parabola.flops:.3g}",
            level.num_points,
            _format_estimate(level.estimates["best_size"]),
            _format_estimate(level.estimates["best_tokens"]),
            _format_estimate(level.estimates["lowest"]),
            "yes" if level.parabola.is_inside else "no",
            format_value(analysis.main.law.best_size(level.parabola.flops))
            if _has_optimum(analysis)
            else None,
        ]
        for level in analysis.levels
    ]
    columns = ["FLOPs", "runs", "best N", "best D", "lowest loss", "inside", "best N of the law, C = 6 N D"]
    caption = "Minima of the parabolas of the loss against ln N. Inside: between the sizes of the level."
    return Table(columns, rows, caption=caption)


def _has_optimum(analysis: Analysis) -> bool:
    return min(analysis.main.law.size_scale, analysis.main.law.data_scale) > 0


def table_of_optima(analysis: Analysis) -> Table:
    """Return the exponents of the best N and D as powers of compute, by parabolas and by the law."""
    of_law = analysis.main.estimates["best_size_exponent"]
    rows: list[list[Cell]] = [
        [name, f"{each.value:.3f}", format_interval(each, 3)]
        for name, each in (
            ("best N, parabolas", analysis.optima["best_size_exponent"]),
            ("best D, parabolas", analysis.optima["best_tokens_exponent"]),
            ("best N, law: b / (a + b)", of_law),
        )
    ]
    return Table(["power of compute", "exponent", "interval"], rows)


def table_of_recovery(analysis: Analysis) -> Table:
    """Return the E of each procedure next to the known one."""
    rows: list[list[Cell]] = []
    for each in analysis.recoveries:
        if each.estimate is None:
            rows.append([each.procedure, each.data, None, each.reason, _format_limit(each.true), None, None])
            continue
        errors = "" if each.errors is None else f"{each.errors:+.1f}"
        share = "" if not each.true else f"{each.estimate.value / each.true - 1:+.2%}"
        value, interval = format_value(each.estimate.value, 5), format_interval(each.estimate)
        rows.append([each.procedure, each.data, value, interval, _format_limit(each.true), share, errors])
    columns = ["procedure", "points", "E", "interval", "true E", "difference", "in standard errors"]
    kind = analysis.points.excess_of
    true = "the entropy of the text, which is E" if kind is None else f"0, which is E of the excess of {kind}"
    caption = f"E as each procedure estimates it, next to {true}."
    return Table(columns, rows, caption=caption)


def _format_limit(value: float | None) -> str | None:
    return None if value is None else format_value(value, 5)


def table_of_exponents(analysis: Analysis) -> Table:
    """Return the exponents that the world predicts next to the measured ones."""
    rows: list[list[Cell]] = [
        [
            each.name,
            f"{each.asymptotic:.3f}",
            None if each.local is None else f"{each.local:.3f}",
            f"{each.measured.value:.3f}",
            format_interval(each.measured, 3),
        ]
        for each in analysis.predictions
    ]
    kind = analysis.points.excess_of
    of = "everything in the loss" if kind is None else f"the excess of {kind}"
    caption = (
        "Predicted for facts about people: the limit of many people, and between the ends of this sweep."
        f" The measured exponent is that of the law above, of {of}."
    )
    return Table(["exponent", "limit", "in this range", "measured", "interval"], rows, caption=caption)


# Figures


def _loss_figures(analysis: Analysis) -> list[Block]:
    """Return the loss against N, with one fitted curve per level of compute or per D."""
    points, law = analysis.points, analysis.main.law
    levels = find_levels(points)
    series = []
    if levels:
        words = "level of compute"
        for mask in levels[:MAX_CURVES]:
            part = points.select(mask)
            flops = float(np.exp(np.log(part.compute).mean()))
            logs = np.log(part.sizes)
            line = np.polyfit(logs, np.log(part.tokens), 1)
            grid = np.linspace(logs.min(), logs.max(), CURVE_POINTS)
            curve = law.loss(np.exp(grid), np.exp(np.polyval(line, grid)))
            series.append(_make_series(f"{flops:.2g} FLOPs", part.sizes, part.losses, np.exp(grid), curve))
    else:
        words = "number of tokens"
        for tokens in np.unique(points.tokens)[:MAX_CURVES]:
            part = points.select(points.tokens == tokens)
            sizes = np.geomspace(part.sizes.min(), part.sizes.max(), CURVE_POINTS)
            curve = law.loss(sizes, np.full(CURVE_POINTS, tokens))
            series.append(
                _make_series(f"D = {format_value(float(tokens))}", part.sizes, part.losses, sizes, curve)
            )
    chart = Chart(
        title="Loss against parameters",
        description=f"measured losses and the fitted law, by {words}",
        x=Axis("parameters N", log=True),
        y=Axis(f"loss, {points.unit}"),
        series=series,
        references=[] if points.floor is None else [ReferenceLine("true E", points.floor)],
        ordered=True,
    )
    by_tokens = Chart(
        title="Loss above E against tokens",
        description="measured losses above E and the term of the tokens",
        x=Axis("training tokens D", log=True),
        y=Axis(f"loss above E, {points.unit}", log=True),
        series=_series_by_size(analysis),
        ordered=True,
    )
    return [
        Figure(chart, f"Marks: runs. Lines: the law with {analysis.main.name}, for each {words}."),
        Figure(by_tokens, "One line per number of parameters: the law at this N."),
    ]


def _series_by_size(analysis: Analysis) -> list[Series]:
    points, law = analysis.points, analysis.main.law
    sizes = np.unique(points.sizes)
    chosen = sizes[np.unique(np.linspace(0, len(sizes) - 1, min(MAX_CURVES, len(sizes))).astype(int))]
    found = []
    for size in chosen:
        part = points.select(points.sizes == size)
        tokens = np.geomspace(part.tokens.min(), part.tokens.max(), CURVE_POINTS)
        curve = law.loss(np.full(CURVE_POINTS, size), tokens) - law.limit
        label = f"N = {format_value(float(size))}"
        found.append(_make_series(label, part.tokens, part.losses - law.limit, tokens, curve))
    return found


def _make_series(label: str, x: np.ndarray, y: np.ndarray, at: np.ndarray, curve: np.ndarray) -> Series:
    order = np.argsort(x, kind="stable")
    return Series(label, _pairs(x[order], y[order]), curve=_pairs(at, curve))


def _pairs(x: np.ndarray, y: np.ndarray) -> list[tuple[float, float]]:
    return [(float(a), float(b)) for a, b in zip(x, y, strict=True)]


def _level_blocks(analysis: Analysis) -> list[Block]:
    if not analysis.levels:
        return []
    points, masks = analysis.points, find_levels(analysis.points)
    series = []
    for level in analysis.levels[:MAX_CURVES]:
        low, high = level.parabola.sizes
        mask = min(
            masks, key=lambda each: abs(np.log(points.compute[each]).mean() - np.log(level.parabola.flops))
        )
        part, sizes = points.select(mask), np.geomspace(low, high, CURVE_POINTS)
        label = f"{level.parabola.flops:.2g} FLOPs"
        series.append(_make_series(label, part.sizes, part.losses, sizes, level.parabola.loss(sizes)))
    chart = Chart(
        title="IsoFLOP parabolas",
        description="losses and parabolas of each level of compute, against parameters",
        x=Axis("parameters N", log=True),
        y=Axis(f"loss, {points.unit}"),
        series=series,
        ordered=True,
    )
    caption = (
        "Marks: runs. Lines: parabolas in ln N. They are biased, since the law is not symmetric in ln N."
    )
    blocks: list[Block] = [Figure(chart, caption), table_of_levels(analysis)]
    return [*blocks, table_of_optima(analysis)] if analysis.optima else blocks


def _recovery_blocks(analysis: Analysis) -> list[Block]:
    dots = [
        Dot(f"{each.procedure} ({each.data})", each.estimate.value, each.estimate.interval)
        for each in analysis.recoveries
        if each.estimate is not None
    ]
    if not dots:
        return [table_of_recovery(analysis)]
    floor = analysis.points.floor
    chart = DotChart(
        title="E by procedure",
        description="E as each procedure estimates it, with its interval",
        value=Axis(f"E, {analysis.points.unit}", limits=_choose_limits(dots, floor)),
        dots=dots,
        references=[] if floor is None else [ReferenceLine("true E", floor)],
    )
    caption = "Bars are intervals over seeds. An arrow marks where one leaves the chart."
    return [Figure(chart, caption), table_of_recovery(analysis)]


def _choose_limits(dots: Sequence[Dot], floor: float | None) -> tuple[float, float]:
    """Return limits around the values, since an interval can be wide."""
    values = [dot.value for dot in dots] + ([] if floor is None else [floor])
    span = (max(values) - min(values)) or abs(values[0]) or 1.0
    return min(values) - 0.6 * span, max(values) + 0.6 * span


def _prediction_blocks(analysis: Analysis) -> list[Block]:
    return [table_of_exponents(analysis)] if analysis.predictions else []


def _residual_figure(analysis: Analysis) -> Figure:
    def series(fit: FittedLaw) -> Series:
        order = np.argsort(analysis.points.compute, kind="stable")
        return Series(fit.name, _pairs(analysis.points.compute[order], fit.residuals[order]), curve=())

    chart = Chart(
        title="Residuals against compute",
        description="ln of measured over fitted loss, by compute",
        x=Axis("FLOPs", log=True),
        y=Axis("ln (measured / fitted)"),
        series=[series(fit) for fit in analysis.fits],
        references=[ReferenceLine("", 0.0)],
    )
    return Figure(chart, "A trend over compute means that the law does not have the right form.")

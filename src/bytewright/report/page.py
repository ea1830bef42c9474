"""A report as a value, and as one HTML file that can be mailed: no script, no request, readable on a phone.

A `Page` is a title, a lead, and sections of blocks: paragraphs (plain strings; `backticks` make code), key
figures, charts with their data beside them, tables, and samples of text. `render_html` writes it all inline;
`markdown` writes the same page as Markdown with SVG files beside it. Every text is escaped: a model may write
what it likes. Knows nothing of runs.

    page = Page(title="Learning rate", lead="Which one?", sections=[Section("Curves", [Figure(chart)])])
    write_html(page, Path("report.html"))
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bytewright.report.draw import NARROW, STYLE, WIDE, Chart, DotChart, chart_rows, draw
from bytewright.report.scales import MISSING, format_value
from bytewright.report.svg import escape, printable
from bytewright.storage import atomic

Cell = str | int | float | None
MAX_DATA_POINTS = 60
"""Points of a series in the table beside a figure; of a longer one every nth is shown."""
LONG_FACT = 10
"""Characters of a key figure beyond which it is set smaller."""
PAGE_STYLE = Path(__file__).with_name("page.css").read_text()


@dataclass(frozen=True)
class Figure:
    """A chart, with a caption that says what to see in it; its data follows as a table to unfold."""

    chart: Chart | DotChart
    caption: str = ""


@dataclass(frozen=True)
class Table:
    """Headings and rows. Numbers are worded alike and stand to the right; `best` rows are set in bold."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    folded: bool = False
    """Show the caption only, until it is asked for."""
    best: Sequence[int] = ()


@dataclass(frozen=True)
class Facts:
    """A few key figures, set large: (name, value) or (name, value, remark)."""

    facts: Sequence[tuple[str, str] | tuple[str, str, str]]


@dataclass(frozen=True)
class Sample:
    """A text that a model wrote, after a prompt that it was given."""

    label: str
    text: str
    prompt: str = ""
    note: str = ""


@dataclass(frozen=True)
class Samples:
    """Texts side by side."""

    samples: Sequence[Sample]
    caption: str = ""


Block = str | Figure | Table | Facts | Samples


@dataclass(frozen=True)
class Section:
    """A part of a page."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True, kw_only=True)
class Page:
    """A whole report. `lead` and `footer` are paragraphs."""

    title: str
    lead: str = ""
    facts: Facts | None = None
    sections: Sequence[Section] = ()
    footer: str = ""


def write_html(page: Page, path: Path) -> None:
    """Write the page as one self-contained file."""
    atomic.write_text(path, render_html(page))


def render_html(page: Page) -> str:
    """Spell out the page as one HTML document."""
    body = [f"<h1>{escape(page.title)}</h1>"]
    if page.lead:
        body.append(f'<p class="lead">{inline(page.lead)}</p>')
    if page.facts:
        body.append(_facts(page.facts))
    if len(page.sections) > 3:
        links = (f'<a href="#{slug(part.title)}">{escape(part.title)}</a>' for part in page.sections)
        body.append(f"<nav>{' '.join(links)}</nav>")
    for section in page.sections:
        heading = f"<h2>{escape(section.title)}</h2>"
        blocks = "\n".join([heading, *(_block(block) for block in section.blocks)])
        body.append(f'<section id="{slug(section.title)}">\n{blocks}\n</section>')
    if page.footer:
        body.append(f"<footer><p>{inline(page.footer)}</p></footer>")
    content = "\n".join(body)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="bytewright">
<title>{escape(page.title)}</title>
<link rel="icon" href="data:,">
<style>
{STYLE}{PAGE_STYLE}</style>
</head>
<body>
<main>
{content}
</main>
</body>
</html>
"""


def _block(block: Block) -> str:
    match block:
        case str():
            return f"<p>{inline(block)}</p>"
        case Figure():
            return _figure(block)
        case Table():
            return _table(block)
        case Facts():
            return _facts(block)
        case Samples():
            return _samples(block)


def _figure(figure: Figure) -> str:
    """Draw the chart for both widths; the page shows the one that fits."""
    drawn = "".join(
        f'<div class="{name}">{draw(figure.chart, width=width, standalone=False)}</div>'
        for name, width in (("wide", WIDE), ("narrow", NARROW))
    )
    title = f"<strong>{escape(figure.chart.title)}.</strong>"
    caption = f"<figcaption>{title} {inline(figure.caption)}</figcaption>"
    return f'<figure class="chart">{drawn}{caption}{_table(data_table(figure.chart))}</figure>'


def data_table(chart: Chart | DotChart) -> Table:
    """Make the table that stands beside a chart."""
    columns, rows = chart_rows(chart, MAX_DATA_POINTS)
    lengths = [len(series.points) for series in chart.series] if isinstance(chart, Chart) else []
    every = -(-max(lengths, default=0) // MAX_DATA_POINTS)
    caption = "The data" if every <= 1 else f"The data, of long series one value of {every}"
    first = 1 if columns[0] or isinstance(chart, DotChart) else 2  # after the x, which may follow a name
    data = [[row[n] for row in rows] for n in range(len(columns))]
    worded = [*data[:first], *(_word_data(column) for column in data[first:])]
    return Table(columns, list(zip(*worded, strict=True)), caption=caption, folded=True)


def _word_data(column: Sequence[str | float]) -> Sequence[Cell]:
    """Word the values of a chart to four decimals; where all are large they stay for the table to word."""
    sizes = [abs(cell) for cell in column if isinstance(cell, float) and math.isfinite(cell) and cell]
    is_large = bool(sizes) and min(sizes) >= 100
    return ["diverged" if cell != cell else cell if is_large else _word_datum(cell) for cell in column]


def _word_datum(cell: str | float) -> str:
    if isinstance(cell, str):
        return cell
    return f"{cell:,.4f}" if cell == 0 or 1e-3 <= abs(cell) < 1e6 else format_value(cell, 5)


def _table(table: Table) -> str:
    numeric = numeric_columns(table)
    head = "".join(f"<th{_class(numeric[n])}>{inline(name)}</th>" for n, name in enumerate(table.columns))
    rows = []
    for number, row in enumerate(worded_rows(table)):
        cells = "".join(f"<td{_class(numeric[n])}>{inline(cell)}</td>" for n, cell in enumerate(row))
        rows.append(f"<tr{_class(number in table.best, 'best')}>{cells}</tr>")
    drawn = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    drawn = f'<div class="scroll">{drawn}</div>'
    if table.folded:
        return f"<details><summary>{inline(table.caption or 'Table')}</summary>{drawn}</details>"
    caption = f'<p class="caption">{inline(table.caption)}</p>' if table.caption else ""
    return drawn + caption


def _class(applies: bool, name: str = "number") -> str:
    return f' class="{name}"' if applies else ""


def numeric_columns(table: Table) -> list[bool]:
    """Say of each column whether it holds numbers, numbers with a unit included."""
    kinds = []
    for number in range(len(table.columns)):
        cells = [row[number] for row in table.rows if row[number] not in (None, "", MISSING, "∞", "diverged")]
        kinds.append(bool(cells) and all(_is_number(cell) for cell in cells))
    return kinds


def _is_number(cell: Cell) -> bool:
    return not isinstance(cell, str) or re.match(r"[-+±≈<>~ ]*\d", cell) is not None


def worded_rows(table: Table) -> list[list[str]]:
    """Word every cell; the numbers of a column are written in one way, with as many decimals as each other.

    >>> worded_rows(Table(["loss", "tokens/s"], [[1.3, 9665.9], [1.3124, 176_809.2]]))
    [['1.3000', '9,666'], ['1.3124', '176,809']]
    """
    columns = [_word_column([row[n] for row in table.rows]) for n in range(len(table.columns))]
    return [list(row) for row in zip(*columns, strict=True)]


def _word_column(cells: Sequence[Cell]) -> list[str]:
    numbers = [abs(cell) for cell in cells if isinstance(cell, float) and math.isfinite(cell) and cell]
    words = [_word(cell) for cell in cells]
    is_whole = all(number == int(number) for number in numbers)
    if not numbers or min(numbers) < 1e-3 or (max(numbers) / min(numbers) > 1000 and not is_whole):
        return words
    if is_whole:
        decimals = 0
    elif max(numbers) >= 1000:  # five digits of the largest, unless the smallest needs more to have three
        decimals = max(0, 4 - int(math.log10(max(numbers))), 2 - int(math.log10(min(numbers))))
    else:
        decimals = max(len(_word(number).partition(".")[2]) for number in numbers)
    return [
        f"{cell:,.{decimals}f}" if isinstance(cell, float) and math.isfinite(cell) else word
        for cell, word in zip(cells, words, strict=True)
    ]


def _word(cell: Cell) -> str:
    if cell is None:
        return MISSING
    if isinstance(cell, str):
        return cell
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int) or 1000 <= abs(cell) < math.inf:
        return f"{cell:,.0f}"
    return format_value(cell, 5)


def _facts(facts: Facts) -> str:
    items = []
    for name, value, *remark in facts.facts:
        note = f"<small>{inline(remark[0])}</small>" if remark else ""
        size = _class(len(value) > LONG_FACT, "long")
        items.append(f"<div><dt>{inline(name)}</dt><dd{size}>{inline(value)}{note}</dd></div>")
    return f'<dl class="facts">{"".join(items)}</dl>'


def _samples(samples: Samples) -> str:
    cards = []
    for sample in samples.samples:
        prompt = f"<b>{escape(sample.prompt)}</b>" if sample.prompt else ""
        note = f"<footer>{inline(sample.note)}</footer>" if sample.note else ""
        text = escape(sample.text)
        cards.append(
            f"<article><h3>{inline(sample.label)}</h3><blockquote>{prompt}{text}</blockquote>{note}</article>"
        )
    caption = f'<p class="caption">{inline(samples.caption)}</p>' if samples.caption else ""
    return f'<div class="samples">{"".join(cards)}</div>{caption}'


def inline(words: str) -> str:
    """Escape a text for HTML; what stands between backticks becomes code.

    >>> inline("a < b, see `lr`")
    'a &lt; b, see <code>lr</code>'
    """
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(printable(words), quote=False))


def slug(title: str) -> str:
    """Make a name that is safe in links and file names.

    >>> slug("Loss, by wall-clock time")
    'loss-by-wall-clock-time'
    """
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "part"

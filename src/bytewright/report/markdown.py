"""Render a `Page` as Markdown with one SVG file per chart, for repositories and editors.

`write_markdown(page, "report.md")` also writes `report-figures/NAME.svg` and removes figures of an earlier
version. Generated text is placed in fenced blocks, where it cannot act as markup.
"""

from __future__ import annotations

import re
from pathlib import Path

from bytewright.report.draw import draw_chart
from bytewright.report.page import (
    Block,
    Figure,
    KeyFigures,
    Page,
    Samples,
    Table,
    data_table,
    format_rows,
    numeric_columns,
    slug,
)
from bytewright.report.svg import printable
from bytewright.storage import atomic


def write_markdown(page: Page, path: Path) -> None:
    """Write the figures, then the Markdown file, so that all its links are valid at any time."""
    text, figures = render_markdown(page, f"{path.stem}-figures")
    folder = path.with_name(f"{path.stem}-figures")
    atomic.check_no_links(folder, within=path.parent)
    for name, drawing in figures.items():
        atomic.write_text(folder / name, drawing)
    atomic.write_text(path, text)
    for old in folder.glob("*.svg") if folder.is_dir() else ():
        if old.name not in figures:
            atomic.remove_if_present(old)


def render_markdown(page: Page, folder: str) -> tuple[str, dict[str, str]]:
    """Return the page as Markdown, and its charts by file name; the links refer to files in `folder`."""
    figures: dict[str, str] = {}
    parts = [f"# {_escape(page.title)}"]
    if page.lead:
        parts.append(_escape(page.lead))
    if page.figures:
        parts.append(_render_key_figures(page.figures))
    for section in page.sections:
        parts.append(f"## {_escape(section.title)}")
        parts += [_render_block(block, folder, figures) for block in section.blocks]
    if page.footer:
        parts += ["---", _escape(page.footer)]
    return "\n\n".join(part for part in parts if part) + "\n", figures


def _render_block(block: Block, folder: str, figures: dict[str, str]) -> str:
    match block:
        case str():
            return _escape(block)
        case Figure():
            return _render_figure(block, folder, figures)
        case Table():
            return _render_table(block)
        case KeyFigures():
            return _render_key_figures(block)
        case Samples():
            return _render_samples(block)


def _render_figure(figure: Figure, folder: str, figures: dict[str, str]) -> str:
    name = f"{len(figures) + 1:02d}-{slug(figure.chart.title)}.svg"
    figures[name] = draw_chart(figure.chart) + "\n"
    caption = f"*{_escape(figure.chart.title)}.* {_escape(figure.caption)}".strip()
    image = f"![{_escape(figure.chart.title)}]({folder}/{name})"
    return f"{image}\n\n{caption}\n\n{_render_table(data_table(figure.chart))}"


def _render_table(table: Table) -> str:
    numeric = numeric_columns(table)
    lines = [
        _render_row([_escape(name) for name in table.columns]),
        _render_row(["--:" if is_number else ":--" for is_number in numeric]),
    ]
    for number, row in enumerate(format_rows(table)):
        cells = [_escape(cell) for cell in row]
        lines.append(
            _render_row([f"**{cell}**" if number in table.best and cell else cell for cell in cells])
        )
    drawn = "\n".join(lines)
    if table.folded:
        return f"<details><summary>{_escape(table.caption or 'Table')}</summary>\n\n{drawn}\n\n</details>"
    return drawn + (f"\n\n*{_escape(table.caption)}*" if table.caption else "")


def _render_row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _render_key_figures(key_figures: KeyFigures) -> str:
    lines = []
    for name, value, *remark in key_figures.figures:
        note = f" ({_escape(remark[0])})" if any(remark) else ""
        lines.append(f"- **{_escape(name)}:** {_escape(value)}{note}")
    return "\n".join(lines)


def _render_samples(samples: Samples) -> str:
    parts = []
    for sample in samples.samples:
        text = printable(sample.prompt + sample.text)
        fence = max(["``", *re.findall("`+", text)], key=len) + "`"  # longer than any in the text
        note = f"\n\n{_escape(sample.note)}" if sample.note else ""
        parts.append(f"**{_escape(sample.label)}**\n\n{fence}text\n{text.rstrip()}\n{fence}{note}")
    if samples.caption:
        parts.append(f"*{_escape(samples.caption)}*")
    return "\n\n".join(parts)


def _escape(words: str) -> str:
    """Escape a text for Markdown; backticks still mark code."""
    flat = " ".join(printable(words).split())
    return flat.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|").replace("*", "\\*")

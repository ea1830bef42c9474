"""The same page as Markdown: one file to read anywhere, with its charts as SVG files beside it.

`write_markdown(page, "report.md")` also writes `report-figures/NAME.svg`, one per chart; figures that an
earlier version of the page left there and this one lacks are removed. Text that a model wrote stands in
fenced blocks, so that nothing in it can act as markup. Knows nothing of runs.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from bytewright.report.draw import draw
from bytewright.report.page import (
    Block,
    Facts,
    Figure,
    Page,
    Samples,
    Table,
    data_table,
    numeric_columns,
    slug,
    worded_rows,
)
from bytewright.report.svg import printable
from bytewright.storage import atomic


def write_markdown(page: Page, path: Path) -> None:
    """Write the page as Markdown, figures first: the text never points to one that is not there."""
    text, figures = render_markdown(page, f"{path.stem}-figures")
    folder = path.with_name(f"{path.stem}-figures")
    atomic.refuse_links(folder, within=path.parent)
    for name, drawing in figures.items():
        atomic.write_text(folder / name, drawing)
    atomic.write_text(path, text)
    for old in folder.glob("*.svg") if folder.is_dir() else ():
        if old.name not in figures:
            with contextlib.suppress(OSError):
                old.unlink()


def render_markdown(page: Page, folder: str) -> tuple[str, dict[str, str]]:
    """Spell out the page, and give its charts by file name; links to them go into `folder`."""
    figures: dict[str, str] = {}
    parts = [f"# {_words(page.title)}"]
    if page.lead:
        parts.append(_words(page.lead))
    if page.facts:
        parts.append(_facts(page.facts))
    for section in page.sections:
        parts.append(f"## {_words(section.title)}")
        parts += [_block(block, folder, figures) for block in section.blocks]
    if page.footer:
        parts += ["---", _words(page.footer)]
    return "\n\n".join(part for part in parts if part) + "\n", figures


def _block(block: Block, folder: str, figures: dict[str, str]) -> str:
    match block:
        case str():
            return _words(block)
        case Figure():
            return _figure(block, folder, figures)
        case Table():
            return _table(block)
        case Facts():
            return _facts(block)
        case Samples():
            return _samples(block)


def _figure(figure: Figure, folder: str, figures: dict[str, str]) -> str:
    name = f"{len(figures) + 1:02d}-{slug(figure.chart.title)}.svg"
    figures[name] = draw(figure.chart) + "\n"
    caption = f"*{_words(figure.chart.title)}.* {_words(figure.caption)}".strip()
    return (
        f"![{_words(figure.chart.title)}]({folder}/{name})\n\n{caption}\n\n{_table(data_table(figure.chart))}"
    )


def _table(table: Table) -> str:
    numeric = numeric_columns(table)
    lines = [
        _row([_words(name) for name in table.columns]),
        _row(["--:" if is_number else ":--" for is_number in numeric]),
    ]
    for number, row in enumerate(worded_rows(table)):
        cells = [_words(cell) for cell in row]
        lines.append(_row([f"**{cell}**" if number in table.best and cell else cell for cell in cells]))
    drawn = "\n".join(lines)
    if table.folded:
        return f"<details><summary>{_words(table.caption or 'Table')}</summary>\n\n{drawn}\n\n</details>"
    return drawn + (f"\n\n*{_words(table.caption)}*" if table.caption else "")


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _facts(facts: Facts) -> str:
    lines = []
    for name, value, *remark in facts.facts:
        note = f" ({_words(remark[0])})" if any(remark) else ""
        lines.append(f"- **{_words(name)}:** {_words(value)}{note}")
    return "\n".join(lines)


def _samples(samples: Samples) -> str:
    parts = []
    for sample in samples.samples:
        text = printable(sample.prompt + sample.text)
        fence = "`" * max(3, _longest_run(text, "`") + 1)
        note = f"\n\n{_words(sample.note)}" if sample.note else ""
        parts.append(f"**{_words(sample.label)}**\n\n{fence}text\n{text.rstrip()}\n{fence}{note}")
    if samples.caption:
        parts.append(f"*{_words(samples.caption)}*")
    return "\n\n".join(parts)


def _longest_run(text: str, mark: str) -> int:
    longest = run = 0
    for character in text:
        run = run + 1 if character == mark else 0
        longest = max(longest, run)
    return longest


def _words(words: str) -> str:
    """Keep a text from acting as markup: angle brackets and bars are written out; backticks stay code."""
    flat = " ".join(printable(words).split())
    return flat.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|").replace("*", "\\*")

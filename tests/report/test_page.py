"""A page is one valid file without requests or scripts, and its text cannot act as markup."""

import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from bytewright.errors import StorageError
from bytewright.report.charts import Axis, Chart, Series
from bytewright.report.markdown import write_markdown
from bytewright.report.page import (
    Figure,
    KeyFigures,
    Page,
    PageSection,
    Sample,
    Samples,
    Table,
    data_table,
    format_rows,
    numeric_columns,
    render_html,
    write_html,
)
from rejection import rejects

VOID = {"meta", "link"}
HOSTILE = "<script>alert(1)</script> | *loud* `x` </details> \x1b[2J"


class Balance(HTMLParser):
    """Checks that elements are closed in order; collects the text, tags and links."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.words = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for key, value in attrs if key in ("href", "src", "srcset")]
        assert not [key for key, _ in attrs if key.startswith("on")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def make_page(text: str = "There was a fox.") -> Page:
    chart = Chart(
        title=f"Loss {text}", x=Axis("steps"), y=Axis("nats"), series=[Series(text, [(1, 2), (2, 1)])]
    )
    return Page(
        title=f"T {text}",
        lead=text,
        figures=KeyFigures([("loss", "1.3", text), (text, text)]),
        sections=[
            PageSection(
                f"S {number} {text}",
                [text, Figure(chart, text), Table([text, "n"], [[text, 1.5], ["b", None]])],
            )
            for number in range(4)
        ]
        + [PageSection("Samples", [Samples([Sample(text, text, prompt=text, note=text)], caption=text)])],
        footer=text,
    )


@pytest.mark.parametrize("text", ["There was a fox.", HOSTILE])
def test_the_html_is_balanced_and_makes_no_requests(text: str) -> None:
    parser = Balance()
    parser.feed(render_html(make_page(text)))
    assert parser.open == []
    assert "script" not in parser.tags
    assert all(link.startswith("#") or link == "data:," for link in parser.links)
    assert not re.search(r"@import|url\(", render_html(make_page(text)))


def test_the_html_contains_all_text_of_the_page() -> None:
    parser = Balance()
    parser.feed(render_html(make_page("pine marten")))
    assert parser.words.count("pine marten") > 20
    assert "1.5" in parser.words


def test_the_links_of_the_contents_are_valid() -> None:
    page = render_html(make_page())
    wanted = re.findall(r'href="#([^"]+)"', page)
    assert wanted
    assert set(wanted) <= set(re.findall(r'id="([^"]+)"', page))


def test_the_table_of_a_figure_has_four_decimals_and_marks_divergence() -> None:
    def table_of(*series: Series) -> Table:
        return data_table(Chart(title="t", x=Axis("steps"), y=Axis("nats"), series=series))

    both = [Series("a", [(780, 1.5), (1560, 1.25)]), Series("b", [(780, 1.125), (1560, math.nan)])]
    assert format_rows(table_of(*both)) == [["780", "1.5000", "1.1250"], ["1,560", "1.2500", "diverged"]]
    apart = [Series(f"s{n}", [(780.0 + n, 1.5)]) for n in range(3)]
    assert format_rows(table_of(*apart))[0] == ["s0", "780", "1.5000"]
    assert numeric_columns(table_of(*both)) == [True, True, True]


def test_the_numbers_of_a_column_have_one_format() -> None:
    def column(*cells: float) -> list[str]:
        return [row[0] for row in format_rows(Table(["n"], [[cell] for cell in cells]))]

    assert column(780.0, 81_920.0, 102_400.0) == ["780", "81,920", "102,400"]
    assert column(1.25, 1200.5) == ["1.25", "1,200.50"]
    assert column(0.5, 9665.9) == ["0.5", "9,666"]
    speeds = Series("a", [(1.0, 9665.9), (2.0, 176_809.0), (3.0, math.nan)])
    chart = Chart(title="t", x=Axis("steps"), y=Axis("tokens/s"), series=[speeds])
    assert format_rows(data_table(chart)) == [["1", "9,666"], ["2", "176,809"], ["3", "diverged"]]
    losses = Series("a", [(1.0, 1.5), (2.0, 12_345.5)])
    chart = Chart(title="t", x=Axis("steps"), y=Axis("nats"), series=[losses])
    assert [row[1] for row in format_rows(data_table(chart))] == ["1.5000", "12,345.5000"]


def test_markdown_links_to_all_existing_figures(tmp_path: Path) -> None:
    (tmp_path / "report-figures").mkdir()
    (tmp_path / "report-figures" / "99-old.svg").write_text("<svg/>")
    write_markdown(make_page(), tmp_path / "report.md")
    text = (tmp_path / "report.md").read_text()
    linked = re.findall(r"\]\((report-figures/[^)]+)\)", text)
    assert len(linked) == 4
    assert {str(path.relative_to(tmp_path)) for path in (tmp_path / "report-figures").iterdir()} == set(
        linked
    )


def test_markdown_escapes_hostile_text(tmp_path: Path) -> None:
    write_markdown(make_page(HOSTILE), tmp_path / "report.md")
    outside = re.sub(r"(?ms)^(`{3,})text\n.*?^\1$", "", (tmp_path / "report.md").read_text())
    assert "<script" not in outside
    assert outside.count("</details>") == outside.count("<details>")
    tables = [line for line in outside.split("\n") if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in tables} == {3}


def test_a_page_that_cannot_be_written_raises_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file, not a folder")
    with rejects(StorageError, path=tmp_path / "taken" / "report.html"):
        write_html(make_page(), tmp_path / "taken" / "report.html")

"""Charts are complete, valid and readable: series are distinguishable, and no data is lost."""

import math
import re
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bytewright.report.charts import (
    Axis,
    Chart,
    Dot,
    DotChart,
    ReferenceLine,
    Scale,
    Series,
    chart_rows,
    choose_ticks,
    fit_limits,
    format_ticks,
)
from bytewright.report.draw import NARROW, WIDE, draw_chart
from bytewright.report.svg import spread_labels

SVG = "{http://www.w3.org/2000/svg}"


def chart(*series: Series, **more: object) -> Chart:
    return Chart(title="Loss", x=Axis("steps"), y=Axis("nats"), series=series, **more)  # type: ignore[arg-type]


def parse(made: Chart | DotChart, width: int = WIDE) -> ElementTree.Element:
    return ElementTree.fromstring(draw_chart(made, width=width))


def texts(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


falling = [(float(step), 5.0 - step / 10) for step in range(1, 21)]


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_series_are_labelled_and_distinguishable_without_colour(width: int) -> None:
    root = parse(chart(*(Series(f"lr {n}", falling) for n in range(6))), width)
    assert {f"lr {n}" for n in range(6)} <= set(texts(root))
    lines = [e for e in root.iter(f"{SVG}path") if e.get("class") == "line"]
    assert len({line.get("stroke-dasharray") for line in lines}) == 6


def test_a_chart_has_a_title_and_description_and_no_script() -> None:
    drawn = draw_chart(chart(Series("a", falling), description="It falls."))
    root = ElementTree.fromstring(drawn)
    assert root.get("role") == "img"
    assert root.findtext(f"{SVG}title") == "Loss"
    assert root.findtext(f"{SVG}desc") == "It falls."
    assert "<script" not in drawn
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", drawn)


def crosses(root: ElementTree.Element) -> list[float]:
    """Return the x of the crosses that mark divergence, from the left."""
    found = [e.get("d") or "" for e in root.iter(f"{SVG}path") if e.get("class") == "gone"]
    return [sum(float(x) for x in re.findall(r"[ML]([-\d.]+)", d)) / 4 for d in found]


def line_of(root: ElementTree.Element, number: int) -> list[tuple[float, float]]:
    """Return the points of a line."""
    lines = [e.get("d") or "" for e in root.iter(f"{SVG}path") if e.get("class") == "line"]
    return [(float(x), float(y)) for x, y in re.findall(r"([-\d.]+) ([-\d.]+)", lines[number])]


def test_a_diverged_run_does_not_extend_the_axis_and_is_labelled() -> None:
    gone = [*falling, (21.0, math.inf)]
    root = parse(chart(Series("calm", falling), Series("wild", gone, diverged=True)))
    assert "wild (diverged)" in texts(root)
    assert texts(root)[1:7] == texts(parse(chart(Series("calm", falling), Series("wild", falling))))[1:7]


@pytest.mark.parametrize(
    ("values", "leaves"),
    [
        ([2, 2, 99, 99], [(1, 2)]),  # once, between its second and third point
        ([2, math.inf], [(0, 1)]),
        ([2, 99, 2, 99], [(0, 1)]),  # it came back and left again: the first exit is marked
        ([99, 2, 2, 2], []),  # the fall at the start
        ([50, 99, 2, 2], [(0, 0)]),  # it rose before the first point within the chart
        ([99, 98], [(0, 0)]),  # it was never within
    ],
)
def test_a_cross_marks_where_a_diverged_run_leaves_the_chart(
    values: list[float], leaves: list[tuple[int, int]]
) -> None:
    wild = Series("wild", [(float(n), value) for n, value in enumerate(values)], diverged=True)
    axis = Axis("nats", limits=(1.0, 5.0))
    root = parse(Chart(title="t", x=Axis("x"), y=axis, series=[Series("calm", [(0, 2), (3, 2)]), wild]))
    (left, _), (right, _) = line_of(root, 0)
    found = [3 * (cross - left) / (right - left) for cross in crosses(root)]
    assert len(found) == len(leaves)
    for cross, (before, after) in zip(found, leaves, strict=True):
        assert before - 0.01 <= cross <= after + 0.01


def test_no_part_of_a_curve_is_drawn_outside_the_plot() -> None:
    values = [9.0, 5.04, 5.04, 9.0, 3.0, math.inf, 3.0, 0.5]
    wild = Series("wild", [(float(n), value) for n, value in enumerate(values)], diverged=True)
    calm = Series("calm", [(0, 5), (3, 4), (7, 1)])  # along the edges of the plot
    axis = Axis("nats", limits=(1.0, 5.0))
    root = parse(Chart(title="t", x=Axis("x"), y=axis, series=[calm, wild]))
    (_, top), _, (_, bottom) = line_of(root, 0)
    lines = [e.get("d") or "" for e in root.iter(f"{SVG}path") if e.get("class") == "line"]
    pieces = [line_of(root, number) for number in range(1, len(lines))]
    assert len(pieces) == 2  # about the points at 3.0; those at 5.04 lie just above the upper edge
    assert all(top <= y <= bottom for piece in pieces for _, y in piece)
    assert len(crosses(root)) == 1


def test_each_diverged_setting_has_a_cross() -> None:
    root = parse(chart(Series("final", [(1, 2), (2, 1), (3, math.nan), (4, math.nan)])))
    assert len(crosses(root)) == 2


def test_distances_to_a_floor_are_drawn_on_a_log_scale() -> None:
    axis = Axis("nats", log=True, origin=1.0)
    root = parse(Chart(title="t", x=Axis("x"), y=axis, series=[Series("a", [(0, 9), (1, 5), (2, 3)])]))
    (_, first), (_, second), (_, third) = line_of(root, 0)
    assert third - second == pytest.approx(second - first, abs=0.2)
    assert "nats above 1.0000 (log)" in texts(root)


def test_long_labels_are_not_truncated() -> None:
    label = "without norms and without warm-up, lr 1.3e-3"
    assert label in texts(parse(chart(Series(label, falling), Series("b", falling))))


def test_the_floor_is_drawn_and_named() -> None:
    root = parse(chart(Series("a", falling), references=[ReferenceLine("floor", 2.5)]))
    assert "floor 2.5" in texts(root)
    assert [e for e in root.iter(f"{SVG}line") if e.get("class") == "floor"]


def test_a_long_series_keeps_its_peaks_when_thinned() -> None:
    points = [(float(n), 100.0 if n == 7777 else 1.0) for n in range(20_000)]
    made = draw_chart(chart(Series("a", points)))
    assert len(made) < 30_000
    (line,) = [e for e in ElementTree.fromstring(made).iter(f"{SVG}path") if e.get("class") == "line"]
    heights = {float(pair.split()[1]) for pair in (line.get("d") or "").lstrip("M").split("L")}
    assert len(heights) == 2


def test_labels_are_escaped() -> None:
    made = draw_chart(chart(Series("<script>&", falling), Series("b", falling), description="<b>"))
    assert "<script>&" in texts(ElementTree.fromstring(made))


def test_the_table_of_a_chart_has_its_data() -> None:
    made = chart(Series("a", [(1.0, 2.0), (2.0, 1.0)]), Series("b", [(2.0, 3.0)]))
    assert chart_rows(made) == (["steps", "a", "b"], [[1.0, 2.0, ""], [2.0, 1.0, 3.0]])
    ragged = chart(*(Series(f"r{n}", [(n + 0.5 * k, 1.0) for k in (0, 9)]) for n in range(9)))
    assert chart_rows(ragged)[0] == ["", "steps", "nats"]
    assert [row for row in chart_rows(ragged)[1] if row[0] == "r4"] == [["r4", 4.0, 1.0], ["r4", 8.5, 1.0]]
    seeds = chart(Series("a", [(1.0, 2.0), (1.0, 2.5)]), Series("b", [(1.0, 3.0)]))
    assert chart_rows(seeds)[1] == [["a", 1.0, 2.0], ["a", 1.0, 2.5], ["b", 1.0, 3.0]]
    dots = DotChart(title="t", value=Axis("loss"), dots=[Dot("x", 1.0, (0.5, 1.5)), Dot("y", math.nan)])
    columns, rows = chart_rows(dots)
    assert columns == ["", "loss", "lowest", "highest"]
    assert rows[0] == ["x", 1.0, 0.5, 1.5]
    assert "diverged" in texts(parse(dots))


@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("name", ["a", "a procedure with a long name (without the largest compute)"])
def test_a_bar_that_leaves_the_chart_ends_with_an_arrow(width: int, name: str) -> None:
    made = DotChart(
        title="t",
        value=Axis("E", limits=(0.198, 0.212)),
        dots=[Dot(name, 0.205, (0.13, 0.28)), Dot(name, 0.209, (0.207, 0.21)), Dot(name, 0.2, (0.1, 0.201))],
    )
    root = parse(made, width)
    bars = [element.get("d") or "" for element in root.iter(f"{SVG}path") if element.get("class") == "bar"]
    assert len(bars) == 3 + 3  # three bars, two ends of the first and one end of the last are arrows
    assert all(0 <= float(x) <= width for bar in bars for x in re.findall(r"[ML]([-\d.]+)", bar))
    written = [
        element for element in root.iter(f"{SVG}text") if element.text in ("0.2050", "0.2090", "0.2000")
    ]
    assert len(written) == 3
    assert all(float(element.get("x") or "") + 7.95 * 6 <= width for element in written)
    ticks = [float(e.get("x") or "") for e in root.iter(f"{SVG}text") if e.get("text-anchor") == "middle"]
    assert min(right - left for left, right in pairwise(ticks)) > 7 * 5


def test_the_table_of_a_chart_has_its_spread() -> None:
    one = Series("final", [(1.0, 2.0), (2.0, math.nan)], [(1.5, 2.5), (math.nan, math.nan)])
    assert chart_rows(chart(one)) == (
        ["steps", "final", "lowest", "highest"],
        [[1.0, 2.0, 1.5, 2.5], [2.0, pytest.approx(math.nan, nan_ok=True), "", ""]],
    )
    columns, rows = chart_rows(chart(Series("a", [(1.0, 2.0)], [(1.5, 2.5)]), Series("b", [(1.0, 3.0)])))
    assert columns == ["", "steps", "nats", "lowest", "highest"]
    assert rows == [["a", 1.0, 2.0, 1.5, 2.5], ["b", 1.0, 3.0, "", ""]]


def test_a_log_axis_is_marked_in_the_chart_but_not_in_its_table() -> None:
    made = Chart(title="t", x=Axis("lr", log=True), y=Axis("nats", log=True), series=[Series("a", falling)])
    assert {"lr (log)", "nats (log)"} <= set(texts(parse(made)))
    assert chart_rows(made)[0] == ["lr", "a"]


def test_subsampling_keeps_short_series_whole() -> None:
    training = Series("training", [(float(n), 2.0) for n in range(1, 1001)])
    validation = Series("validation", [(n + 7.0, 1.0) for n in range(0, 1000, 100)])
    _, rows = chart_rows(chart(training, validation), 60)
    assert sum(row[2] == 1.0 for row in rows) == 10
    assert all(row[1] == 2.0 for row in rows)
    assert len(rows) < 75


@pytest.mark.parametrize("points", [[], [(1.0, 1.0)], [(1.0, math.nan)], [(0.0, 0.0), (0.0, 0.0)]])
@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_empty_and_degenerate_data_can_be_drawn(
    points: list[tuple[float, float]], log: bool, width: int
) -> None:
    made = Chart(title="t", x=Axis("x", log=log), y=Axis("y", log=log), series=[Series("a", points)])
    drawn = draw_chart(made, width=width)
    assert "nan" not in drawn
    assert "inf" not in drawn
    ElementTree.fromstring(drawn)


numbers = st.floats(min_value=1e-6, max_value=1e12)


@given(st.lists(numbers, min_size=2, max_size=5), st.booleans())
@example([1.0000000000000002e-06, 1e-06], False)
def test_ticks_are_within_the_axis_and_have_distinct_labels(values: list[float], log: bool) -> None:
    low, high = fit_limits(values, log=log)
    ticks = choose_ticks(low, high, log=log)
    scale = Scale(low, high, 0.0, 100.0, log=log)
    assert ticks == sorted(set(ticks))
    assert all(scale.holds(tick) for tick in ticks)
    assert len(ticks) <= 14
    if high / low > 1.01:
        assert len(set(format_ticks(ticks))) == len(ticks)


@pytest.mark.parametrize("low", [1e-12, 1.0, 1e12])
def test_zero_is_far_before_the_start_of_a_log_scale(low: float) -> None:
    scale = Scale(low, 2 * low, 0.0, 100.0, log=True)
    assert -math.inf < scale(0.0) < -1000
    assert not scale.holds(0.0)


@given(st.lists(st.floats(min_value=0, max_value=200), min_size=1, max_size=12))
def test_labels_do_not_overlap_and_keep_their_order(wanted: list[float]) -> None:
    placed = spread_labels(wanted, 15.0, 0.0, 200.0)
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    for first, second in pairwise(order):
        assert placed[second] - placed[first] >= 15.0 - 1e-6
    assert min(placed) >= -1e-6
    assert max(placed) <= 200 + 1e-6

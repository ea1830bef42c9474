"""SVG primitives: escaped elements, polylines, the marks of series, and label placement.

Colour, dash pattern and mark shape each distinguish series, so that charts are readable in black and white
and by colour-blind readers. This module does not depend on charts.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Sequence
from itertools import pairwise

Point = tuple[float, float]
DASHES = ("", "7 3", "2 2.5", "10 3 2 3", "5 2 1 2 1 2", "14 4")
NUM_COLOURS, NUM_RAMP = 8, 9
CHARACTER_WIDTH = 7.6
"""Upper estimate of the mean width of a character in pixels, at the font size of charts in DejaVu Sans."""


def element(name: str, *content: str, **attributes: str | float | None) -> str:
    """Return one element. `content` must be markup; attribute values are escaped, and None omits one.

    >>> element("text", "a &lt; b", x=1.25, class_="label", stroke_width=2)
    '<text x="1.2" class="label" stroke-width="2">a &lt; b</text>'
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_format_attribute(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{written}>{''.join(content)}</{name}>" if content else f"<{name}{written}/>"


def escape(words: str) -> str:
    """Return text with markup characters escaped and unprintable characters replaced."""
    return html.escape(printable(words))


def printable(words: str) -> str:
    r"""Replace control characters, unassigned characters and lone surrogates by U+FFFD.

    >>> printable("a\x00b\nc")
    'a�b\nc'
    """
    return "".join(
        "\N{REPLACEMENT CHARACTER}"
        if unicodedata.category(c) in ("Cc", "Cs", "Cn") and c not in "\n\t"
        else c
        for c in words
    )


def text(x: float, y: float, words: str, **attributes: str | float | None) -> str:
    """Return a text element."""
    return element("text", escape(words), x=x, y=y, **attributes)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> str:
    """Return a straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def path(points: Sequence[tuple[float, float]], *, closed: bool = False) -> str:
    """Return the `d` attribute of a polyline.

    >>> path([(0, 0), (1.26, 2)])
    'M0 0L1.3 2'
    """
    steps = "L".join(f"{_format_attribute(x)} {_format_attribute(y)}" for x, y in points)
    return f"M{steps}{'Z' if closed else ''}"


def clip(points: Sequence[Point], top: float, bottom: float) -> list[list[Point]]:
    """Clip a polyline to an upper and a lower edge; return the pieces between them.

    >>> clip([(0, 5), (2, -5), (4, -5), (6, 5)], 0, 10)
    [[(0, 5), (1.0, 0.0)], [(5.0, 0.0), (6, 5)]]
    """
    pieces: list[list[Point]] = []
    for start, end in pairwise(points):
        rise = end[1] - start[1]
        if max(start[1], end[1]) < top or min(start[1], end[1]) > bottom:
            continue
        enters, leaves = sorted((edge - start[1]) / rise for edge in (top, bottom)) if rise else (0.0, 1.0)
        first = _interpolate(start, end, enters) if enters > 0 else start
        last = _interpolate(start, end, leaves) if leaves < 1 else end
        if pieces and pieces[-1][-1] == first:
            pieces[-1].append(last)
        else:
            pieces.append([first, last])
    return pieces


def _interpolate(start: Point, end: Point, share: float) -> Point:
    """Interpolate linearly between two points."""
    return start[0] + share * (end[0] - start[0]), start[1] + share * (end[1] - start[1])


def colour_of(index: int, *, count: int, ordered: bool) -> str:
    """Return the `style` attribute that sets a series' colour: one of a palette, or a step of a ramp."""
    if ordered and count > 1:
        return f"--c:var(--r{round(index * (NUM_RAMP - 1) / (count - 1))})"
    return f"--c:var(--c{index % NUM_COLOURS})"


def dash_of(index: int) -> str | None:
    """Return the dash pattern of a series; the first series is solid (None)."""
    return DASHES[index % len(DASHES)] or None


def mark(index: int, x: float, y: float, *, size: float = 3.6, title: str = "") -> str:
    """Return the mark of series `index`; `title` is its hover text."""
    r, shape, filled = size, index % 4, index // 4 % 2 == 0
    class_ = "mark" if filled else "hollow"
    content = (element("title", escape(title)),) if title else ()
    if shape == 0:
        return element("circle", *content, cx=x, cy=y, r=r, class_=class_)
    corners = {
        1: [(x - r, y - r), (x + r, y - r), (x + r, y + r), (x - r, y + r)],
        2: [(x, y - 1.3 * r), (x + 1.2 * r, y + r), (x - 1.2 * r, y + r)],
        3: [(x, y - 1.4 * r), (x + 1.4 * r, y), (x, y + 1.4 * r), (x - 1.4 * r, y)],
    }[shape]
    return element("path", *content, d=path(corners, closed=True), class_=class_)


def cross(x: float, y: float, *, size: float = 4.5, title: str = "") -> str:
    """Return the cross that marks where a series diverged."""
    d = path([(x - size, y - size), (x + size, y + size)]) + path(
        [(x - size, y + size), (x + size, y - size)]
    )
    content = (element("title", escape(title)),) if title else ()
    return element("path", *content, d=d, class_="gone")


def spread_labels(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return label positions that are `gap` apart and between `low` and `high`.

    Minimises the sum of squared moves by isotonic regression (pooling adjacent violators). Labels that would
    overlap form a block, which is centred on the mean of the positions wanted.

    >>> spread_labels([50.0, 52.0, 90.0], 10.0, 0.0, 100.0)
    [46.0, 56.0, 90.0]
    """
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    gap = min(gap, (high - low) / max(1, len(wanted) - 1))
    blocks: list[list[float]] = []  # [sum of wanted positions minus the gaps before them, number of labels]
    for rank, index in enumerate(order):
        blocks.append([wanted[index] - rank * gap, 1])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] >= blocks[-1][0] / blocks[-1][1]:
            total, count = blocks.pop()
            blocks[-1][0] += total
            blocks[-1][1] += count
    bases = [total / count for total, count in blocks for _ in range(int(count))]
    highest = high - (len(wanted) - 1) * gap
    placed = [0.0] * len(wanted)
    for rank, index in enumerate(order):
        placed[index] = min(max(bases[rank], low), highest) + rank * gap
    return placed


def _format_attribute(value: str | float) -> str:
    return value if isinstance(value, str) else f"{round(value, 1):g}" if abs(value) < 1e5 else f"{value:.0f}"

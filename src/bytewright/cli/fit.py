"""`bytewright fit`: fit a scaling law to the runs of a sweep."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from bytewright.cli import console, options

if TYPE_CHECKING:
    from bytewright.report.page import Table


@dataclass(frozen=True, kw_only=True)
class FitLaw:
    """Fit a scaling law to runs, and compare the ways to estimate its limit.

    The law is L = E + A/N^a + B/D^b, where N is the number of parameters and D the number of training tokens.
    It is fitted by variable projection, with the known entropy of the text as E and without it. Intervals
    resample seeds. Parabolas at equal compute estimate the best size. A table compares the E of each
    procedure with the known one.

    The points are the complete runs of a sweep, or a JSON file:
      {"unit": "bits per byte", "points": [{"parameters": 1e6, "tokens": 1e8, "seed": 0, "loss": 0.3,
      "floor": 0.2}, …]}

    For example:
      bytewright fit runs/isoflop_low --out fit
      bytewright fit points.json --kind fact
    """

    path: Annotated[
        Path,
        tyro.conf.Positional,
        tyro.conf.arg(metavar="SWEEP", help="The folder of a sweep, a results.json, or a file of points."),
    ]

    out: Annotated[
        Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="(default: the folder of the input)")
    ] = None
    """The folder of fit.html, fit.md with its figures, and fit.json."""

    objective: Literal["linear", "log", "huber"] = "log"
    """What to minimise: squared residuals of the loss or its logarithm, or Huber's function of the latter."""

    kind: Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="(default: all)")] = None
    """Fit the excess bits of one kind of choice, such as fact, if the points state them."""

    resamples: int = 100
    """The number of resamples for the intervals."""

    json: bool = False
    """Print the results as JSON."""

    def run(self) -> None:
        """Fit, print the tables, and write the page."""
        import json

        options.require_exists(self.path)
        options.require_at_least(2, self.resamples, "--resamples")
        from bytewright.laws.analysis import analyse, to_json
        from bytewright.laws.points import read_points
        from bytewright.report import laws
        from bytewright.train.metrics import finite

        points = read_points(self.path)
        if self.kind is not None:
            points = points.kind(self.kind)
        analysis = analyse(points, objective=self.objective, num_resamples=self.resamples)
        page = laws.write_law_report(analysis, self.out or self._own_folder())
        if self.json:
            print(json.dumps(finite(to_json(analysis)), allow_nan=False))
            return
        print_report(laws.table_of_laws(analysis), "Laws")
        if analysis.levels:
            print_report(laws.table_of_levels(analysis), "Levels of compute")
        if analysis.optima:
            print_report(laws.table_of_optima(analysis), "Best use of compute")
        print_report(laws.table_of_recovery(analysis), "Recovery of E")
        if analysis.predictions:
            print_report(laws.table_of_exponents(analysis), "Predicted exponents")
        for note in analysis.notes:
            console.print_remark(note)
        console.print_line(str(page))

    def _own_folder(self) -> Path:
        return self.path.parent if self.path.is_file() else self.path


def print_report(table: Table, title: str) -> None:
    """Print a table of a report."""
    from bytewright.report.page import format_rows

    left = [n for n in range(len(table.columns)) if n == 0 or table.columns[n] == "points"]
    console.print_table(table.columns, format_rows(table), title=title, left=left)

"""Reports: one self-contained page of charts and tables about runs and sweeps.

Read `compose` first: it selects what a report shows. `figures` and `tables` compute charts and tables from
runs, `draw` renders a chart as SVG, `page` and `markdown` write the page. Depends on `experiments`;
`charts`, `draw` and `page` depend on neither runs nor training.
"""

from bytewright.report.draw import Axis, Chart, Dot, DotChart, Reference, Series, draw
from bytewright.report.page import Facts, Figure, Page, Sample, Samples, Section, Table

__all__ = [
    "Axis",
    "Chart",
    "Dot",
    "DotChart",
    "Facts",
    "Figure",
    "Page",
    "Reference",
    "Sample",
    "Samples",
    "Section",
    "Series",
    "Table",
    "draw",
]

"""Reports about runs and sweeps: one self-contained page of charts, tables and samples.

Read `compose` first: it selects the content of a report. `compare` decides which runs are comparable and by
which metric; `figures` and `tables` compute charts and tables from runs; `charts`, `draw` and `svg` draw
charts; `page` and `markdown` render the page. Depends on `experiments`; the drawing and rendering modules
depend on neither runs nor training.
"""

from bytewright.report.charts import Axis, Chart, Dot, DotChart, Reference, Series
from bytewright.report.draw import draw_chart
from bytewright.report.page import Figure, KeyFigures, Page, PageSection, Sample, Samples, Table

__all__ = [
    "Axis",
    "Chart",
    "Dot",
    "DotChart",
    "Figure",
    "KeyFigures",
    "Page",
    "PageSection",
    "Reference",
    "Sample",
    "Samples",
    "Series",
    "Table",
    "draw_chart",
]

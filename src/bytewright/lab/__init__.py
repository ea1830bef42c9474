"""The laboratory: many runs asked one question, and the answer as curves and tables that can be trusted.

`plots` draws charts as SVG and `page` puts them, with tables and samples, on one self-contained page. They
know nothing of training.
"""

from bytewright.lab.page import Facts, Figure, Page, Sample, Samples, Section, Table
from bytewright.lab.plots import Axis, Chart, Dot, DotChart, Reference, Series, draw

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

"""Charts as inline SVG: no script needed, themed by the page's CSS variables, readable by a screen reader.

>>> from ridgeline.web.chart import Axis, Bar, bars
>>> chart = bars([Bar("copy", 1.8e12, (1.7e12, 1.9e12))], title="Bandwidth", axis=Axis(unit="B/s"))
>>> "1.8 TB/s" in chart
True
"""

from ridgeline.web.chart.bar import bars
from ridgeline.web.chart.cells import cells
from ridgeline.web.chart.inputs import Axis, Bar, Cell, Point, Roof, Samples, Series
from ridgeline.web.chart.interval import intervals
from ridgeline.web.chart.line import lines
from ridgeline.web.chart.roof import roofline
from ridgeline.web.chart.sample import samples

__all__ = [
    "Axis",
    "Bar",
    "Cell",
    "Point",
    "Roof",
    "Samples",
    "Series",
    "bars",
    "cells",
    "intervals",
    "lines",
    "roofline",
    "samples",
]

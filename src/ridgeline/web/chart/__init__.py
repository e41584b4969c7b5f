"""Charts as inline SVG: no script needed, themed by the page's CSS variables, readable by a screen reader.

>>> from ridgeline.web.chart import Axis, Bar, bars
>>> chart = bars([Bar("copy", 1.8e12, (1.7e12, 1.9e12))], title="Bandwidth", axis=Axis(unit="B/s"))
>>> "1.8 TB/s" in chart
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.web.chart.bar import bars as bars
    from ridgeline.web.chart.cell_grid import cells as cells
    from ridgeline.web.chart.inputs import (
        Axis as Axis,
    )
    from ridgeline.web.chart.inputs import (
        Bar as Bar,
    )
    from ridgeline.web.chart.inputs import (
        Cell as Cell,
    )
    from ridgeline.web.chart.inputs import (
        Point as Point,
    )
    from ridgeline.web.chart.inputs import (
        Roof as Roof,
    )
    from ridgeline.web.chart.inputs import (
        Samples as Samples,
    )
    from ridgeline.web.chart.inputs import (
        Series as Series,
    )
    from ridgeline.web.chart.interval import intervals as intervals
    from ridgeline.web.chart.line import lines as lines
    from ridgeline.web.chart.roof import roofline as roofline
    from ridgeline.web.chart.sample import samples as samples

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "bar": ["bars"],
        "cell_grid": ["cells"],
        "inputs": ["Axis", "Bar", "Cell", "Point", "Roof", "Samples", "Series"],
        "interval": ["intervals"],
        "line": ["lines"],
        "roof": ["roofline"],
        "sample": ["samples"],
    },
)

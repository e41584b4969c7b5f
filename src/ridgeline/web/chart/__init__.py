"""Draw charts as inline SVG: without scripts, themed by CSS variables, readable by a screen reader.

>>> from ridgeline.web.chart import Axis, Bar, draw_bars
>>> chart = draw_bars([Bar("copy", 1.8e12, (1.7e12, 1.9e12))], title="Bandwidth", axis=Axis(unit="B/s"))
>>> "1.8 TB/s" in chart
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.web.chart.bar import draw_bars as draw_bars
    from ridgeline.web.chart.cell_grid import draw_cells as draw_cells
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
    from ridgeline.web.chart.line import draw_lines as draw_lines
    from ridgeline.web.chart.roofline import draw_roofline as draw_roofline
    from ridgeline.web.chart.sample import draw_samples as draw_samples
    from ridgeline.web.chart.timeline import draw_intervals as draw_intervals

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "bar": ["draw_bars"],
        "cell_grid": ["draw_cells"],
        "inputs": ["Axis", "Bar", "Cell", "Point", "Roof", "Samples", "Series"],
        "timeline": ["draw_intervals"],
        "line": ["draw_lines"],
        "roofline": ["draw_roofline"],
        "sample": ["draw_samples"],
    },
)

"""One self-contained page, charts drawn as SVG, and one small server.

>>> from ridgeline.web import Axis, Bar, bars, page, si
>>> chart = bars([Bar("<ours>", 0.0012), Bar("theirs", 0.0048)], title="Latency", axis=Axis(unit="s"))
>>> html = page("A <report>", chart)
>>> "&lt;ours&gt;" in html and "<ours>" not in html
True
>>> si(0.0012, "s")
'1.2 ms'

The server needs `ridgeline[serve]`; pages and charts need nothing but Jinja2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.web.chart import (
        Axis as Axis,
    )
    from ridgeline.web.chart import (
        Bar as Bar,
    )
    from ridgeline.web.chart import (
        Cell as Cell,
    )
    from ridgeline.web.chart import (
        Point as Point,
    )
    from ridgeline.web.chart import (
        Roof as Roof,
    )
    from ridgeline.web.chart import (
        Samples as Samples,
    )
    from ridgeline.web.chart import (
        Series as Series,
    )
    from ridgeline.web.chart import (
        bars as bars,
    )
    from ridgeline.web.chart import (
        cells as cells,
    )
    from ridgeline.web.chart import (
        intervals as intervals,
    )
    from ridgeline.web.chart import (
        lines as lines,
    )
    from ridgeline.web.chart import (
        roofline as roofline,
    )
    from ridgeline.web.chart import (
        samples as samples,
    )
    from ridgeline.web.guard import App as App
    from ridgeline.web.markup import href as href
    from ridgeline.web.markup import script_json as script_json
    from ridgeline.web.number import binary as binary
    from ridgeline.web.number import si as si
    from ridgeline.web.pages import asset as asset
    from ridgeline.web.pages import page as page
    from ridgeline.web.pages import policy as policy
    from ridgeline.web.pages import render as render
    from ridgeline.web.server import app as app
    from ridgeline.web.server import page_response as page_response
    from ridgeline.web.server import running as running
    from ridgeline.web.server import serve as serve

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "chart": [
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
        ],
        "guard": ["App"],
        "markup": ["href", "script_json"],
        "number": ["binary", "si"],
        "pages": ["asset", "page", "policy", "render"],
        "server": ["app", "page_response", "running", "serve"],
    },
)

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

from ridgeline.web.chart import (
    Axis,
    Bar,
    Cell,
    Point,
    Roof,
    Samples,
    Series,
    bars,
    cells,
    intervals,
    lines,
    roofline,
    samples,
)
from ridgeline.web.guard import App
from ridgeline.web.markup import href, script_json
from ridgeline.web.number import binary, si
from ridgeline.web.page import asset, page, policy, render
from ridgeline.web.server import app, page_response, running, serve

__all__ = [
    "App",
    "Axis",
    "Bar",
    "Cell",
    "Point",
    "Roof",
    "Samples",
    "Series",
    "app",
    "asset",
    "bars",
    "binary",
    "cells",
    "href",
    "intervals",
    "lines",
    "page",
    "page_response",
    "policy",
    "render",
    "roofline",
    "running",
    "samples",
    "script_json",
    "serve",
    "si",
]

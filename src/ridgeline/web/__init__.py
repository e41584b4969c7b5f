"""Build self-contained HTML pages, draw charts as SVG, and serve both.

>>> from ridgeline.web import Axis, Bar, build_page, draw_bars, format_si
>>> chart = draw_bars([Bar("<ours>", 0.0012), Bar("peer", 0.0048)], title="Latency", axis=Axis(unit="s"))
>>> html = build_page("A <report>", chart)
>>> "&lt;ours&gt;" in html and "<ours>" not in html
True
>>> format_si(0.0012, "s")
'1.2 ms'

The server needs `ridgeline[serve]`; pages and charts need only Jinja2.
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
        draw_bars as draw_bars,
    )
    from ridgeline.web.chart import (
        draw_cells as draw_cells,
    )
    from ridgeline.web.chart import (
        draw_intervals as draw_intervals,
    )
    from ridgeline.web.chart import (
        draw_lines as draw_lines,
    )
    from ridgeline.web.chart import (
        draw_roofline as draw_roofline,
    )
    from ridgeline.web.chart import (
        draw_samples as draw_samples,
    )
    from ridgeline.web.connections import ACCEPT_AT_ONCE as ACCEPT_AT_ONCE
    from ridgeline.web.connections import Listener as Listener
    from ridgeline.web.connections import count_listener as count_listener
    from ridgeline.web.connections import get_connection_limit as get_connection_limit
    from ridgeline.web.markup import check_link as check_link
    from ridgeline.web.markup import dump_script_json as dump_script_json
    from ridgeline.web.markup import make_element as make_element
    from ridgeline.web.middleware import App as App
    from ridgeline.web.number_format import format_bytes as format_bytes
    from ridgeline.web.number_format import format_si as format_si
    from ridgeline.web.pages import build_page as build_page
    from ridgeline.web.pages import get_policy as get_policy
    from ridgeline.web.pages import read_asset as read_asset
    from ridgeline.web.pages import render_template as render_template
    from ridgeline.web.plain_requests import PlainHandler as PlainHandler
    from ridgeline.web.plain_requests import Reply as Reply
    from ridgeline.web.request_metrics import LATENCIES_S as LATENCIES_S
    from ridgeline.web.request_metrics import SHARED_FOLDER as SHARED_FOLDER
    from ridgeline.web.request_metrics import RequestMetrics as RequestMetrics
    from ridgeline.web.server import check_address as check_address
    from ridgeline.web.server import create_app as create_app
    from ridgeline.web.server import create_page_response as create_page_response
    from ridgeline.web.server import open_listener as open_listener
    from ridgeline.web.server import run_in_background as run_in_background
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
            "draw_bars",
            "draw_cells",
            "draw_intervals",
            "draw_lines",
            "draw_roofline",
            "draw_samples",
        ],
        "connections": ["ACCEPT_AT_ONCE", "Listener", "count_listener", "get_connection_limit"],
        "middleware": ["App"],
        "markup": ["check_link", "dump_script_json", "make_element"],
        "number_format": ["format_bytes", "format_si"],
        "pages": ["read_asset", "build_page", "get_policy", "render_template"],
        "plain_requests": ["PlainHandler", "Reply"],
        "request_metrics": ["LATENCIES_S", "RequestMetrics", "SHARED_FOLDER"],
        "server": [
            "check_address",
            "create_app",
            "create_page_response",
            "open_listener",
            "run_in_background",
            "serve",
        ],
    },
)

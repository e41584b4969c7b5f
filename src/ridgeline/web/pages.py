"""Build a page in one file: styles, scripts and data are inside, it fetches nothing, and all text is escaped.

The page carries a Content-Security-Policy that allows only its own styles and scripts, by hash. So markup that slipped
through as text cannot run. It also means that `style="…"` and `onclick="…"` attributes have no effect: use classes and
`addEventListener`.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, FileSystemLoader, FunctionLoader, StrictUndefined
from markupsafe import Markup

from ridgeline.errors import InputError
from ridgeline.web.markup import check_link, dump_script_json, replace_unprintable

_PACKAGE = "ridgeline.web"
_OUTSIDE = re.compile(r"@import|url\(\s*['\"]?\s*(?!data:|#)|\b(?:src|href)\s*=\s*['\"]?(?:https?:)?//", re.IGNORECASE)
_ENDS_ELEMENT = re.compile(r"</(?:style|script)|<!--", re.IGNORECASE)
_POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">')


def build_page(
    title: str,
    body: str,
    *,
    data: Any = None,
    styles: Sequence[str] = (),
    scripts: Sequence[str] = (),
    live: bool = False,
    lang: str = "en",
) -> str:
    """Return a complete HTML document. `body` is Markup (from `render_template` or a chart); a plain string is escaped.

    `styles` and `scripts` are source texts (see `read_asset`); they follow those of this package. Scripts read `data`
    by `JSON.parse(document.getElementById("page-data").textContent)`. `live` lets the page connect to its own server.

    >>> "&lt;b&gt;" in build_page("t", "<b>")
    True
    """
    styles = [_check_source(text, "style") for text in (read_asset("base.css"), read_asset("chart.css"), *styles)]
    scripts = [_check_source(text, "script") for text in (read_asset("chart.js"), *scripts)]
    return replace_unprintable(
        render_template(
            "page.html",
            title=title,
            body=body,
            lang=lang,
            policy=_build_policy(styles, scripts, live=live),
            styles=[Markup(text) for text in styles],  # noqa: S704 (checked by _check_source, allowed by hash)
            scripts=[Markup(text) for text in scripts],  # noqa: S704
            data=None if data is None else dump_script_json(data),
        )
    )


def render_template(template: str, /, *, templates: str | Path = _PACKAGE, **context: Any) -> Markup:
    """Render a template with autoescape; a name that the context lacks is an error.

    `templates` is a package with a `templates` folder, or a directory; templates of `ridgeline.web` are always found.
    Links from data need the filter: `<a href="{{ url | href }}">`.
    """
    return Markup(_create_environment(templates).get_template(template).render(context))  # noqa: S704 (autoescaped)


def read_asset(name: str, package: str = _PACKAGE) -> str:
    """Return the text of `assets/<name>` in an installed package."""
    return _read_resource(package, "assets", name)


def get_policy(document: str) -> str:
    """Return the Content-Security-Policy of a page, for a server to send as a header too."""
    match = _POLICY.search(document)
    if match is None:
        raise InputError("the document carries no Content-Security-Policy; make it with ridgeline.web.build_page.")
    return html.unescape(match[1])


def _build_policy(styles: Sequence[str], scripts: Sequence[str], *, live: bool) -> str:
    server_source = "'self'" if live else "'none'"
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {' '.join(map(_hash_source, scripts))}",
            f"style-src {' '.join(map(_hash_source, styles))}",
            f"img-src data:{' ' + server_source if live else ''}",
            f"connect-src {server_source}",
            f"form-action {server_source}",
            "base-uri 'none'",
        )
    )


def _hash_source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _check_source(text: str, kind: str) -> str:
    """Return the source as the browser hashes it; refuse one that would end its element or fetch from outside."""
    text = replace_unprintable(text.replace("\r\n", "\n").replace("\r", "\n"))
    if match := _ENDS_ELEMENT.search(text):
        raise InputError(f"a page's {kind} contains {match[0]!r}, which would end it early; write it otherwise.")
    if kind == "style" and (match := _OUTSIDE.search(text)):
        raise InputError(f"a page's style fetches from outside ({match[0]!r}); inline it as a data: URL.")
    return text


@cache
def _create_environment(templates: str | Path) -> Environment:
    default_loader = FunctionLoader(lambda name: _read_template(_PACKAGE, name))
    if isinstance(templates, Path):
        loader = ChoiceLoader([FileSystemLoader(templates), default_loader])
    else:
        loader = ChoiceLoader([FunctionLoader(lambda name: _read_template(templates, name)), default_loader])
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, loader=loader, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["href"] = check_link
    return environment


def _read_template(package: str, name: str) -> str | None:
    try:
        return _read_resource(package, "templates", name)
    except InputError:
        return None  # Jinja tries the next loader


def _read_resource(package: str, folder: str, name: str) -> str:
    if ".." in name.split("/") or name.startswith("/"):
        raise InputError(f"{name!r} leaves the {folder} of {package}.")
    resource = files(package).joinpath(folder, name)
    if not resource.is_file():
        raise InputError(f"{package} has no {folder}/{name}.")
    return resource.read_text(encoding="utf-8")

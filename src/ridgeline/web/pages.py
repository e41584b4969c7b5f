"""One page in one file: styles, scripts and data inside, nothing fetched, every text escaped.

The page carries its own Content-Security-Policy, which allows exactly the styles and scripts it was built
with (by hash), so that a text that slipped through as markup still could not run. It also means that
`style="…"` and `onclick="…"` attributes do nothing: use classes and `addEventListener`.

    python -m pytest tests/web/test_page.py
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
from ridgeline.web.markup import href, printable, script_json

_HERE = "ridgeline.web"
_OUTSIDE = re.compile(r"@import|url\(\s*['\"]?\s*(?!data:|#)|\b(?:src|href)\s*=\s*['\"]?(?:https?:)?//", re.IGNORECASE)
_ENDS_ELEMENT = re.compile(r"</(?:style|script)|<!--", re.IGNORECASE)
_POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">')


def page(
    title: str,
    body: str,
    *,
    data: Any = None,
    styles: Sequence[str] = (),
    scripts: Sequence[str] = (),
    live: bool = False,
    lang: str = "en",
) -> str:
    """The whole HTML document. `body` is Markup (from `render` or a chart); a plain string is escaped.

    `styles` and `scripts` are source texts (see `asset`), put after the house's own. `data` reaches the
    scripts as `JSON.parse(document.getElementById("page-data").textContent)`. `live` lets the page talk to
    the server it came from, and to no other.

    >>> "&lt;b&gt;" in page("t", "<b>")
    True
    """
    styles = [_inlined(text, "style") for text in (asset("base.css"), asset("chart.css"), *styles)]
    scripts = [_inlined(text, "script") for text in (asset("chart.js"), *scripts)]
    return printable(
        render(
            "page.html",
            title=title,
            body=body,
            lang=lang,
            policy=_policy(styles, scripts, live=live),
            styles=[Markup(text) for text in styles],  # noqa: S704 (checked by _inlined, allowed by hash)
            scripts=[Markup(text) for text in scripts],  # noqa: S704
            data=None if data is None else script_json(data),
        )
    )


def render(template: str, /, *, templates: str | Path = _HERE, **context: Any) -> Markup:
    """A template filled in, autoescaped; a name that the context lacks is an error.

    `templates` is a package with a `templates` folder, or a directory; the house's own templates are found
    from everywhere. Links made of data go through the filter: `<a href="{{ url | href }}">`.
    """
    return Markup(_environment(templates).get_template(template).render(context))  # noqa: S704 (autoescaped)


def asset(name: str, package: str = _HERE) -> str:
    """The text of `assets/<name>` in an installed package."""
    return _resource(package, "assets", name)


def policy(document: str) -> str:
    """The Content-Security-Policy that a page carries, for a server to send as a header too."""
    found = _POLICY.search(document)
    if found is None:
        raise InputError("the document carries no Content-Security-Policy; make it with ridgeline.web.pages.")
    return html.unescape(found[1])


def _policy(styles: Sequence[str], scripts: Sequence[str], *, live: bool) -> str:
    own = "'self'" if live else "'none'"
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {' '.join(map(_hash, scripts))}",
            f"style-src {' '.join(map(_hash, styles))}",
            f"img-src data:{' ' + own if live else ''}",
            f"connect-src {own}",
            f"form-action {own}",
            "base-uri 'none'",
        )
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _inlined(text: str, kind: str) -> str:
    """The source as the browser will hash it; refused if it would leave its element or fetch from outside."""
    text = printable(text.replace("\r\n", "\n").replace("\r", "\n"))
    if found := _ENDS_ELEMENT.search(text):
        raise InputError(f"a page's {kind} contains {found[0]!r}, which would end it early; write it otherwise.")
    if kind == "style" and (found := _OUTSIDE.search(text)):
        raise InputError(f"a page's style fetches from outside ({found[0]!r}); inline it as a data: URL.")
    return text


@cache
def _environment(templates: str | Path) -> Environment:
    own = FunctionLoader(lambda name: _template(_HERE, name))
    if isinstance(templates, Path):
        loader = ChoiceLoader([FileSystemLoader(templates), own])
    else:
        loader = ChoiceLoader([FunctionLoader(lambda name: _template(templates, name)), own])
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, loader=loader, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["href"] = href
    return environment


def _template(package: str, name: str) -> str | None:
    try:
        return _resource(package, "templates", name)
    except InputError:
        return None  # Jinja then looks in the next place, and names the template if none has it


def _resource(package: str, folder: str, name: str) -> str:
    if ".." in name.split("/") or name.startswith("/"):
        raise InputError(f"{name!r} leaves the {folder} of {package}.")
    found = files(package).joinpath(folder, name)
    if not found.is_file():
        raise InputError(f"{package} has no {folder}/{name}.")
    return found.read_text(encoding="utf-8")

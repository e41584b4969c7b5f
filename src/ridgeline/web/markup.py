"""Escape text for HTML, SVG and scripts.

All text from outside (a label, a file name, a review) goes through `make_element`, Jinja's autoescape or
`dump_script_json`; no other code in this package may write a `<`.
"""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import urlsplit

from markupsafe import Markup, escape

from ridgeline.errors import InputError

# HTML drops or rewrites these characters, and a lone surrogate cannot be encoded as UTF-8. A visible
# replacement shows that there was a character.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_IN_SCRIPT = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}


def make_element(name: str, *children: str, **attributes: str | float | None) -> Markup:
    """Build one escaped element. `text_anchor` becomes text-anchor, `class_` class; None leaves the attribute out.

    >>> make_element("text", "a < b", x=1.50, class_="tick", href=None)
    Markup('<text x="1.5" class="tick">a &lt; b</text>')
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_format_attribute(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    inside = "".join(escape(child) for child in children)
    return Markup(f"<{name}{written}>{inside}</{name}>" if inside else f"<{name}{written}/>")  # noqa: S704


def join_markup(parts: list[Markup]) -> Markup:
    """Concatenate markup."""
    return Markup("").join(parts)


def check_link(url: str) -> str:
    """Return the link; raise `InputError` for a link that runs code (javascript:, data:).

    >>> check_link("#case-3"), check_link("https://example.org/a?b=c")
    ('#case-3', 'https://example.org/a?b=c')
    """
    # Browsers skip control characters and blanks inside a scheme, so remove them before the check.
    bare = re.sub(r"[\x00-\x20\x7f-\x9f]", "", url)
    try:
        scheme = urlsplit(bare).scheme
    except ValueError:
        scheme = "unreadable"
    if scheme not in ("", "http", "https", "mailto") or bare != url.strip():
        raise InputError(f"{url[:80]!r} cannot be a link; give a #fragment, a path, or an http(s) address.")
    return bare


def replace_unprintable(text: str) -> str:
    """Replace characters that a page cannot contain by U+FFFD.

    >>> replace_unprintable("a\\x00b\\tc")
    'a\ufffdb\\tc'
    """
    return _UNPRINTABLE.sub("\ufffd", text)


def dump_script_json(data: Any) -> Markup:
    """Return JSON that is safe inside a `<script>`: without `</script>`, `<!--`, U+2028 and raw bytes.

    >>> dump_script_json({"name": "</script><!--"})
    Markup('{"name": "\\\\u003c/script\\\\u003e\\\\u003c!--"}')
    """
    try:
        text = json.dumps(data, ensure_ascii=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"the page's data cannot be written as JSON: {error}.") from None
    return Markup(text.translate(_IN_SCRIPT))  # noqa: S704


def _format_attribute(value: str | float) -> str:
    if isinstance(value, str):
        return str(escape(value))
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text

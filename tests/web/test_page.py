"""The page: one file, everything escaped, nothing fetched, only its own scripts allowed."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest
from jinja2 import UndefinedError
from jinja2.exceptions import TemplateNotFound
from markupsafe import Markup
from tests.web.hostile import HOSTILE

from ridgeline.errors import InputError
from ridgeline.web import (
    Bar,
    build_page,
    check_link,
    draw_bars,
    dump_script_json,
    get_policy,
    read_asset,
    render_template,
)


class Elements(HTMLParser):
    """The elements and texts of a page, as an HTML parser sees them."""

    def __init__(self, document):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], []
        self.feed(document)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_data(self, data):
        self.text.append(data)


@pytest.mark.parametrize("name", [name for name, text in HOSTILE.items() if text.strip()])
def test_hostile_text_adds_no_element_and_no_attribute(name):
    def build(title):
        rows = [Bar(title, 1.0, group=title, series=title, title=title, id=title), Bar("b", 2, series="b")]
        chart = draw_bars(rows, title=title, caption=title, reference=1.0, reference_label=title)
        return build_page(title, chart + Markup("<p>{}</p>").format(title), data={"t": title})

    plain, hostile = Elements(build("plain")), Elements(build(HOSTILE[name]))
    optional = {"title", "g", "text", "p", "figcaption", "span"}  # left out when empty, added when cut
    assert [t for t in hostile.tags if t not in optional] == [t for t in plain.tags if t not in optional]
    assert {name for _, name, _ in hostile.attributes} <= {name for _, name, _ in plain.attributes}
    assert not any(name.startswith("on") for _, name, _ in hostile.attributes)


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_page_can_always_be_saved_as_utf8_without_control_characters(text):
    document = build_page(text, text, data=[text])
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]", document)
    assert document.encode("utf-8")


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_data_comes_back_as_it_was_and_stays_inside_its_element(text):
    document = build_page("t", "", data={"text": text, text: [1, None, True]})
    inside = re.search(r'<script type="application/json" id="page-data">(.*?)</script>', document, re.S)[1]
    assert json.loads(inside) == {"text": text, text: [1, None, True]}
    assert not set("<>&\u2028\u2029") & set(inside)


@pytest.mark.parametrize("data", [{"a": float("nan")}, float("inf"), {1, 2}, object()])
def test_data_that_json_cannot_hold_is_refused_in_a_sentence(data):
    with pytest.raises(InputError, match="cannot be written as JSON"):
        dump_script_json(data)


def test_a_plain_string_is_escaped_and_markup_is_not():
    assert "<p>&lt;b&gt;</p>" in build_page("t", Markup("<p>{}</p>").format("<b>"))
    assert "&lt;i&gt;" in build_page("t", "<i>")


def test_the_policy_allows_exactly_the_inlined_styles_and_scripts():
    document = build_page("t", "", styles=["p { color: red }"], scripts=["console.info(1)\r\n"])
    rules = dict(rule.split(" ", 1) for rule in get_policy(document).split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["connect-src"] == rules["form-action"] == rules["base-uri"] == "'none'"
    assert rules["img-src"] == "data:"
    for tag, rule in (("style", "style-src"), ("script", "script-src")):
        sources = re.findall(rf"<{tag}>(.*?)</{tag}>", document, re.S)
        hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in sources]
        assert rules[rule].split() == [f"'sha256-{digest}'" for digest in hashes]
    assert "unsafe" not in get_policy(document)


def test_a_live_page_may_talk_to_its_own_server_only():
    rules = dict(rule.split(" ", 1) for rule in get_policy(build_page("t", "", live=True)).split("; "))
    assert rules["connect-src"] == rules["form-action"] == "'self'"
    assert rules["default-src"] == "'none'"


def test_nothing_in_the_page_comes_from_outside():
    document = build_page("t", draw_bars([Bar("a", 1)]), data={"a": 1})
    addresses = [
        (tag, name, value)
        for tag, name, value in Elements(document).attributes
        if name in ("src", "href", "srcset", "action", "data", "xlink:href") and not value.startswith(("data:", "#"))
    ]
    assert addresses == []
    assert not re.search(r"@import|url\(\s*['\"]?(?!data:|#)|https?://", document)


@pytest.mark.parametrize("style", ["@import 'x.css'", "a { background: url(//evil.example/x) }", "a{b:url( 'x.png')}"])
def test_a_style_that_fetches_is_refused(style):
    with pytest.raises(InputError, match="fetches from outside"):
        build_page("t", "", styles=[style])


@pytest.mark.parametrize("source", ["a</style>", "let a = '</SCRIPT>'", "<!-- x"])
def test_a_source_that_would_end_its_element_is_refused(source):
    with pytest.raises(InputError, match="end it early"):
        build_page("t", "", styles=[source])
    with pytest.raises(InputError, match="end it early"):
        build_page("t", "", scripts=[source])


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        " JavaScript:alert(1)",
        "java\nscript:alert(1)",
        "\x01javascript:x",
        "data:text/html,x",
        "vbscript:x",
        "file:///etc/passwd",
    ],
)
def test_a_link_that_runs_something_is_refused(url, tmp_path):
    (tmp_path / "link.html").write_text('<a href="{{ url | href }}">x</a>')
    with pytest.raises(InputError, match="cannot be a link"):
        check_link(url)
    with pytest.raises(InputError, match="cannot be a link"):
        render_template("link.html", templates=tmp_path, url=url)
    with pytest.raises(InputError, match="cannot be a link"):
        draw_bars([Bar("a", 1, href=url)])


@pytest.mark.parametrize("url", ["#a", "case/3?x=1&y=2", "/a/b", "https://example.org/", "mailto:a@example.org"])
def test_a_harmless_link_is_returned(url):
    assert check_link(url) == url


def test_templates_come_from_a_folder_escape_by_default_and_extend_those_of_web(tmp_path):
    (tmp_path / "row.html").write_text("<td title='{{ name }}'>{{ name }}</td>")
    output = render_template("row.html", templates=tmp_path, name="'<b>")
    assert output == "<td title='&#39;&lt;b&gt;'>&#39;&lt;b&gt;</td>"
    assert isinstance(output, Markup)


def test_template_syntax_in_data_is_not_run(tmp_path):
    (tmp_path / "t.html").write_text("{{ name }}")
    assert render_template("t.html", templates=tmp_path, name="{{ 7 * 7 }}") == "{{ 7 * 7 }}"


def test_a_name_that_is_missing_is_an_error_not_a_blank(tmp_path):
    (tmp_path / "t.html").write_text("{{ nmae }}")
    with pytest.raises(UndefinedError, match="nmae"):
        render_template("t.html", templates=tmp_path, name="x")


def test_templates_cannot_be_taken_from_outside_their_folder():
    with pytest.raises((TemplateNotFound, InputError)):
        render_template("../assets/base.css")
    with pytest.raises(InputError, match="leaves the assets"):
        read_asset("../page.py")
    with pytest.raises(InputError, match="has no assets/none"):
        read_asset("none.css")


def test_a_document_without_a_policy_is_refused():
    with pytest.raises(InputError, match="no Content-Security-Policy"):
        get_policy("<html></html>")

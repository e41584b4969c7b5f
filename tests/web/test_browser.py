"""Pages in a real Chromium: hostile text is text, nothing is fetched, charts are drawn and fit, light and dark."""

from __future__ import annotations

import math
import re
from contextlib import contextmanager

import pytest
from markupsafe import Markup
from tests.web.hostile import HOSTILE

from ridgeline.web import (
    Axis,
    Bar,
    Cell,
    Point,
    Roof,
    Samples,
    Series,
    build_page,
    create_app,
    create_page_response,
    draw_bars,
    draw_cells,
    draw_lines,
    draw_roofline,
    draw_samples,
    run_in_background,
)

pytestmark = pytest.mark.browser

ADDRESS = "http://page.test/"
WATCH = """
    window.violations = [];
    document.addEventListener("securitypolicyviolation", (e) => window.violations.push(e.violatedDirective));
"""


@pytest.fixture(scope="module")
def only_tab(chromium):
    """One tab for all: a new one costs a second, a new page in it a tenth."""
    context = chromium.new_context()
    context.add_init_script(WATCH)
    yield context.new_page()
    context.close()


@pytest.fixture
def opened(only_tab):
    """Opens a document in the tab; afterwards nothing may have gone wrong in it, and nothing been fetched."""

    @contextmanager
    def opening(document, *, width=1000, scheme="light"):
        tab, complaints, requests = only_tab, [], []
        listeners = {
            "console": lambda message: complaints.append(message.text),
            "pageerror": lambda error: complaints.append(str(error)),
            "dialog": lambda dialog: (complaints.append("dialog"), dialog.dismiss()),
        }

        def answer(route):
            requests.append(route.request.url)
            if route.request.url == ADDRESS:
                route.fulfill(body=document, content_type="text/html; charset=utf-8")
            else:
                route.abort()

        for event, listener in listeners.items():
            tab.on(event, listener)
        tab.route("**/*", answer)
        try:
            tab.set_viewport_size({"width": width, "height": 900})
            tab.emulate_media(color_scheme=scheme, media="screen")
            tab.goto(ADDRESS)
            yield tab
            assert tab.evaluate("window.pwned") is None
            assert tab.evaluate("window.violations") == []
            assert complaints == []
            assert requests == [ADDRESS]
        finally:
            for event, listener in listeners.items():
                tab.remove_listener(event, listener)
            tab.unroute("**/*")

    return opening


def gallery(text=""):
    """One of each chart, with this text wherever a text can stand."""
    order = [text or "ours", "theirs", "third"]
    rows = [Bar(text or name, v, (0.9 * v, 1.2 * v), f"{text}case {g}", name, title=text, id=text)
            for g in (1, 2) for name, v in zip(order, (3.1e12, 2.2e12, 0.7e12), strict=True)]  # fmt: skip
    curves = [
        Series(
            name,
            [Point(2.0**k, v, (0.8 * v, 1.3 * v), title=text) for k in range(14) for v in [1e4 * (n + k + 1)]],
            band=n == 1,
        )
        for n, name in enumerate(order)
    ]
    roofs = [Roof(text or "HBM", 4.2e12, "memory"), Roof("L2", 1.1e13, "memory"), Roof("PCIe", 5.4e10, "memory"),
             Roof(text or "bf16", 7.9e14, "compute"), Roof("fp32", 5e13, "compute")]  # fmt: skip
    spots = [Series(name, [Point(x, x * 1e12 / (n + 1), label=text or "encode", href="#a") for x in (0.2, 0.9, 100)])
             for n, name in enumerate(order)]  # fmt: skip
    runs = [Samples(name, [1e-3 * (n + 1) * (1 + 0.1 * math.sin(k * k)) for k in range(60)], group=text, title=text)
            for n, name in enumerate(order)]  # fmt: skip
    about = {"title": text or "A chart", "caption": text, "order": order}
    return [
        draw_bars(rows, axis=Axis(text or "Bandwidth", "B/s"), **about),
        draw_bars([Bar(text or "a", 2.5, (1.5, 3)), Bar("b", 0.4)], axis=Axis("Speed-up", "×", "log"), reference=1.0,
             reference_label=text or "as fast as the peer", **about),
        draw_bars([Bar(text or "a", 2.5e-3, (1.5e-3, 3e-3)), Bar("b", 0.4)], axis=Axis("Time", "s", "log"), **about),
        draw_lines(curves, x=Axis(text or "Batch", "", "log2"), y=Axis(text or "Rate", text or "texts/s"),
              reference=9e4, reference_label=text or "limit", **about),
        draw_lines(curves, x=Axis("Batch"), y=Axis("Rate", "texts/s", "log"), **about),
        draw_roofline(roofs, spots, **about),
        draw_samples(runs, axis=Axis(text or "Time", "s"), **about),
        draw_cells([Cell(f"{text}GPU {g}", f"{text}node {n}", 0.3 * (n - g), text, text or "model", href="#a")
               for g in range(3) for n in range(5)], title=text, across=text or "memory on", caption=text),
    ]  # fmt: skip


def build_gallery(text=""):
    parts = [Markup("<h1>{}</h1>").format(text or "A report")]
    parts.append(
        Markup('<div class="cards"><div class="card">{0}<span class="badge good">{0}</span></div></div>').format(text)
    )
    cells = Markup('<th>{0}</th><td class="num">1.2 ms</td><td title="{0}">{0}</td>').format(text)
    parts.append(Markup('<div class="table"><table><tr>{0}</tr></table></div>').format(cells))
    parts.append(Markup('<p id="text" data-tip="{0}">{0}</p><pre>{0}</pre>').format(text))
    return build_page(text or "A report", Markup("").join([*parts, *gallery(text)]), data={"text": text})


# Texts (and shapes) of shown charts that reach out of their picture, by more than a hair.
OUTSIDE = """() => {
  const found = [];
  for (const svg of document.querySelectorAll(".chart > svg")) {
    const box = svg.getBoundingClientRect();
    if (!box.width) continue;
    for (const part of svg.querySelectorAll("text, rect, circle, path")) {
      const b = part.getBoundingClientRect();
      if (b.left < box.left - 1 || b.right > box.right + 1 || b.top < box.top - 1 || b.bottom > box.bottom + 1)
        found.push([part.tagName, part.textContent.slice(0, 60), b.left - box.left, b.right - box.right]);
    }
  }
  return found;
}"""

# Pairs of texts in one chart whose boxes overlap; turned texts are left out, their boxes are mostly empty.
OVERLAPS = """() => {
  const found = [];
  for (const svg of document.querySelectorAll(".chart > svg")) {
    const level = [...svg.querySelectorAll("text:not([transform])")];
    const texts = level.map((text) => [text.textContent, text.getBoundingClientRect()]);
    for (let i = 0; i < texts.length; i++) for (let j = 0; j < i; j++) {
      const [s, a] = texts[i], [t, b] = texts[j];
      const x = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const y = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (x > 1 && y > 4) found.push([s, t, x, y]);
    }
  }
  return found;
}"""


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_shows_as_text_and_nothing_of_it_runs(opened, text):
    with opened(build_gallery(text), width=700) as tab:
        visible = re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]", "\ufffd", text)
        assert tab.text_content("#text") == visible.replace("\r\n", "\n")
        # Over UTF-16, as JavaScript holds it; the JSON carries even what the page cannot show.
        expected = """() => {
            const text = JSON.parse(document.getElementById("page-data").textContent).text;
            return Array.from(text.split(""), (c) => c.charCodeAt(0));
        }"""
        units = memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H").tolist()
        assert tab.evaluate(expected) == units
        assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert tab.evaluate(OUTSIDE) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 700, 1600])
def test_charts_are_drawn_within_their_frames_and_the_page_never_scrolls_sideways(opened, width, scheme):
    with opened(build_gallery(), width=width, scheme=scheme) as tab:
        assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert tab.evaluate(OUTSIDE) == []
        assert tab.evaluate(OVERLAPS) == []
        boxes = tab.evaluate("""() => [...document.querySelectorAll(".chart")].map((figure) => {
            const box = (part) => part.getBoundingClientRect();
            const shown = [...figure.querySelectorAll(":scope > svg")].filter((svg) => box(svg).width);
            const marks = shown.flatMap((svg) => [...svg.querySelectorAll(".mark")]);
            return [shown.length, box(shown[0]).height, marks.length,
                    marks.every((m) => box(m).width + box(m).height > 0)];
        })""")
        assert len(boxes) == len(gallery())
        for visible, height, marks, every in boxes:
            assert visible == 1
            assert height > 80
            assert marks >= 2
            assert every
        sizes = tab.evaluate("""() => [...document.querySelectorAll(".chart > svg text")].flatMap((t) => {
            const svg = t.closest("svg"), shown = svg.getBoundingClientRect().width;
            const size = parseFloat(getComputedStyle(t).fontSize);
            return shown ? [size * shown / svg.viewBox.baseVal.width] : [];
        })""")
        assert min(sizes) >= 8.5


def test_colours_follow_the_scheme_and_paper_is_light(opened):
    seen = {}
    for scheme in ("light", "dark"):
        with opened(build_gallery(), scheme=scheme) as tab:
            read = """() => [getComputedStyle(document.body).backgroundColor,
                             getComputedStyle(document.querySelector(".chart .shape")).fill,
                             getComputedStyle(document.querySelector(".chart text.label")).fill]"""
            seen[scheme] = tab.evaluate(read)
            tab.emulate_media(media="print")
            assert tab.evaluate(read)[0] == "rgb(255, 255, 255)"
            assert tab.evaluate(read)[2] == "rgb(27, 32, 39)"
    assert all(a != b for a, b in zip(seen["light"], seen["dark"], strict=True))


def test_the_pointer_brings_up_a_tooltip_and_escape_takes_it_away(opened):
    chart = draw_bars([Bar("a", 2.0, title="<b>more</b>\non a")], title="A chart")
    with opened(build_page("t", chart)) as tab:
        tip = tab.locator(".chart-tip")
        assert tip.is_hidden()
        tab.hover("svg.wide .mark .shape")
        assert tip.is_visible()
        assert tip.text_content() == "<b>more</b>\non a"
        assert tab.locator("svg.wide title").count() == 0, "the browser's own tooltip does not show beside it"
        tab.keyboard.press("Escape")
        assert tip.is_hidden()


def test_a_linked_mark_is_reached_by_keyboard_and_leads_there(opened):
    chart = draw_bars([Bar("a", 2.0, href="#there")], title="A chart")
    with opened(build_page("t", chart + Markup('<p id="there">there</p>'))) as tab:
        tab.keyboard.press("Tab")
        assert tab.locator(".chart-tip").is_visible()
        assert tab.locator("svg.wide a").get_attribute("aria-label").startswith("a")
        tab.keyboard.press("Enter")
        assert tab.evaluate("location.hash") == "#there"


def test_injected_markup_could_not_run_even_if_it_got_through(chromium):
    """The second wall: markup that a careless template let in meets the page's policy."""
    inside = Markup("<script>window.pwned = 1</script><img src='http://evil.example/x.png' onerror='window.pwned = 1'>")
    context = chromium.new_context()
    requests = []
    try:
        context.add_init_script(WATCH)
        tab = context.new_page()
        context.route("**/*", lambda route: (requests.append(route.request.url), route.fulfill(
            body=build_page("t", inside), content_type="text/html")))  # fmt: skip
        tab.goto(ADDRESS)
        assert tab.evaluate("window.pwned") is None
        assert "img-src" in tab.evaluate("window.violations")
        assert requests == [ADDRESS]
    finally:
        context.close()


def test_a_served_page_with_a_token_opens_talks_to_its_server_and_keeps_no_token_in_its_address(chromium):
    pytest.importorskip("starlette")
    from playwright.sync_api import expect
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    script = """fetch("/add", {method: "POST", body: "12"}).then((answer) => answer.json())
        .then((answer) => { document.title = answer.length; });"""

    async def index(request):
        return create_page_response(build_page("t", "hello", scripts=[script], live=True))

    async def add(request):
        return JSONResponse({"length": f"got {len(await request.body())}"})

    guarded = create_app([Route("/", index), Route("/add", add, methods=["POST"])], token="auto")
    context = chromium.new_context()
    complaints = []
    try:
        with run_in_background(guarded) as url:
            tab = context.new_page()
            tab.on("console", lambda message: complaints.append(message.text))
            tab.goto(f"{url}/?token={guarded.rules.token}")
            expect(tab).to_have_title("got 2")
            assert tab.url == f"{url}/"
            assert tab.evaluate("document.cookie") == ""
    finally:
        context.close()
    assert complaints == []

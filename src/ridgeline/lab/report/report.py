"""report.html, report.md and report.json, made from records alone.

    ridgeline report benchmarks/records --out /tmp

A report has one chapter per kind of machine and compares nothing across machines. The HTML page is self-contained and
stays below 4 MB: if it would be larger it leaves out raw samples first, then charts, then cases, and says so.
report.json has every case, the records have every sample. Markdown is for a merge request or a mail, JSON for programs:

    ridgeline report runs/ && jq '.machines[0].paths[].sentence' report.json
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from ridgeline.errors import InputError
from ridgeline.lab.judge import (
    MARGIN,
    TARGET,
    CapacityPlan,
    CheckedLaw,
    Comparison,
    PathSummary,
    Prediction,
    Price,
    Row,
    Scaling,
    Validity,
    analyse_record,
    analysis_to_json,
    clip_share,
    draw_scaling,
    find_price,
    find_scalings,
    format_interval,
    format_ratio,
    list_services,
    load_prices,
    percent,
    plan_capacity,
    rank_path,
    rate_unit,
    select_latest,
    summarise_paths,
)
from ridgeline.lab.record import Record
from ridgeline.lab.report import figures
from ridgeline.lab.report.advice import Advice, find_advice, is_experiment
from ridgeline.lab.study import Columns, Section, build_row, describe_placement, tabulate
from ridgeline.lab.workload import format_install_hint
from ridgeline.store import publish
from ridgeline.web import build_page, format_bytes, format_si, read_asset, render_template

JSON_SCHEMA = 1
PACKAGE = "ridgeline.lab"
MAX_PAGE_BYTES = 3_900_000
WORKER_PARAMETERS = ("ranks", "workers", "writers")  # parameters that count workers
MIN_WORKER_COUNTS = 3  # different numbers of workers that a scaling law needs
PREDICTION_FACTORS = (2, 4)  # laws predict at these multiples of the largest measured number of workers
BADGES = {  # CSS classes
    Validity.VALID: "good",
    Validity.NOISY: "warn",
    Validity.THROTTLED: "warn",
    Validity.WRONG: "bad",
    Validity.INCOMPLETE: "bad",
    Comparison.SLOWER: "good",
    Comparison.FASTER: "bad",
    Comparison.UNCLEAR: "warn",
    Comparison.SAME: "",
}
OUR_VERDICTS = {  # of ours, because a verdict describes the peer
    Comparison.SLOWER: "ahead",
    Comparison.FASTER: "loss",
    Comparison.SAME: "level",
    Comparison.UNCLEAR: "unclear",
}
TRANSFERS = {"pcie": "host → device", "pcie_back": "device → host"}
Picture = tuple[str, str]  # a title and an SVG
DrawPictures = Callable[[Record], Iterable[Picture]]


@dataclass(frozen=True)
class Chapter:
    """What a report says about one kind of machine."""

    machine: Mapping[str, Any]
    records: Sequence[Record]  # the newest of each case, by workload in the order of the paths
    paths: Sequence[PathSummary]
    advice: Sequence[Advice]
    scalings: Sequence[Scaling]
    plans: Sequence[tuple[PathSummary, CapacityPlan]]  # with a price, at the target utilisation
    placement: Section | None  # of experiments on several NUMA nodes
    notes: Sequence[str]

    @property
    def name(self) -> str:
        """The CPU and the GPUs."""
        return " · ".join([str(self.machine["cpu"]), *(str(gpu["name"]) for gpu in self.machine["gpus"])])

    @property
    def workloads(self) -> list[str]:
        """The workloads, what matters most first."""
        return list(dict.fromkeys(r.workload for r in self.records))

    @property
    def codes(self) -> list[str]:
        """The versions of the code as text: "1833f0123456 with local changes"."""
        marks = {True: " with local changes", None: " (local changes unknown)", False: ""}
        codes = ((r.code["commit"] or "no commit")[:12] + marks.get(r.code["dirty"], "") for r in self.records)
        return list(dict.fromkeys(codes))


def write_report(
    records: Sequence[Record], out: Path, *, refused: Sequence[str] = (), draw_pictures: DrawPictures | None = None
) -> Path:
    """Write report.html, report.md and report.json into the folder `out`; return the path of the page.

    `refused`: sentences about files that could not be read. `draw_pictures`: returns pictures of a record that the
    lab cannot draw itself, for example a schedule. Raises InputError without records.
    """
    chapters = build_chapters(records)
    files = {
        "report.html": _build_page(chapters, refused, draw_pictures),
        "report.md": format_markdown(chapters, refused),
        "report.json": _format_json(chapters, refused),
    }
    for name, text in files.items():
        with publish(out / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return out / "report.html"


def build_report(
    records: Sequence[Record], refused: Sequence[str] = (), draw_pictures: DrawPictures | None = None
) -> str:
    """Return the HTML page; see `write_report`."""
    return _build_page(build_chapters(records), refused, draw_pictures)


# --- chapters


def build_chapters(records: Sequence[Record]) -> list[Chapter]:
    """Return one chapter per kind of machine; what matters most comes first, in a chapter and among the chapters."""
    if not records:
        raise InputError("there is no record to report on; run ridgeline bench first.")
    newest = select_latest(records)
    paths = summarise_paths(newest)
    prices, problem = _load_prices()
    chapters = []
    for fingerprint in dict.fromkeys(r.machine["fingerprint"] for r in newest):
        machine_records = [r for r in newest if r.machine["fingerprint"] == fingerprint]
        machine_paths = sorted((path for path in paths if path.machine == fingerprint), key=rank_path)
        order = [path.workload for path in machine_paths]
        machine_records.sort(key=lambda r: order.index(r.workload) if r.workload in order else len(order))
        chapters.append(
            Chapter(
                machine=max(machine_records, key=lambda r: str(r.time)).machine,
                records=machine_records,
                paths=machine_paths,
                advice=find_advice(machine_records),
                scalings=_find_scalings(machine_records),
                plans=[(path, plan) for path in machine_paths if (plan := _plan_path(path, prices)) is not None],
                placement=_study_placement(machine_records),
                notes=[problem] if problem else [],
            ),
        )
    return sorted(chapters, key=lambda chapter: min(map(rank_path, chapter.paths), default=(9, 0.0)))


def _find_scalings(records: Sequence[Record]) -> list[Scaling]:
    scalings: list[Scaling] = []
    for parameter in WORKER_PARAMETERS:
        try:
            scalings += [s for s in find_scalings(records, parameter) if len(s.steps) >= MIN_WORKER_COUNTS]
        except InputError:  # these records have no sweep over the parameter
            continue
    return scalings


def _study_placement(records: Sequence[Record]) -> Section | None:
    rows = [build_row(r) for r in records if is_experiment(r)]
    section = describe_placement(tabulate(rows, Columns())) if rows else None
    return section if section is not None and section.findings.get("remote") else None


def _load_prices() -> tuple[list[Price], str]:
    """Load the price book; a broken one costs the dollars, not the report."""
    try:
        return load_prices(), ""
    except InputError as error:
        return [], f"Costs are left out: {error}"


def _plan_path(path: PathSummary, prices: Sequence[Price]) -> CapacityPlan | None:
    services, _ = list_services([path.record])
    if not services:
        return None
    price = find_price(prices, path.record.machine, services[0].device)
    return plan_capacity(services[0], services[0].rate * TARGET, price) if price else None


def _describe_machines(chapters: Sequence[Chapter]) -> str:
    """Return a sentence about several kinds of machine; empty for one."""
    if len(chapters) < 2:
        return ""
    return f"Records of {len(chapters)} kinds of machine: each has its own chapter, and no chapter compares two."


def _choose_dollar_unit(path: PathSummary) -> tuple[str, float]:
    """Return the unit for dollars and how many million items it is: a million texts, but a terabyte."""
    unit = str(path.record.work["unit"])
    return ("TB", 1e6) if unit == "bytes" else (f"million {unit}", 1.0)


# --- the HTML page


@dataclass(frozen=True)
class _PageContent:
    """How much of the largest parts a page holds."""

    sample_bytes: int  # of charts of raw samples
    charts: bool = True  # of each workload
    cases: int | None = None  # of each workload in its table; None: all


CONTENT_LEVELS = (  # from complete to small: the first that fits is used
    _PageContent(1_200_000),
    _PageContent(0),
    _PageContent(0, False),
    _PageContent(0, False, 40),
    _PageContent(0, False, 8),
)


class _ByteBudget:
    def __init__(self, count: int) -> None:
        self._count = count

    def take(self, count: int) -> bool:
        self._count -= count
        return self._count >= 0


@dataclass(frozen=True)
class _Part:
    """One workload on one kind of machine."""

    name: str
    anchor: str
    notes: Sequence[str]
    charts: Sequence[Markup]
    records: Sequence[tuple[Record, list[Row]]]
    samples: Sequence[Markup]
    missing: Mapping[str, str]  # peer -> how to install it
    omitted: Mapping[str, int] = field(default_factory=dict)  # what the page leaves out: raw samples, charts, cases


def _build_page(chapters: Sequence[Chapter], refused: Sequence[str], draw_pictures: DrawPictures | None) -> str:
    anchors: dict[str, str] = {}
    complete: list[tuple[dict[str, Any], list[_Part]]] = []
    for number, chapter in enumerate(chapters):
        names = enumerate(chapter.workloads)
        parts = [_build_part(chapter, f"m{number}-w{n}", name, draw_pictures) for n, name in names]
        anchors |= {r.id: f"m{number}-r{i}" for i, r in enumerate(chapter.records)}
        complete.append((_build_overview(chapter, number, parts), parts))
    context = {"refused": refused, "mixed": _describe_machines(chapters), "anchors": anchors}
    for content in CONTENT_LEVELS:
        budget = _ByteBudget(content.sample_bytes)
        shortened = [
            {**overview, "parts": [_shorten_part(part, content, budget) for part in parts]}
            for overview, parts in complete
        ]
        text = _render_page({**context, "chapters": shortened})
        if len(text.encode()) <= MAX_PAGE_BYTES:
            break
    return text


def _render_page(context: Mapping[str, Any]) -> str:
    body = render_template(
        "report.html",
        templates=PACKAGE,
        badges=BADGES,
        our_verdicts=OUR_VERDICTS,
        dollar_unit=_choose_dollar_unit,
        format_si=format_si,
        format_times=figures.format_times,
        format_rate=figures.format_rate,
        format_interval=format_interval,
        clip_share=clip_share,
        format_bytes=format_bytes,
        percent=percent,
        margin=MARGIN,
        **context,
    )
    return build_page("Ridgeline report", body, styles=[read_asset("report.css", PACKAGE)])


def _shorten_part(part: _Part, content: _PageContent, budget: _ByteBudget) -> _Part:
    """Return what a page of this content shows of a part, and count what it leaves out."""
    samples = [chart for chart in part.samples if budget.take(len(chart))]
    charts = part.charts if content.charts else ()
    return replace(
        part,
        samples=samples,
        charts=charts,
        records=part.records[: content.cases],
        omitted={
            "raw samples": len(part.samples) - len(samples),
            "charts": len(part.charts) - len(charts),
            "cases": max(0, len(part.records) - (content.cases or len(part.records))),
        },
    )


def _build_overview(chapter: Chapter, number: int, parts: Sequence[_Part]) -> dict[str, Any]:
    paths = chapter.paths
    units = {r.id: rate_unit(r) for r in chapter.records}
    scalings = [
        (
            s,
            draw_scaling(s, PREDICTION_FACTORS[-1] * s.steps[-1].at.n),
            [_predict(s, law) for law in s.laws],
            units[s.steps[0].at.record],
        )
        for s in chapter.scalings
    ]
    return {
        "chapter": chapter,
        "anchor": f"m{number}",
        "part_anchors": {part.name: part.anchor for part in parts},
        "ceilings": list_ceilings(chapter.records),
        "shares": figures.draw_shares(paths),
        "rooflines": figures.draw_rooflines(chapter.records, paths),
        "without_roofline": figures.list_paths_without_roofline(paths),
        "best_peers": figures.draw_best_peers(paths),
        "nodes": figures.draw_nodes(chapter.records),
        "scalings": scalings,
        "name": lambda path: figures.format_path(path, paths),
        "overhead_us": _median_overhead_us(chapter.records),
        "rounds": sum(r.race["rounds"] for r in chapter.records),
        "libraries": {k: v for r in chapter.records if r.is_ours for k, v in r.code["libraries"].items()},
    }


def _build_part(chapter: Chapter, anchor: str, name: str, draw_pictures: DrawPictures | None) -> _Part:
    records = sorted((r for r in chapter.records if r.workload == name), key=_sort_key)
    analysed = [(r, analyse_record(r)) for r in records]
    charts = [
        *figures.draw_frontiers(analysed),
        *figures.draw_sweeps(analysed),
        figures.draw_peers(analysed),
        *figures.draw_timelines(analysed),
    ]
    # Many records may show the same picture.
    pictures = dict.fromkeys(p for r in records for p in draw_pictures(r)) if draw_pictures else {}
    charts += [_frame_picture(title, svg) for title, svg in pictures]
    samples = [chart for record, rows in analysed if (chart := figures.draw_record_samples(record, rows))]
    notes = [note for note in dict.fromkeys(r.note for r in records) if note]
    missing = {peer: format_install_hint(extra) for r in records for peer, extra in r.missing.items()}
    return _Part(name, anchor, notes, [c for c in charts if c], analysed, samples, missing)


def _frame_picture(title: str, svg: str) -> Markup:
    drawing = Markup(svg)  # noqa: S704  (our code draws it from numbers)
    frame = '<figure class="chart"><p class="chart-title">{}</p><div class="picture" tabindex="0">{}</div></figure>'
    return Markup(frame).format(title, drawing)  # noqa: S704


def list_ceilings(records: Iterable[Record]) -> dict[str, list[tuple[str, str]]]:
    """Return the ceilings of the cases by kind of device: memory as a range over sizes, others by their best rate."""
    rates: dict[str, dict[tuple[str, str], list[float]]] = {}
    for record in records:
        device = str(record.case["device"]).partition(":")[0]
        for resource, ceiling in record.ceilings.items():
            name = str(ceiling.get("name") or ceiling["what"])
            short = name.partition(" (")[0] if resource == "compute" else ""
            rates.setdefault(device, {}).setdefault((resource, short), []).append(float(ceiling["rate"]))
    return {device: [_format_ceiling(*key, values) for key, values in table.items()] for device, table in rates.items()}


def _format_ceiling(resource: str, name: str, rates: Sequence[float]) -> tuple[str, str]:
    if resource == "compute":
        return name, format_si(max(rates), "FLOP/s")
    if resource == "launch":
        return "one launch", format_si(1 / max(rates), "s")
    if resource == "direct":
        return "one launch from the host", format_si(1 / max(rates), "s")
    low, high = format_si(min(rates), "B/s"), format_si(max(rates), "B/s")
    return TRANSFERS.get(resource, resource), high if low == high or resource in TRANSFERS else f"{low} to {high}"


def _predict(scaling: Scaling, law: str) -> tuple[str, list[Prediction], CheckedLaw]:
    last = scaling.steps[-1].at.n
    return law, [scaling.predict(law, factor * last) for factor in PREDICTION_FACTORS], scaling.laws[law]


def _sort_key(record: Record) -> list[tuple[bool, float, str]]:
    """Sort cases by rising sizes and alphabetic words, whatever the order of the files."""
    numbers = (int, float)
    return [(False, v, "") if isinstance(v, numbers) else (True, 0.0, str(v)) for v in record.case.values()]


def _median_overhead_us(records: Iterable[Record]) -> float | None:
    """Return the part of a turn that is not timed (order, reset, warm-up), in microseconds."""
    overheads = [ns for r in records for result in r.contenders for ns in result.turn_overhead_ns]
    return statistics.median(overheads) / 1e3 if overheads else None


# --- Markdown


def format_markdown(chapters: Sequence[Chapter], refused: Sequence[str] = ()) -> str:
    """Return report.md."""
    lines = ["# Ridgeline report", ""]
    lines += [_describe_machines(chapters), ""] if len(chapters) > 1 else []
    lines += [f"- left out: {_escape(sentence)}" for sentence in refused] + ([""] if refused else [])
    for chapter in chapters:
        lines += _format_chapter(chapter)
    return "\n".join(lines).rstrip() + "\n"


def _format_chapter(chapter: Chapter) -> list[str]:
    m = chapter.machine
    facts = f"{m['usable_cpus']} usable CPUs, {format_bytes(m['memory_bytes'])} memory, {len(m['nodes'])} NUMA node"
    out = [f"## {_escape(chapter.name)}", "", f"{facts}{'s' if len(m['nodes']) > 1 else ''}.", "", "### Findings", ""]
    out += [f"- {_escape(path.sentence)}" for path in chapter.paths]
    out += ["", "| path | case | rate | of ceiling | limited by | best peer | time ÷ ours | verdict | record |"]
    out += ["|---|---|--:|--:|---|---|--:|---|---|"]
    out += [_format_row(_list_path_cells(path)) for path in chapter.paths]
    out += ["", "A verdict describes the peer: FASTER is a loss, SLOWER means the peer is slower than ours.", ""]
    out += ["### What to change", ""]
    out += [_format_advice(advice) for advice in chapter.advice] or ["Nothing that was measured supports a change."]
    if chapter.scalings:
        out += ["", "### Scaling", "", *(line for s in chapter.scalings for line in _format_scaling(s))]
    if chapter.placement:
        out += ["", chapter.placement.markdown.replace("## ", "### ", 1)]
    if chapter.plans:
        out += ["", "### Cost", "", "| path | never idle | per | price |", "|---|--:|---|---|"]
        for path, plan in chapter.plans:
            full, price = plan.usd_per_million_full, plan.price
            if full and price:
                words = f"{price.name}, ${price.hourly(1.0):.4g} an hour, {price.date}"
                unit, millions = _choose_dollar_unit(path)
                value, low, high = (f"{millions * usd:.3g}" for usd in full)
                out.append(_format_row([path.workload, f"${value} [{low} to {high}]", unit, words]))
    out += ["", *map(_escape, chapter.notes)] if chapter.notes else []
    out += ["", "### Every case", ""]
    out += ["| workload | case | contender | median | rate | of ceiling | time ÷ ours | verdict | validity | record |"]
    out += ["|---|---|---|--:|--:|--:|--:|---|---|---|"]
    for record in chapter.records:
        for row in analyse_record(record):
            cells = [
                record.workload,
                record.label,
                row.result.contender,
                figures.format_times(row.assessment.time)[0] if row.assessment.time else "–",
                figures.format_rate(row) or "–",
                percent(row.share),
                format_interval(row.ratio)[0] if row.ratio else "",
                row.comparison or "",
                row.assessment.validity,
                record.id[:12],
            ]
            out.append(_format_row(cells))
    out += ["", "### Commands", ""]
    out += [f"- `{r.id[:12]}` `{_escape_code(r.command)}`" for r in chapter.records]
    return [*out, ""]


def _list_path_cells(path: PathSummary) -> list[str]:
    return [
        path.workload,
        path.case,
        path.rate_text or str(path.validity),
        percent(path.share),
        path.limit or ("not known" if path.rate is not None else ""),
        path.peer or "",
        format_ratio(path.ratio.value) if path.ratio else "",
        path.verdict or "",
        path.record.id[:12],
    ]


def _format_advice(advice: Advice) -> str:
    case = f" ({_escape(advice.case)})" if advice.case else ""
    head = f"**{_escape(advice.what)}**, because " if advice.what else ""
    return f"- {_escape(advice.workload)}: {head}{_escape(advice.why)}{case}"


def _format_scaling(scaling: Scaling) -> list[str]:
    steps = ", ".join(f"{s.at.n:g}: {format_ratio(s.speedup)} × ({percent(s.efficiency)})" for s in scaling.steps)
    out = [f"- {_escape(scaling.name)}, {scaling.kind}: speed-up (efficiency) by workers {steps}"]
    for name, law in scaling.laws.items():
        for n in (factor * scaling.steps[-1].at.n for factor in PREDICTION_FACTORS):
            prediction = scaling.predict(name, n)
            held_out = prediction.held_out
            error = f"held-out error {percent(held_out)}" if held_out is not None else "untested"
            out.append(f"  - {name}: PREDICTED {format_ratio(prediction.speedup)} × at {n:g}, {error}")
        out += [f"  - {name}: {_escape(doubt)}" for doubt in law.doubts]
    return out + [f"  - {_escape(note)}" for note in scaling.notes]


def _format_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_escape(str(cell)) for cell in cells)} |"


def _escape(text: str) -> str:
    """Put text on one line and escape Markdown."""
    return re.sub(r"([\\`*<>\[\]|]|(?<!\w)_|_(?!\w))", r"\\\1", " ".join(str(text).split()))


def _escape_code(text: str) -> str:
    return " ".join(text.split()).replace("`", "'")


# --- JSON


def _format_json(chapters: Sequence[Chapter], refused: Sequence[str]) -> str:
    """Return report.json; NaN and infinity become null."""
    report = {
        "schema": JSON_SCHEMA,
        "mixed_machines": len(chapters) > 1,
        "refused": list(refused),
        "machines": [_chapter_to_json(chapter) for chapter in chapters],
    }
    return json.dumps(_replace_non_finite(report), indent=1, ensure_ascii=False, default=str) + "\n"


def _chapter_to_json(chapter: Chapter) -> dict[str, Any]:
    return {
        "machine": dict(chapter.machine),
        "code": chapter.codes,
        "paths": [path.to_json() for path in chapter.paths],
        "changes": [advice.to_json() for advice in chapter.advice],
        "scaling": [s.to_json([factor * s.steps[-1].at.n for factor in PREDICTION_FACTORS]) for s in chapter.scalings],
        "cost": [{"workload": path.workload, **plan.to_json()} for path, plan in chapter.plans],
        "placement": dict(chapter.placement.findings) if chapter.placement else None,
        "cases": [
            {**analysis_to_json(r), "time": r.time, "command": r.command, "ceilings": dict(r.ceilings)}
            for r in chapter.records
        ],
        "notes": list(chapter.notes),
    }


def _replace_non_finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _replace_non_finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_non_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""Drawings of schedules: ranks from left to right, rounds from top to bottom; for a terminal, and as SVG."""

from __future__ import annotations

from html import escape

from ridgeline.errors import InputError
from ridgeline.fabric.schedule_types import Schedule

WIDE, HIGH, LEFT, TOP = 90, 34, 60, 40
MAX_RANKS = 64  # more are not readable


def draw_text(schedule: Schedule, rounds: int = 24) -> str:
    """Return up to `rounds` lines of `from → to: chunks`; `+` marks chunks that are added, not overwritten."""
    lines = [f"{schedule.op} {schedule.algorithm} · {schedule.ranks} ranks · {schedule.chunks} chunks"]
    hidden = 0
    for number, transfers in enumerate(schedule.rounds()):
        if number >= rounds:
            hidden += 1
            continue
        rows = zip(*(column.tolist() for column in transfers[:5]), strict=True)
        arrows = [f"{a}→{b}:{_format_span(chunk, width)}{'+' if adds else ''}" for a, b, chunk, width, adds in rows]
        lines.append(f"{number:>4}  {'  '.join(arrows)}")
    if hidden:
        lines.append(f"      … and {hidden} more rounds")
    return "\n".join(lines)


def draw_svg(schedule: Schedule) -> str:
    """Return a complete SVG: a line per rank, an arrow per transfer, with a filled head where data is added.

    Raises InputError for more than 64 ranks.
    """
    if schedule.ranks > MAX_RANKS:
        raise InputError(f"{schedule.ranks} ranks are too many for a picture; draw {MAX_RANKS} or fewer.")
    rounds = list(schedule.rounds())
    width, height = LEFT + WIDE * schedule.ranks, TOP + HIGH * (len(rounds) + 1)
    title = f"{schedule.op} {schedule.algorithm}, {schedule.ranks} ranks, {schedule.chunks} chunks"
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" font-family="sans-serif" '
        f'font-size="11"><title>{escape(title)}</title>',
        '<defs><marker id="add" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#0a58ca"/></marker><marker id="set" viewBox="0 0 8 8" refX="8" refY="4" '
        'markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8" fill="none" stroke="#b35c00"/>'
        "</marker></defs>",
    ]
    for rank in range(schedule.ranks):
        x = LEFT + WIDE * rank
        out.append(f'<text x="{x}" y="{TOP - 16}" text-anchor="middle">rank {rank}</text>')
        out.append(f'<line x1="{x}" y1="{TOP - 8}" x2="{x}" y2="{height - 8}" stroke="#999"/>')
    for number, transfers in enumerate(rounds):
        y = TOP + HIGH * number
        out.append(f'<text x="6" y="{y + HIGH / 2:g}">{number}</text>')
        for a, b, chunk, wide, adds in zip(*(column.tolist() for column in transfers[:5]), strict=True):
            x1, x2 = LEFT + WIDE * a, LEFT + WIDE * b
            colour, head = ("#0a58ca", "add") if adds else ("#b35c00", "set")
            out.append(
                f'<line x1="{x1}" y1="{y + 4}" x2="{x2}" y2="{y + HIGH - 6}" stroke="{colour}" '
                f'marker-end="url(#{head})"/>'
                f'<text x="{x1 + (x2 - x1) * 0.3:g}" y="{y + 10}" fill="{colour}">{_format_span(chunk, wide)}</text>'
            )
    return "\n".join([*out, "</svg>"])


def _format_span(chunk: int, width: int) -> str:
    return str(chunk) if width == 1 else f"{chunk}–{chunk + width - 1}"

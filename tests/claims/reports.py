"""Generate reports of all shapes with right numbers (true values, rounded), and make one number wrong."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

FORMATS = ("markdown", "fence", "html", "spaced")


@dataclass
class Part:
    """A table (header, rows) or lines of prose; `derived` are the cells (row, column) that others determine."""

    header: list[str]
    rows: list[list[str]]
    derived: list[tuple[int, int]]
    before: str = ""  # a sentence above it
    heading: str = "Results"


def round_digits(value: float, digits: int, grouped: bool = True) -> str:
    """Round to `digits` significant digits, but never drop digits before the point."""
    from math import floor, log10

    places = max(0, digits - 1 - floor(log10(abs(value)))) if value else 0
    return f"{value:,.{places}f}" if grouped else f"{value:.{places}f}"


def batches(r: random.Random) -> Part:
    base, fixed = r.uniform(1e-6, 2e-3), r.uniform(1e-5, 5e-3)
    digits = r.choice([3, 4, 5])
    unit, scale = r.choice([("ms", 1e3), ("µs", 1e6), ("s", 1.0)])
    noun = r.choice(["texts", "ops", "images", "samples", "tokens", "queries"])
    rows, derived = [], []
    for n, b in enumerate(
        sorted(r.sample([1, 2, 4, 8, 16, 32, 64, 100, 128, 256, 512, 1000, 1024, 4096], r.randint(3, 6)))
    ):
        t = fixed + base * b
        rows.append(
            [str(b), round_digits(t * scale, digits), round_digits(b / t, digits), f"{r.uniform(0.5, 30):.1f} GB"]
        )
        derived += [(n, 1), (n, 2)]
    header = [
        r.choice(["Batch Size", "Batch", "batch_size"]),
        f"Time ({unit})",
        f"Throughput ({noun}/s)",
        "Peak memory",
    ]
    return Part(header, rows, derived)


def scaling(r: random.Random) -> Part:
    one, loss = r.uniform(50, 90_000), r.uniform(0.001, 0.05)
    rows, derived = [], []
    things = r.choice(["GPUs", "Nodes", "Workers", "Threads"])
    for row, n in enumerate([1, 2, 4, 8, 16][: r.randint(3, 5)]):
        rate = one * n / (1 + loss * (n - 1))
        rows.append([str(n), round_digits(rate, 5), f"{rate / one:.2f}x", f"{rate / one / n:.1%}"])
        if n > 1:
            derived += [(row, 2), (row, 3)]
    return Part([things, "Images/sec", "Speedup", "Scaling Efficiency"], rows, derived)


def strong(r: random.Random) -> Part:
    one, serial = r.uniform(1, 900), r.uniform(0.001, 0.1)
    rows, derived = [], []
    for row, n in enumerate([1, 2, 4, 8, 16, 32][: r.randint(3, 6)]):
        t = one * (serial + (1 - serial) / n)
        rows.append([str(n), round_digits(t, 4), f"{one / t:.2f}", f"{one / t / n:.2f}"])
        if n > 1:
            derived += [(row, 2)]
    return Part(["Processes", "Time (s)", "Speedup", "Efficiency"], rows, derived)


def peers(r: random.Random) -> Part:
    times = sorted((r.uniform(0.2, 900) for _ in range(r.randint(3, 5))), reverse=True)
    names = r.sample(["numpy", "torch", "ours", "baseline C", "onnx", "tuned", "naive"], len(times))
    rows = [[name, f"{round_digits(t, 4)} ms", f"{times[0] / t:.1f}x"] for name, t in zip(names, times, strict=True)]
    rows[0][2] = r.choice(["1.0x", "1x", "1.00x"])
    return Part(["Implementation", "Latency", "Speedup"], rows, [(n, 2) for n in range(1, len(rows))])


def wires(r: random.Random) -> Part:
    peak, delay = r.choice([12.5, 25.0, 50.0, 900.0, 3350.0]), r.uniform(1e-6, 2e-5)
    rows, derived = [], []
    for row, (text, size) in enumerate(
        [("64 KB", 64e3), ("1 MB", 1e6), ("16 MB", 16e6), ("256 MB", 256e6), ("1 GB", 1e9)]
    ):
        t = delay + size / (peak * 1e9)
        bandwidth = size / t / 1e9
        rows.append([text, round_digits(t * 1e6, 5), round_digits(bandwidth, 4), f"{bandwidth / peak:.1%}"])
        derived += [(row, 2)]
    return Part(["Size", "Time (µs)", "Bandwidth (GB/s)", "% of peak"], rows, derived)


def sums(r: random.Random) -> Part:
    parts = [round(r.uniform(3, 400), 1) for _ in range(r.randint(3, 6))]
    counts = [r.randint(1000, 99_999) for _ in parts]
    rows = [[f"stage {'abcdef'[n]}", f"{c:,}", f"{p} ms"] for n, (p, c) in enumerate(zip(parts, counts, strict=True))]
    rows.append([r.choice(["Total", "**Total**", "Sum"]), f"{sum(counts):,}", f"{sum(parts):.1f} ms"])
    last = len(rows) - 1
    return Part(["Stage", "Count", "Time"], rows, [(last, 1), (last, 2)])


def deltas(r: random.Random) -> Part:
    rows, derived = [], []
    for row in range(r.randint(3, 5)):
        peer = r.uniform(5, 900)
        ours = peer / r.uniform(1.05, 3)
        a, b = float(f"{ours:.1f}"), float(f"{peer:.1f}")
        rows.append([f"case {'abcdef'[row]}", f"{a:.1f} ms", f"{b:.1f} ms", f"+{b / a - 1:.1%} faster"])
        derived.append((row, 3))
    return Part(["Operation", "Ours", "Theirs", "Delta"], rows, derived)


TABLES: tuple[Callable[[random.Random], Part], ...] = (
    batches,
    scaling,
    strong,
    peers,
    wires,
    sums,
    deltas,
)


def sentence(r: random.Random) -> tuple[str, str]:
    """A line that holds, and the number in it that the others determine."""
    kind = r.randrange(8)
    n, t = r.randint(1000, 9_000_000), r.uniform(0.5, 900)
    if kind == 0:
        rate = round_digits(n / float(f"{t:.2f}"), 5)
        return f"It processed {n:,} texts in {t:.2f} s, which is {rate} texts/s.", rate
    if kind == 1:
        a, b = round(t * 20, 1), round(t, 1)
        words = f"{a / b:.1f}x"
        return f"- Time: {a} ms → {b} ms ({words} faster)", words
    if kind == 2:
        share = f"{t / 2000:.1%}"
        return f"- The kernel reaches {t:.1f} GB/s ({share} of 2000 GB/s).", share
    if kind == 3:
        hours = round_digits(n * t / 1000 / 3600, 4)
        return f"Work: {n:,} × {t:.3f} ms = {hours} hours", hours
    if kind == 4:
        a, b = r.randint(2, 900), r.randint(2, 900)
        return f"- Sum: {a} MB + {b} MB = {a + b} MB", f"{a + b} MB"
    if kind == 5:
        size = round_digits(n * 384 * 4 / 1e6, 4)
        return f"Vectors: {n:,} × 384 × 4 B = {size} MB", size
    if kind == 6:
        minutes = round_digits(float(f"{t * 60:.0f}") / 60, 3)
        return f"- It took {t * 60:.0f} seconds ({minutes} minutes).", minutes
    rate = round(r.uniform(10, 9000), 1)
    elapsed_text = round_digits(n / rate, 4)
    return f"Whole set: {n:,} / {rate} = {elapsed_text} seconds", elapsed_text


UNRELATED = (
    "The model has 12 layers, 384 dimensions and 22.7M parameters; batch=64 is the default.",
    "Tested on 3 machines with Python 3.11.4 and CUDA 12.8 on 2025-03-04, 5 runs each.",
    "Memory: 80 GB HBM3, 40 cores, 256 GB of RAM, a disk of 2 TB.",
    "Startup takes 3.2 s, a request 14 ms at p50 and 80 ms at p99, at 1,200 requests/s.",
    "We expect 2-4x from the next version, in 6 months, for about $300.",
    "- Network: 200 Gb/s InfiniBand, 8 adapters",
    "| note | see section 4.2 |",
)


def write(part: Part, form: str) -> str:
    head = f"## {part.heading}\n\n" + (part.before + "\n\n" if part.before else "")
    if form == "html":
        cells = ["".join(f"<th>{h}</th>" for h in part.header)]
        cells += ["".join(f"<td>{c.replace('**', '')}</td>" for c in row) for row in part.rows]
        return head + "<table>\n" + "\n".join(f"<tr>{c}</tr>" for c in cells) + "\n</table>\n"
    if form == "csv":
        return "\n".join(",".join(f'"{c}"' for c in row) for row in [part.header, *part.rows]) + "\n"
    if form == "spaced":
        return head + "```\n" + "\n".join("    ".join(row) for row in [part.header, *part.rows]) + "\n```\n"
    rows = [part.header, ["---"] * len(part.header), *part.rows]
    if form == "fence":
        return head + "```\n" + "\n".join(" | ".join(row) for row in rows) + "\n```\n"
    return head + "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


def falsify(text: str, factor: float) -> str:
    """Multiply the number of a cell by a factor and keep its decimals."""
    import re

    match = re.search(r"\d[\d,]*\.?\d*", text)
    assert match
    digits = match[0].replace(",", "")
    places = len(digits.partition(".")[2])
    return text[: match.start()] + f"{float(digits) * factor:,.{places}f}" + text[match.end() :]

"""The tables of an embedding study, in Markdown, from records of the workload `embed`.

    python benchmarks/embed_tables.py RECORDS.jsonl ...

Batch sizes with rate, time per text and peak memory; a GPU beside a CPU; a single text; lengths; the parts of the way;
a catalogue of movies. Nothing is typed in: texts/s is texts ÷ median time, ms per text its inverse, "vs CPU" the ratio
of two texts/s at the same number of tokens, peaks are the lab's. A result that was WRONG has no line.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from tables import format_ratios, format_share, get_seconds, list_machines, list_rows, print_table

from ridgeline.lab.judge import Row
from ridgeline.lab.record import Record
from ridgeline.web import format_si

FEWEST_FOR_P99 = 100  # calls: below, the slowest percent is not even one of them


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="+", type=Path)
    measured_values = list(list_machines(parser.parse_args().records))
    every = [r for _, local in measured_values for r in local]
    for name, local in measured_values:
        print(f"# {name}\n")
        for device in dict.fromkeys(r.case["device"] for r in local if r.workload == "embed"):
            tables(device, [r for r in local if r.workload == "embed" and r.case["device"] == device], every)


def tables(device: str, records: list[Record], every: list[Record]) -> None:
    for dtype in dict.fromkeys(r.case["dtype"] for r in records):
        typed = [r for r in records if r.case["dtype"] == dtype]
        where = f"{dtype}, {device}"
        even = [r for r in typed if r.case["texts"] == "even"]
        for tokens in sorted({r.case["tokens"] for r in even}):
            family = format_stages(even, "end to end", "batch", tokens=tokens)
            batches(f"Batch, {tokens} tokens, {where}", family)
            if device != "cpu":
                beside(f"Beside a CPU, {tokens} tokens, {where}", family, every)
        for stage in ("end to end", "forward"):
            for batch in sorted({r.case["batch"] for r in even}):
                lengths(f"Tokens, {stage}, batch {batch:,}, {where}", format_stages(even, stage, "tokens", batch=batch))
        alone(f"One text, {where}", format_stages(typed, "one", "tokens"))
        parts(f"Parts, {where}", [r for r in typed if r.case["stage"] in ("tokenize", "forward", "load")])
        movies(f"Movies, {where}", [r for r in typed if r.case["texts"] == "movies"])


def format_stages(records: list[Record], stage: str, by: str, **fixed: int) -> list[Record]:
    fit = (r for r in records if r.case["stage"] == stage and all(r.case[k] == v for k, v in fixed.items()))
    return sorted(fit, key=lambda r: r.case[by])


def batches(title: str, records: list[Record]) -> None:
    """One table for each contender, ours first."""
    for name in dict.fromkeys(row.result.contender for r in records for row in list_rows(r)):
        lines = [
            [
                f"{r.case['batch']:,}",
                format_si(get_seconds(row), "s"),
                rate(row),
                per_text(row),
                memory(row),
                format_share(row),
            ]
            + ([format_ratios([p for p in list_rows(r) if not p.ours])] if row.ours else [])
            for r, row in right(records)
            if row.result.contender == name
        ]
        heads = ["batch", "time", "texts/s", "ms per text", "peak memory", "of ceiling"]
        embedder_ours = bool(lines) and len(lines[0]) > len(heads)
        print_table(f"{title}: {name}", [*heads, *(["their time ÷ ours"] if embedder_ours else [])], lines)


def beside(title: str, records: list[Record], every: list[Record]) -> None:
    """The same number of texts on a CPU, where it was measured; else the CPU's best."""
    expected = records[0].case["tokens"] if records else None
    cpu: dict[int, tuple[float, str]] = {}
    for r in every:
        case = r.case
        reported = (case.get("device"), case.get("stage"), case.get("texts"), case.get("tokens"))
        if r.workload == "embed" and reported == ("cpu", "end to end", "even", expected):
            speed = list_rows(r)[0].items_per_s
            if list_rows(r)[0].ours and speed and speed > cpu.get(case["batch"], (0.0, ""))[0]:
                cpu[case["batch"]] = (
                    speed,
                    f"{r.machine['cpu']}, {r.machine['usable_cpus']} CPUs, {case['dtype']}",
                )
    if not cpu:
        return
    best = max(cpu.values())
    lines = []
    for record, row in right(records):
        if row.ours:
            speed, what = cpu.get(record.case["batch"], best)
            batch = record.case["batch"]
            formatted = [
                f"{batch:,}",
                f"{1e3 * get_seconds(row):,.3f}",
                rate(row),
                f"{(row.items_per_s or 0) / speed:,.1f} ×",
            ]
            lines.append([*formatted, what + ("" if batch in cpu else ", at its best batch")])
    print_table(title, ["batch", "time, ms", "texts/s", "vs CPU", "which CPU"], lines)


def lengths(title: str, records: list[Record]) -> None:
    lines = []
    for record, row in right(records):
        if row.ours:
            tokens = record.case["tokens"]
            flops = format_si(row.flops_per_s or 0, "FLOP/s")
            others = format_ratios([p for p in list_rows(record) if not p.ours])
            lines.append(
                [str(tokens), rate(row), f"{(row.items_per_s or 0) * tokens:,.0f}", flops, format_share(row), others]
            )
    print_table(title, ["tokens", "texts/s", "tokens/s", "arithmetic", "of ceiling", "their time ÷ ours"], lines)


def alone(title: str, records: list[Record]) -> None:
    lines = []
    for record, row in right(records):
        calls = sorted(read_calls(row))
        p99 = f"{calls[int(0.99 * len(calls))] / 1e6:.3f}" if len(calls) >= FEWEST_FOR_P99 else "–"
        p50 = f"{calls[len(calls) // 2] / 1e6:.3f}"
        mean = f"{sum(calls) / len(calls) / 1e6:.3f}"
        peer_name = [str(record.case["tokens"]), row.result.contender]
        ratio = f"{row.ratio.value:.2f} {row.comparison}" if row.ratio else "–"
        lines.append([*peer_name, f"{len(calls):,}", p50, p99, mean, ratio])
    heads = ["tokens", "contender", "calls", "p50, ms", "p99, ms", "mean, ms", "time ÷ ours"]
    print_table(title, heads, lines, least=1)


def parts(title: str, records: list[Record]) -> None:
    lines = []
    for record, row in right(records):
        what = [record.case["stage"], shape(record), row.result.contender]
        ratio = f"{row.ratio.value:.2f} {row.comparison}" if row.ratio else "–"
        lines.append([*what, format_si(get_seconds(row), "s"), f"{rate(row)} {record.work['unit']}/s", ratio])
    print_table(title, ["stage", "texts", "contender", "time", "rate", "time ÷ ours"], lines, least=1)


def movies(title: str, records: list[Record]) -> None:
    lines = [
        [
            r.case["stage"],
            shape(r),
            row.result.contender,
            f"{get_seconds(row):.3f}",
            rate(row),
            per_text(row),
            memory(row),
        ]
        for r, row in right(records)
    ]
    heads = ["stage", "texts", "contender", "time, s", "texts/s", "ms per text", "peak memory"]
    print_table(title, heads, lines, least=1)


def right(records: Sequence[Record]) -> Iterator[tuple[Record, Row]]:
    for record in records:
        for row in list_rows(record):
            if row.seconds:
                yield record, row


def read_calls(row: Row) -> Sequence[float]:
    """Single calls: the samples, unless a sample was several."""
    saved = row.result.extras.get("calls_ns")
    return saved if row.result.calls_per_sample > 1 and saved else row.result.samples_ns


def shape(record: Record) -> str:
    case = record.case
    if case["stage"] == "load":
        return "–"
    return f"{case['batch']:,} × {case['tokens']} tokens" if case["texts"] == "even" else f"{case['batch']:,} movies"


def rate(row: Row) -> str:
    return f"{row.items_per_s or 0:,.1f}" if (row.items_per_s or 0) < 1_000 else f"{row.items_per_s:,.0f}"


def per_text(row: Row) -> str:
    return f"{1e3 / row.items_per_s:.4g}" if row.items_per_s else "–"


def memory(row: Row) -> str:
    """Of the device where there is one, else of the process."""
    extras = row.result.extras
    peak = extras.get("peak_gpu_bytes") or extras.get("peak_host_bytes")
    return format_si(peak, "B") if peak else "–"


if __name__ == "__main__":
    main()

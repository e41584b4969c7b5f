"""Physical limits: the bandwidth of a link, the peak of a named processor, the cores of a named CPU."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ridgeline.claims import quantities as q
from ridgeline.claims.columns import Column, find_roles
from ridgeline.claims.context import Context
from ridgeline.claims.data_sheets import CORES, PROCESSORS, find_links, find_memory_limit
from ridgeline.claims.document import Line, Table
from ridgeline.claims.finding import Finding, confidence
from ridgeline.claims.quantities import find_quantities, format_number, format_value

_NETWORK = re.compile(
    r"broadcast|all-?\s?reduce|all-?\s?gather|reduce-?\s?scatter|all-?to-?all|collective|message|point-to-point|rdma|"
    r"\btcp\b|\budp\b|network|transport|inter-?node",
    re.I,
)
_MAX_FIGURES = 20  # in one statement; more are a dump
_COPIES = re.compile(r"h2d|d2h|host.{1,4}device|device.{1,4}host|pinned|pageable", re.I)


def check_table_limits(context: Context, table: Table, columns: list[Column]) -> Iterator[Finding]:
    yield from _check_links(context, table, columns)
    yield from _check_host_copies(context, table, columns)
    yield from _check_peaks(context, table, columns)
    yield from _check_shares(context, table, columns)


def _create_finding(
    context: Context, table: Table, row: int, kind: str, arithmetic: str, base_confidence: float
) -> Finding:
    says = " | ".join(c for c in table.rows[row].cells if c)
    return Finding(context.document.path, table.rows[row].line, kind, says, arithmetic, base_confidence)


def _check_links(context: Context, table: Table, columns: list[Column]) -> Iterator[Finding]:
    stated = context.find_links()
    words = " ".join((table.heading, *table.header))
    if not stated or not _NETWORK.search(words) or re.search(r"\bbus\b|busbw|aggregate|bisection|total", words, re.I):
        return
    inside = re.search(r"nvlink|nvswitch|shared memory", context.text, re.I)
    if inside and not re.search(r"node|network|rdma|tcp|udp|infiniband|ethernet", words, re.I):
        return  # perhaps between the GPUs of one machine
    widest = max(stated, key=lambda f: f.quantity.value * _parse_link_count(f.text))
    limit = widest.quantity.value * _parse_link_count(widest.text)
    if limit <= 0:
        return
    for column in find_roles(columns, "bandwidth"):
        for row, cell in enumerate(column.cells):
            if cell is not None and cell.interval(1.0)[0] > 1.02 * limit:
                arithmetic = (
                    f"bandwidth ≤ link: {cell.text} over a link of {widest.quantity.text} (line {widest.line}), "
                    f"which is {format_value(limit, q.BANDWIDTH)}"
                )
                yield _create_finding(context, table, row, "link", arithmetic, confidence(cell.value / limit, 0.8))


def _parse_link_count(text: str) -> float:
    """Return 8 for "8 × 200 Gb/s"."""
    several = re.search(
        r"(\d+)\s?[x×]\s?(?:\w+[\s-]){0,4}?\d+\s?G|(?<!\S)(\d+) (?:adapters|nics|hcas|ports|rails)", text, re.I
    )
    return float(several[1] or several[2]) if several else 1.0


def _check_host_copies(context: Context, table: Table, columns: list[Column]) -> Iterator[Finding]:
    """Check copies between host and device against the PCIe generation that the report names."""
    words = " ".join((table.heading, *table.header))
    named = {link.one_way: link for link in find_links(context.text) if link.name.upper().startswith("PCI")}
    if len(named) != 1 or not _COPIES.search(words) or re.search(r"c2c|grace|gh200|gb[23]00", context.text, re.I):
        return
    (limit, link) = next(iter(named.items()))
    for column in find_roles(columns, "bandwidth"):
        if re.search(r"memory|hbm|dram|bidirectional|both|total|aggregate|d2d|device.to.device", column.name, re.I):
            continue
        for row, cell in enumerate(column.cells):
            if (
                cell is not None
                and cell.interval(1.0)[0] > 1.02e9 * limit
                and "d2d" not in str(table.rows[row]).lower()
            ):
                limit_text = f"{link.name} carries at most {format_number(limit)} GB/s one way"
                arithmetic = f"bandwidth ≤ link: {limit_text}, not {cell.text}"
                yield _create_finding(
                    context, table, row, "link", arithmetic, confidence(cell.value / limit / 1e9, 0.75)
                )


def _check_peaks(context: Context, table: Table, columns: list[Column]) -> Iterator[Finding]:
    named = [(name, part) for name, part in PROCESSORS.items() if re.search(rf"\b{name}s?\b", context.text)]
    if not named:
        return
    widest = max(part.memory for _, part in named)
    for row in range(len(table.rows)):
        n = _count_processors(table, columns, row)
        for column in find_roles(columns, "flops"):
            cell = column.cells[row]
            count = 1.0 if re.search(r"(?:/|per )\s?(?:gpu|device|chip|accelerator)", column.name, re.I) else n
            integer = cell is not None and re.search(r"FLOP", cell.unit, re.I) is None
            name, peak = max(((n_, p.tops if integer else p.tflops) for n_, p in named), key=lambda pair: pair[1])
            if cell is not None and count and cell.value > count * peak * 1e12:
                limit = format_value(count * peak * 1e12, q.FLOPS)
                arithmetic = (
                    f"FLOP/s ≤ peak: {format_number(count)} × {re.sub(r'[?()].*', '', name)} do at most "
                    f"{limit} (data sheet, sparse, narrowest type), not {cell.text}"
                )
                yield _create_finding(context, table, row, "peak", arithmetic, 0.9)
        for column in find_roles(columns, "bandwidth"):
            cell = column.cells[row]
            if (
                cell is not None
                and re.search(r"memory|hbm|dram", column.name, re.I)
                and cell.value > (n or 1) * widest * 1.02e9
            ):
                arithmetic = (
                    f"bandwidth ≤ peak: the memory of the processors named gives at most {widest} GB/s, not {cell.text}"
                )
                yield _create_finding(context, table, row, "peak", arithmetic, 0.7)


def _count_processors(table: Table, columns: list[Column], row: int) -> float:
    """Return the number of GPUs of a row, from a column, a cell or the heading; 0 if unknown."""
    for column in find_roles(columns, "n"):
        cell = column.cells[row]
        if cell is not None and re.search(r"gpu|device|accelerator", column.name, re.I):
            return cell.value
    quantities = [
        x for cell in table.rows[row].cells for x in find_quantities(cell) if re.match(r"gpus?\b|accelerator", x.noun)
    ]
    quantities += [x for x in find_quantities(table.heading) if re.match(r"gpus?\b", x.noun)]
    return quantities[0].value if quantities else 0.0


def _check_shares(context: Context, table: Table, columns: list[Column]) -> Iterator[Finding]:
    for column in find_roles(columns, "share"):
        if not re.search(r"utili[sz]ation|of peak|efficien", column.name, re.I) or re.search(r"cpu", column.name, re.I):
            continue
        for row, cell in enumerate(column.cells):
            if cell is not None and cell.interval(1.0)[0] > 1.01:
                yield _create_finding(
                    context, table, row, "share", f"a share of a whole is at most 100 %, not {cell.text}", 0.6
                )


def check_statement_limits(context: Context) -> Iterator[Finding]:
    for line in context.document.statements():
        yield from _check_cores(context, line)
        yield from _check_bandwidth(context, line)


def _check_cores(context: Context, line: Line) -> Iterator[Finding]:
    """Check "2x EPYC 7742 (64 cores)": sockets × cores of the data sheet."""
    for part, cores in CORES.items():
        if part not in line.text:
            continue
        sockets = re.search(
            rf"(\d+)\s?[x×]\s(?:\w+[\s-])*?{part}|(dual|two)[\s-](?:socket )?(?:\w+[\s-])*?{part}", line.text, re.I
        )
        stated = re.search(r"(\d+)[\s-]cores?\b(?!\s*(?:each|per (?:socket|cpu|processor)))", line.text, re.I)
        if not sockets or not stated:
            continue
        n = int(sockets[1] or 2)
        if int(stated[1]) not in (n * cores, 2 * n * cores) and not re.search(
            r"each|per socket|per cpu", line.text, re.I
        ):
            arithmetic = f"cores: {n} × {part} = {n * cores} cores ({cores} on the data sheet), not {stated[1]}"
            yield Finding(
                context.document.path, line.number, "cores", line.get_sentence(stated.start()), arithmetic, 0.6
            )


def _check_bandwidth(context: Context, line: Line) -> Iterator[Finding]:
    """Check a bandwidth against the link, memory channels or stacks that its sentence names."""
    quantities = [x for x in find_quantities(line.text) if x.dims == q.BANDWIDTH and not x.bound]
    for x in quantities[:_MAX_FIGURES]:
        sentence = line.get_sentence(x.start)
        several = _parse_link_count(sentence) > 1 or re.search(
            r"aggregate|total|bisection|memory|hbm|\bper (?:node|rack)", sentence, re.I
        )
        named = find_links(sentence)
        if len(named) == 1 and not several and x.value > 2.04e9 * named[0].one_way:
            arithmetic = (
                f"bandwidth ≤ link: {named[0].name} carries at most {format_number(named[0].one_way)} GB/s one way, "
                f"{format_number(2 * named[0].one_way)} both ways, not {x.text}"
            )
            base_confidence = confidence(x.value / (2e9 * named[0].one_way), 0.7)
            yield Finding(
                context.document.path, line.get_number(x.start), "link", sentence, arithmetic, base_confidence
            )
        most = find_memory_limit(sentence)
        if most is not None and x.value > 1.03e9 * most[1]:
            arithmetic = (
                f"bandwidth ≤ peak: {most[0]} give at most {format_value(most[1] * 1e9, q.BANDWIDTH)}, not {x.text}"
            )
            base_confidence = confidence(x.value / (1e9 * most[1]), 0.7)
            yield Finding(
                context.document.path, line.get_number(x.start), "peak", sentence, arithmetic, base_confidence
            )

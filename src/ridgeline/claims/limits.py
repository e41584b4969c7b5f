"""What no arithmetic can bring about: more than a link carries, more than the named processors can do."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ridgeline.claims import quantities as q
from ridgeline.claims.columns import Column, find_roles
from ridgeline.claims.context import Context
from ridgeline.claims.document import Line, Table
from ridgeline.claims.finding import Finding, confidence, digits, shown
from ridgeline.claims.quantities import find
from ridgeline.claims.sheets import CORES, PROCESSORS, links, memory

_ON_A_WIRE = re.compile(
    r"broadcast|all-?\s?reduce|all-?\s?gather|reduce-?\s?scatter|all-?to-?all|collective|message|point-to-point|rdma|"
    r"\btcp\b|\budp\b|network|transport|inter-?node",
    re.I,
)

_MANY = 20  # figures in one statement; more are a dump
_COPIES = re.compile(r"h2d|d2h|host.{1,4}device|device.{1,4}host|pinned|pageable", re.I)


def check(context: Context, table: Table, found: list[Column]) -> Iterator[Finding]:
    yield from _links(context, table, found)
    yield from _copies(context, table, found)
    yield from _flops(context, table, found)
    yield from _shares_over_one(context, table, found)


def _say(context: Context, table: Table, row: int, kind: str, what: str, sure: float) -> Finding:
    says = " | ".join(c for c in table.rows[row].cells if c)
    return Finding(context.document.path, table.rows[row].line, kind, says, what, sure)


def _links(context: Context, table: Table, found: list[Column]) -> Iterator[Finding]:
    stated = context.links()
    where = " ".join((table.heading, *table.header))
    if not stated or not _ON_A_WIRE.search(where) or re.search(r"\bbus\b|busbw|aggregate|bisection|total", where, re.I):
        return
    inside = re.search(r"nvlink|nvswitch|shared memory", context.text, re.I)
    if inside and not re.search(r"node|network|rdma|tcp|udp|infiniband|ethernet", where, re.I):
        return  # between the GPUs of one machine, perhaps
    widest = max(stated, key=lambda f: f.quantity.value * _count(f.text))
    limit = widest.quantity.value * _count(widest.text)
    for column in find_roles(found, "bandwidth"):
        for row, cell in enumerate(column.cells):
            if cell is not None and cell.interval(1.0)[0] > 1.02 * limit:
                what = (
                    f"bandwidth ≤ link: {cell.text} over a link of {widest.quantity.text} (line {widest.line}), "
                    f"which is {shown(limit, q.BANDWIDTH)}"
                )
                yield _say(context, table, row, "link", what, confidence(cell.value / limit, 0.8))


def _count(text: str) -> float:
    """ "8 × 200 Gb/s" is a link of eight."""
    several = re.search(
        r"(\d+)\s?[x×]\s?(?:\w+[\s-]){0,4}?\d+\s?G|(?<!\S)(\d+) (?:adapters|nics|hcas|ports|rails)", text, re.I
    )
    return float(several[1] or several[2]) if several else 1.0


def _copies(context: Context, table: Table, found: list[Column]) -> Iterator[Finding]:
    """Between host and device nothing goes faster than the one PCIe that the report names."""
    where = " ".join((table.heading, *table.header))
    named = {link.one_way: link for link in links(context.text) if link.name.upper().startswith("PCI")}
    if len(named) != 1 or not _COPIES.search(where) or re.search(r"c2c|grace|gh200|gb[23]00", context.text, re.I):
        return
    (limit, link) = next(iter(named.items()))
    for column in find_roles(found, "bandwidth"):
        if re.search(r"memory|hbm|dram|bidirectional|both|total|aggregate|d2d|device.to.device", column.name, re.I):
            continue
        for row, cell in enumerate(column.cells):
            if (
                cell is not None
                and cell.interval(1.0)[0] > 1.02e9 * limit
                and "d2d" not in str(table.rows[row]).lower()
            ):
                what = f"bandwidth ≤ link: {link.name} carries at most {digits(limit)} GB/s one way, not {cell.text}"
                yield _say(context, table, row, "link", what, confidence(cell.value / limit / 1e9, 0.75))


def _flops(context: Context, table: Table, found: list[Column]) -> Iterator[Finding]:
    named = [(name, part) for name, part in PROCESSORS.items() if re.search(rf"\b{name}s?\b", context.text)]
    if not named:
        return
    widest = max(part.memory for _, part in named)
    for row in range(len(table.rows)):
        n = _processors(table, found, row)
        for column in find_roles(found, "flops"):
            cell = column.cells[row]
            count = 1.0 if re.search(r"(?:/|per )\s?(?:gpu|device|chip|accelerator)", column.name, re.I) else n
            whole = cell is not None and re.search(r"FLOP", cell.unit, re.I) is None
            name, peak = max(((n_, p.tops if whole else p.tflops) for n_, p in named), key=lambda pair: pair[1])
            if cell is not None and count and cell.value > count * peak * 1e12:
                what = (
                    f"FLOP/s ≤ peak: {digits(count)} × {re.sub(r'[?()].*', '', name)} do at most "
                    f"{shown(count * peak * 1e12, q.FLOPS)} (data sheet, sparse, narrowest type), not {cell.text}"
                )
                yield _say(context, table, row, "peak", what, 0.9)
        for column in find_roles(found, "bandwidth"):
            cell = column.cells[row]
            if (
                cell is not None
                and re.search(r"memory|hbm|dram", column.name, re.I)
                and cell.value > (n or 1) * widest * 1.02e9
            ):
                what = (
                    f"bandwidth ≤ peak: the memory of the processors named gives at most {widest} GB/s, not {cell.text}"
                )
                yield _say(context, table, row, "peak", what, 0.7)


def _processors(table: Table, found: list[Column], row: int) -> float:
    """How many GPUs a row is about: its own column, or words in its label; 0 where it does not say."""
    for column in find_roles(found, "n"):
        cell = column.cells[row]
        if cell is not None and re.search(r"gpu|device|accelerator", column.name, re.I):
            return cell.value
    told = [x for cell in table.rows[row].cells for x in find(cell) if re.match(r"gpus?\b|accelerator", x.noun)]
    told += [x for x in find(table.heading) if re.match(r"gpus?\b", x.noun)]
    return told[0].value if told else 0.0


def _shares_over_one(context: Context, table: Table, found: list[Column]) -> Iterator[Finding]:
    for column in find_roles(found, "share"):
        if not re.search(r"utili[sz]ation|of peak|efficien", column.name, re.I) or re.search(r"cpu", column.name, re.I):
            continue
        for row, cell in enumerate(column.cells):
            if cell is not None and cell.interval(1.0)[0] > 1.01:
                yield _say(context, table, row, "share", f"a share of a whole is at most 100 %, not {cell.text}", 0.6)


def statements(context: Context) -> Iterator[Finding]:
    for line in context.document.statements():
        yield from _cores(context, line)
        yield from _beyond(context, line)


def _cores(context: Context, line: Line) -> Iterator[Finding]:
    """ "2x EPYC 7742 (64 cores)": sockets × cores of the part."""
    for part, cores in CORES.items():
        if part not in line.text:
            continue
        sockets = re.search(
            rf"(\d+)\s?[x×]\s(?:\w+[\s-])*?{part}|(dual|two)[\s-](?:socket )?(?:\w+[\s-])*?{part}", line.text, re.I
        )
        told = re.search(r"(\d+)[\s-]cores?\b(?!\s*(?:each|per (?:socket|cpu|processor)))", line.text, re.I)
        if not sockets or not told:
            continue
        n = int(sockets[1] or 2)
        if int(told[1]) not in (n * cores, 2 * n * cores) and not re.search(
            r"each|per socket|per cpu", line.text, re.I
        ):
            what = f"cores: {n} × {part} = {n * cores} cores ({cores} on the data sheet), not {told[1]}"
            yield Finding(context.document.path, line.number, "cores", line.around(told.start()), what, 0.6)


def _beyond(context: Context, line: Line) -> Iterator[Finding]:
    """More than a link of that name carries both ways, or than so many channels or stacks give."""
    told = [x for x in find(line.text) if x.dims == q.BANDWIDTH and not x.bound]
    for x in told[:_MANY]:
        sentence = line.around(x.start)
        several = _count(sentence) > 1 or re.search(
            r"aggregate|total|bisection|memory|hbm|\bper (?:node|rack)", sentence, re.I
        )
        named = links(sentence)
        if len(named) == 1 and not several and x.value > 2.04e9 * named[0].one_way:
            what = (
                f"bandwidth ≤ link: {named[0].name} carries at most {digits(named[0].one_way)} GB/s one way, "
                f"{digits(2 * named[0].one_way)} both ways, not {x.text}"
            )
            sure = confidence(x.value / (2e9 * named[0].one_way), 0.7)
            yield Finding(context.document.path, line.at(x.start), "link", sentence, what, sure)
        most = memory(sentence)
        if most is not None and x.value > 1.03e9 * most[1]:
            what = f"bandwidth ≤ peak: {most[0]} give at most {shown(most[1] * 1e9, q.BANDWIDTH)}, not {x.text}"
            sure = confidence(x.value / (1e9 * most[1]), 0.7)
            yield Finding(context.document.path, line.at(x.start), "peak", sentence, what, sure)

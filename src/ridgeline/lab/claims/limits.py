"""What no arithmetic can bring about: more than a link carries, more than the named processors can do."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ridgeline.lab.claims import quantities as q
from ridgeline.lab.claims.columns import Column, find_roles
from ridgeline.lab.claims.context import Context
from ridgeline.lab.claims.document import Table
from ridgeline.lab.claims.finding import Finding, confidence, digits, shown
from ridgeline.lab.claims.quantities import find

# The highest rate on each data sheet: tensor cores, sparse, the narrowest type (TFLOP/s); memory (GB/s).
PROCESSORS = {
    "V100": (125, 1134),
    "T4": (260, 320),
    "A10G?": (1000, 600),
    "A30": (1321, 933),
    "A40": (1197, 696),
    "A100": (1248, 2039),
    "L4": (970, 300),
    "L40S?": (2932, 864),
    "H100": (3958, 3938),
    "H200": (3958, 4915),
    "GH200": (3958, 4915),
    "B200": (20000, 8000),
    "GB200": (20000, 8000),
    "MI210": (362, 1638),
    "MI250X?": (766, 3277),
    "MI300X": (5230, 5325),
    "RTX 3090": (1136, 936),
    "RTX 4090": (2642, 1008),
}
_CORES = {  # of one socket
    r"EPYC 7742": 64,
    r"EPYC 7763": 64,
    r"EPYC 7702": 64,
    r"EPYC 7543": 32,
    r"EPYC 9654": 96,
    r"EPYC 9554": 64,
    r"Platinum 8380": 40,
    r"Platinum 8480": 56,
    r"Platinum 8280": 28,
    r"Platinum 8175M": 24,
    r"Gold 6248": 20,
}
_ON_A_WIRE = re.compile(
    r"broadcast|all-?\s?reduce|all-?\s?gather|reduce-?\s?scatter|all-?to-?all|collective|message|point-to-point|rdma|"
    r"\btcp\b|\budp\b|network|transport|inter-?node",
    re.I,
)


def check(context: Context, table: Table, found: list[Column]) -> Iterator[Finding]:
    yield from _links(context, table, found)
    yield from _flops(context, table, found)
    yield from _shares_over_one(context, table, found)


def _say(context: Context, table: Table, row: int, kind: str, what: str, sure: float) -> Finding:
    says = " | ".join(c for c in table.rows[row].cells if c)
    return Finding(context.document.path, table.rows[row].line, kind, says, what, sure)


def _links(context: Context, table: Table, found: list[Column]) -> Iterator[Finding]:
    links = context.links()
    where = " ".join((table.heading, *table.header))
    if not links or not _ON_A_WIRE.search(where) or re.search(r"\bbus\b|busbw|aggregate|bisection|total", where, re.I):
        return
    inside = re.search(r"nvlink|nvswitch|shared memory", context.text, re.I)
    if inside and not re.search(r"node|network|rdma|tcp|udp|infiniband|ethernet", where, re.I):
        return  # between the GPUs of one machine, perhaps
    widest = max(links, key=lambda f: f.quantity.value * _count(f.text))
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


def _flops(context: Context, table: Table, found: list[Column]) -> Iterator[Finding]:
    named = [(name, peak) for name, peak in PROCESSORS.items() if re.search(rf"\b{name}s?\b", context.text)]
    if not named:
        return
    name, (peak, _) = max(named, key=lambda pair: pair[1][0])
    widest = max(memory for _, (_, memory) in named)
    for row in range(len(table.rows)):
        n = _processors(table, found, row)
        for column in find_roles(found, "flops"):
            cell = column.cells[row]
            if cell is not None and n and cell.value > n * peak * 1e12:
                what = (
                    f"FLOP/s ≤ peak: {digits(n)} × {name.rstrip('?')} do at most {shown(n * peak * 1e12, q.FLOPS)} "
                    f"(data sheet, sparse, narrowest type), not {cell.text}"
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
    """ "2x EPYC 7742 (64 cores)": sockets × cores of the part."""
    for line in context.document.statements():
        for part, cores in _CORES.items():
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
                yield Finding(context.document.path, line.number, "cores", line.text.strip(), what, 0.6)

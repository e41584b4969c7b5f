"""Columns of a table: the role of each (time, rate, batch …) by the words and units of its header."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ridgeline.claims import quantities as q
from ridgeline.claims.document import Table
from ridgeline.claims.quantities import NONE, Dims, Quantity, find_quantities

DEVICE_WORDS = (
    r"\b(?:nodes?|gpus?|tpus?|workers?|ranks?|threads?|cores?|processes|procs|devices?|replicas?|machines?|hosts?|"
    r"servers?|instances?|clients?|concurrency|streams?|jobs|world size|(?:queue|io) ?depth|qd|in flight)\b"
)
_SHARES = (  # roles of a column of percentages: the first whose words its header has
    ("delta", r"delta|δ|shift|improv|change|gain|faster|slower|reduc|saving|saved|diff|increase|decrease|vs\b"),
    (
        "efficiency",
        r"^(?!.*(?:memory|energy|power|cost|bandwidth|network|storage|cache)).*efficien|parallel eff|scaling eff",
    ),
    (
        "share",
        r"efficien|utili[sz]|of (?:the )?(?:peak|ceiling|limit|roof|max|theor|copy|stream)|"
        r"share|mfu|% ?peak|peak ?%|roofline|sol\b",
    ),
    ("percent", r""),
)
_DIMENSIONS: dict[Dims, tuple[tuple[str, str], ...]] = {
    q.TIME: (("latency", r"latenc|\bp\d\d|percentile|ttft|response|jitter"), ("spared", r"saved|saving"), ("time", "")),
    q.RATE: (("rate", ""),),
    q.BANDWIDTH: (("bandwidth", ""),),
    q.FLOPS: (("flops", ""),),
    q.BYTES: (("memory", r"mem|usage|peak|footprint|vram|ram\b|rss|used|overhead"), ("size", "")),
    q.MONEY: (("spared", r"saved|saving"), ("cost", "")),
}
_PLAIN = (
    ("speedup", r"speed-?\s?up|^vs\b|\bvs\.? |relative|× ?faster|faster"),
    ("efficiency", r"^(?!.*(?:memory|energy|power|cost)).*efficien"),
    ("batch", r"batch(?!es)"),
    ("n", DEVICE_WORDS),
    ("params", r"param"),
    ("time", r"\btime\b|latency|duration|elapsed"),
    ("rate", r"throughput|\bqps\b|\bops\b|per sec|/s\b"),
    ("dim", r"\bdim"),
    (
        "count",
        r"count|number|rows?\b|vectors?\b|items?\b|samples?\b|quer|requests?|"
        r"tokens?\b|events?\b|elements?\b|docs?\b|records?\b|\bn\b",
    ),
    ("number", r""),
)
_LOWERCASE_UNITS = {  # in names such as capacity_tb, monthly_usd
    **{name.lower(): name for name in ("KB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB", "Mbps", "Gbps", "USD")},
    **{name.lower(): name for name in ("kW", "kWh", "TFLOPS", "GFLOPS")},
}


@dataclass(frozen=True)
class Column:
    """One column: its name, role and cells; a cell is None where it holds no quantity of the column's kind."""

    index: int
    name: str
    role: str  # "label" if it holds no numbers
    dims: Dims
    cells: tuple[Quantity | None, ...]
    mixed: bool = False  # holds quantities of several kinds
    raw: tuple[Quantity | None, ...] = ()  # the cells, those of other kinds too


def read_columns(table: Table) -> list[Column]:
    """Return the columns of a table with their roles and quantities."""
    return [_read_column(table, index) for index in range(len(table.header))]


def _read_column(table: Table, index: int) -> Column:
    name = table.header[index].replace("_", " ")
    unit = parse_header_unit(name)
    texts = [row.cells[index] for row in table.rows]
    raw = cells = tuple(parse_cell(text, unit) for text in texts)
    filled = [cell for cell in cells if cell is not None]
    if not filled or 2 * len(filled) < len([t for t in texts if re.search(r"\w", t)]):
        return Column(index, name, "label", q.NONE, tuple(None for _ in texts), raw=raw)
    kinds = [c.dims for c in filled]
    dims = max(kinds, key=kinds.count)
    mixed = len({(c.dims, c.share, c.factor) for c in filled}) > 1
    cells = tuple(cell if cell is not None and cell.dims == dims else None for cell in cells)
    filled = [cell for cell in cells if cell is not None]
    words = name.lower()
    if dims == q.MONEY and re.search(r"\bper\s|/|hourly\b", words):
        return Column(index, name, "other", dims, cells, mixed, raw)
    if 2 * sum(c.share for c in filled) > len(filled):
        role = _choose_role(_SHARES, words)
        cells = tuple(c if c is not None and c.share else None for c in cells)
    elif 2 * sum(c.factor for c in filled) > len(filled):
        role = "speedup"
        cells = tuple(c if c is not None and (c.factor or not c.noun) else None for c in cells)
    elif 2 * sum(c.top is not None for c in filled) > len(filled):
        role = "range"
    elif dims in _DIMENSIONS:
        role = _choose_role(_DIMENSIONS[dims], words)
    elif dims == q.NONE:
        role = _choose_role(_PLAIN, words)
        if role == "efficiency" and any(c.value > 2 for c in filled):
            role = "number"
    else:
        role = "other"
    return Column(index, name, role, dims, cells, mixed, raw)


def parse_cell(text: str, unit: tuple[float, Dims, str] | None = None) -> Quantity | None:
    """Parse the quantity of a cell; `unit` is that of the column, for cells without one."""
    quantities = find_quantities(text)
    if not quantities:
        return None
    first = quantities[0]
    if (
        len(quantities) > 1
        and quantities[1].dims == first.dims
        and re.fullmatch(r"\s*[–—-]\s*", text[first.end : quantities[1].start])
    ):
        first = replace(first, top=quantities[1].value)  # "8.29 ms – 12.4 ms"
    lead = text[: first.start].strip(" *_`+(−-")
    if lead and not re.fullmatch(r"[^\w]*", lead):
        return None
    if unit is not None and first.unit == "" and first.dims == NONE:
        factor, dims, name = unit
        first = _drop_repeated_prefix(first, name) if dims[1] else first
        return Quantity(
            first.value * factor,
            first.step * factor,
            first.loose * factor,
            dims,
            name,
            first.noun,
            first.text if name in ("", "×") else f"{first.text} {name}",
            first.start,
            first.end,
            first.about,
            first.bound,
            None if first.top is None else first.top * factor,
            first.written,
        )
    return first


def _drop_repeated_prefix(cell: Quantity, unit: str) -> Quantity:
    """In a column of MB, read "16 M" as 16: the letter repeats the unit."""
    letter = re.fullmatch(r"(.*\d)\s?([kKMGT])", cell.text)
    if letter is None or letter[2].lower() != unit[:1].lower():
        return cell
    bare = next(iter(find_quantities(letter[1])), cell)
    return replace(bare, text=cell.text, noun=cell.noun, start=cell.start, end=cell.end)


def _choose_role(roles: tuple[tuple[str, str], ...], words: str) -> str:
    return next(role for role, pattern in roles if re.search(pattern, words))


def parse_header_unit(name: str) -> tuple[float, Dims, str] | None:
    """Parse the unit of 'Time (ms)', 'Throughput [texts/s]', 'Images/sec', 'latency_us', 'Speed (x)', 'Share, %'."""
    inner = [m for pair in re.findall(r"\(([^)]*)\)|\[([^\]]*)\]", name) for m in pair if m]
    tail = re.sub(r"[(\[][^)\]]*[)\]]", "", name).strip()
    last = re.split(r"[,\s]+", tail)[-1] if tail else ""
    per = re.search(r"(?!cost|price|time)\b\w+ per (?:s|sec(?:ond)?s?|minute|hour|day)$", tail, re.I)
    candidates = [
        *reversed(inner),
        last if "/" in last else "",
        tail if "/" in tail else "",
        per[0] if per else "",
        last,
    ]
    for text in candidates:
        text = text.strip()
        if not text:
            continue
        if text in ("%", "percent", "pct"):
            return 0.01, q.NONE, "%"
        if text in ("x", "×"):
            return 1.0, q.NONE, "×"
        if text in (last, tail) and re.fullmatch(rf"(?:{q.DEVICE_PREFIX}?)?(?:hour|minute|second|day)s", tail, re.I):
            return (*(q.parse_unit(tail.lower()) or (1.0, q.NONE)), tail.lower())
        if text == last and text == tail and not re.search(r"/|FLOP|[KMGT]i?B|[QRTF]PS|IOPS", text, re.I):
            continue  # a header of one word is a name: "Time", "Second", "Day"
        if text == last and re.search(r"\bper\b", tail[: -len(last)]):
            continue  # "price usd per tb month"
        parsed = q.parse_unit(_LOWERCASE_UNITS.get(text, text) if text == last else text)
        if parsed is not None and re.search(r"/\s?[A-Z]?[a-z]*$", text) and parsed[1] in (q.BYTES, q.MONEY, q.TIME):
            return None if text == tail else (*parsed, text)
        if parsed is not None and parsed[1] != q.NONE and (text.lower() not in ("d", "m", "b", "t") or text in inner):
            return (*parsed, text)
    return None


def find_roles(columns: list[Column], role: str) -> list[Column]:
    """Return the columns of a role."""
    return [column for column in columns if column.role == role]


def get_label(table: Table, row: int, columns: list[Column]) -> str:
    """Return the text of the first label column of a row."""
    words = [table.rows[row].cells[c.index] for c in columns if c.role == "label"]
    return words[0] if words else table.rows[row].cells[0]

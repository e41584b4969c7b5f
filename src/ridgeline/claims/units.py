"""Units as people write them, in seconds, bytes, dollars, operations and joules."""

from __future__ import annotations

import re

Dims = tuple[int, int, int, int, int]  # powers of second, byte, dollar, operation, joule
NONE: Dims = (0, 0, 0, 0, 0)
TIME: Dims = (1, 0, 0, 0, 0)
RATE: Dims = (-1, 0, 0, 0, 0)
BYTES: Dims = (0, 1, 0, 0, 0)
BANDWIDTH: Dims = (-1, 1, 0, 0, 0)
MONEY: Dims = (0, 0, 1, 0, 0)
PRICE: Dims = (-1, 0, 1, 0, 0)
WORK: Dims = (0, 0, 0, 1, 0)
FLOPS: Dims = (-1, 0, 0, 1, 0)
ENERGY: Dims = (0, 0, 0, 0, 1)
POWER: Dims = (-1, 0, 0, 0, 1)

_TIMES = {
    "ns nsec nanosecond nanoseconds": 1e-9,
    "us µs μs usec microsecond microseconds": 1e-6,
    "ms msec msecs millisecond milliseconds": 1e-3,
    "s sec secs second seconds": 1.0,
    "min mins minute minutes": 60.0,
    "h hr hrs hour hours": 3600.0,
    "day days d": 86400.0,
    "week weeks wk": 604800.0,
    "month months mo": 2592000.0,
    "year years yr yrs": 31536000.0,
}
_PREFIX = {"": 1.0, "K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
WHOSE = (
    r"(?:GPU|CPU|TPU|vCPU|core|node|machine|instance|device|server|worker|chip|[ABHLV]\d{2,3})s?[-·\s]"  # "GPU-hours"
)


def _table() -> dict[str, tuple[float, Dims]]:
    units: dict[str, tuple[float, Dims]] = {}
    for names, factor in _TIMES.items():
        units |= dict.fromkeys(names.split(), (factor, TIME))
    for prefix, factor in {**_PREFIX, **_BINARY}.items():
        units |= {prefix + name: (factor, BYTES) for name in ("B", "byte", "bytes", "Byte", "Bytes")}
        units |= {prefix + name: (factor / 8, BYTES) for name in ("bit", "bits") + (("b",) if prefix else ())}
        units |= {prefix + name: (factor / 8, BANDWIDTH) for name in ("bps", "bit/s", "bits/s")}
        units |= {prefix + "Bps": (factor, BANDWIDTH), prefix + "Hz": (factor, RATE)}
        units |= {prefix + name: (factor, WORK) for name in ("FLOP", "FLOPs", "flop", "flops", "OP", "Flop")}
        units |= {prefix + name: (factor, FLOPS) for name in ("FLOPS", "Flops", "OPS", "flops/s", "FLOPs/s")}
    for prefix, factor in {**_PREFIX, "m": 1e-3}.items():
        units |= {prefix + "W": (factor, POWER), prefix + "Wh": (factor * 3600, ENERGY), prefix + "J": (factor, ENERGY)}
    units |= {"watts": (1.0, POWER), "watt": (1.0, POWER), "joule": (1.0, ENERGY), "joules": (1.0, ENERGY)}
    units |= {"$": (1.0, MONEY), "USD": (1.0, MONEY), "dollars": (1.0, MONEY)}
    for name in ("qps", "QPS", "fps", "FPS", "rps", "RPS", "tps", "TPS", "IOPS", "iops"):
        units[name] = (1.0, RATE)
    units["OPS"] = units["ops"] = (1.0, NONE)
    del units["OP"], units["b" if "b" in units else "Kb"]
    units["Kb"] = (125.0, BYTES)
    return units


UNITS = _table()


def combined(a: Dims, b: Dims, power: int = 1) -> Dims:
    """Of a product, or of a quotient (power -1)."""
    return (a[0] + power * b[0], a[1] + power * b[1], a[2] + power * b[2], a[3] + power * b[3], a[4] + power * b[4])


def parse_unit(name: str) -> tuple[float, Dims] | None:
    """'GB/s', 'texts per second', 'FLOP/byte'; a word that is no unit counts as one thing, if a unit follows it."""
    parts = [re.sub(rf"^{WHOSE}", "", part, flags=re.I) for part in re.split(r"\s?/\s?|\sper\s", name.strip())]
    factor, dims = 1.0, NONE
    known = False
    for place, part in enumerate(parts):
        unit = UNITS.get(part) or UNITS.get(part.strip("()")) or (UNITS.get(part.lower()) if len(part) > 2 else None)
        if unit is None:
            if len(parts) == 1 or (place and part not in UNITS):
                return None if len(parts) == 1 else ((factor, dims) if known else None)
            continue
        known = True
        if place == 0:
            factor, dims = unit
        else:
            factor, dims = factor / unit[0], combined(dims, unit[1], -1)
    return (factor, dims) if known else None

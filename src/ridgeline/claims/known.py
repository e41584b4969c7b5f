"""The relations that have names: which columns, by their roles, multiply to which."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.claims import quantities as q
from ridgeline.claims.quantities import Dims


@dataclass(frozen=True)
class Relation:
    """`target` = a constant × the product of `above` / the product of `below`, all columns' roles."""

    name: str
    target: str
    above: tuple[str, ...]
    below: tuple[str, ...]
    dims: Dims
    open: bool = False  # any constant will do
    sure: float = 0.93
    unless: tuple[str, ...] = ()  # not where a column of one of these roles is


RELATIONS = (
    Relation("rate = batch / time", "rate", ("batch",), ("time",), q.RATE),
    Relation("rate = n × batch / time", "rate", ("n", "batch"), ("time",), q.RATE, open=True),
    Relation("rate = n / time", "rate", ("n",), ("time",), q.RATE, open=True, unless=("batch",)),
    Relation("rate = n / latency", "rate", ("n",), ("latency",), q.RATE, open=True, unless=("batch", "time")),
    Relation("rate = 1 / latency", "rate", (), ("latency",), q.RATE, unless=("batch", "time", "n")),
    Relation("rate = batch / latency", "rate", ("batch",), ("latency",), q.RATE, open=True, unless=("time",)),
    Relation("rate = count / time", "rate", ("count",), ("time",), q.RATE, open=True, unless=("batch",)),
    Relation("rate = items / time", "rate", (), ("time",), q.RATE, open=True, unless=("batch",)),
    Relation("bandwidth = bytes / time", "bandwidth", ("size",), ("time",), q.BANDWIDTH, open=True),
    Relation(
        "bandwidth = bytes / time", "bandwidth", ("size",), ("latency",), q.BANDWIDTH, open=True, unless=("time",)
    ),
    Relation("bandwidth = n × bytes / time", "bandwidth", ("n", "size"), ("time",), q.BANDWIDTH, open=True),
    Relation(
        "bandwidth = n × bytes / time",
        "bandwidth",
        ("n", "size"),
        ("latency",),
        q.BANDWIDTH,
        open=True,
        unless=("time",),
    ),
    Relation("bandwidth = rate × bytes", "bandwidth", ("rate", "size"), (), q.BANDWIDTH, open=True),
    Relation("bandwidth = bytes / time", "bandwidth", (), ("time",), q.BANDWIDTH, open=True, unless=("size",)),
    Relation("FLOP/s = work / time", "flops", (), ("time",), q.FLOPS, open=True, unless=("size",)),
    Relation("efficiency = speed-up / n", "efficiency", ("speedup",), (), q.NONE, open=True, unless=("n",)),
    Relation("total = count × unit", "cost", ("count", "cost"), (), q.MONEY),
    Relation("total = count × unit", "time", ("count", "time"), (), q.TIME),
    Relation("share = part / peak", "share", ("bandwidth",), (), q.NONE, open=True),
    Relation("share = part / peak", "efficiency", ("bandwidth",), (), q.NONE, open=True, unless=("n",)),
    Relation("share = part / peak", "share", ("flops",), (), q.NONE, open=True),
    Relation("share = part / peak", "efficiency", ("flops",), (), q.NONE, open=True, unless=("n",)),
    Relation("share = part / whole", "share", ("memory",), (), q.NONE, open=True, sure=0.8),
    Relation("cost = price × time", "cost", ("price", "time"), (), q.MONEY),
    Relation("cost = price × n × time", "cost", ("price", "n", "time"), (), q.MONEY),
    Relation("cost = price × time", "cost", ("time",), (), q.MONEY, open=True, unless=("price",)),
    Relation("cost = price × n × time", "cost", ("n", "time"), (), q.MONEY, open=True, unless=("price",)),
    Relation("cost of each = price / rate", "each", ("price",), ("rate",), q.MONEY, sure=0.88),
    Relation("size = count × dimension × bytes", "size", ("count", "dim"), (), q.BYTES, open=True),
    Relation("size = parameters × bytes", "size", ("params",), (), q.BYTES, open=True, sure=0.8),
    Relation("size = parameters × bytes", "memory", ("params",), (), q.BYTES, open=True, sure=0.7),
    Relation("total = count × unit", "n", ("n",), (), q.NONE, open=True, sure=0.85),
    Relation("total batch = n × batch", "batch", ("n",), (), q.NONE, open=True, sure=0.8),
)

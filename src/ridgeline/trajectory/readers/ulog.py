"""PX4's ULog (pyulog): one topic per message and instance, stamps in microseconds since boot.

ridgeline streams flight.ulg
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ridgeline.errors import InputError, MissingExtra
from ridgeline.trajectory.readers.fields import Ask, chosen, opening, said, streams_of
from ridgeline.trajectory.stream import Stream, stamps
from ridgeline.trajectory.timeline import Array

MAGIC = b"ULog\x01\x12\x35"
_CLOCK = "timestamp"


def sniff(path: Path) -> bool:
    return opening(path, len(MAGIC)) == MAGIC


def read(path: Path, topics: Sequence[str] | None = None, ask: Ask | None = None) -> list[Stream]:
    ask = ask or Ask()
    try:
        from pyulog import ULog
    except ImportError:
        raise MissingExtra("reading ULog files", "robot") from None
    log = ULog(str(path))
    if log.file_corruption:
        ask.say(f"'{path}' is damaged in places; what could be read was.")
    if log.dropouts:
        ask.say(f"{len(log.dropouts)} dropouts while logging, {sum(d.duration for d in log.dropouts) / 1e3:.3g} s.")
    # Instance 0 keeps the bare name, so that logs of vehicles with one and with two batteries go together.
    named = {d.name if d.multi_id == 0 else f"{d.name}.{d.multi_id}": d for d in log.data_list if _CLOCK in d.data}
    if not named:
        raise InputError(f"'{path}' is a ULog file without one message; it was cut off before the first, record again.")
    found: list[Stream] = []
    wanted = chosen(named, topics, path)
    for topic, data in named.items():
        if topic not in wanted:
            continue
        times = stamps(topic, data.data[_CLOCK], "us")
        types = {f.field_name: f.type_str for f in data.field_data}
        fields: dict[str, Array] = {}
        strings: list[str] = []
        for name, values in data.data.items():
            if types.get(name) == "char":
                strings.append(name)
            elif name != _CLOCK:
                fields[name] = values.astype(bool) if types.get(name) == "bool" else np.ascontiguousarray(values)
        said(ask, topic, list(dict.fromkeys(s.partition("[")[0] for s in strings)))
        found += streams_of(topic, times, fields)
    return found

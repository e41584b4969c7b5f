"""PX4's ULog (pyulog): one topic per message and instance, stamps in microseconds since boot.

ridgeline streams flight.ulg
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ridgeline.errors import InputError, MissingExtra
from ridgeline.trajectory.readers.streams import ReadOptions, build_streams, choose_topics, read_head, report_left_out
from ridgeline.trajectory.stream import Array, Stream, to_stamps

MAGIC = b"ULog\x01\x12\x35"
_CLOCK = "timestamp"


def sniff(path: Path) -> bool:
    return read_head(path, len(MAGIC)) == MAGIC


def read(path: Path, topics: Sequence[str] | None = None, options: ReadOptions | None = None) -> list[Stream]:
    options = options or ReadOptions()
    try:
        from pyulog import ULog
    except ImportError:
        raise MissingExtra("reading ULog files", "robot") from None
    log = ULog(str(path))
    if log.file_corruption:
        options.report(f"'{path}' is damaged in places; the readable part was read.")
    if log.dropouts:
        options.report(
            f"{len(log.dropouts)} dropouts while logging, {sum(d.duration for d in log.dropouts) / 1e3:.3g} s."
        )
    # Instance 0 has the bare name, so that logs of vehicles with one and with two batteries have the same columns.
    datasets = {d.name if d.multi_id == 0 else f"{d.name}.{d.multi_id}": d for d in log.data_list if _CLOCK in d.data}
    if not datasets:
        raise InputError(f"'{path}' is a ULog file without one message; it was cut off before the first, record again.")
    streams: list[Stream] = []
    chosen_topics = choose_topics(datasets, topics, path)
    for topic, data in datasets.items():
        if topic not in chosen_topics:
            continue
        times = to_stamps(topic, data.data[_CLOCK], "us")
        types = {f.field_name: f.type_str for f in data.field_data}
        fields: dict[str, Array] = {}
        strings: list[str] = []
        for name, values in data.data.items():
            if types.get(name) == "char":
                strings.append(name)
            elif name != _CLOCK:
                fields[name] = values.astype(bool) if types.get(name) == "bool" else np.ascontiguousarray(values)
        report_left_out(options, topic, {s.partition("[")[0]: "text, not numeric" for s in strings})
        streams += build_streams(topic, times, fields)
    return streams

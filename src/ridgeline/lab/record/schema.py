"""What the fields of a record must be, as far as a reader uses them: a table, and how a line departs from it.

>>> fault({"case": {"device": "cpu", "ranks": "two"}}, {"case": {"device": TEXT, "ranks": COUNT}})
".case.ranks is 'two', not a whole number from 1 up"
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MOST = sys.float_info.max
TOLD = 40  # characters of a wrong value


@dataclass(frozen=True)
class Is:
    """One value: what it is, in words, and whether it is that."""

    words: str
    test: Callable[[Any], bool]


def is_number(value: Any) -> bool:
    """Whether it is a number; true and false are none, nor is what no float can hold."""
    return isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MOST)


def is_finite(value: Any) -> bool:
    return is_number(value) and abs(value) <= MOST


def _whole(value: Any) -> bool:
    return isinstance(value, int) and is_number(value)


TEXT = Is("a text", lambda v: isinstance(v, str))
TRUTH = Is("true or false", lambda v: isinstance(v, bool))
SCALAR = Is("a number, a text, true or false", lambda v: v is None or isinstance(v, str | bool) or is_number(v))
NUMBER = Is("a number", is_number)
AMOUNT = Is("a number from 0 up", lambda v: is_finite(v) and v >= 0)
RATE = Is("a number above 0", lambda v: is_finite(v) and v > 0)
WHOLE = Is("a whole number from 0 up", lambda v: _whole(v) and v >= 0)
COUNT = Is("a whole number from 1 up", lambda v: _whole(v) and v >= 1)

# A dict says what the names of a table hold ("?": it may be absent, "*": all other names), a list what each of its
# items is, (None, …) what may be null as well.
Shape = Is | dict[str, Any] | list[Any] | tuple[None, Any]
_WEATHER: Shape = {
    "load_average": NUMBER,
    "quota_throttled?": (None, NUMBER),
    "thermal_events?": (None, NUMBER),
    "gpu?": (None, {"throttle_reasons?": (None, [TEXT])}),
}
_STEPS = ("wall", "user", "system", "queued")
_LANE: Shape = {
    "contender": TEXT,
    "samples_ns": [],
    "samples_per_turn?": COUNT,
    "calls_per_sample?": COUNT,
    "settings?": {"does?": (None, TEXT), "lacks?": (None, TEXT)},
    "placed?": {},
    "extras?": {
        "stages_ns?": (None, {"*": [NUMBER]}),
        "alone_ns?": (None, {"*": NUMBER}),
        "timeline?": (None, {"*": [Is("a begin and an end", lambda v: _pair(v))]}),
        "columns?": (None, {"*": SCALAR}),
        "peak_host_bytes?": (None, AMOUNT),
        "peak_gpu_bytes?": (None, AMOUNT),
        **{f"steps_{name}_ns?": NUMBER for name in _STEPS},
    },
    "check?": (
        None,
        {"ok": TRUTH, "error?": (None, NUMBER), "quality?": (None, {"*": NUMBER}), "note?": (None, TEXT)},
    ),
    "failure?": (None, TEXT),
    "turn_overhead_ns": [NUMBER],  # below 0 where the timed part was counted longer than its turn
}
RECORD: Shape = {
    "id": TEXT,
    "time": TEXT,
    "workload": TEXT,
    "case": {"device": TEXT, "ranks": COUNT, "*": SCALAR},
    "work": {"items": AMOUNT, "unit": TEXT, "flops": AMOUNT, "bytes": {"*": AMOUNT}, "launches": AMOUNT},
    "placement": [{"node": (None, WHOLE), "cpus": (None, [WHOLE]), "gpu": (None, WHOLE)}],
    "machine": {
        "fingerprint": TEXT,
        "cpu": TEXT,
        "usable_cpus": COUNT,
        "memory_bytes": AMOUNT,
        "gpus": [{"name": TEXT, "node?": (None, WHOLE), "memory_bytes?": (None, AMOUNT)}],
        "nics": [{"name": TEXT, "node?": (None, WHOLE)}],
        "nodes": [{"id": WHOLE, "cpus": [WHOLE], "memory_bytes": AMOUNT}],
        "llc_domains": [[WHOLE]],
    },
    "code": {"commit": (None, TEXT), "dirty": (None, TRUTH), "libraries": {"*": (None, TEXT)}},
    "plan": {  # of points of an experiment; what a race was planned as is not read again
        "run_id?": TEXT,
        "key?": TEXT,
        "stand?": (None, TEXT),
        "device_node?": (None, WHOLE),
        "distance?": (None, NUMBER),
        "duration_s?": NUMBER,
        "facts?": {"*": SCALAR},
    },
    "race": {"rounds": WHOLE, "ended": TEXT, "heats?": [COUNT]},
    "weather": {"before": _WEATHER, "after": _WEATHER},
    "ceilings": {"*": {"rate": RATE, "what": TEXT, "name?": (None, TEXT)}},
    "contenders": [_LANE],
    "missing?": {"*": TEXT},
    "command?": TEXT,
    "note?": TEXT,
    "controls?": [TEXT],
}


def fault(value: Any, shape: Shape) -> str | None:
    """The first place where a value departs from its shape, and how; None if it does not."""
    if isinstance(shape, tuple):
        return None if value is None else fault(value, shape[1])
    if isinstance(shape, Is):
        return None if shape.test(value) else _not(value, shape.words)
    if isinstance(shape, list):
        return _list_fault(value, shape)
    return _table_fault(value, shape)


def _list_fault(value: Any, shape: list[Any]) -> str | None:
    if not isinstance(value, list):
        return _not(value, "a list")
    for number, each in enumerate(value if shape else ()):
        if (wrong := fault(each, shape[0])) is not None:
            return f"[{number}]{wrong}"
    return None


def _table_fault(value: Any, shape: dict[str, Any]) -> str | None:
    if not isinstance(value, dict):
        return _not(value, "a table")
    for name in shape:
        if name != "*" and not name.endswith("?") and name not in value:
            return f".{name} is not there"
    for name, each in value.items():
        want = shape.get(name, shape.get(f"{name}?", shape.get("*")))
        if want is not None and (wrong := fault(each, want)) is not None:
            return f".{name}{wrong}"
    return None


def _pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(is_finite, value))


def _not(value: Any, words: str) -> str:
    told = repr(value)
    return f" is {told if len(told) <= TOLD else told[: TOLD - 1] + '…'}, not {words}"

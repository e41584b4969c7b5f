"""The schema of a record: the type of each field that readers use, and the upgrade of older records.

Schema 2 renames three keys of schema 1 to plain words. `upgrade` turns a line of schema 1 into schema 2 when it is
read; files on disk never change.

>>> find_fault({"case": {"device": "cpu", "ranks": "two"}}, {"case": {"device": TEXT, "ranks": COUNT}})
".case.ranks is 'two', not a whole number from 1 up"
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

SCHEMA = 2
MAX_FLOAT = sys.float_info.max
SHOWN_CHARACTERS = 40  # of a wrong value in a message
NO_CONTENDER_LEFT = "no contender left"  # a reason why a race ends


@dataclass(frozen=True)
class Is:
    """The type of one value: its name in words, and a test."""

    words: str
    test: Callable[[Any], bool]


def is_number(value: Any) -> bool:
    """Whether `value` is a number that fits into a float; true and false are not numbers."""
    return isinstance(value, float) or (
        isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_FLOAT
    )


def is_finite(value: Any) -> bool:
    """Whether `value` is a finite number."""
    return is_number(value) and abs(value) <= MAX_FLOAT


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and is_number(value)


TEXT = Is("a text", lambda v: isinstance(v, str))
TRUTH = Is("true or false", lambda v: isinstance(v, bool))
SCALAR = Is("a number, a text, true or false", lambda v: v is None or isinstance(v, str | bool) or is_number(v))
NUMBER = Is("a number", is_number)
AMOUNT = Is("a number from 0 up", lambda v: is_finite(v) and v >= 0)
RATE = Is("a number above 0", lambda v: is_finite(v) and v > 0)
INTEGER = Is("a whole number from 0 up", lambda v: _is_integer(v) and v >= 0)
COUNT = Is("a whole number from 1 up", lambda v: _is_integer(v) and v >= 1)

# A dict gives the type of each key ("name?": optional, "*": all other keys). A list gives the type of its items.
# (None, type) allows null as well.
Shape = Is | dict[str, Any] | list[Any] | tuple[None, Any]
_CONDITIONS: Shape = {
    "load_average": NUMBER,
    "quota_throttled?": (None, NUMBER),
    "thermal_events?": (None, NUMBER),
    "gpu?": (None, {"throttle_reasons?": (None, [TEXT])}),
}
_CPU_TIMES = ("wall", "user", "system", "queued")
_CONTENDER: Shape = {
    "contender": TEXT,
    "samples_ns": [],
    "samples_per_turn?": COUNT,
    "calls_per_sample?": COUNT,
    "settings?": {"does?": (None, TEXT), "lacks?": (None, TEXT)},
    "placed?": {},
    "extras?": {
        "stages_ns?": (None, {"*": [NUMBER]}),
        "alone_ns?": (None, {"*": NUMBER}),
        "timeline?": (None, {"*": [Is("a begin and an end", lambda v: _is_pair(v))]}),
        "columns?": (None, {"*": SCALAR}),
        "peak_host_bytes?": (None, AMOUNT),
        "peak_gpu_bytes?": (None, AMOUNT),
        **{f"steps_{name}_ns?": NUMBER for name in _CPU_TIMES},
    },
    "check?": (
        None,
        {"ok": TRUTH, "error?": (None, NUMBER), "quality?": (None, {"*": NUMBER}), "note?": (None, TEXT)},
    ),
    "failure?": (None, TEXT),
    "turn_overhead_ns": [NUMBER],  # negative if the clock of the samples runs ahead of the clock of the turn
}
RECORD: Shape = {
    "id": TEXT,
    "time": TEXT,
    "workload": TEXT,
    "case": {"device": TEXT, "ranks": COUNT, "*": SCALAR},
    "work": {"items": AMOUNT, "unit": TEXT, "flops": AMOUNT, "bytes": {"*": AMOUNT}, "launches": AMOUNT},
    "placement": [{"node": (None, INTEGER), "cpus": (None, [INTEGER]), "gpu": (None, INTEGER)}],
    "machine": {
        "fingerprint": TEXT,
        "cpu": TEXT,
        "usable_cpus": COUNT,
        "memory_bytes": AMOUNT,
        "gpus": [{"name": TEXT, "node?": (None, INTEGER), "memory_bytes?": (None, AMOUNT)}],
        "nics": [{"name": TEXT, "node?": (None, INTEGER)}],
        "nodes": [{"id": INTEGER, "cpus": [INTEGER], "memory_bytes": AMOUNT}],
        "llc_domains": [[INTEGER]],
    },
    "code": {"commit": (None, TEXT), "dirty": (None, TRUTH), "libraries": {"*": (None, TEXT)}},
    "plan": {  # of a point of an experiment; nothing reads the plan of a race
        "run_id?": TEXT,
        "key?": TEXT,
        "placement?": (None, TEXT),
        "device_node?": (None, INTEGER),
        "distance?": (None, NUMBER),
        "duration_s?": NUMBER,
        "facts?": {"*": SCALAR},
    },
    "race": {"rounds": INTEGER, "ended": TEXT, "executions?": [INTEGER]},
    "conditions": {"before": _CONDITIONS, "after": _CONDITIONS},
    "ceilings": {"*": {"rate": RATE, "what": TEXT, "name?": (None, TEXT)}},
    "contenders": [_CONTENDER],
    "missing?": {"*": TEXT},
    "command?": TEXT,
    "note?": TEXT,
    "controls?": [TEXT],
}
REQUIRED = {
    "case": ("device", "ranks"),
    "work": ("items", "unit", "flops", "bytes", "launches"),
    "machine": ("fingerprint", "cpu", "gpus", "nics", "nodes", "llc_domains", "usable_cpus", "memory_bytes"),
    "code": ("commit", "dirty", "libraries"),
    "race": ("rounds", "ended"),
    "conditions": ("before", "after"),
}  # the keys that a reader may rely on

_RENAMES = {"weather": "conditions"}
_RENAMES_IN = {"race": {"heats": "executions"}, "plan": {"stand": "placement"}}


def upgrade(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record line in the present schema; a line of schema 1 gets the key names of schema 2.

    A line of an unknown schema comes back as it is: the caller refuses it.
    """
    if line.get("schema") != 1:
        return dict(line)
    new = {_RENAMES.get(name, name): value for name, value in line.items()}
    for part, names in _RENAMES_IN.items():
        if isinstance(table := new.get(part), dict):
            new[part] = {names.get(name, name): value for name, value in table.items()}
    if isinstance(new.get("race"), dict) and new["race"].get("ended") == "nobody left":
        new["race"]["ended"] = NO_CONTENDER_LEFT
    return {**new, "schema": SCHEMA}


def find_fault(value: Any, shape: Shape) -> str | None:
    """Return the first place where `value` differs from `shape` and how, or None if it does not differ."""
    if isinstance(shape, tuple):
        return None if value is None else find_fault(value, shape[1])
    if isinstance(shape, Is):
        return None if shape.test(value) else _format_fault(value, shape.words)
    if isinstance(shape, list):
        return _find_list_fault(value, shape)
    return _find_table_fault(value, shape)


def _find_list_fault(value: Any, shape: list[Any]) -> str | None:
    if not isinstance(value, list):
        return _format_fault(value, "a list")
    for number, item in enumerate(value if shape else ()):
        if (fault := find_fault(item, shape[0])) is not None:
            return f"[{number}]{fault}"
    return None


def _find_table_fault(value: Any, shape: dict[str, Any]) -> str | None:
    if not isinstance(value, dict):
        return _format_fault(value, "a table")
    for name in shape:
        if name != "*" and not name.endswith("?") and name not in value:
            return f".{name} is missing"
    for name, item in value.items():
        item_shape = shape.get(name, shape.get(f"{name}?", shape.get("*")))
        if item_shape is not None and (fault := find_fault(item, item_shape)) is not None:
            return f".{name}{fault}"
    return None


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(is_finite, value))


def _format_fault(value: Any, words: str) -> str:
    text = repr(value)
    return f" is {text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + '…'}, not {words}"

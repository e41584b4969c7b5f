"""Networks for predictions: what a rank, a node and the wires between nodes can carry.

Figures are the vendors' own, per direction: NVLink 3 and 4 give a GPU 300 and 450 GB/s, HDR and NDR InfiniBand
25 and 50 GB/s per adapter. `host` is a start that `ridgeline fabric tune` replaces by what it measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, unknown


@dataclass(frozen=True)
class Network:
    """Seconds and bytes per second, each direction for itself.

    Inside a node a message takes `alpha` and leaves and enters each rank at `lane`; all messages of a node share
    `bus` (None: a full crossbar, such as NVSwitch). Between nodes it takes `alpha_out` and goes through one of the
    node's `adapters` of `nic` each way; all nodes together share `spine` (None: the fabric does not block).
    `gamma` is the time to add one byte.
    """

    name: str
    per_node: int | None  # ranks on a node; None: all of them
    alpha: float
    lane: float
    bus: float | None = None
    alpha_out: float = 0.0
    nic: float = 0.0
    adapters: int = 1
    spine: float | None = None
    gamma: float = 0.0
    curve: tuple[
        tuple[float, float], ...
    ] = ()  # measured (bytes, seconds) of one message in a node, instead of all that


PRESETS = {
    "host": Network("host", None, 1.5e-6, 8e9, bus=16e9, gamma=1 / 20e9),
    "dgx-a100": Network("dgx-a100", 8, 2.5e-6, 300e9, alpha_out=5e-6, nic=25e9, adapters=8, gamma=1 / 1300e9),
    "dgx-h100": Network("dgx-h100", 8, 2.0e-6, 450e9, alpha_out=4e-6, nic=50e9, adapters=8, gamma=1 / 2200e9),
    "100gbe": Network("100gbe", 1, 5e-6, 12.5e9, alpha_out=20e-6, nic=12.5e9, gamma=1 / 20e9),
}


def network_of(given: str | Path | Mapping[str, Any] | Network) -> Network:
    """A preset by name, a YAML file (fields of `Network`; `base:` names a preset to start from), or a mapping."""
    if isinstance(given, Network):
        return given
    if isinstance(given, Mapping):
        return _made(dict(given), "network")
    if str(given) in PRESETS:
        return PRESETS[str(given)]
    path = Path(given)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise InputError(f"there is no network file '{path}'.")
        return _made(_yaml(path), path.stem)
    raise unknown("network", given, [*PRESETS, "FILE.yaml"])


def _yaml(path: Path) -> dict[str, Any]:
    """`name: number` lines; a network needs no more of YAML than that, and no library."""
    found: dict[str, Any] = {}
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"'{path}' cannot be read as text: {error}.") from None
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0].strip()
        if not words:
            continue
        name, colon, value = (w.strip() for w in words.partition(":"))
        if not colon or not value:
            raise InputError(f"{path}, line {number}: '{words}' is not of the form name: value.")
        found[name] = value if name in ("base", "name") else _number(value, f"{path}, line {number}")
    return found


def _number(value: str, where: str) -> float | None:
    if value in ("null", "~"):
        return None
    try:
        return float(value)
    except ValueError:
        raise InputError(f"{where}: '{value}' is no number.") from None


def _made(found: dict[str, Any], name: str) -> Network:
    base = found.pop("base", None)
    known = {f.name for f in fields(Network)}
    for word in found:
        if word not in known:
            raise unknown("field of a network", word, sorted(known))
    for word in ("per_node", "adapters"):
        if found.get(word) is not None:
            found[word] = int(found[word])
    if base is not None:
        if base not in PRESETS:
            raise unknown("network", base, PRESETS)
        return _sane(replace(PRESETS[base], **{"name": name, **found}))
    try:
        return _sane(Network(**{"name": name, "per_node": None, **found}))
    except TypeError:
        raise InputError("a network needs at least alpha and lane, or a base such as 'host'.") from None


def _sane(network: Network) -> Network:
    if network.per_node is not None and (network.per_node < 1 or network.nic <= 0):
        raise InputError(f"network '{network.name}' has several nodes: give per_node of 1 or more, and nic.")
    if network.lane <= 0 or network.adapters < 1:
        raise InputError(f"network '{network.name}': lane and adapters must be above 0.")
    return network

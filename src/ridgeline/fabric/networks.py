"""Networks for predictions: the bandwidth of ranks, nodes and the links between nodes.

The values are those of the vendors, per direction: NVLink 3 and 4 give a GPU 300 and 450 GB/s, HDR and NDR InfiniBand
25 and 50 GB/s per adapter. `host` is an estimate; `ridgeline fabric tune` replaces it by measurements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, unknown


@dataclass(frozen=True)
class Network:
    """Seconds and bytes per second, for each direction separately.

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
    curve: tuple[tuple[float, float], ...] = ()  # measured (bytes, seconds) of one message in a node, instead

    def count_nodes(self, ranks: int) -> int | None:
        """The number of nodes that `ranks` ranks fill; None if they fill the last one only in part."""
        per_node = min(self.per_node or ranks, ranks)
        return None if ranks % per_node else ranks // per_node


PRESETS = {
    "host": Network("host", None, 1.5e-6, 8e9, bus=16e9, gamma=1 / 20e9),
    "dgx-a100": Network("dgx-a100", 8, 2.5e-6, 300e9, alpha_out=5e-6, nic=25e9, adapters=8, gamma=1 / 1300e9),
    "dgx-h100": Network("dgx-h100", 8, 2.0e-6, 450e9, alpha_out=4e-6, nic=50e9, adapters=8, gamma=1 / 2200e9),
    "100gbe": Network("100gbe", 1, 5e-6, 12.5e9, alpha_out=20e-6, nic=12.5e9, gamma=1 / 20e9),
}


def load_network(source: str | Path | Mapping[str, Any] | Network) -> Network:
    """Load a preset by name, a YAML file (fields of `Network`; `base:` names a preset to start from), or a mapping."""
    if isinstance(source, Network):
        return source
    if isinstance(source, Mapping):
        return _make_network(dict(source), "network")
    if str(source) in PRESETS:
        return PRESETS[str(source)]
    path = Path(source)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise InputError(f"there is no network file '{path}'.")
        return _make_network(_read_yaml(path), path.stem)
    raise unknown("network", source, [*PRESETS, "FILE.yaml"])


def _read_yaml(path: Path) -> dict[str, Any]:
    """Read lines `name: number`; a network needs no other part of YAML, and so no library."""
    values: dict[str, Any] = {}
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"'{path}' cannot be read as text: {error}.") from None
    for number, line in enumerate(text.splitlines(), 1):
        content = line.split("#")[0].strip()
        if not content:
            continue
        name, colon, value = (w.strip() for w in content.partition(":"))
        if not colon or not value:
            raise InputError(f"{path}, line {number}: '{content}' is not of the form name: value.")
        values[name] = value if name in ("base", "name") else _parse_number(value, f"{path}, line {number}")
    return values


def _parse_number(value: str, where: str) -> float | None:
    if value in ("null", "~"):
        return None
    try:
        return float(value)
    except ValueError:
        raise InputError(f"{where}: '{value}' is not a number.") from None


def _make_network(values: dict[str, Any], name: str) -> Network:
    base = values.pop("base", None)
    known = {f.name for f in fields(Network)}
    for field in values:
        if field not in known:
            raise unknown("field of a network", field, sorted(known))
    for field in ("per_node", "adapters"):
        if values.get(field) is not None:
            values[field] = int(values[field])
    if base is not None:
        if base not in PRESETS:
            raise unknown("network", base, PRESETS)
        return _check_network(replace(PRESETS[base], **{"name": name, **values}))
    try:
        return _check_network(Network(**{"name": name, "per_node": None, **values}))
    except TypeError:
        raise InputError("a network needs at least alpha and lane, or a base such as 'host'.") from None


def _check_network(network: Network) -> Network:
    if network.per_node is not None and (network.per_node < 1 or network.nic <= 0):
        raise InputError(f"network '{network.name}' has several nodes: give per_node of 1 or more, and nic.")
    if network.lane <= 0 or network.adapters < 1:
        raise InputError(f"network '{network.name}': lane and adapters must be above 0.")
    return network

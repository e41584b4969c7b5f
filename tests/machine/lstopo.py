"""hwloc's lstopo as the oracle of the topology: another reader of the same trees, trusted for years."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

PROGRAM = "lstopo-no-graphics"
CACHES = ("L1Cache", "L2Cache", "L3Cache", "L4Cache", "L5Cache")


@dataclass(frozen=True)
class Oracle:
    nodes: dict[int, frozenset[int]]  # lstopo lends a node without CPUs those of its neighbours
    memory: dict[int, int]
    caches: frozenset[tuple[int, int, frozenset[int]]]  # level, bytes, CPUs


def ask(root: Path) -> Oracle:
    """What lstopo sees below `root`; skips the test where there is no lstopo, unless it is required."""
    if not shutil.which(PROGRAM):
        required = "lstopo" in os.environ.get("RIDGELINE_REQUIRE", "").split(",")
        (pytest.fail if required else pytest.skip)(f"{PROGRAM} is not here (Debian: hwloc-nox)")
    command = [PROGRAM, "--if", "fsroot", "-i", root, "--of", "xml"]
    quiet = {**os.environ, "HWLOC_HIDE_ERRORS": "2"}
    said = subprocess.run(command, capture_output=True, text=True, env=quiet, check=True).stdout
    nodes, memory, caches = {}, {}, set()
    for thing in ElementTree.fromstring(said).iter("object"):
        kind = thing.get("type", "")
        if kind == "NUMANode":
            number = int(thing.get("os_index", "0"))
            nodes[number] = _cpus(thing)
            memory[number] = int(thing.get("local_memory", "0"))
        elif kind in CACHES:
            caches.add((int(thing.get("depth", "0")), int(thing.get("cache_size", "0")), _cpus(thing)))
    return Oracle(nodes, memory, frozenset(caches))


def _cpus(thing: ElementTree.Element) -> frozenset[int]:
    bits = 0
    for word in thing.get("complete_cpuset", "0").split(","):
        bits = bits << 32 | int(word or "0", 16)
    return frozenset(i for i in range(bits.bit_length()) if bits >> i & 1)

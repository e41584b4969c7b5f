"""hwloc's lstopo as the reference for the topology: an independent reader of the same trees."""

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
class LstopoTopology:
    nodes: dict[int, frozenset[int]]  # lstopo assigns to a node without CPUs those of its neighbours
    memory: dict[int, int]
    caches: frozenset[tuple[int, int, frozenset[int]]]  # level, bytes, CPUs


def run_lstopo(root: Path) -> LstopoTopology:
    """The topology that lstopo reads below `root`; skips the test if lstopo is missing, unless it is required."""
    if not shutil.which(PROGRAM):
        required = "lstopo" in os.environ.get("RIDGELINE_REQUIRE", "").split(",")
        (pytest.fail if required else pytest.skip)(f"{PROGRAM} is not installed (Debian: hwloc-nox)")
    command = [PROGRAM, "--if", "fsroot", "-i", root, "--of", "xml"]
    quiet = {**os.environ, "HWLOC_HIDE_ERRORS": "2"}
    xml = subprocess.run(command, capture_output=True, text=True, env=quiet, check=True).stdout
    nodes, memory, caches = {}, {}, set()
    for element in ElementTree.fromstring(xml).iter("object"):
        kind = element.get("type", "")
        if kind == "NUMANode":
            number = int(element.get("os_index", "0"))
            nodes[number] = _parse_cpus(element)
            memory[number] = int(element.get("local_memory", "0"))
        elif kind in CACHES:
            caches.add((int(element.get("depth", "0")), int(element.get("cache_size", "0")), _parse_cpus(element)))
    return LstopoTopology(nodes, memory, frozenset(caches))


def _parse_cpus(element: ElementTree.Element) -> frozenset[int]:
    bits = 0
    for word in element.get("complete_cpuset", "0").split(","):
        bits = bits << 32 | int(word or "0", 16)
    return frozenset(i for i in range(bits.bit_length()) if bits >> i & 1)

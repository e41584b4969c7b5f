"""Read the small text files of the kernel, live or from a recorded tree.

    Tree("/").text("sys/devices/system/node/online")

A file that is missing, unreadable or refused by the driver (EINVAL is common for link speeds) reads as None, never
as an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

CpuSet = frozenset[int]
MOST_CPUS = 1 << 16  # far above the limit of any kernel; a larger number is a broken file
PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.IGNORECASE)


def parse_list(text: str) -> CpuSet:
    """Parse the list form of the kernel.

    >>> sorted(parse_list("0-3,8,10-14:2"))
    [0, 1, 2, 3, 8, 10, 12, 14]
    """
    cpus: set[int] = set()
    for part in text.split(","):
        part = part.strip()
        if not part:
            continue
        span, _, stride = part.partition(":")
        low, _, high = span.partition("-")
        last = int(high or low)
        if last >= MOST_CPUS:
            raise ValueError(f"'{part}' names more CPUs than a machine can have")
        cpus.update(range(int(low), last + 1, int(stride.partition("/")[0] or 1)))
    return frozenset(cpus)


def parse_mask(text: str) -> CpuSet:
    """Parse the mask form of the kernel: 32-bit words with the highest first.

    >>> sorted(parse_mask("1,0000000a"))
    [1, 3, 32]
    """
    value = 0
    for word in text.strip().split(","):
        value = (value << 32) | int(word or "0", 16)
    return frozenset(i for i in range(value.bit_length()) if value >> i & 1)


@dataclass(frozen=True)
class Tree:
    """A root folder that holds `sys` and `proc`."""

    root: Path

    @property
    def live(self) -> bool:
        return self.root == Path("/")

    def path(self, *parts: str) -> Path:
        return self.root.joinpath(*parts)

    def text(self, *parts: str) -> str | None:
        try:
            # Files recorded through a fixed buffer end in NULs.
            return self.path(*parts).read_text(errors="replace").replace("\0", "").strip()
        except OSError:
            return None

    def number(self, *parts: str) -> int | None:
        text = self.text(*parts)
        try:
            return int(text, 0) if text else None
        except ValueError:
            return None

    def list_numbers(self, folder: str, prefix: str) -> list[int]:
        """The numbers n for which folder/prefix<n> exists, in ascending order.

        A broken link does not count: the recorded trees of hwloc mark offline CPUs that way.
        """
        try:
            names = [p.name for p in self.path(folder).iterdir() if p.exists()]
        except OSError:
            return []
        return sorted(int(m[1]) for n in names if (m := re.fullmatch(rf"{prefix}(\d+)", n)))

    def read_list(self, *parts: str) -> CpuSet | None:
        """A file in list form; None when it is missing, empty or invalid."""
        try:
            return parse_list(self.text(*parts) or "") or None
        except ValueError:
            return None

    def cpus(self, folder: str, mask: str, list_name: str) -> CpuSet | None:
        """A CPU set that exists as mask and as list; the mask comes first: trimmed recordings may have wrong lists."""
        for name, parse in ((mask, parse_mask), (list_name, parse_list)):
            text = self.text(folder, name)
            if text:
                try:
                    return parse(text)
                except ValueError:
                    continue
        return None

    def pci_address(self, *parts: str) -> str | None:
        """The PCI function of a device link: the last address on its resolved path."""
        try:
            addresses = PCI_ADDRESS.findall(str(self.path(*parts).resolve()))
        except (OSError, RuntimeError):
            return None
        return addresses[-1].lower() if addresses else None

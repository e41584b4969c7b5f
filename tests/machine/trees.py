"""Synthetic sysfs and proc trees, written as kernels of different ages write them.

`Recording(folder)` is an empty tree; `.core()`, `.node()`, `.pci()` … add parts. `TREES` holds complete machines of
rare kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"
PCI = "sys/bus/pci/devices"
GiB = 1 << 20  # in KiB, as meminfo counts


def mask(cpus: Iterable[int], words: int = 1) -> str:
    """The kernel's mask form: 32-bit words, the highest first."""
    bits = sum(1 << cpu for cpu in cpus)
    count = max(words, (bits.bit_length() + 31) // 32)
    return ",".join(f"{bits >> 32 * i & 0xFFFFFFFF:08x}" for i in reversed(range(count)))


def format_list(cpus: Iterable[int]) -> str:
    return ",".join(map(str, sorted(cpus)))


@dataclass
class Recording:
    """A folder that holds `sys` and `proc`; `old` kernels write masks only and no global lists."""

    root: Path
    old: bool = False
    words: int = 1  # width of the masks

    def __post_init__(self) -> None:
        (self.root / "sys").mkdir(parents=True, exist_ok=True)
        (self.root / "proc").mkdir(exist_ok=True)

    def write(self, path: str, text: str | bytes) -> Recording:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode() if isinstance(text, str) else text)
        return self

    def _sets(self, folder: str, mask_name: str, list_name: str, cpus: Iterable[int]) -> None:
        cpus = list(cpus)
        self.write(f"{folder}/{mask_name}", mask(cpus, self.words) + "\n")
        if not self.old:
            self.write(f"{folder}/{list_name}", format_list(cpus) + "\n")

    def core(self, threads: Sequence[int], package: int = 0, core_id: int = 0) -> Recording:
        """One core and its hardware threads."""
        for cpu in threads:
            folder = f"{CPU}/cpu{cpu}/topology"
            self.write(f"{folder}/physical_package_id", f"{package}\n")
            self.write(f"{folder}/core_id", f"{core_id}\n")
            self._sets(folder, "thread_siblings", "thread_siblings_list", threads)
            if not self.old:
                self._sets(folder, "core_cpus", "core_cpus_list", threads)
        return self

    def package(self, number: int, cpus: Sequence[int]) -> Recording:
        """Write the list of the CPUs of a package for each of its CPUs."""
        for cpu in cpus:
            folder = f"{CPU}/cpu{cpu}/topology"
            self._sets(folder, "core_siblings", "core_siblings_list", cpus)
            if not self.old:
                self._sets(folder, "package_cpus", "package_cpus_list", cpus)
        return self

    def cache(self, level: int, size: str, cpus: Sequence[int], kind: str = "Unified") -> Recording:
        for cpu in cpus:
            folder = self.root / CPU / f"cpu{cpu}/cache"
            index = len(list(folder.iterdir())) if folder.is_dir() else 0
            place = f"{CPU}/cpu{cpu}/cache/index{index}"
            self.write(f"{place}/level", f"{level}\n").write(f"{place}/size", f"{size}\n")
            self.write(f"{place}/type", f"{kind}\n")
            self._sets(place, "shared_cpu_map", "shared_cpu_list", cpus)
        return self

    def node(
        self, number: int, cpus: Sequence[int] = (), kib: int | None = GiB, distance: Sequence[int] = ()
    ) -> Recording:
        folder = f"{NODE}/node{number}"
        self._sets(folder, "cpumap", "cpulist", cpus)
        if kib is not None:
            self.write(f"{folder}/meminfo", f"Node {number} MemTotal: {kib:12d} kB\nNode {number} MemFree: 1 kB\n")
        if distance:
            self.write(f"{folder}/distance", " ".join(map(str, distance)) + "\n")
        return self

    def initiators(self, number: int, access: int, nodes: Sequence[int]) -> Recording:
        """What the kernel makes of the HMAT: links to the nodes that reach this one best, and how fast they do."""
        folder = f"{NODE}/node{number}/access{access}/initiators"
        for n in nodes:
            self.link(f"{folder}/node{n}", f"{NODE}/node{n}")
        return self.write(f"{folder}/read_latency", "130\n").write(f"{folder}/read_bandwidth", "20000\n")

    def online(self, cpus: Sequence[int], nodes: Sequence[int] = ()) -> Recording:
        """The kernel's global lists (absent in old kernels)."""
        self.write(f"{CPU}/online", format_list(cpus) + "\n")
        return self.write(f"{NODE}/online", format_list(nodes) + "\n") if nodes else self

    def offline(self, cpu: int) -> Recording:
        """A CPU that exists and is offline: no topology, only a flag."""
        return self.write(f"{CPU}/cpu{cpu}/online", "0\n")

    def memory(self, kib: int) -> Recording:
        return self.write("proc/meminfo", f"MemTotal:     {kib} kB\nMemFree:      1 kB\n")

    def cpuinfo(self, text: str) -> Recording:
        return self.write("proc/cpuinfo", text)

    def pci(
        self,
        address: str,
        kind: int,
        vendor: int,
        *,
        device: int = 0x1234,
        node: int | None = None,
        cpus: Sequence[int] | None = None,
        link: tuple[str, int] | None = None,
    ) -> Recording:
        """A PCI function, with the link from the bus that real trees have."""
        real = f"sys/devices/pci{address[:-5]}/{address}"
        self.write(f"{real}/class", f"0x{kind:06x}\n").write(f"{real}/vendor", f"0x{vendor:04x}\n")
        self.write(f"{real}/device", f"0x{device:04x}\n")
        if node is not None:
            self.write(f"{real}/numa_node", f"{node}\n")
        if cpus is not None:
            self._sets(real, "local_cpus", "local_cpulist", cpus)
        if link:
            self.write(f"{real}/max_link_speed", f"{link[0]}\n").write(f"{real}/max_link_width", f"{link[1]}\n")
        self.link(f"{PCI}/{address}", real)
        return self

    def link(self, name: str, target: str) -> Recording:
        place = self.root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(self.root / target)
        return self

    def port(self, kind: str, name: str, address: str | None, files: dict[str, str] | None = None) -> Recording:
        """A network ("net") or RDMA ("infiniband") port; without an address it is virtual."""
        under = f"sys/devices/pci{address[:-5]}/{address}" if address else "sys/devices/virtual"
        real = f"{under}/{kind}/{name}"
        (self.root / real).mkdir(parents=True)
        for file, text in (files or {}).items():
            self.write(f"{real}/{file}", text)
        if address:
            self.link(f"{real}/device", under)
        return self.link(f"sys/class/{kind}/{name}", real)

    def grid(self, nodes: int, cores: int, threads: int = 1, *, spread: bool = False, first: int = 0) -> Recording:
        """`nodes` packages of one node each, `cores` cores of `threads`; `spread`: siblings have distant numbers."""
        total = nodes * cores * threads
        all_cpus = list(range(first, first + total))
        for n in range(nodes):
            cpus_of_node: list[int] = []
            for c in range(cores):
                number = n * cores + c
                if spread:
                    siblings = [first + number + t * nodes * cores for t in range(threads)]
                else:
                    siblings = [first + number * threads + t for t in range(threads)]
                self.core(siblings, package=n, core_id=c)
                self.cache(1, "32K", siblings, "Data").cache(1, "32K", siblings, "Instruction")
                self.cache(2, "1024K", siblings)
                cpus_of_node += siblings
            self.package(n, cpus_of_node).cache(3, "8192K", cpus_of_node)
            distance = [10 if n == m else 21 for m in range(nodes)]
            self.node(n, cpus_of_node, 4 * GiB, distance)
        if not self.old:
            self.online(all_cpus, range(nodes))
        return self.memory(4 * GiB * nodes)


def plain(at: Path) -> None:
    Recording(at).grid(1, 4, 2, spread=True).cpuinfo("processor\t: 0\nmodel name\t: Plain CPU @ 3 GHz\n")


def two_sockets(at: Path) -> None:
    Recording(at).grid(2, 4, 2)


def old_two_sockets(at: Path) -> None:
    Recording(at, old=True).grid(2, 2, 2, spread=True)


def without_nodes(at: Path) -> None:
    tree = Recording(at).memory(3 * GiB).online([0, 1])
    for cpu in (0, 1):
        tree.core([cpu], core_id=cpu).cache(1, "32K", [cpu], "Data").package(0, [0, 1])


def without_nodes_one_offline(at: Path) -> None:
    tree = Recording(at, old=True).memory(3 * GiB).offline(1)
    for cpu in (0, 2):
        tree.core([cpu], core_id=cpu).package(0, [0, 2])


def cpuinfo_alone(at: Path) -> None:
    text = "".join(f"processor\t: {n}\nmodel name\t: Old CPU\nphysical id\t: 0\ncore id\t: {n}\n\n" for n in (0, 1))
    Recording(at).cpuinfo(text).memory(GiB)


def memory_only_nodes(at: Path) -> None:
    """As a KNL in flat mode, or with CXL memory: nodes 2 and 3 have no CPUs."""
    tree = Recording(at).grid(2, 2)
    rows = {0: (10, 21, 31, 41), 1: (21, 10, 41, 31), 2: (31, 41, 10, 41), 3: (41, 31, 41, 10)}
    for n, row in rows.items():
        tree.node(n, [2 * n, 2 * n + 1] if n < 2 else [], (4 if n < 2 else 16) * GiB, row)
    tree.online(range(4), range(4))


def memory_of_hmat(at: Path) -> None:
    """CXL memory as node 2, which the HMAT puts near node 1; the distance table says the same for both nodes."""
    tree = Recording(at).grid(2, 2)
    for n, row in {0: (10, 21, 50), 1: (21, 10, 50), 2: (50, 50, 10)}.items():
        tree.node(n, [2 * n, 2 * n + 1] if n < 2 else [], (4 if n < 2 else 16) * GiB, row)
    tree.online(range(4), range(3)).initiators(2, 1, [1]).initiators(2, 0, [1])
    for n in (0, 1):
        tree.initiators(n, 0, [n]).initiators(n, 1, [n])


def memory_near_a_device(at: Path) -> None:
    """Node 2 is a device that reads memory: the best initiator of node 3 of any kind. Of the CPUs, those of node 0."""
    tree = Recording(at).grid(2, 2)
    rows = {0: (10, 21, 30, 40), 1: (21, 10, 30, 40), 2: (30, 30, 10, 20), 3: (40, 40, 20, 10)}
    for n, row in rows.items():
        tree.node(n, [2 * n, 2 * n + 1] if n < 2 else [], 4 * GiB if n != 2 else 0, row)
    tree.online(range(4), range(4)).initiators(3, 0, [2]).initiators(3, 1, [0])


def one_node_offline(at: Path) -> None:
    """Node 0 and its CPUs are offline; /proc was recorded before."""
    tree = Recording(at).memory(128 * GiB)
    for cpu in (2, 3):
        tree.core([cpu], package=1, core_id=cpu)
    tree.package(1, [2, 3]).offline(0).offline(1).node(1, [2, 3], 64 * GiB, (10,)).online([2, 3], [1])


def memoryless_node(at: Path) -> None:
    tree = Recording(at).grid(2, 2)
    tree.node(1, [2, 3], 0, (21, 10))


def sparse_ids(at: Path) -> None:
    """As POWER numbers them: nodes 0 and 8, CPUs with holes, memory far away as node 250."""
    tree = Recording(at).memory(9 * GiB)
    for n, first in ((0, 0), (8, 64)):
        for core in range(2):
            siblings = [first + 4 * core + t for t in range(4)]
            tree.core(siblings, package=n, core_id=first + 4 * core).cache(1, "32K", siblings, "Data")
        cpus_of_node = list(range(first, first + 8))
        tree.package(n, cpus_of_node).node(n, cpus_of_node, 4 * GiB, (10, 40, 80) if n == 0 else (40, 10, 80))
    tree.node(250, [], GiB, (80, 80, 10))
    tree.online([*range(8), *range(64, 72)], [0, 8, 250])
    tree.cpuinfo("processor\t: 0\ncpu\t\t: POWER9, altivec supported\nclock\t\t: 3800MHz\n")


def one_thread_of_four(at: Path) -> None:
    """POWER with SMT switched off: only the first thread of each core is online."""
    tree = Recording(at).memory(GiB)
    for core in (0, 4, 8):
        tree.core([core], core_id=core).cache(1, "32K", [core], "Data").package(0, [0, 4, 8])
        for thread in (1, 2, 3):
            tree.offline(core + thread)
    tree.node(0, [0, 4, 8], GiB, (10,)).online([0, 4, 8], [0])


def split_cache(at: Path) -> None:
    """Sub-NUMA clustering: two nodes inside one package and one last-level cache."""
    tree = Recording(at).memory(2 * GiB)
    for cpu in range(4):
        tree.core([cpu], core_id=cpu).cache(1, "48K", [cpu], "Data").cache(2, "2048K", [cpu])
    tree.package(0, range(4)).cache(3, "32768K", range(4))
    tree.node(0, [0, 1], GiB, (10, 12)).node(1, [2, 3], GiB, (12, 10)).online(range(4), [0, 1])


def several_dies(at: Path) -> None:
    """An AMD package of two nodes, each with two last-level caches."""
    tree = Recording(at).memory(2 * GiB)
    for cpu in range(8):
        tree.core([cpu], core_id=cpu).cache(1, "32K", [cpu], "Data").cache(2, "512K", [cpu])
    tree.package(0, range(8))
    for first in (0, 2, 4, 6):
        tree.cache(3, "16384K", [first, first + 1])
    tree.node(0, range(4), GiB, (10, 12)).node(1, range(4, 8), GiB, (12, 10)).online(range(8), [0, 1])


def arm(at: Path) -> None:
    """No model name, no shared cache listed."""
    tree = Recording(at).memory(GiB).node(0, [0, 1], GiB, (10,)).online([0, 1], [0])
    for cpu in (0, 1):
        tree.core([cpu], core_id=cpu).cache(1, "64K", [cpu], "Data").cache(2, "1024K", [cpu]).package(0, [0, 1])
    tree.cpuinfo("processor\t: 0\nBogoMIPS\t: 50.00\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n")


def padded_with_nuls(at: Path) -> None:
    """Files recorded through a fixed buffer."""
    tree = Recording(at, old=True).grid(2, 2)
    for file in at.rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes() + b"\0")
    tree.write(f"{CPU}/cpu3/online", "0\n\0")


def ia64(at: Path) -> None:
    """Masks of 1024 bits; the map of the private last-level cache of a core is empty."""
    tree = Recording(at, old=True, words=32).memory(2 * GiB)
    for first in (0, 2, 4, 6):
        siblings = [first, first + 1]
        tree.core(siblings, package=first // 4, core_id=first).cache(1, "16K", siblings, "Data")
        tree.cache(3, "9216K", siblings)
        for cpu in siblings:
            tree.write(f"{CPU}/cpu{cpu}/cache/index1/shared_cpu_map", mask([], 32) + "\n")
    for n in (0, 1):
        cpus_of_node = range(4 * n, 4 * n + 4)
        tree.package(n, cpus_of_node).node(n, cpus_of_node, GiB, (10, 20) if n == 0 else (20, 10))
    tree.cpuinfo("processor  : 0\nvendor     : GenuineIntel\nfamily     : Itanium 2\n")


def offline_in_the_mask(at: Path) -> None:
    """Old kernels leave a CPU that was switched off in its node's mask."""
    tree = Recording(at, old=True).memory(GiB).node(0, range(4), GiB, (10,)).offline(2)
    for cpu in (0, 1, 3):
        tree.core([cpu], core_id=cpu).package(0, [0, 1, 3])


def node0_offline(at: Path) -> None:
    """CPU 0 is online, but its node is not."""
    tree = Recording(at).memory(2 * GiB)
    for cpu in (0, 2, 3):
        tree.core([cpu], package=min(cpu, 1), core_id=cpu)
    tree.package(0, [0]).package(1, [2, 3]).offline(1).node(1, [2, 3], 2 * GiB, (10,))
    tree.online([0, 2, 3], [1])


def overlapping_nodes(at: Path) -> None:
    """Broken firmware: every node claims every CPU."""
    tree = Recording(at).memory(2 * GiB).online(range(4), range(3))
    for cpu in range(4):
        tree.core([cpu], core_id=cpu).package(0, range(4))
    for n in range(3):
        tree.node(n, range(4), GiB, (10, 10, 10))


def without_topology(at: Path) -> None:
    """A game console: CPU folders, nothing in them."""
    tree = Recording(at, old=True).node(0, [0, 1], GiB // 4).memory(GiB // 4)
    for cpu in (0, 1):
        tree.write(f"{CPU}/cpu{cpu}/crash_notes", "0\n")
    tree.cpuinfo("processor\t: 0\ncpu\t\t: Cell Broadband Engine\n\nprocessor\t: 1\ncpu\t\t: Cell Broadband Engine\n")


def cpus_dealt_to_nodes(at: Path) -> None:
    """96 CPUs dealt to four nodes in turn: masks of three words."""
    tree = Recording(at, words=3).memory(4 * GiB).online(range(96), range(4))
    for cpu in range(96):
        tree.core([cpu], package=cpu % 4, core_id=cpu // 4)
    for n in range(4):
        cpus_of_node = range(n, 96, 4)
        tree.package(n, cpus_of_node).cache(3, "24576K", cpus_of_node).node(
            n, cpus_of_node, GiB, [10 if m == n else 20 for m in range(4)]
        )


# lstopo needs a topology folder; `cpuinfo_alone` and `without_topology` have separate tests.
TREES: dict[str, Callable[[Path], None]] = {
    build.__name__: build
    for build in (
        plain,
        two_sockets,
        old_two_sockets,
        without_nodes,
        without_nodes_one_offline,
        memory_only_nodes,
        memory_of_hmat,
        memory_near_a_device,
        one_node_offline,
        memoryless_node,
        sparse_ids,
        one_thread_of_four,
        split_cache,
        several_dies,
        arm,
        padded_with_nuls,
        ia64,
        offline_in_the_mask,
        node0_offline,
        overlapping_nodes,
        cpus_dealt_to_nodes,
    )
}

"""The topology of synthetic and recorded trees of many kinds, compared with lstopo."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.machine import lstopo, trees
from tests.machine.trees import CPU, NODE, GiB, Recording

from ridgeline import machine
from ridgeline.errors import InputError
from ridgeline.machine import Topology, topology
from ridgeline.machine.sysfs import parse_list, parse_mask

NVIDIA, AMD, MATROX, MELLANOX = 0x10DE, 0x1002, 0x102B, 0x15B3
VGA, ACCELERATOR, ETHERNET = 0x030000, 0x030200, 0x020000


def build(name: str, at: Path) -> Topology:
    getattr(trees, name)(at)
    return topology(at)


def check_same(ours: Topology, reference: lstopo.LstopoTopology) -> None:
    """Every node of lstopo exists with its CPUs (or without, where lstopo assigns others); no other node has CPUs."""
    node_by_id = {n.id: n for n in ours.nodes}
    assert set(reference.nodes) <= set(node_by_id)
    for number, cpus in reference.nodes.items():
        assert set(node_by_id[number].cpus) in (cpus, set()), f"node {number}"
        assert node_by_id[number].memory_bytes == reference.memory[number], f"node {number}"
    assert all(not n.cpus for n in ours.nodes if n.id not in reference.nodes)
    without_cpus = {n.id for n in ours.nodes if not n.cpus}
    assert {c for n in ours.nodes for c in n.cpus} == set().union(
        *(cpus for number, cpus in reference.nodes.items() if number not in without_cpus)
    )


@pytest.mark.parametrize("name", trees.TREES)
def test_a_synthetic_tree_agrees_with_lstopo(name: str, memory_path: Path):
    ours = build(name, memory_path)
    reference = lstopo.run_lstopo(memory_path)
    check_same(ours, reference)
    assert {(c.level, c.bytes, frozenset(c.cpus)) for c in ours.caches} == reference.caches


def test_the_recorded_trees_agree_with_lstopo(recorded: dict[str, Path]):
    assert recorded
    for root in recorded.values():
        ours, reference = topology(root), lstopo.run_lstopo(root)
        check_same(ours, reference)
        assert {(c.level, c.bytes, frozenset(c.cpus)) for c in ours.caches} == reference.caches


def test_a_node_that_is_gpu_memory_is_marked_as_such(recorded: dict[str, Path]):
    computer = topology(recorded["nvidiagpunumanodes"])
    assert [n.id for n in computer.nodes if n.cpus] == [0, 8]
    assert [g.node for g in computer.gpus] == [0, 0, 0, 8, 8, 8]
    notes = [note for note in computer.notes if "is the memory of GPU" in note]
    assert len(notes) == 6
    assert notes[0].startswith("node 250 ")


def test_without_a_node_directory_all_is_node_0_and_a_note_says_so(memory_path: Path):
    computer = build("without_nodes", memory_path)
    assert computer.nodes == (machine.Node(0, (0, 1), 3 << 30, {0: 10}),)
    assert {c.node for c in computer.cpus} == {0}
    assert any("no NUMA nodes" in note for note in computer.notes)


def test_a_tree_with_only_cpuinfo_has_its_processors(memory_path: Path):
    computer = build("cpuinfo_alone", memory_path)
    assert computer.usable_cpus == (0, 1)
    assert computer.model == "Old CPU"
    assert computer.nodes[0].memory_bytes == 1 << 30
    assert computer.llc_domains() == ((0, 1),)


def test_each_cpu_without_topology_files_is_a_separate_core(memory_path: Path):
    computer = build("without_topology", memory_path)
    assert [(c.id, c.core, c.package, c.node) for c in computer.cpus] == [(0, 0, 0, 0), (1, 1, 0, 0)]
    assert computer.model == "Cell Broadband Engine"


def test_nodes_without_cpus_keep_their_memory_and_distances(memory_path: Path):
    computer = build("memory_only_nodes", memory_path)
    assert [(n.cpus, n.memory_bytes >> 30) for n in computer.nodes] == [
        ((0, 1), 4),
        ((2, 3), 4),
        ((), 16),
        ((), 16),
    ]
    assert computer.node(2).distances == {0: 31, 1: 41, 2: 10, 3: 41}


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("memory_of_hmat", {2: (2, 3)}),
        ("memory_near_a_device", {2: (), 3: (0, 1)}),
        ("memory_only_nodes", {2: (0, 1), 3: (2, 3)}),
        ("sparse_ids", {250: ()}),
    ],
)
def test_memory_without_cpus_has_the_nearest_cpus_of_the_firmware(
    name: str, nearest: dict[int, tuple[int, ...]], memory_path: Path
):
    computer = build(name, memory_path)
    assert {n.id: n.nearest_cpus for n in computer.nodes if not n.cpus} == nearest
    reference = lstopo.run_lstopo(memory_path)
    assert {n: tuple(sorted(reference.nodes[n])) for n in nearest if n in reference.nodes} == {
        n: cpus for n, cpus in nearest.items() if n in reference.nodes
    }


def test_without_node_0_the_memory_of_another_node_is_what_sysfs_counts(memory_path: Path):
    computer = build("one_node_offline", memory_path)
    assert [(n.id, n.memory_bytes >> 30) for n in computer.nodes] == [(1, 64)]
    assert computer.notes == ()


def test_memory_of_a_node_that_lacks_a_cpu_of_the_machine_is_what_sysfs_counts(memory_path: Path):
    tree = Recording(memory_path).grid(1, 2).core([7], package=1).memory(64 * GiB)
    tree.online([0, 1, 7], [0])
    assert topology(memory_path).nodes[0].memory_bytes == 4 << 30


def test_a_node_without_memory_keeps_its_cpus(memory_path: Path):
    computer = build("memoryless_node", memory_path)
    assert computer.node(1) == machine.Node(1, (2, 3), 0, {0: 21, 1: 10})


def test_ids_with_gaps_are_not_renumbered(memory_path: Path):
    computer = build("sparse_ids", memory_path)
    assert [n.id for n in computer.nodes] == [0, 8, 250]
    assert computer.node(8).cpus == tuple(range(64, 72))
    assert computer.node(8).distances == {0: 40, 8: 10, 250: 80}
    assert computer.model == "POWER9, altivec supported"
    with pytest.raises(InputError, match=r"no NUMA node 1; this machine has: 0, 8, 250"):
        computer.node(1)


@pytest.mark.parametrize("old", [False, True], ids=["new", "old"])
@pytest.mark.parametrize("spread", [False, True], ids=["adjacent", "spread"])
def test_hyper_threads_share_a_core(old: bool, spread: bool, memory_path: Path):
    Recording(memory_path, old=old).grid(2, 2, 2, spread=spread)
    computer = topology(memory_path)
    cores: dict[tuple[int, int], list[int]] = {}
    for cpu in computer.cpus:
        cores.setdefault((cpu.package, cpu.core), []).append(cpu.id)
    pairs = [[0, 4], [1, 5], [2, 6], [3, 7]] if spread else [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert sorted(cores.values()) == pairs
    assert {c.package for c in computer.cpus} == {0, 1}


def test_equal_core_ids_in_two_packages_are_two_cores(memory_path: Path):
    Recording(memory_path).grid(2, 2)
    assert len({(c.package, c.core) for c in topology(memory_path).cpus}) == 4


def test_a_last_level_cache_over_two_nodes_is_two_domains(memory_path: Path):
    computer = build("split_cache", memory_path)
    assert machine.Cache(3, 32 << 20, (0, 1, 2, 3)) in computer.caches
    assert computer.llc_domains() == ((0, 1), (2, 3))


def test_domains_follow_the_last_level_cache(memory_path: Path):
    assert build("several_dies", memory_path).llc_domains() == ((0, 1), (2, 3), (4, 5), (6, 7))


def test_instruction_caches_are_not_listed(memory_path: Path):
    tree = Recording(memory_path).node(0, [0], GiB, (10,)).core([0]).online([0], [0])
    tree.cache(1, "64K", [0], "Instruction").cache(1, "48K", [0], "Data").cache(2, "2048K", [0])
    assert [(c.level, c.bytes) for c in topology(memory_path).caches] == [(1, 48 << 10), (2, 2 << 20)]


def test_an_arm_core_is_named_by_its_part_number(memory_path: Path):
    assert build("arm", memory_path).model == "ARM Neoverse-N1"
    Recording(memory_path).cpuinfo("processor : 0\nCPU implementer : 0x41\nCPU part : 0xfff\n")
    assert topology(memory_path).model == "ARM core 0x41:0xfff"


@pytest.mark.parametrize(
    ("cpuinfo", "model"),
    [
        ("model name\t: Xeon  W   9\n", "Xeon W 9"),
        ("processor  : 0\nfamily     : Itanium 2\n", "Itanium 2"),
        ("processor  : 0\nfamily     : 32\n", "unknown CPU"),
        ("vendor_id       : IBM/S390\n# processors    : 2\n", "IBM/S390"),
        ("processor\t: 0\nhart\t: 1\nuarch\t: sifive,u74-mc\n", "sifive,u74-mc"),
        ("", "unknown CPU"),
    ],
)
def test_the_model_is_read_from_the_field_of_each_architecture(cpuinfo: str, model: str, memory_path: Path):
    Recording(memory_path).grid(1, 1).cpuinfo(cpuinfo)
    assert topology(memory_path).model == model


def test_offline_cpus_are_not_listed(memory_path: Path):
    computer = build("one_thread_of_four", memory_path)
    assert computer.usable_cpus == tuple(c.id for c in computer.cpus) == computer.nodes[0].cpus == (0, 4, 8)


def test_a_cpu_with_a_broken_folder_link_is_not_listed(memory_path: Path):
    """The recordings of hwloc mark an offline CPU that way."""
    Recording(memory_path, old=True).grid(1, 2).link(f"{CPU}/cpu2", "gone")
    assert topology(memory_path).usable_cpus == (0, 1)


def test_a_cpu_of_an_offline_node_has_no_node(memory_path: Path):
    computer = build("node0_offline", memory_path)
    assert [(c.id, c.node) for c in computer.cpus] == [(0, None), (2, 1), (3, 1)]
    assert computer.llc_domains() == ((0,), (2, 3))


def test_a_cpu_claimed_by_several_nodes_belongs_to_the_first(memory_path: Path):
    computer = build("overlapping_nodes", memory_path)
    assert [len(n.cpus) for n in computer.nodes] == [4, 0, 0]
    assert [note for note in computer.notes if "claims CPUs" in note]


def test_a_display_controller_of_a_gpu_vendor_is_a_gpu_and_a_management_chip_is_not(memory_path: Path):
    tree = Recording(memory_path).grid(2, 2)
    tree.pci("0000:01:00.0", VGA, MATROX, node=0)
    tree.pci("0000:41:00.0", ACCELERATOR, NVIDIA, device=0x2330, node=1, cpus=[2, 3], link=("32.0 GT/s PCIe", 16))
    tree.pci("0000:42:00.0", VGA, AMD, node=0, cpus=[0, 1], link=("16 GT/s", 8))
    tree.pci("0000:43:00.0", ETHERNET, NVIDIA, node=0)
    gpus = topology(memory_path).gpus
    assert [(g.index, g.name, g.pci, g.node, g.cpus, g.link) for g in gpus] == [
        (0, "NVIDIA 2330", "0000:41:00.0", 1, (2, 3), "PCIe 5.0 x16"),
        (1, "AMD 1234", "0000:42:00.0", 0, (0, 1), "PCIe 4.0 x8"),
    ]


def test_a_node_of_minus_one_is_unknown_and_a_note_says_so(memory_path: Path):
    Recording(memory_path).grid(2, 2).pci("0000:41:00.0", ACCELERATOR, NVIDIA, node=-1, cpus=range(4))
    computer = topology(memory_path)
    assert computer.gpus[0].node is None
    assert any("0000:41:00.0" in note and "unknown" in note for note in computer.notes)


def test_local_cpus_of_one_node_give_the_node_if_the_firmware_does_not(memory_path: Path):
    Recording(memory_path).grid(2, 2).pci("0000:41:00.0", ACCELERATOR, NVIDIA, node=-1, cpus=[2, 3])
    computer = topology(memory_path)
    assert (computer.gpus[0].node, computer.notes) == (1, ())


def test_on_a_machine_of_one_node_local_cpus_do_not_give_the_node(memory_path: Path):
    Recording(memory_path).grid(1, 2).pci("0000:41:00.0", ACCELERATOR, NVIDIA, node=-1, cpus=[0, 1])
    assert topology(memory_path).gpus[0].node is None


def test_a_device_on_a_missing_node_has_no_node(memory_path: Path):
    tree = Recording(memory_path).grid(2, 2).pci("0000:41:00.0", ACCELERATOR, NVIDIA, node=7, cpus=range(4))
    tree.pci("0000:05:00.0", ETHERNET, MELLANOX, node=7).port("net", "eth0", "0000:05:00.0")
    computer = topology(memory_path)
    assert computer.gpus[0].node is computer.nics[0].node is None
    assert len(machine.plan(computer, 2)) == 2


def test_ports_have_a_node_and_a_speed(memory_path: Path):
    tree = Recording(memory_path).grid(2, 2)
    for number, node in ((5, 0), (6, 1), (7, -1)):
        tree.pci(f"0000:{number:02x}:00.0", ETHERNET, MELLANOX, node=node, cpus=range(4))
    tree.port("net", "eth0", "0000:05:00.0", {"speed": "25000\n"})
    tree.port("net", "eth1", "0000:06:00.0", {"speed": "-1\n"})  # the link is down
    tree.port("net", "eth2", "0000:07:00.0")  # the driver gives no speed
    tree.port("infiniband", "mlx5_0", "0000:06:00.0", {"ports/1/rate": "200 Gb/sec (4X HDR)\n"})
    assert [(n.name, n.pci, n.node, n.speed) for n in topology(memory_path).nics] == [
        ("eth0", "0000:05:00.0", 0, 25_000),
        ("eth1", "0000:06:00.0", 1, None),
        ("eth2", "0000:07:00.0", None, None),
        ("mlx5_0", "0000:06:00.0", 1, 200_000),
    ]


def test_the_speed_of_an_rdma_device_is_that_of_its_fastest_port(memory_path: Path):
    tree = Recording(memory_path).grid(1, 1).pci("0000:06:00.0", ETHERNET, MELLANOX, node=0)
    rates = {"ports/1/rate": "2.5 Gb/sec (1X SDR)\n", "ports/2/rate": "100 Gb/sec (4X EDR)\n"}
    tree.port("infiniband", "mlx5_0", "0000:06:00.0", rates)
    assert topology(memory_path).nics[0].speed == 100_000


def test_loopback_bridges_and_virtual_functions_without_a_device_are_not_listed(memory_path: Path):
    tree = Recording(memory_path).grid(1, 1)
    for name in ("lo", "docker0", "veth1a2b"):
        tree.port("net", name, None, {"speed": "10000\n"})
    tree.write("sys/class/net/bonding_masters", "\n")
    assert topology(memory_path).nics == ()


def test_a_virtual_function_with_a_pci_address_is_a_port(memory_path: Path):
    tree = Recording(memory_path).grid(1, 1).pci("0000:3b:02.1", ETHERNET, MELLANOX, node=0)
    tree.port("net", "eth0v1", "0000:3b:02.1")
    assert [(n.name, n.pci) for n in topology(memory_path).nics] == [("eth0v1", "0000:3b:02.1")]


def test_a_pci_domain_of_more_than_four_digits_is_read(memory_path: Path):
    tree = Recording(memory_path).grid(2, 1).pci("10000:e1:00.0", ETHERNET, MELLANOX, node=1)
    tree.port("net", "ens3", "10000:e1:00.0")
    assert [(n.pci, n.node) for n in topology(memory_path).nics] == [("10000:e1:00.0", 1)]


FILES = [
    f"{CPU}/online",
    f"{CPU}/cpu0/topology/core_cpus",
    f"{CPU}/cpu0/topology/core_cpus_list",
    f"{CPU}/cpu0/topology/thread_siblings",
    f"{CPU}/cpu0/topology/physical_package_id",
    f"{CPU}/cpu0/cache/index2/shared_cpu_map",
    f"{CPU}/cpu0/cache/index2/size",
    f"{CPU}/cpu0/cache/index2/level",
    f"{CPU}/cpu0/cache/index2/type",
    f"{NODE}/online",
    f"{NODE}/node0/cpumap",
    f"{NODE}/node0/cpulist",
    f"{NODE}/node1/distance",
    f"{NODE}/node1/meminfo",
    "sys/bus/pci/devices/0000:41:00.0/numa_node",
    "sys/bus/pci/devices/0000:41:00.0/local_cpus",
    "sys/bus/pci/devices/0000:41:00.0/class",
    "sys/bus/pci/devices/0000:41:00.0/max_link_speed",
    "sys/class/net/eth0/speed",
    "sys/class/infiniband/mlx5_0/ports/1/rate",
    "proc/cpuinfo",
    "proc/meminfo",
    "proc/driver/nvidia/gpus/0000:41:00.0/numa_status",
]
rubbish = st.one_of(
    st.binary(max_size=40),
    st.text("0123456789abcdefx,-:/ .KMG²٣\n", max_size=30).map(str.encode),
    st.sampled_from([b"", b"\n", b"0-99999999999", b"3-1", b"-1", b"1:0", b"0-3:0", b"MemTotal:", b"processor : ",
                     b"MemTotal: many kB", b"9" * 40, b". Gb/sec", b"1.2.3 Gb/sec", b"nan"]),
)  # fmt: skip


@pytest.fixture(scope="module")
def full_tree(memory_folder: str | None) -> Iterator[Path]:
    """A tree with every kind of file in it."""
    with TemporaryDirectory(dir=memory_folder) as folder:
        tree = Recording(Path(folder)).grid(2, 1, 2)
        tree.pci("0000:41:00.0", ACCELERATOR, NVIDIA, node=1, cpus=[2, 3])
        tree.pci("0000:05:00.0", ETHERNET, MELLANOX, node=0).port("net", "eth0", "0000:05:00.0")
        tree.port("infiniband", "mlx5_0", "0000:05:00.0")
        yield tree.root


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(broken=st.dictionaries(st.sampled_from(FILES), rubbish, min_size=1, max_size=4))
def test_no_invalid_file_breaks_the_reader(full_tree: Path, broken: dict[str, bytes]):
    before = {name: (full_tree / name).read_bytes() if (full_tree / name).exists() else None for name in broken}
    try:
        for name, text in broken.items():
            Recording(full_tree).write(name, text)
        computer = topology(full_tree)
        assert computer.usable_cpus
        placements = machine.plan(computer, 1, "core")
        assert set(placements[0].cpus or ()) <= set(computer.usable_cpus)
    finally:
        for name, text in before.items():
            (full_tree / name).unlink() if text is None else Recording(full_tree).write(name, text)


def test_the_list_is_used_if_the_mask_is_invalid(memory_path: Path):
    Recording(memory_path).grid(2, 2).write(f"{NODE}/node1/cpumap", b"\xff\xfe rubbish")
    assert topology(memory_path).node(1).cpus == (2, 3)


def test_an_unreadable_file_counts_as_missing(memory_path: Path):
    Recording(memory_path).grid(1, 2)
    meminfo = memory_path / NODE / "node0/meminfo"
    meminfo.unlink()
    meminfo.mkdir()  # reading a folder fails for root too
    assert topology(memory_path).nodes[0].memory_bytes == 4 << 30  # /proc knows it


def test_memory_that_belongs_to_no_node_is_the_only_nodes(memory_path: Path):
    Recording(memory_path).grid(1, 2)
    (memory_path / NODE / "node0/meminfo").write_text("Node 0 MemTotal:        1048576 kB\n")
    computer = topology(memory_path)
    assert computer.nodes[0].memory_bytes == 4 << 30
    assert any("node 0 counts 1024 MiB of the machine's 4096" in note for note in computer.notes)


def test_of_several_nodes_each_has_what_it_counts(memory_path: Path):
    Recording(memory_path).grid(2, 2)
    (memory_path / NODE / "node1/meminfo").unlink()
    assert topology(memory_path).nodes[1].memory_bytes == 0


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda at: None, "holds neither 'sys' nor 'proc'"),
        (lambda at: (at / "sys").mkdir(), "has nothing about CPUs"),
        (lambda at: at.rmdir(), "there is no folder"),
    ],
    ids=["empty", "no CPUs", "absent"],
)
def test_a_root_that_is_no_tree_is_named(make, sentence: str, memory_path: Path):
    root = memory_path / "tree"
    root.mkdir()
    make(root)
    with pytest.raises(InputError, match=sentence) as caught:
        topology(root)
    assert str(root) in str(caught.value)


def test_a_relative_root_is_read(memory_path: Path, monkeypatch: pytest.MonkeyPatch):
    Recording(memory_path / "tree").grid(1, 2)
    monkeypatch.chdir(memory_path)
    assert topology("tree").usable_cpus == (0, 1)


def test_this_machine_has_the_cpus_the_process_may_use():
    computer = topology()
    assert set(computer.usable_cpus) == os.sched_getaffinity(0)
    assert set(computer.usable_cpus) <= {c for n in computer.nodes for c in n.cpus}
    assert computer.usable_memory_bytes > 0


cpu_sets = st.frozensets(st.integers(0, 4095), max_size=80)


@given(cpu_sets, st.integers(1, 64))
def test_a_mask_written_as_the_kernel_does_reads_back(cpus: frozenset[int], words: int):
    assert parse_mask(trees.mask(cpus, words)) == cpus


@given(cpu_sets)
def test_a_list_and_its_ranges_are_parsed(cpus: frozenset[int]):
    assert parse_list(trees.format_list(cpus)) == cpus
    if cpus:
        assert parse_list(f"{min(cpus)}-{max(cpus)}\n") == frozenset(range(min(cpus), max(cpus) + 1))


def test_memory_in_a_node_counts_once(memory_path: Path):
    Recording(memory_path).grid(2, 1)
    assert topology(memory_path).usable_memory_bytes == 8 * GiB * 1024


def test_gpu_memory_is_not_usable_host_memory(recorded):
    computer = topology(recorded["nvidiagpunumanodes"])
    assert computer.memory_nodes == (0, 8)
    assert computer.gpu_memory_nodes == tuple(range(250, 256))
    assert computer.usable_memory_bytes == sum(n.memory_bytes for n in computer.nodes if n.id in (0, 8))

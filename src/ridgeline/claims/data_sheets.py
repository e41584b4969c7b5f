"""Peaks from data sheets: processors, links, memories, cores.

Sources, as of 2026. NVIDIA: the data sheets of V100, T4, A10, A30, A40, A100, L4, L40, L40S, H100, H200, GH200, and the
Blackwell architecture brief (B200, GB200, B300); the Ampere and Ada white papers for INT4 and GeForce. AMD: the data
sheets of Instinct MI210, MI250X, MI300A, MI300X, MI325X, MI350X, MI355X. Google Cloud: the pages of TPU v4 to v6e and
Ironwood. Intel: the Gaudi 3 white paper. Links: PCI-SIG (lane rate after encoding), NVIDIA (NVLink per GPU, both ways),
the InfiniBand roadmap (4 lanes). Memories: JEDEC (DDR4 JESD79-4, DDR5 JESD79-5, HBM2E JESD235D, HBM3 JESD238) and the
makers' fastest HBM3E. Cores: AMD's, Intel's, Ampere's and AWS's product pages. Where a part comes in several
forms (SXM, PCIe, NVL) the highest figure counts: these are limits, not estimates.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Processor:
    """Peaks of one processor: tensor cores, sparse if supported, narrowest type; TFLOP/s, TOP/s, GB/s."""

    tflops: float
    tops: float
    memory: float  # GB/s


PROCESSORS = {
    "V100S?": Processor(130, 130, 1134),  # V100S; SXM2 125, 900
    "T4": Processor(65, 260, 320),
    "A10G?": Processor(250, 1000, 600),
    "A30": Processor(330, 1321, 933),
    "A40": Processor(299.4, 1197.4, 696),
    "A100": Processor(624, 2496, 2039),  # 80 GB; 40 GB 1555
    "L4": Processor(485, 970, 300),
    "L40S?": Processor(1466, 2932, 864),
    "H100": Processor(3958, 3958, 3938),  # NVL; SXM 3350
    "H200": Processor(3958, 3958, 4915),  # "4.8 TB/s"; its clock and width give 4915
    "GH200": Processor(3958, 3958, 4915),
    "B100": Processor(14000, 7000, 8000),
    "B200": Processor(20000, 10000, 8000),  # in GB200 boards; HGX 18000
    "GB200": Processor(40000, 20000, 16000),  # of the superchip: two GPUs
    "B300": Processor(20000, 10000, 8000),
    "GB300": Processor(40000, 20000, 16000),
    "MI210": Processor(181, 181, 1638),
    "MI250": Processor(362.1, 362.1, 3277),
    "MI250X": Processor(383, 383, 3277),
    "MI300A": Processor(3922.3, 3922.3, 5300),
    "MI300X": Processor(5229.8, 5229.8, 5325),
    "MI325X": Processor(5229.8, 5229.8, 6000),
    "MI350X": Processor(18500, 9200, 8000),
    "MI355X": Processor(20100, 10100, 8000),
    "Gaudi ?3": Processor(1835, 1835, 3700),
    "TPU ?v4": Processor(275, 275, 1228),
    "TPU ?v5e": Processor(197, 394, 819),
    "TPU ?v5p": Processor(459, 918, 2765),
    "TPU ?v6e": Processor(918, 1836, 1640),
    "(?:TPU7x|Ironwood)": Processor(4614, 4614, 7380),
    "RTX 3090": Processor(285, 1136, 936),
    "RTX 4090": Processor(1321, 2642, 1008),
    "RTX 5090": Processor(3352, 3352, 1792),
}
CORES = {  # of one socket
    "EPYC 7402": 24,
    "EPYC 7452": 32,
    "EPYC 7532": 32,
    "EPYC 7543": 32,
    "EPYC 7702": 64,
    "EPYC 7713": 64,
    "EPYC 7742": 64,
    "EPYC 7763": 64,
    "EPYC 9354": 32,
    "EPYC 9554": 64,
    "EPYC 9654": 96,
    "EPYC 9754": 128,
    "EPYC 9755": 128,
    "EPYC 9965": 192,
    "Gold 6248": 20,
    "Gold 6338": 32,
    "Platinum 8175M": 24,
    "Platinum 8280": 28,
    "Platinum 8358": 32,
    "Platinum 8380": 40,
    "Platinum 8468": 48,
    "Platinum 8480": 56,
    "Platinum 8490H": 60,
    "Platinum 8592": 64,
    "Xeon 6980P": 128,
    "Graviton2": 64,
    "Graviton3": 64,
    "Graviton4": 96,
    "Altra Q80": 80,
    "Altra Max M128": 128,
    "Grace CPU": 72,
}
_LANE = {3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}  # GB/s one way
_NVLINK = {1: 80.0, 2: 150.0, 3: 300.0, 4: 450.0, 5: 900.0}  # GB/s one way, of one GPU
_INFINIBAND = {"FDR": 6.8, "EDR": 12.5, "HDR": 25.0, "NDR": 50.0, "XDR": 100.0}  # GB/s one way, of four lanes
_STACK = {"2": 256.0, "2E": 461.0, "3": 819.2, "3E": 1228.8, "4": 2048.0}  # GB/s of one stack of HBM
_DDR = {4: 3200, 5: 8800}  # MT/s, the fastest of the standard (DDR5: also of MRDIMMs)


@dataclass(frozen=True)
class Link:
    """A link and its bandwidth."""

    name: str
    one_way: float  # GB/s


def find_links(text: str) -> list[Link]:
    """Find the links that a text names by their generation.

    >>> [(link.name, round(link.one_way, 1)) for link in find_links("PCIe 4.0 x16, NVLink 4 and NDR InfiniBand")]
    [('PCIe 4.0 x16', 31.5), ('NVLink 4', 450.0), ('NDR', 50.0)]
    """
    lanes = r"\bPCI(?:e|-?E| Express)\s*(?:Gen\s?|v)?([3-6])(?:\.0)?\b(?:\s*[x×](\d{1,2})\b)?"
    bridge = r"\bNVLink\s*(?:Gen\s?|v)?([1-5])(?:\.0)?\b(?!\s*(?:links?|lanes?)\b)"
    links = [Link(m[0].strip(), _LANE[int(m[1])] * int(m[2] or 16)) for m in re.finditer(lanes, text, re.I)]
    links += [Link(m[0].strip(), _NVLINK[int(m[1])]) for m in re.finditer(bridge, text, re.I)]
    if re.search(r"infiniband|\bIB\b|connectx|mellanox|quantum", text, re.I):
        links += [Link(m[1], _INFINIBAND[m[1]]) for m in re.finditer(r"\b(FDR|EDR|HDR|NDR|XDR)\b", text)]
    return links


def find_memory_limit(text: str) -> tuple[str, float] | None:
    """Find the memory that a text names and its peak in GB/s: "8 channels of DDR4-3200", "6 stacks of HBM3".

    >>> find_memory_limit("12 channels of DDR5-4800 per socket")
    ('12 × DDR5-4800', 460.8)
    >>> find_memory_limit("DDR5-4800")
    """
    sockets = 2 if re.search(r"\b(?:dual|two|2)[\s-](?:x |socket)", text, re.I) else 1
    ram = re.search(r"\bDDR([45])[-\s](\d{4})\b", text)
    channels = re.search(r"\b(\d{1,2})[\s-](?:memory )?channels?\b", text, re.I)
    if ram and channels and int(ram[2]) <= _DDR[int(ram[1])]:
        n = int(channels[1]) * sockets
        return f"{n} × {ram[0]}", n * int(ram[2]) * 8 / 1000
    stacks = re.search(r"\b(\d{1,2})\s(?:stacks? of )?HBM(2E|3E|2|3|4)\b(?:\sstacks?)?", text, re.I)
    if stacks and re.search(r"stack", stacks[0], re.I):
        n = int(stacks[1])
        return f"{n} stacks of HBM{stacks[2]}", n * _STACK[stacks[2].upper()]
    return None

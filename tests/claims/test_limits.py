"""Peaks of data sheets are limits; lower values, and values with another path, have no finding."""

from __future__ import annotations

import re

import pytest

from ridgeline.claims import check_text
from ridgeline.claims.data_sheets import CORES, PROCESSORS, find_links, find_memory_limit

PINNED = "|Size|Pinned (GB/s)|\n|-|-|\n"


def kinds(text: str) -> list[str]:
    return [finding.kind for finding in check_text(text, "report.md").findings]


def gpus(part: str, unit: str, value: float) -> str:
    rows = f"|Setup|Rate ({unit})|\n|--|--|\n|8 GPUs|{value:.1f}|\n|4 GPUs|1.0|\n|2 GPUs|1.0|"
    return f"Measured on {part}.\n\n{rows}\n"


@pytest.mark.parametrize("name", PROCESSORS)
def test_eight_processors_reach_at_most_their_data_sheets(name):
    part, findings = PROCESSORS[name], re.sub(r"\(\?:(\w+)\|.*\)|\?", r"\1", name)
    for unit, peak in (("TFLOPS", part.tflops), ("TOPS", part.tops)):
        assert kinds(gpus(findings, unit, 8 * peak * 0.99)) == []
        assert kinds(gpus(findings, unit, 8 * peak * 1.1)) == ["peak"]


def test_data_sheets_have_the_usual_parts():
    """Figures a reader can look up, as the makers print them."""
    quoted = {
        "A100": (624, 2039),
        "H100": (3958, 3938),
        "MI300X": (5229.8, 5325),
        "MI210": (181, 1638),
        "L4": (485, 300),
    }
    assert {name: (PROCESSORS[name].tflops, PROCESSORS[name].memory) for name in quoted} == quoted
    assert CORES["EPYC 7742"] == 64
    ways = {
        link.name: link.one_way for link in find_links("PCIe 3.0, PCIe Gen5 x8, NVLink 3, NVLink 5 and HDR InfiniBand")
    }
    assert ways["PCIe 3.0"] == pytest.approx(15.76)  # 8 GT/s × 16 × 128/130 / 8
    assert ways["PCIe Gen5 x8"] == pytest.approx(31.5, rel=1e-3)
    assert (ways["NVLink 3"], ways["NVLink 5"], ways["HDR"]) == (300, 900, 25)
    assert find_memory_limit("8 channels of DDR4-3200") == ("8 × DDR4-3200", 204.8)
    assert find_memory_limit("five stacks, or 5 stacks of HBM2e")[1] == 5 * 461


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Over PCIe 4.0 x16 the copy reaches 71 GB/s.", "link"),
        ("One NDR InfiniBand port moved 140 GB/s.", "link"),
        ("With NVLink 3 we see 710 GB/s.", "link"),
        ("The server has 8 channels of DDR4-3200 and streams 310 GB/s.", "peak"),
        ("Five dies, 5 stacks of HBM2e, read at 2.9 TB/s.", "peak"),
        ("A node has 2x EPYC 9654 (96 cores).", "cores"),
        (f"PCIe 4.0 x16.\n\n## H2D\n\n{PINNED}|1 MB|18.0|\n|1 GB|38.0|\n|2 GB|26.0|", "link"),
    ],
)
def test_more_than_a_link_or_a_memory_carries_is_found(text, kind):
    assert kinds(text) == [kind]


@pytest.mark.parametrize(
    "text",
    [
        "Over PCIe 4.0 x16 the copy reaches 26 GB/s, 51 GB/s both ways.",
        "NVLink 4 gives 900 GB/s per GPU, PCIe 5.0 x16 64 GB/s each way.",
        "Eight NDR InfiniBand adapters, 8 × 50 GB/s, moved 390 GB/s in total.",
        "The server has 12 channels of DDR5-4800 per socket, two sockets, 921 GB/s.",
        "A node has 2x EPYC 7742 (64 cores each).",
        f"GH200 with PCIe 4.0 x16.\n\n## H2D over C2C\n\n{PINNED}|1 MB|180|\n|1 GB|380|\n|2 GB|390|",
        f"PCIe 4.0 x16.\n\n## H2D\n\n{PINNED}|1 MB|18.0|\n|1 GB|28.0|\n|2 GB|26.0|",
    ],
)
def test_a_bandwidth_with_another_path_has_no_finding(text):
    assert kinds(text) == []

"""All-reduce between 2 to 8 hosts, as network namespaces of this machine: predicted, and only then measured.

    sudo python benchmarks/fabric_hosts.py            # --quick: two studies only

Rates are so low that the cores of the machine idle: what is measured is the network. Each study first exchanges
messages in all directions, predicts from these times, and then measures. The last lines sum up all studies.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from ridgeline import fabric

SIZES = [1 << k for k in range(12, 22)]  # ten, 4 KB to 2 MB
LEADERS = ["ring", "hierarchical", "leader_ring", "leader_tree"]
STUDIES: list[dict[str, Any]] = [
    {"hosts": 2, "rate": "500mbit"},
    {"hosts": 4, "rate": "200mbit"},
    {"hosts": 8, "rate": "50mbit"},
    {"hosts": 2, "rate": "500mbit", "transport": "udp"},
    {"hosts": 4, "rate": "200mbit", "transport": "udp"},
    {"hosts": 8, "rate": "50mbit", "transport": "udp"},
    {"hosts": 2, "rate": "500mbit", "delay": "5ms"},
    {"hosts": 4, "rate": "100mbit", "delay": "5ms"},
    {"hosts": 2, "rate": "500mbit", "delay": "2ms", "loss": 0.01, "reorder": 0.02, "transport": "udp"},
    {"hosts": 2, "ranks": 2, "rate": "200mbit", "transport": "auto", "algorithms": LEADERS},
    {"hosts": 2, "ranks": 4, "rate": "100mbit", "transport": "auto", "algorithms": LEADERS},
]


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare predictions of all-reduce with measurements between hosts.")
    parser.add_argument("--quick", action="store_true", help="Two studies only.")
    options = parser.parse_args()
    errors: dict[str, list[float]] = {}
    for given in STUDIES[:: len(STUDIES) - 1] if options.quick else STUDIES:
        sizes = SIZES[3::2] if "algorithms" in given else SIZES
        study = fabric.study_hosts(**given, sizes=sizes, timeout=600)
        print("\n" + ", ".join(f"{name} {value}" for name, value in given.items() if name != "algorithms"))
        if study.emulation:
            print(f"delay, loss and reordering by: {study.emulation}")
        for name, level in (("inside a host", study.inside), ("between hosts", study.between)):
            if level is not None:
                print(f"{name}: alpha {1e6 * level.alpha:,.0f} µs, beta {level.beta / 1e6:,.2f} MB/s out of each rank")
        print(f"{'algorithm':<14}{'bytes':>10}{'predicted ms':>14}{'measured ms':>13}{'error':>8}")
        for row in study.rows:
            times = f"{1e3 * row.predicted:>14.3f}{1e3 * row.measured:>13.3f}{row.error:>+8.0%}"
            chosen = "  chosen" if "algorithms" in given and study.get_chosen(row.bytes) == row.algorithm else ""
            print(f"{row.algorithm:<14}{row.bytes:>10,}{times}{chosen}", flush=True)
        one = f"{study.hosts} hosts, {given.get('transport', 'tcp')}"
        kind = "several ranks on each host" if "algorithms" in given else one
        errors.setdefault(kind, []).extend(abs(row.error) for row in study.rows)
        print(f"median error {study.median_error:.0%}")
    print()
    for kind, values in errors.items():
        print(f"{kind}: median error {statistics.median(values):.0%} of {len(values)} predictions")


if __name__ == "__main__":
    main()

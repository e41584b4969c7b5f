"""`p2p`: two ranks, there and back; a sample is the whole way.

ridgeline bench p2p --case bytes=1048576
"""

from __future__ import annotations

from ridgeline.workloads._fabric_ranks import Bench

workload = Bench("p2p", "p2p", only_ranks=2)

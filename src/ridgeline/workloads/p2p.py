"""`p2p`: two ranks, a message and its answer; a sample is the round trip.

ridgeline bench p2p --case bytes=1048576
"""

from __future__ import annotations

from ridgeline.workloads._fabric_ranks import CollectiveWorkload

workload = CollectiveWorkload("p2p", "p2p", only_ranks=2)

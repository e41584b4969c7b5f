"""`allreduce`: every rank gets the sum of the float32 arrays of all ranks, in place.

ridgeline bench allreduce --ranks 2 --case bytes=1048576 [--python openmpi=VENV/bin/python]
"""

from __future__ import annotations

from ridgeline.workloads._fabric_ranks import CollectiveWorkload

workload = CollectiveWorkload("allreduce", "all_reduce")

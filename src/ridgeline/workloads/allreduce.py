"""`allreduce`: every rank gets the sum of all ranks' float32 arrays, in place.

ridgeline bench allreduce --ranks 2 --case bytes=1048576 [--python openmpi=VENV/bin/python]
"""

from __future__ import annotations

from ridgeline.workloads._fabric_ranks import Bench

workload = Bench("allreduce", "all_reduce")

"""`allgather`: every rank gets all ranks' blocks; bytes are those of the answer.

ridgeline bench allgather --ranks 2 --case bytes=1048576 [--python openmpi=VENV/bin/python]
"""

from __future__ import annotations

from ridgeline.workloads._fabric_ranks import Bench

workload = Bench("allgather", "all_gather")

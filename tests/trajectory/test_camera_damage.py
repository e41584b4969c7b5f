"""Mutated recordings with cameras: no crash, no hang, and what is lost is told by topic."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.trajectory.damaged_recordings import KINDS, run_apart, run_batch

BATCH, BATCHES = 100, 4  # of each kind: 2,000 recordings in all


@pytest.mark.parametrize("kind", KINDS)
def test_mutated_recordings_give_a_dataset_or_a_sentence(kind: str, tmp_path: Path):
    run_batch(kind, range(4), tmp_path)


@pytest.mark.slow  # a minute of CPU time each
@pytest.mark.parametrize("batch", range(BATCHES))
@pytest.mark.parametrize("kind", KINDS)
def test_many_mutated_recordings_give_a_dataset_or_a_sentence(kind: str, batch: int, tmp_path: Path):
    run_apart(kind, range(1000 + batch * BATCH, 1000 + (batch + 1) * BATCH), tmp_path)

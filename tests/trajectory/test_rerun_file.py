"""Recordings as files of rerun."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.trajectory import camera_recordings as cams

from ridgeline.errors import InputError
from ridgeline.trajectory import write_rrd


def test_a_file_of_rerun_has_every_image_that_can_be_decoded(tmp_path: Path):
    pytest.importorskip("rerun", reason="needs rerun-sdk")
    bad = cams.change(cams.messages(0.5, gap=(9, 9)), cams.FRONT, lambda i, f: {**f, "data": b""} if i == 3 else f)
    log = cams.mcap(tmp_path / "run.mcap", bad)
    assert write_rrd(log, tmp_path / "run.rrd") == 14 + 7 + 5  # JPEG without the bad one, raw, depth
    data = (tmp_path / "run.rrd").read_bytes()
    assert data[:4] == b"RRF2"
    assert len(data) > 10_000


def test_without_rerun_the_cure_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "rerun", None)
    with pytest.raises(InputError, match="pip install rerun-sdk"):
        write_rrd(tmp_path / "a.mcap", tmp_path / "a.rrd")

"""Ctrl-C: `recommend fit`, `evaluate` and `all` leave with 130 and nothing half-written; a second run succeeds.

python -m pytest tests/cli/test_recommend_stop.py
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.embed import tiny
from tests.recommend import folders

from ridgeline.recommend import Recommender
from ridgeline.recommend import vector_cache as kept

FILMS = 6_000  # whose texts take many blocks: there is time to press the keys
PATIENCE = 120.0


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    pytest.importorskip("torch")
    return tiny.make(tmp_path_factory.mktemp("models") / "tiny", limit=500, max_position_embeddings=512)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return folders.many(tmp_path_factory.mktemp("data") / "ml", users=30, films=FILMS)


def started(home: Path, *words: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "XDG_CACHE_HOME": str(home)}
    command = [sys.executable, "-m", "ridgeline", "recommend", *map(str, words)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def stopped(process: subprocess.Popen[str], begun: Callable[[], object]) -> tuple[int, str]:
    """Wait until it has begun, press Ctrl-C, and see how it leaves."""
    end = time.monotonic() + PATIENCE
    try:
        while not begun() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.002)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    return process.returncode, told


def begun(out: Path) -> bool:
    """Whether some of it was written, beside the place where it will be."""
    return any(path.stat().st_size for path in out.parent.glob(f".{out.name}.tmp/*/new/*"))


def blocks(home: Path) -> list[Path]:
    return list((home / "ridgeline/vectors").glob("*/*.npz"))


def test_a_fit_that_is_stopped_leaves_no_model_and_goes_on(data, encoder, tmp_path):
    out, home = tmp_path / "out/model", tmp_path / "home"
    out.parent.mkdir()
    words = ("fit", data, "-o", out, "--encoder", encoder, "--device", "cpu", "--quiet")
    code, told = stopped(started(home, *words), lambda: blocks(home))
    assert code == 130, told
    assert "interrupted" in told
    assert "Traceback" not in told
    assert not list(out.parent.iterdir())
    had = len(blocks(home))
    assert 1 <= had < FILMS / kept.BLOCK
    before = {path: path.stat().st_mtime_ns for path in blocks(home)}
    again = started(home, *words)
    assert again.wait(PATIENCE) == 0, again.communicate()[1]
    again.communicate()
    assert {path: path.stat().st_mtime_ns for path in before} == before  # what was there was used, not made again
    assert len(blocks(home)) == -(-FILMS // kept.BLOCK)
    assert Recommender.load(out, verify=True).recommend(1)


def test_an_evaluation_that_is_stopped_leaves_no_page(data, encoder, tmp_path):
    out, home = tmp_path / "out", tmp_path / "home"
    out.mkdir()
    # Only liked films are encoded, so there is one block: it is stopped while models are ranked, or just before.
    words = ("evaluate", data, "-o", out / "page.html", "--encoder", encoder, "--device", "cpu", "--quiet")
    code, told = stopped(started(home, *words), lambda: blocks(home))
    assert code == 130, told
    assert "Traceback" not in told
    assert not list(out.iterdir())


def test_ranking_everybody_when_stopped_leaves_no_file(encoder, tmp_path):
    import ridgeline

    data = folders.many(tmp_path / "ml")
    with ridgeline.Embedder(encoder, device="cpu") as embedder:
        model = Recommender.fit(ridgeline.recommend.readers(data), embedder)
    many = np.arange(60_000) % len(model.user_ids)
    model.likes, model.seen = model.likes.taken(many), model.seen.taken(many)
    model.user_ids = np.arange(len(many))
    model.save(tmp_path / "model")
    out = tmp_path / "out/all.parquet"
    out.parent.mkdir()
    words = ("all", "--model", tmp_path / "model", "-o", out, "--quiet")
    code, told = stopped(started(tmp_path / "home", *words), lambda: begun(out))
    assert code == 130, told
    assert "Traceback" not in told
    assert not list(out.parent.iterdir())
    again = started(tmp_path / "home", *words)
    again.communicate(timeout=PATIENCE)
    assert again.returncode == 0
    assert len(pq.read_table(out, columns=["user"])) == 8 * len(many)  # of 15 films everybody has seen 7

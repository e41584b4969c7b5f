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
from ridgeline.recommend import item_vectors as item_vectors

FILMS = 6_000  # whose texts take many blocks: there is time to press the keys
TIMEOUT_S = 120.0


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    pytest.importorskip("torch")
    return tiny.make(tmp_path_factory.mktemp("models") / "tiny", limit=500, max_position_embeddings=512)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return folders.many(tmp_path_factory.mktemp("data") / "ml", users=30, films=FILMS)


def start_cli(home: Path, *words: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "XDG_CACHE_HOME": str(home)}
    command = [sys.executable, "-m", "ridgeline", "recommend", *map(str, words)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def stop_after(process: subprocess.Popen[str], begun: Callable[[], object]) -> tuple[int, str]:
    """Wait until it has begun, press Ctrl-C, and see how it leaves."""
    end = time.monotonic() + TIMEOUT_S
    try:
        while not begun() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.002)
        process.send_signal(signal.SIGINT)
        _, error_text = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    return process.returncode, error_text


def begun(out: Path) -> bool:
    """Whether some of it was written, beside the place where it will be."""
    return any(path.stat().st_size for path in out.parent.glob(f".{out.name}.tmp/*/new/*"))


def blocks(home: Path) -> list[Path]:
    return list((home / "ridgeline/vectors").glob("*/*.npz"))


@pytest.mark.slow
def test_an_interrupted_fit_leaves_no_model_and_resumes(data, encoder, tmp_path):
    out, home = tmp_path / "out/model", tmp_path / "home"
    out.parent.mkdir()
    words = ("fit", data, "-o", out, "--encoder", encoder, "--device", "cpu", "--quiet")
    code, error_text = stop_after(start_cli(home, *words), lambda: blocks(home))
    assert code == 130, error_text
    assert "interrupted" in error_text
    assert "Traceback" not in error_text
    assert not list(out.parent.iterdir())
    had = len(blocks(home))
    assert 1 <= had < FILMS / item_vectors.CACHE_BLOCK
    before = {path: path.stat().st_mtime_ns for path in blocks(home)}
    again = start_cli(home, *words)
    assert again.wait(TIMEOUT_S) == 0, again.communicate()[1]
    again.communicate()
    assert {path: path.stat().st_mtime_ns for path in before} == before  # what was there was used, not made again
    assert len(blocks(home)) == -(-FILMS // item_vectors.CACHE_BLOCK)
    assert Recommender.load(out, verify=True).recommend(1)


@pytest.mark.slow
def test_an_interrupted_evaluation_leaves_no_page(data, encoder, tmp_path):
    out, home = tmp_path / "out", tmp_path / "home"
    out.mkdir()
    # Only liked films are encoded, so there is one block: it is stopped while models are ranked, or just before.
    words = ("evaluate", data, "-o", out / "page.html", "--encoder", encoder, "--device", "cpu", "--quiet")
    code, error_text = stop_after(start_cli(home, *words), lambda: blocks(home))
    assert code == 130, error_text
    assert "Traceback" not in error_text
    assert not list(out.iterdir())


@pytest.mark.slow
def test_an_interrupted_ranking_of_all_users_leaves_no_file(encoder, tmp_path):
    import ridgeline

    data = folders.many(tmp_path / "ml")
    with ridgeline.Embedder(encoder, device="cpu") as embedder:
        model = Recommender.fit(ridgeline.recommend.read(data), embedder)
    many = np.arange(60_000) % len(model.user_ids)
    model.likes, model.seen = model.likes.select(many), model.seen.select(many)
    model.user_ids = np.arange(len(many))
    model.save(tmp_path / "model")
    out = tmp_path / "out/all.parquet"
    out.parent.mkdir()
    words = ("all", "--model", tmp_path / "model", "-o", out, "--quiet")
    code, error_text = stop_after(start_cli(tmp_path / "home", *words), lambda: begun(out))
    assert code == 130, error_text
    assert "Traceback" not in error_text
    assert not list(out.parent.iterdir())
    again = start_cli(tmp_path / "home", *words)
    again.communicate(timeout=TIMEOUT_S)
    assert again.returncode == 0
    assert len(pq.read_table(out, columns=["user"])) == 8 * len(many)  # every user has seen 7 of 15 films

"""A tiny model, and a home without jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.bulk.sources_made import InlineEngine
from tests.embed import tiny

import ridgeline.bulk.job as job


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    tiny.make(folder)
    return str(folder)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def settings(model: str) -> dict[str, Any]:
    return {"column": "title", "key": "id", "chunk_rows": 10, "device": "cpu", "dtype": "float32", "model": model}


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> type[InlineEngine]:
    """Run workers in this process."""
    engine = type("Engine", (InlineEngine,), {"stop_after": None})
    monkeypatch.setattr(job, "LocalEngine", engine)
    return engine

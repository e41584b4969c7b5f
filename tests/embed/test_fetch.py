"""Models come from a path, the Hugging Face cache or a package, and their weights are verified."""

from __future__ import annotations

import hashlib
import http.server
import json
import shutil
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
from tests.embed import tiny

from ridgeline import Embedder
from ridgeline.embed import fetch as fetch
from ridgeline.embed import models as models
from ridgeline.embed.models import DEFAULT, PUBLISHED_MODELS, PublishedModel, find_cached, find_model, list_models
from ridgeline.errors import InputError

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.delenv("HUGGINGFACE_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return tmp_path / "hub"


@pytest.fixture
def published(folder, monkeypatch) -> PublishedModel:
    """The tiny model as a published one."""
    sha256 = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    known = PublishedModel("sentence-transformers/tiny", COMMIT, sha256)
    monkeypatch.setitem(PUBLISHED_MODELS, "tiny", known)
    return known


def put(cache: Path, folder: Path, repo: str = "sentence-transformers--tiny", commit: str = COMMIT) -> Path:
    return shutil.copytree(folder, cache / f"models--{repo}" / "snapshots" / commit)


def test_a_path_has_priority(folder):
    assert find_model(folder) == models.LocalModel(str(folder), folder, "path")
    with pytest.raises(InputError, match="is a file; give a model's folder"):
        find_model(folder / "config.json")
    with pytest.raises(InputError, match="check the path"):
        find_model("./no/such")


def test_the_cache_is_searched_by_short_and_long_names(cache, folder):
    cached_path = put(cache, folder)
    for name in ("tiny", "sentence-transformers/tiny"):
        assert find_model(name).folder == cached_path
    other = put(cache, folder, "org--tiny")
    assert find_model("org/tiny").folder == other
    assert [(f.name, f.where) for f in list_models() if f.where == "cache"] == [
        ("org/tiny", "cache"),
        ("tiny", "cache"),
    ]
    with Embedder("tiny", device="cpu") as embedder:
        assert embedder.dim == 32


def test_of_several_snapshots_main_is_used(cache, folder):
    first, second = put(cache, folder), put(cache, folder, commit="f" * 40)
    assert find_cached("sentence-transformers/tiny", None) is None  # ambiguous
    refs = first.parent.parent / "refs"
    refs.mkdir()
    (refs / "main").write_text("f" * 40)
    assert find_model("tiny").folder == second
    assert find_cached("sentence-transformers/tiny", COMMIT) == first


def test_known_weights_are_verified(cache, folder, published):
    cached_path = put(cache, folder)
    assert find_model("tiny").folder == cached_path
    weights = cached_path / "model.safetensors"
    changed = bytearray(weights.read_bytes())
    changed[-1] ^= 1
    weights.write_bytes(changed)
    with pytest.raises(InputError, match="is not the published sentence-transformers/tiny: its SHA-256 begins"):
        Embedder("tiny", device="cpu")
    weights.unlink()
    with pytest.raises(InputError, match="has no weights"):
        Embedder("tiny", device="cpu")


def test_the_data_of_a_package_is_used_without_running_code(cache, folder, published, tmp_path, monkeypatch):
    package = tmp_path / "site" / "carrier"
    shutil.copytree(folder, package / "model")
    (package / "__init__.py").write_text("raise SystemExit('this code ran')")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setitem(
        PUBLISHED_MODELS, "tiny", PublishedModel(published.repo, published.revision, published.sha256, "carrier")
    )
    assert find_model("tiny") == models.LocalModel("tiny", package / "model", "package")
    cached_path = put(cache, folder)
    assert find_model("tiny").folder == cached_path  # the cache has priority
    assert "carrier" not in sys.modules


def test_a_model_that_is_nowhere_says_how_to_get_it(cache):
    with pytest.raises(InputError, match=r"no model 'org/none' on this machine; .*ridgeline model get org/none"):
        Embedder("org/none", device="cpu")


def test_the_default_is_pinned_in_full():
    known = PUBLISHED_MODELS[DEFAULT]
    assert len(known.revision) == 40
    assert len(known.sha256) == 64


def test_offline_fetching_is_one_sentence(cache, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputError, match="HF_HUB_OFFLINE is set"):
        fetch.fetch_model(DEFAULT)


@pytest.fixture
def hub(folder, tmp_path, monkeypatch):
    """A hub on this machine that has the tiny model, for a fetch without huggingface_hub."""
    root = tmp_path / "served"
    files = [p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()]
    shutil.copytree(folder, root / "sentence-transformers/tiny/resolve" / COMMIT)
    siblings = [{"rfilename": name} for name in [*files, "onnx/model.onnx", "../evil.json"]]
    sha256 = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    next(s for s in siblings if s["rfilename"] == "model.safetensors")["lfs"] = {"sha256": sha256}
    for revision in ("main", COMMIT):
        api = root / "api/models/sentence-transformers/tiny/revision" / revision
        api.parent.mkdir(parents=True, exist_ok=True)
        tiny.write(api, {"sha": COMMIT, "siblings": siblings})

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *words):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(root)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    yield root
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_model_is_fetched_at_its_pinned_revision_and_verified(cache, hub, published):
    messages = []
    local_model = fetch.fetch_model("tiny", report=messages.append)
    assert local_model.folder == cache / "models--sentence-transformers--tiny/snapshots" / COMMIT
    assert any("model.safetensors" in s for s in messages)
    assert not list(cache.rglob("*evil*"))
    with Embedder("tiny", device="cpu") as embedder:
        assert embedder.dim == 32
    messages.clear()
    fetch.fetch_model("tiny", report=messages.append)
    assert messages == []  # already complete


def test_an_unpublished_model_is_fetched_at_the_newest_revision(cache, hub):
    fetch.fetch_model("tiny")
    assert (cache / "models--sentence-transformers--tiny/refs/main").read_text() == COMMIT
    assert find_model("tiny").where == "cache"


def test_a_damaged_download_is_discarded(cache, hub, published):
    weights = hub / "sentence-transformers/tiny/resolve" / COMMIT / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"evil")
    with pytest.raises(InputError, match="arrived damaged"):
        fetch.fetch_model("tiny")
    assert not list(cache.rglob("model.safetensors"))


def test_a_hub_without_the_model_or_without_a_network_is_one_sentence(cache, hub, monkeypatch):
    with pytest.raises(InputError, match=r"the hub has no such 'org/none'"):
        fetch.fetch_model("org/none")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(InputError, match=r"could not be fetched: .*check the network"):
        fetch.fetch_model("tiny")
    monkeypatch.setenv("HF_ENDPOINT", "ftp://x")
    with pytest.raises(InputError, match="begins with https://"):
        fetch.fetch_model("tiny")


def test_the_library_is_used_where_it_is_installed(cache, folder, published, monkeypatch):
    import types

    requests = {}

    def snapshot_download(repo, revision, allow_patterns):
        requests.update(repo=repo, revision=revision, patterns=allow_patterns)
        return str(put(cache, folder))

    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(snapshot_download=snapshot_download))
    assert fetch.fetch_model("tiny").where == "cache"
    assert requests["revision"] == COMMIT
    assert json.dumps(requests["patterns"])

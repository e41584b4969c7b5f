"""Files of hnswlib and usearch are read as vectors with ids: bytes as those libraries write them.

The byte layouts are written here by hand, and compared with the libraries where they are installed.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from ridgeline import Index
from ridgeline.errors import InputError

VECTORS = np.random.default_rng(0).standard_normal((9, 5)).astype(np.float32)
KEYS = np.arange(9)[::-1] * 3 + 5


def write_hnswlib(path: Path, deleted: int | None = 4, connectivity: int = 2) -> Path:
    links = 4 + 4 * 2 * connectivity
    size = links + 20 + 8
    data = struct.pack("<QQQQQQiIQQQdQ", 0, 20, 9, size, links + 20, links, 0, 0, 2, 4, 2, 0.5, 40)
    for number, (key, vector) in enumerate(zip(KEYS.tolist(), VECTORS, strict=True)):
        head = bytearray(links)
        head[0], head[2] = 1, int(number == deleted)
        data += bytes(head) + vector.tobytes() + struct.pack("<Q", key)
    path.write_bytes(data + struct.pack("<I", 0) * 9)
    return path


def write_usearch(path: Path, kind: int = 11, metric: bytes = b"c", removed: int | None = 4) -> Path:
    values = VECTORS.astype({11: "<f4", 12: "<f2", 10: "<f8"}[kind])
    data = struct.pack("<II", 9, values.shape[1] * values.itemsize) + values.tobytes()
    head = b"usearch" + struct.pack("<HHH", 2, 26, 6) + metric + bytes([kind, 14, 15])
    head += struct.pack("<QQQB", 8, 1, 5, 0)
    data += head.ljust(64, b"\0") + struct.pack("<QQQQQ", 9, 3, 6, 1, 0)
    levels = np.array([0, 1, 0, 0, 2, 0, 0, 0, 1], "<i2")
    data += levels.tobytes()
    for number, (key, level) in enumerate(zip(KEYS.tolist(), levels.tolist(), strict=True)):
        key = 2**64 - 1 if number == removed else key
        data += struct.pack("<Qh", key, level) + bytes(4 + 4 * 6 + level * (4 + 4 * 3))
    path.write_bytes(data)
    return path


def assert_rows(index: Index, atol: float = 0) -> None:
    kept = np.arange(9) != 4
    assert index.ids.tolist() == KEYS[kept].tolist()
    expected = VECTORS[kept]
    if index.metric == "cosine":
        expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    assert np.allclose(index.reconstruct(index.ids), expected, atol=atol + 1e-6)


@pytest.mark.parametrize("metric", ["cosine", "ip", "l2"])
def test_a_file_of_hnswlib_gives_its_vectors_and_labels(tmp_path: Path, metric: str):
    assert_rows(Index.from_hnswlib(write_hnswlib(tmp_path / "h.bin"), dim=5, metric=metric))


@pytest.mark.parametrize(("kind", "atol"), [(11, 0), (12, 2e-3), (10, 0)])
def test_a_file_of_usearch_gives_its_vectors_and_keys(tmp_path: Path, kind: int, atol: float):
    for metric, name in ((b"c", "cosine"), (b"i", "ip"), (b"e", "l2")):
        index = Index.from_usearch(write_usearch(tmp_path / "u", kind, metric), spec="IVF2,Flat")
        assert (index.metric, index.spec) == (name, "IVF2,Flat")
        assert_rows(index, atol)


def test_the_libraries_write_these_bytes(tmp_path: Path):
    hnswlib = pytest.importorskip("hnswlib")
    theirs = hnswlib.Index("l2", 5)
    theirs.init_index(20, M=4)
    theirs.add_items(VECTORS, KEYS, num_threads=1)
    theirs.mark_deleted(int(KEYS[4]))
    theirs.save_index(str(tmp_path / "h.bin"))
    assert_rows(Index.from_hnswlib(tmp_path / "h.bin", dim=5, metric="l2"))
    usearch = pytest.importorskip("usearch.index")
    index = usearch.Index(ndim=5, metric="l2sq", dtype="f32")
    index.add(KEYS, VECTORS, threads=1)
    index.remove(int(KEYS[4]))
    index.save(str(tmp_path / "u"))
    assert_rows(Index.from_usearch(tmp_path / "u"))


def test_other_files_are_refused_by_their_name(tmp_path: Path):
    cut = tmp_path / "cut"
    data = write_hnswlib(tmp_path / "h").read_bytes()
    cut.write_bytes(data[:200])
    for path, dim, message in (
        (cut, 5, "cut"),
        (tmp_path / "h", 4, "5 dimensions and dim is 4"),
        ("/none", 5, "/none"),
    ):
        with pytest.raises(InputError, match=message):
            Index.from_hnswlib(path, dim=dim, metric="ip")
    with pytest.raises(InputError, match="dim is 0"):
        Index.from_hnswlib(tmp_path / "h", dim=0, metric="ip")
    data = write_usearch(tmp_path / "u").read_bytes()
    vectors = 8 + 9 * 20
    changes = [
        (data[:300], "was cut"),
        (data[vectors:], "has no vectors"),
        (b"else" * 30, "is no file of usearch"),
        (data[: vectors + 13] + b"h" + data[vectors + 14 :], "metric 104"),
        (data[:-300], "was cut"),
    ]
    for changed, message in changes:
        cut.write_bytes(changed)
        with pytest.raises(InputError, match=message):
            Index.from_usearch(cut)
    twice = np.frombuffer(write_hnswlib(tmp_path / "h").read_bytes(), np.uint8).copy()
    size = 4 + 16 + 20 + 8
    first = struct.calcsize("<QQQQQQiIQQQdQ") + size - 8
    twice[first + size : first + size + 8] = twice[first : first + 8]
    cut.write_bytes(twice.tobytes())
    with pytest.raises(InputError, match="id 29 is given twice"):
        Index.from_hnswlib(cut, dim=5, metric="ip")

"""Chunk sets with restarts, damage and other jobs."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import InputError, StoreError
from ridgeline.store import ChunkSet, verify

TOTAL = 5
STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "flip", "cut", "remove", "restart"]), st.integers(0, TOTAL - 1), st.binary()),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_done_lists_the_intact_chunks(memory, steps):
    with TemporaryDirectory(dir=memory) as folder:
        path = Path(folder, "job")
        model: dict[int, bytes] = {}

        def open_job() -> ChunkSet:
            return ChunkSet(path, key={"k": 1}, total=TOTAL)

        chunks = open_job().__enter__()
        try:
            for step, number, data in steps:
                if step == "put":
                    chunks.put(number, data)
                    model[number] = data
                elif step == "restart":
                    chunks.__exit__(None, None, None)
                    chunks = open_job().__enter__()
                elif number in model:
                    damage(chunks.file(number), step)
                    if step == "remove" or model[number]:  # an empty chunk has no byte to lose
                        del model[number]
                assert chunks.done() == sorted(model)
                assert chunks.missing() == [n for n in range(TOTAL) if n not in model]
            assert {number: chunks.read(number) for number in model} == model
            for number in chunks.missing():
                model[number] = b"late"
                chunks.put(number, b"late")
            chunks.finish(Path(folder, "whole"))
        finally:
            chunks.__exit__(None, None, None)
        assert Path(folder, "whole").read_bytes() == b"".join(model[n] for n in range(TOTAL))
        assert os.listdir(folder) == ["whole"]


def damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "remove":
        path.unlink()
    elif data:
        if how == "flip":
            data[-1] ^= 1
        else:
            data.pop()
        path.write_bytes(data)
        # a change within one tick of the clock keeps its time: say that it is later
        later = path.stat().st_mtime_ns + 1_000_000
        os.utime(path, ns=(later, later))


def test_damage_with_an_unchanged_mtime_is_found_when_finishing(tmp_path):
    with ChunkSet(tmp_path / "job", key="k", total=2) as chunks:
        chunks.put(0, b"aa")
        chunks.put(1, b"bb")
        file = chunks.file(1)
        state = file.stat()
        file.write_bytes(b"bx")
        os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
        with pytest.raises(StoreError, match=r"lacks 1 of 2 chunks \(1\); run the job again"):
            chunks.finish(tmp_path / "whole")
        assert chunks.missing() == [1]
        assert not (tmp_path / "whole").exists()
        chunks.put(1, b"bb")
        assert not file.exists() or file.read_bytes() == b"bb"
        chunks.finish(tmp_path / "whole")
    assert (tmp_path / "whole").read_bytes() == b"aabb"


def test_a_chunk_made_again_replaces_the_earlier_one_after_a_restart_too(tmp_path):
    with ChunkSet(tmp_path / "job", key="k") as chunks:
        chunks.put(0, b"first")
        chunks.put(0, b"second")
    with ChunkSet(tmp_path / "job", key="k") as chunks:
        assert chunks.read(0) == b"second"
        chunks.put(0, b"third")
        assert chunks.done() == [0]
        assert chunks.read(0) == b"third"


def test_chunks_of_another_job_are_refused_with_the_settings_that_differ(tmp_path):
    with ChunkSet(tmp_path / "job", key={"model": "a", "batch": 32, "old": 1}, total=3) as chunks:
        chunks.put(0, b"x")
    with (
        pytest.raises(StoreError) as caught,
        ChunkSet(tmp_path / "job", key={"model": "a", "batch": 64, "new": None}, total=4, suffix=".npy"),
    ):
        pass
    sentence = str(caught.value)
    assert "belongs to another job" in sentence
    assert "batch is 32 there, 64 here" in sentence
    assert "old is 1 there, not set here" in sentence
    assert "new is not set there, null here" in sentence
    assert "chunks is 3 there, 4 here" in sentence
    assert 'suffix is "" there, ".npy" here' in sentence
    assert "model" not in sentence
    with ChunkSet(tmp_path / "job", key={"model": "a", "batch": 32, "old": 1}, total=3) as chunks:
        assert chunks.done() == [0]


def test_a_job_without_chunks_is_replaced_by_another_job(tmp_path):
    with ChunkSet(tmp_path / "job", key={"model": "a"}):
        pass
    with ChunkSet(tmp_path / "job", key={"model": "b"}) as chunks:
        chunks.put(0, b"x")
    with pytest.raises(StoreError, match=r"model is \"b\" there.*or say --force"):
        ChunkSet(tmp_path / "job", key={"model": "a"}, cure="say --force").__enter__()
    with ChunkSet(tmp_path / "job", key={"model": "b"}) as chunks:
        assert chunks.done() == [0]


def test_start_over_removes_chunks_but_not_those_of_a_running_process(tmp_path):
    with ChunkSet(tmp_path / "job", key={"model": "a"}, suffix=".npy") as chunks:
        chunks.put(0, b"x")
        with pytest.raises(StoreError, match="locked by process"), ChunkSet(tmp_path / "job", key="k", start_over=True):
            pass
        assert chunks.done() == [0]
    (tmp_path / "job" / "job.json").write_text("{")  # damaged: all the more
    with ChunkSet(tmp_path / "job", key="k", start_over=True) as chunks:
        assert chunks.done() == []
        chunks.put(1, b"y")
    with ChunkSet(tmp_path / "job", key="k") as chunks:
        assert chunks.done() == [1]


def test_a_job_that_fails_before_its_first_chunk_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError), ChunkSet(tmp_path / "job", key="k"):
        raise RuntimeError
    assert not list(tmp_path.iterdir())
    with ChunkSet(tmp_path / "job", key="k") as chunks:
        chunks.put(0, b"x")
    with pytest.raises(RuntimeError), ChunkSet(tmp_path / "job", key="k"):
        raise RuntimeError
    with ChunkSet(tmp_path / "job", key="k") as chunks:
        assert chunks.done() == [0]


def test_two_processes_do_not_work_on_one_job(tmp_path):
    with (
        ChunkSet(tmp_path / "job", key="k"),
        pytest.raises(StoreError, match=f"locked by process {os.getpid()}"),
        ChunkSet(tmp_path / "job", key="k"),
    ):
        pass
    with ChunkSet(tmp_path / "job", key="k"):
        pass


def test_a_folder_of_something_else_is_refused_untouched(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "sea.jpg").write_text("")
    with (
        pytest.raises(StoreError, match="photos is there but holds no chunks"),
        ChunkSet(tmp_path / "photos", key="k"),
    ):
        pass
    assert os.listdir(tmp_path / "photos") == ["sea.jpg"]
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="file"), ChunkSet(tmp_path / "file", key="k"):
        pass


def test_a_damaged_job_file_is_named(tmp_path):
    with ChunkSet(tmp_path / "job", key="k"):
        pass
    (tmp_path / "job" / "job.json").write_text("{")
    with pytest.raises(StoreError, match=r"job\.json is damaged"), ChunkSet(tmp_path / "job", key="k"):
        pass


def test_a_job_of_unknown_length_finishes_what_is_there_but_not_over_a_gap(tmp_path):
    with ChunkSet(tmp_path / "job", key="k") as chunks:
        chunks.put(0, b"a")
        chunks.put(2, b"c")
        with pytest.raises(InputError, match="total"):
            chunks.missing()
        with pytest.raises(StoreError, match=r"lacks 1 of 3 chunks \(1\)"):
            chunks.finish(tmp_path / "whole")
        chunks.put(1, b"b")
        chunks.finish(tmp_path / "whole")
    assert (tmp_path / "whole").read_bytes() == b"abc"


def test_a_job_without_chunks_gives_an_empty_file(tmp_path):
    with ChunkSet(tmp_path / "job", key="k", total=0) as chunks:
        assert chunks.missing() == []
        chunks.finish(tmp_path / "whole")
    assert (tmp_path / "whole").read_bytes() == b""


def test_finishing_can_join_into_a_folder_with_its_manifest(tmp_path):
    def join(files, tmp):
        for number, file in enumerate(files):
            (tmp / f"part-{number}.txt").write_bytes(file.read_bytes())

    with ChunkSet(tmp_path / "job", key="k", total=2, suffix=".txt") as chunks:
        for number in chunks.missing():
            with chunks.writing(number) as tmp:
                assert tmp.suffix == ".txt"
                tmp.write_text(str(number))
        assert chunks.file(0).suffix == ".txt"
        chunks.finish(tmp_path / "whole", join, directory=True, meta={"rows": 2})
    assert verify(tmp_path / "whole").meta == {"rows": 2}
    assert (tmp_path / "whole" / "part-1.txt").read_text() == "1"
    assert os.listdir(tmp_path) == ["whole"]


def half_then_fail(files, tmp):
    tmp.write_text("half")
    raise ZeroDivisionError


def test_a_join_that_fails_keeps_the_chunks(tmp_path):
    with ChunkSet(tmp_path / "job", key="k", total=1) as chunks:
        chunks.put(0, b"x")
        with pytest.raises(ZeroDivisionError):
            chunks.finish(tmp_path / "whole", half_then_fail)
        assert chunks.done() == [0]
    assert os.listdir(tmp_path) == ["job"]


def test_a_block_that_raises_leaves_its_chunk_missing(tmp_path):
    with ChunkSet(tmp_path / "job", key="k", total=1) as chunks:
        with pytest.raises(ZeroDivisionError), chunks.writing(0) as tmp:
            half_then_fail([], tmp)
        assert chunks.missing() == [0]


def test_misuse_is_a_sentence(tmp_path):
    with pytest.raises(InputError, match="-1 chunks"):
        ChunkSet(tmp_path / "job", key="k", total=-1)
    with pytest.raises(InputError, match="must begin with a dot"):
        ChunkSet(tmp_path / "job", key="k", suffix="npy")
    with pytest.raises(InputError, match="plain JSON"):
        ChunkSet(tmp_path / "job", key={"k": {1}})
    closed = ChunkSet(tmp_path / "job", key="k")
    with pytest.raises(StoreError, match="is not open"):
        closed.done()
    with ChunkSet(tmp_path / "job", key="k", total=1) as chunks:
        for number in (-1, 1):
            with pytest.raises(InputError, match=f"has no chunk {number}"):
                chunks.put(number, b"")
        with pytest.raises(StoreError, match=r"chunk 0 of .* is missing or damaged"):
            chunks.read(0)
        with pytest.raises(StoreError, match="open already"), chunks:
            pass
        chunks.put(0, b"")
        with pytest.raises(InputError, match="lies among the chunks"):
            chunks.finish(tmp_path / "job" / "whole")
        with pytest.raises(InputError, match="directory=True"):
            chunks.finish(tmp_path / "whole", meta={})
        chunks.finish(tmp_path / "whole")
        with pytest.raises(StoreError, match="is not open"):
            chunks.put(0, b"")

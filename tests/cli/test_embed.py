"""`ridgeline embed` and `ridgeline model`, in this process, and killed in another process."""

from __future__ import annotations

import gzip
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.embed import tiny
from tests.embed.tiny import TEXTS, Reference

from ridgeline.cli import main
from ridgeline.embed import TextFormat, read_texts
from ridgeline.embed import file_job as file_job


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    pytest.importorskip("torch")
    return tiny.make(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def run_embed(capsys: pytest.CaptureFixture[str], model: Path):
    """Run `ridgeline embed` with the tiny model in this process: (exit code, stdout, stderr)."""

    def run(*words: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit_info:
            main(["embed", "--model", str(model), "--device", "cpu", "--dtype", "float32", *map(str, words)])
        out, err = capsys.readouterr()
        return exit_info.value.code or 0, out, err

    return run


@pytest.fixture(scope="module")
def expected(model: Path) -> np.ndarray:
    return Reference(model).encode(TEXTS)


def write(path: Path) -> Path:
    """TEXTS in the format of the suffix."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    if path.suffix == ".parquet":
        parquet.write_table(arrow.table({"n": range(len(TEXTS)), "text": TEXTS}), path, row_group_size=7)
    elif path.suffix == ".txt":
        path.write_text("\n".join(TEXTS) + "\n")
    elif path.suffix in (".csv", ".tsv"):
        mark = "," if path.suffix == ".csv" else "\t"
        rows = "".join(f'{i}{mark}"{t}"\r\n' for i, t in enumerate(TEXTS))
        path.write_text(f"n{mark}text\r\n{rows}", encoding="utf-8-sig")
    else:
        lines = "".join(json.dumps({"n": i, "text": t}) + "\n" for i, t in enumerate(TEXTS)).encode()
        path.write_bytes(gzip.compress(lines) if path.suffix == ".gz" else lines)
    return path


@pytest.mark.parametrize("name", ["t.txt", "t.csv", "t.tsv", "t.jsonl", "t.jsonl.gz", "t.parquet"])
def test_every_kind_of_file_gives_its_vectors(run_embed, tmp_path: Path, expected, name: str):
    out = tmp_path / "o.npy"
    code, message, err = run_embed(write(tmp_path / name), "-o", out)
    assert (code, message) == (0, "")
    np.testing.assert_allclose(np.load(out), expected, atol=2e-6)
    assert f"{len(TEXTS)} × 32, norm 1.000000" in err
    assert "0 not finite" in err
    assert "texts/s" in err
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([name, "o.npy"])


def test_a_column_is_chosen_and_the_only_one_needs_no_name(run_embed, tmp_path: Path, expected):
    (tmp_path / "a.csv").write_text("title,n\n" + "".join(f"{t},1\n" for t in TEXTS))
    assert run_embed(tmp_path / "a.csv", "--column", "title", "-o", tmp_path / "o.npy")[0] == 0
    np.testing.assert_allclose(np.load(tmp_path / "o.npy"), expected, atol=2e-6)
    (tmp_path / "b.csv").write_text("whatever\n" + "".join(f'"{t}"\n' for t in TEXTS))
    assert run_embed(tmp_path / "b.csv", "-o", tmp_path / "o.npy")[0] == 0
    np.testing.assert_allclose(np.load(tmp_path / "o.npy"), expected, atol=2e-6)


def test_parquet_holds_texts_and_vectors(run_embed, tmp_path: Path, expected, monkeypatch):
    import pyarrow.parquet as parquet

    monkeypatch.setattr(file_job.embed_file, "__kwdefaults__", {**file_job.embed_file.__kwdefaults__, "chunk": 4})
    assert run_embed(write(tmp_path / "t.jsonl"), "-o", tmp_path / "o.parquet", "--verify")[0] == 0
    table = parquet.read_table(tmp_path / "o.parquet")
    assert table["text"].to_pylist() == TEXTS
    np.testing.assert_allclose(np.array(table["vector"].to_pylist()), expected, atol=2e-6)


ROWS = [("the red cat", "007", "1995", "0.5", "x"), ("a dog", "8", "", "2", ""), ("blue tree", "9", "2001", "", "y")]


def write_table(path: Path) -> Path:
    """ROWS as (text, code, year, share, note) in the format of the suffix; year and share have a gap."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    names = ("text", "code", "year", "share", "note")
    types = {"year": int, "share": float}
    rows = [
        {n: None if n in types and v == "" else types.get(n, str)(v) for n, v in zip(names, row, strict=True)}
        for row in ROWS
    ]
    if path.suffix == ".parquet":
        parquet.write_table(arrow.Table.from_pylist(rows), path, row_group_size=2)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        path.write_text("\n".join(",".join(row) for row in [names, *ROWS]) + "\n")
    return path


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.parquet"])
def test_the_other_columns_are_kept_with_their_types(run_embed, tmp_path: Path, name: str, monkeypatch):
    import pyarrow.parquet as parquet

    monkeypatch.setattr(file_job.embed_file, "__kwdefaults__", {**file_job.embed_file.__kwdefaults__, "chunk": 2})
    assert run_embed(write_table(tmp_path / name), "-o", tmp_path / "o.parquet")[0] == 0
    table = parquet.read_table(tmp_path / "o.parquet")
    assert {f.name: str(f.type) for f in table.schema if f.name != "vector"} == {
        "text": "string",
        "code": "string",
        "year": "int64",
        "share": "double",
        "note": "string",
    }
    assert table["code"].to_pylist() == ["007", "8", "9"]
    assert table["year"].to_pylist() == [1995, None, 2001]
    assert table["share"].to_pylist() == [0.5, 2.0, None]
    assert table["note"].to_pylist() == ["x", "", "y"]


def test_keep_chooses_columns(run_embed, tmp_path: Path):
    import pyarrow.parquet as parquet

    file, out = write_table(tmp_path / "t.csv"), tmp_path / "o.parquet"
    for keep, names in (("year,code", ["text", "code", "year", "vector"]), ("", ["text", "vector"])):
        assert run_embed(file, "-o", out, "--keep", keep)[0] == 0
        assert parquet.read_schema(out).names == names
    assert "did you mean 'year'" in run_embed(file, "-o", out, "--keep", "yeer")[2]
    assert "write a .parquet file" in run_embed(file, "-o", tmp_path / "o.npy", "--keep", "year")[2]


def test_parquet_names_the_model_and_is_embedded_again_without_its_old_vectors(run_embed, tmp_path: Path, model: Path):
    import pyarrow.parquet as parquet

    first, second = tmp_path / "a.parquet", tmp_path / "b.parquet"
    assert run_embed(write_table(tmp_path / "t.csv"), "-o", first)[0] == 0
    assert json.loads(parquet.read_schema(first).metadata[b"ridgeline"])["model"] == str(model.resolve())
    assert run_embed(first, "-o", second)[0] == 0
    assert parquet.read_table(first).equals(parquet.read_table(second))
    assert "do not keep it" in run_embed(first, "-o", second, "--keep", "vector")[2]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("t.csv", "text,n\nCafé €5,1\n".encode("cp1252"), ["--encoding", "cp1252"]),
        ("t.csv", "text,n\nCafé €5,1\n".encode("utf-16"), []),
        ("t.csv", "text,n\r\nCafé €5,1\r\n".encode("utf-16-be"), ["--encoding", "utf-16-be"]),
        ("t.csv", "n;text\n1;Café €5\n".encode(), []),
        ("t.csv", "n|text\n1|Café €5\n".encode(), []),
        ("t.csv", "n!text\n1!Café €5\n".encode(), ["--delimiter", "!"]),
        ("t.csv", "n\ttext\n1\tCafé €5\n".encode(), ["--delimiter", "tab"]),
        ("t.csv", "# a\n\n# b\ntext,n\n# c\nCafé €5,1\n".encode(), ["--comment", "#"]),
        ("t.txt", "Café €5\n".encode("cp1252"), ["--encoding", "cp1252"]),
        ("t.jsonl", '{"text": "Café €5"}\n'.encode("cp1252"), ["--encoding", "cp1252"]),
    ],
)
def test_encodings_delimiters_and_comments_are_read(run_embed, tmp_path: Path, name: str, content: bytes, words: list):
    import pyarrow.parquet as parquet

    (tmp_path / name).write_bytes(content)
    assert run_embed(tmp_path / name, "-o", tmp_path / "o.parquet", *words)[0] == 0
    assert parquet.read_table(tmp_path / "o.parquet")["text"].to_pylist() == ["Café €5"]


def test_a_comment_sign_inside_a_quoted_value_is_text(tmp_path: Path):
    (tmp_path / "t.csv").write_text('text,n\n"one\n# two",1\n# three\nfour,2\n')
    with read_texts(tmp_path / "t.csv", None, TextFormat(comment="#")) as rows:
        assert list(rows.texts) == ["one\n# two", "four"]


@pytest.mark.slow
def test_several_devices_stand_in_the_answer(run_embed, tmp_path: Path, expected, monkeypatch):
    monkeypatch.setattr(file_job.embed_file, "__kwdefaults__", {**file_job.embed_file.__kwdefaults__, "chunk": 4})
    code, out, _ = run_embed(write(tmp_path / "t.csv"), "-o", tmp_path / "o.npy", "--device", "cpu,cpu", "--json")
    assert code == 0
    assert json.loads(out)["placement"]["devices"] == ["cpu", "cpu"]
    np.testing.assert_allclose(np.load(tmp_path / "o.npy"), expected, atol=2e-6)


def test_several_devices_give_the_same_vectors_and_count_truncated_texts(run_embed, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(file_job.embed_file, "__kwdefaults__", {**file_job.embed_file.__kwdefaults__, "chunk": 4})
    long = "cat " * 99
    texts = [long, "a dog", long, "blue tree", long, long, "a dog runs", "the red cat", long]  # 2, 2 and 1 in a chunk
    (tmp_path / "t.txt").write_text("\n".join(texts) + "\n")
    for name, device in (("one", "cpu"), ("two", "cpu,cpu")):
        words = ["-o", tmp_path / f"{name}.npy", "--device", device, "--verify"]
        code, _, err = run_embed(tmp_path / "t.txt", *words)
        assert code == 0
        assert err.count("note: ") == err.count("note: 5 texts reach the limit of 24 tokens;") == 1
    np.testing.assert_allclose(np.load(tmp_path / "two.npy"), np.load(tmp_path / "one.npy"), atol=2e-6)


def test_all_gpus_without_a_gpu_is_one_sentence(run_embed, tmp_path: Path, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, _, err = run_embed(write(tmp_path / "t.txt"), "-o", tmp_path / "o.npy", "--device", "cuda:all")
    assert (code, err.count("\n")) == (2, 1)


def test_an_index_of_embedded_parquet_answers_texts_with_a_filter(run_embed, tmp_path: Path, capsys):
    def run(*words):
        with pytest.raises(SystemExit) as exit_info:
            main(list(map(str, words)))
        assert not exit_info.value.code
        return capsys.readouterr().out

    assert run_embed(write_table(tmp_path / "t.csv"), "-o", tmp_path / "o.parquet")[0] == 0
    run("index", tmp_path / "o.parquet", "-o", tmp_path / "ix", "--device", "cpu", "-q")
    found = json.loads(run("search", tmp_path / "ix", "--text", "the red cat", "--where", "year > 1999", "--json"))
    assert [row["text"] for row in found["results"][0]["found"]] == ["blue tree"]


def test_json_has_every_figure(run_embed, tmp_path: Path):
    code, out, _ = run_embed(
        write(tmp_path / "t.txt"), "-o", tmp_path / "o.npy", "--json", "--verify", "--truncate-dim", 8
    )
    vectors = json.loads(out)
    assert code == 0
    assert (vectors["count"], vectors["dim"], vectors["not_finite"], vectors["verified"]) == (len(TEXTS), 8, 0, True)
    assert vectors["duplicates"] == len(TEXTS) - len({*TEXTS})
    assert vectors["norm_mean"] == pytest.approx(1)


def test_verify_finds_a_changed_vector(run_embed, tmp_path: Path, monkeypatch):
    original = file_job._read_vectors
    monkeypatch.setattr(file_job, "_read_vectors", lambda out: -original(out))
    code, _, err = run_embed(write(tmp_path / "t.txt"), "-o", tmp_path / "o.npy", "--verify")
    assert code == 1
    assert "lowest cosine -1.0" in err


def test_a_long_text_is_truncated_with_one_warning(run_embed, tmp_path: Path):
    (tmp_path / "t.txt").write_text("cat " * 99 + "\n" + "dog " * 99 + "\n")
    code, _, err = run_embed(tmp_path / "t.txt", "-o", tmp_path / "o.npy")
    assert code == 0
    assert err.count("note: 2 texts reach the limit of 24 tokens") == 1


@pytest.mark.parametrize(
    ("name", "content", "words", "message"),
    [
        ("t.csv", "a,b\n1,2\n", [], "no column in '"),
        ("t.csv", "title,b\n1,2\n", ["--column", "titel"], "did you mean 'title'?"),
        ("t.csv", "text,b\nx,1\n", ["--column", "n"], "There are: text, b"),
        ("t.csv", "a,text\n1\n", [], "line 2 has no column 'text'"),
        ("t.csv", 'text,b\n"x,1\n', [], "unexpected end of data"),
        ("t.csv", "text,b\n", [], "has no rows"),
        ("t.txt", "", [], "is empty"),
        ("t.txt", "x\n", ["--column", "n"], "plain lines"),
        ("t.txt", b"fine\n\xff\xfe\n", [], "line 2: not UTF-8"),
        ("t.jsonl", '{"text": "x"}\n{"text"\n', [], "line 2 is no JSON"),
        ("t.jsonl", '{"text": "x"}\n{"text": null}\n', [], "line 2: 'text' is None"),
        ("t.jsonl", '{"txt": "x"}\n', [], "did you mean 'txt'"),
        ("t.jsonl", '{"text": "x"}\n' + "[" * 100_000 + "\n", [], "line 2 is nested too deeply"),
        ("t.txt", "x\n", ["--batch-tokens", 0], "batch_tokens is 0"),
        ("t.jsonl.gz", b"no gzip", [], "cannot be read"),
        ("t.parquet", "no parquet", [], "is no Parquet file"),
        ("t.xlsx", "x", [], "suffix '.xlsx'"),
        ("t.txt", "x\n", ["--dtype", "int4"], "no dtype 'int4'"),
        ("t.txt", "x\n", ["--device", "tpu"], "no device 'tpu'"),
        ("t.txt", "x\n", ["--model", "org/none"], "ridgeline model get org/none"),
        ("t.txt", "x\n", ["--out", "o.csv"], "ends in neither of .npy, .parquet"),
        ("t.csv", "text,n\nx,1\n", ["--encoding", "cp9999"], "no encoding 'cp9999'"),
        ("t.csv", "text,n\nx,1\n", ["--delimiter", "::"], "the delimiter is '::'; give one character"),
        ("t.txt", "x\n", ["--delimiter", ";"], "has no delimiter; leave --delimiter out"),
        ("t.txt", b"x\n\xe9t\xe9\n", [], "give its encoding, such as --encoding cp1252"),
        ("t.txt", "x\n", ["--out", "no/such/o.npy"], "no folder 'no/such'"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(
    run_embed, tmp_path: Path, name: str, content, words: list, message: str
):
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    code, out, err = run_embed(file, "-o", tmp_path / "o.npy", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.startswith("ridgeline: ")
    assert err.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_a_missing_file_is_an_error(run_embed, tmp_path: Path):
    assert "there is no file" in run_embed(tmp_path / "none.txt", "-o", tmp_path / "o.npy")[2]


VICTIM = """
import sys, time
from ridgeline.embed import embedder, file_job as job
original = embedder.Embedder.encode
def slow(self, texts, **how):
    time.sleep(0.2)
    return original(self, texts, **how)
embedder.Embedder.encode = slow
job.embed_file.__kwdefaults__["chunk"] = 2
from ridgeline.cli import main
main(sys.argv[1:])
"""


def test_a_killed_job_resumes(run_embed, tmp_path: Path, model: Path, expected, monkeypatch):
    source, out = write(tmp_path / "t.txt"), tmp_path / "o.npy"
    words = ["embed", "--model", model, "--device", "cpu", "--dtype", "float32", source, "-o", out]
    victim = subprocess.Popen([sys.executable, "-c", VICTIM, *map(str, words)])
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob(".o.npy.chunks/*.f32"))) < 3:
        assert victim.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(victim.pid, signal.SIGKILL)
    assert victim.wait() == -signal.SIGKILL
    assert not out.exists()
    monkeypatch.setattr(file_job.embed_file, "__kwdefaults__", {**file_job.embed_file.__kwdefaults__, "chunk": 2})
    code, _, err = run_embed(source, "-o", out, "--prompt", "the ")
    assert code == 2
    assert 'prompt is "" there' in err  # chunks of another job are not used
    code, message, _ = run_embed(source, "-o", out, "--json")
    assert code == 0
    assert 6 <= json.loads(message)["resumed"] < len(TEXTS)
    np.testing.assert_allclose(np.load(out), expected, atol=2e-6)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["o.npy", "t.txt"]


@pytest.fixture
def stop_job(run_embed, monkeypatch):
    """Start a job and stop it after two chunks of two texts."""

    def stop(*words: object) -> None:
        original, done = file_job._encode_chunk, []
        monkeypatch.setattr(file_job.embed_file, "__kwdefaults__", {**file_job.embed_file.__kwdefaults__, "chunk": 2})

        def encode(*a):
            if len(done) == 2:
                raise KeyboardInterrupt
            done.append(a)
            return original(*a)

        monkeypatch.setattr(file_job, "_encode_chunk", encode)
        assert run_embed(*words)[0] == 130
        monkeypatch.setattr(file_job, "_encode_chunk", original)

    return stop


def test_a_resumed_job_says_how_many_texts_it_keeps(run_embed, stop_job, tmp_path: Path, expected):
    source, out = write(tmp_path / "t.txt"), tmp_path / "o.npy"
    stop_job(source, "-o", out)
    code, _, err = run_embed(source, "-o", out)
    assert code == 0
    assert "resuming: 4 texts of an earlier run are kept" in err
    np.testing.assert_allclose(np.load(out), expected, atol=2e-6)


def test_a_pipe_gets_lines_of_progress_with_the_remaining_time(run_embed, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(importlib.import_module("ridgeline.cli.embed"), "LINE_S", 0.0)
    monkeypatch.setattr(file_job, "CHUNK_CHARACTERS", {"cpu": 40})
    (tmp_path / "t.txt").write_text("a red cat\n" * 120)
    code, _, err = run_embed(tmp_path / "t.txt", "-o", tmp_path / "o.npy", "--json")
    assert code == 0
    assert re.search(r"^[\d,]+ texts, [\d,]+/s, \d+% of the file, about [\d,]+ s left$", err, re.MULTILINE)
    assert run_embed(tmp_path / "t.txt", "-o", tmp_path / "o.npy", "--json", "-q")[2] == ""


def test_chunks_of_characters_hold_every_text_once():
    texts = ["x" * n for n in (3, 50, 0, 10, 10, 40, 1)]
    chunks = list(file_job._split_chunks(iter(texts), 3, 20))
    assert [len(chunk) for chunk in chunks] == [2, 3, 1, 1]
    assert [text for chunk in chunks for text in chunk] == texts


def test_force_discards_another_job(run_embed, stop_job, tmp_path: Path, expected):
    source, out = write(tmp_path / "t.txt"), tmp_path / "o.npy"
    stop_job(source, "-o", out, "--prompt", "the ")
    code, _, err = run_embed(source, "-o", out)
    assert (code, "or forget it with --force" in err) == (2, True)
    assert run_embed(source, "-o", out, "--force")[0] == 0
    np.testing.assert_allclose(np.load(out), expected, atol=2e-6)


def test_force_respects_a_running_process(run_embed, tmp_path: Path, expected, monkeypatch):
    source, out, original, seen = write(tmp_path / "t.txt"), tmp_path / "o.npy", file_job._encode_chunk, []

    def encode(*a):
        if not seen:
            seen.append(run_embed(source, "-o", out, "--force"))
        return original(*a)

    monkeypatch.setattr(file_job, "_encode_chunk", encode)
    assert run_embed(source, "-o", out)[0] == 0
    assert (seen[0][0], "locked by process" in seen[0][2]) == (2, True)
    np.testing.assert_allclose(np.load(out), expected, atol=2e-6)


def test_vectors_of_a_replaced_model_are_not_reused(run_embed, stop_job, tmp_path: Path, model: Path):
    source, out, other = write(tmp_path / "t.txt"), tmp_path / "o.npy", tmp_path / "m"
    shutil.copytree(model, other)
    stop_job(source, "-o", out, "--model", other)
    weights = other / "model.safetensors"
    weights.write_bytes(weights.read_bytes())  # a new modification time, as after training
    os.utime(weights, ns=(1, 1))
    code, _, err = run_embed(source, "-o", out, "--model", other)
    assert (code, "model_files is" in err) == (2, True)


def test_a_corrected_file_can_be_embedded_again(run_embed, tmp_path: Path):
    source, out = tmp_path / "t.jsonl", tmp_path / "o.npy"
    source.write_text('\ufeff{"text": "a cat"}\n{"text"\n')
    assert run_embed(source, "-o", out)[0] == 2
    source.write_text('\ufeff{"text": "a cat"}\n{"text": "a dog"}\n')
    assert run_embed(source, "-o", out)[0] == 0
    assert len(np.load(out)) == 2


def test_the_input_file_is_not_overwritten(run_embed, tmp_path: Path):
    source = write(tmp_path / "t.parquet")
    before = source.read_bytes()
    (tmp_path / "link.parquet").symlink_to(source)
    for out in (source, tmp_path / "link.parquet"):
        code, _, err = run_embed(source, "-o", out)
        assert (code, "is the file that is read" in err) == (2, True)
    assert source.read_bytes() == before


def test_models_are_listed_and_offline_fetching_refused(capsys, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(SystemExit) as exit_info:
        main(["model", "ls", "--json"])
    assert not exit_info.value.code
    assert isinstance(json.loads(capsys.readouterr().out), list)
    with pytest.raises(SystemExit) as exit_info:
        main(["model", "get", "all-MiniLM-L6-v2"])
    assert exit_info.value.code == 2
    assert "HF_HUB_OFFLINE is set" in capsys.readouterr().err


def test_importing_the_command_does_not_import_torch():
    code = "import sys, ridgeline.cli.embed, ridgeline.cli.model, ridgeline.embed; print({'torch'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"


def test_nine_thousand_titles(data: Path, tmp_path: Path):
    """Some titles, with the real model."""
    from ridgeline import Embedder

    with read_texts(data / "movielens/ml-latest-small/movies.csv", "title") as rows:
        titles = list(rows.texts)
        assert len(titles) == 9742
        assert rows.share() == 1.0
    try:
        embedder = Embedder(device="cpu")
    except Exception as error:
        pytest.skip(str(error))
    with embedder:
        vectors = embedder.encode(titles[:64])
    assert vectors.shape == (64, 384)

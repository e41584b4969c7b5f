"""The public class: all kinds of input, order, limits, out of memory, and bad input."""

from __future__ import annotations

import json
import threading
import weakref

import numpy as np
import pytest
from tests.embed.tiny import TEXTS, WORDS, Reference

from ridgeline import Embedder, errors
from ridgeline.embed import Tokens, TooLong, embed_file
from ridgeline.embed import inputs as inputs
from ridgeline.embed.devices import read_cpu_flags, resolve_dtype, resolve_torch_device
from ridgeline.embed.encoder import Encoder


@pytest.fixture(scope="module")
def expected(folder):
    return Reference(folder).encode(TEXTS)


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, atol=2e-6)


def test_lists_tuples_generators_and_columns_give_the_same(embedder, expected):
    arrow = pytest.importorskip("pyarrow")
    kinds = [
        TEXTS,
        tuple(TEXTS),
        (t for t in TEXTS),
        np.array(TEXTS),
        np.array(TEXTS, object),
        arrow.array(TEXTS),
        arrow.chunked_array([TEXTS[:7], TEXTS[7:]]),
        arrow.table({"text": TEXTS})["text"],
    ]
    for texts in kinds:
        close(embedder.encode(texts), expected)


def test_a_pandas_column_with_any_index_keeps_its_order(embedder, expected):
    pandas = pytest.importorskip("pandas")
    close(embedder.encode(pandas.Series(TEXTS, index=range(len(TEXTS), 0, -1))), expected)


@pytest.mark.parametrize("batch_tokens", [1, 7, 64, 10_000])
def test_the_budget_changes_no_vector(embedder, expected, batch_tokens):
    close(embedder.encode(TEXTS, batch_tokens=batch_tokens), expected)


def test_the_vectors_of_many_windows_are_in_order(embedder, expected, monkeypatch):
    monkeypatch.setattr(inputs, "WINDOW_TEXTS", 4)
    monkeypatch.setattr(inputs.split_windows, "__kwdefaults__", {"first": 2, "before": 0})
    close(embedder.encode(TEXTS), expected)
    close(embedder.encode(iter(TEXTS)), expected)
    close(np.stack(list(embedder.encode_iter(TEXTS, batch_tokens=9))), expected)
    assert [len(b) for b in embedder.encode_blocks(iter(TEXTS))] == [2, 4, 4, 4, 4, 4, 4]
    tokens = embedder.tokenize(TEXTS)
    close(embedder.encode_tokens(tokens), expected)


def test_one_text_and_its_tokens_have_the_same_vector(embedder, expected):
    close(embedder.encode_one(TEXTS[3]), expected[3])
    tokens = embedder.tokenize(TEXTS)
    assert (tokens.ids.dtype, tokens.offsets.dtype) == (np.int32, np.int64)
    assert len(tokens) == len(TEXTS)
    close(embedder.encode_tokens(tokens), expected)


def test_no_texts_give_no_vectors(embedder):
    for nothing in ([], iter(()), np.array([], str)):
        assert embedder.encode(nothing).shape == (0, 32)
    assert embedder.encode([]).dtype == np.float32
    assert len(embedder.tokenize([])) == 0
    assert list(embedder.encode_iter([])) == []


def test_a_torch_tensor_is_returned_on_request(embedder, expected):
    import torch

    actual = embedder.encode(TEXTS, to="torch")
    assert actual.dtype is torch.float32
    close(actual.numpy(), expected)
    with pytest.raises(errors.InputError, match="no answer 'jax'"):
        embedder.encode(TEXTS, to="jax")


def test_the_same_run_gives_the_same_bits(embedder):
    assert np.array_equal(embedder.encode(TEXTS), embedder.encode(TEXTS))


def test_progress_counts_up_to_the_end(embedder):
    seen = []
    embedder.encode(TEXTS, batch_tokens=20, progress=lambda done, total: seen.append((done, total)))
    assert [d for d, _ in seen] == sorted({d for d, _ in seen})
    assert seen[-1] == (len(TEXTS), len(TEXTS))
    embedder.encode(iter(TEXTS), progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (len(TEXTS), None)


def test_without_normalising_vectors_are_not_scaled(folder):
    reference = Reference(folder)
    with Embedder(folder, device="cpu", dtype="float32", normalize=False) as embedder:
        np.testing.assert_allclose(embedder.encode(["a dog"])[0], reference.pool_hidden("a dog", "mean"), atol=1e-5)


def test_endless_texts_are_read_only_as_far_as_needed(embedder, monkeypatch):
    monkeypatch.setattr(inputs, "WINDOW_TEXTS", 8)
    monkeypatch.setattr(inputs.split_windows, "__kwdefaults__", {"first": 8, "before": 0})
    pulled = 0

    class Text(str):
        __slots__ = ("__weakref__",)

    alive = []

    def endless():
        nonlocal pulled
        while True:
            pulled += 1
            text = Text(WORDS[pulled % 17])
            alive.append(weakref.ref(text))
            yield text

    vectors = embedder.encode_iter(endless())
    for _ in range(1000):
        next(vectors)
    assert pulled < 1000 + 8 * 8
    assert sum(ref() is not None for ref in alive) < 8 * 8
    vectors.close()


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([None], "text 0 is None"),
        (["a", 3], r"text 1 is 3 \(int\)"),
        (["a", "b", b"c"], r"text 2 is b'c' \(bytes\)"),
        (["a", float("nan")], r"text 1 is nan \(float\)"),
        (["a", "b \ud800"], r"text 1 holds '\\ud800', half a surrogate pair"),
        (b"a cat", "texts is one bytes"),
        (3, r"texts is 3 \(int\)"),
    ],
)
def test_a_value_that_is_not_text_is_refused_with_its_number(embedder, texts, message):
    for way in (embedder.encode, embedder.tokenize, lambda t: list(embedder.encode_iter(t))):
        with pytest.raises(errors.InputError, match=message):
            way(texts)


def test_a_single_string_is_refused_where_texts_are_needed(embedder):
    for way in (embedder.tokenize, lambda t: list(embedder.encode_iter(t))):
        with pytest.raises(errors.InputError, match="texts is one str; give a list of str"):
            way("a cat")


def test_a_null_deep_in_a_column_is_named(embedder, monkeypatch):
    arrow = pytest.importorskip("pyarrow")
    monkeypatch.setattr(inputs, "WINDOW_TEXTS", 4)
    with pytest.raises(errors.InputError, match="text 17 is None"):
        embedder.encode(arrow.array(["a"] * 17 + [None]))


def test_encode_one_takes_one_text(embedder):
    with pytest.raises(errors.InputError, match="use encode for several"):
        embedder.encode_one(["a"])


def test_a_huge_text_is_truncated_with_a_warning(embedder, folder):
    huge = "unknowable " * 50_000 + "x" * 10_000_000  # 10 MB
    with pytest.warns(
        UserWarning, match=r"text 1 reaches the limit of 24 tokens; what lies beyond is not in the vector"
    ):
        actual = embedder.encode(["a dog", huge])
    close(actual, Reference(folder).encode(["a dog", "unknowable " * 40]))


def test_a_long_text_is_refused_instead_of_truncated_on_request(embedder):
    fitting = "dog " * 22
    assert embedder.tokenize([fitting], truncate=False).lengths.tolist() == [24]
    with pytest.raises(TooLong, match="text 1 has more than the 24 tokens"):
        embedder.tokenize([fitting, fitting + "dog"], truncate=False)


def test_tokens_of_another_model_are_refused(embedder):
    def of(*ids):
        return Tokens(np.array(ids, np.int32), np.array([0, len(ids)]))

    for tokens, message in (
        (of(2, 99, 3), "token 99 is not among the 27"),
        (of(2, -1), "token -1 is not among"),
        (of(), "text 0 has no tokens"),
        (of(*[2] * 41), "text 0 has 41 tokens; .* at most 40"),
    ):
        with pytest.raises(errors.InputError, match=message):
            embedder.encode_tokens(tokens)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"device": "tpu"}, "no device 'tpu'"),
        ({"device": "cuda:x"}, "no device 'cuda:x'"),
        ({"dtype": "float8"}, "no dtype 'float8'"),
        ({"max_tokens": 41}, "takes 3 to 40"),
        ({"max_tokens": 0}, "takes 3 to 40"),
        ({"truncate_dim": 0}, "give 1 or more"),
        ({"truncate_dim": 33}, "has 32 dimensions"),
    ],
)
def test_a_wrong_option_is_one_sentence(folder, how, message):
    with pytest.raises(errors.InputError, match=message):
        Embedder(folder, **{"device": "cpu", **how})


@pytest.mark.parametrize("budget", [0, -1, "much", 1.5, None])
def test_a_bad_budget_is_refused(embedder, budget):
    with pytest.raises(errors.InputError, match="batch_tokens is"):
        embedder.encode(["a"], batch_tokens=budget)


def test_a_missing_gpu_is_an_error(folder):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(errors.InputError, match="this process sees no GPU"):
        Embedder(folder, device="cuda")
    assert Embedder(folder).device == "cpu"


@pytest.mark.parametrize(
    ("flags", "quick", "dtype"),
    [
        ("avx512f amx_bf16", True, "bfloat16"),
        ("avx512_bf16", True, "bfloat16"),
        ("asimd bf16", True, "float32"),
        ("asimd asimdhp", True, "float16"),
        ("asimd asimdhp", False, "float32"),  # a native build without it
    ],
)
def test_auto_is_a_narrow_type_only_where_the_cpu_multiplies_it(flags, quick, dtype, monkeypatch):
    monkeypatch.setattr("ridgeline.embed.devices.read_cpu_flags", lambda: frozenset(flags.split()))
    monkeypatch.setattr("ridgeline.embed.devices.float16_works", lambda: quick)
    assert str(resolve_dtype("auto", resolve_torch_device("cpu"))) == f"torch.{dtype}"
    if dtype == "float16":
        assert str(resolve_dtype("float16", resolve_torch_device("cpu"))) == "torch.float16"
    else:
        with pytest.raises(errors.InputError, match=r"is for GPUs and for ARM CPUs.* use float32 or bfloat16"):
            resolve_dtype("float16", resolve_torch_device("cpu"))


def test_cpu_features_come_from_the_linux_kernel(tmp_path):
    (tmp_path / "cpuinfo").write_text("flags\t\t: fpu amx_bf16\n")
    assert "amx_bf16" in read_cpu_flags(tmp_path / "cpuinfo")
    assert read_cpu_flags(tmp_path / "none") == frozenset()


def test_a_closed_embedder_raises(folder):
    before = set(threading.enumerate())
    with Embedder(folder, device="cpu") as embedder:
        embedder.encode(iter(TEXTS))
        assert set(threading.enumerate()) - before
    embedder.close()
    for way in (embedder.encode, lambda t: embedder.encode_one(t[0])):
        with pytest.raises(errors.InputError, match="is closed"):
            way(["a"])
    assert not set(threading.enumerate()) - before


class Small:
    """An encoder on a device with memory for this many tokens."""

    def __init__(self, encoder: Encoder, free_tokens: int) -> None:
        self.encoder, self.free_tokens, self.refused = encoder, free_tokens, []
        self.dim, self.layers = encoder.dim, encoder.layers

    def encode_arrays(self, ids, offsets):
        return None

    def __call__(self, ids, packed, prompt_tokens=0):
        import torch

        if len(ids) > self.free_tokens:
            self.refused.append(len(ids))
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return self.encoder(ids, packed)


def test_out_of_memory_halves_the_budget_with_one_warning(folder, expected):
    embedder = Embedder(folder, device="cpu", dtype="float32")
    small = embedder._encoder = Small(embedder._encoder, 30)
    with pytest.warns(UserWarning, match="out of memory on cpu") as message:
        close(embedder.encode(TEXTS, batch_tokens=300), expected)
    assert len(message) == 1
    assert len(small.refused) <= 4  # 300 → 150 → 75 → 37 → 18, never the same size again
    before = len(small.refused)
    close(embedder.encode(TEXTS), expected)  # the reduced budget stays
    assert len(small.refused) == before
    with pytest.warns(UserWarning, match="out of memory"):
        close(np.stack(list(embedder.encode_iter(TEXTS, batch_tokens=300))), expected)


def test_a_single_text_that_does_not_fit_is_an_error(folder):
    embedder = Embedder(folder, device="cpu", dtype="float32")
    embedder._encoder = Small(embedder._encoder, 4)
    with pytest.raises(errors.InputError, match=r"one text of 6 tokens does not fit into the memory of cpu"):
        embedder.encode(["the red cat runs"])


def test_another_failure_is_not_treated_as_out_of_memory(folder):
    embedder = Embedder(folder, device="cpu", dtype="float32")

    def fail(ids, packed, prompt_tokens):
        raise RuntimeError("a bug")

    embedder._encoder = fail
    with pytest.raises(errors.BatchError, match="a bug"):
        embedder.encode(["a"], batch_tokens=100)


def test_threads_may_share_an_embedder(embedder, expected):
    actual = {}

    def work(i):
        actual[i] = embedder.encode(TEXTS)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for i in range(4):
        close(actual[i], expected)


def test_repr_names_model_and_device(embedder):
    import torch

    assert "dim=32" in repr(embedder)
    assert (embedder.device, embedder.dtype, embedder.dim) == ("cpu", "float32", 32)
    layers = embedder._encoder.layers
    assert layers.budget == layers.batch_tokens["cpu"] * max(2, torch.get_num_threads())  # tokens of a batch


def test_messages_about_a_file_count_its_rows(folder, tmp_path):
    rows = [json.dumps({"text": "dog " * 600 if k == 17 else "a dog"}) for k in range(25)]
    (tmp_path / "in.jsonl").write_text("\n".join(rows) + "\n", encoding="ascii")
    with (
        Embedder(folder, device="cpu", dtype="float32") as whole,
        pytest.warns(UserWarning, match="text 17 reaches the limit"),
    ):
        embed_file(whole, tmp_path / "in.jsonl", tmp_path / "out.npy", chunk=10)
    assert len(np.load(tmp_path / "out.npy")) == 25


def test_a_part_of_many_texts_is_counted_from_its_first(embedder):
    np.testing.assert_array_equal(embedder.encode_part(TEXTS, 100), embedder.encode(TEXTS))
    with pytest.raises(errors.InputError, match="text 101 is 3"):
        embedder.encode_part(["a dog", 3], 100)
    with pytest.raises(errors.InputError, match="text 102 holds"):
        embedder.encode_part(["a dog", "a dog", "a \ud800 dog"], 100)


def test_few_texts_of_any_lengths_have_the_bits_of_many(folder):
    """A small batch on a CPU takes the short way, without stages; one with a given batch size does not."""
    embedder = Embedder(folder, device="cpu", dtype="float32", batch_invariant=True)
    texts = ["the red cat runs", "a", "the cat", "the red cat", "a cat", "the"]
    short = embedder.encode(texts)
    assert (short == embedder.encode(texts, batch_tokens=1000)).all()
    assert (short == embedder.encode(texts * 1000)[: len(texts)]).all()
    assert (short[::-1] == embedder.encode(texts[::-1])).all()


def test_few_texts_do_not_start_the_stages_of_many(folder, monkeypatch):
    embedder = Embedder(folder, device="cpu", dtype="float32")
    monkeypatch.setattr(embedder, "_encode_windows", None)
    assert embedder.encode(["the cat", "a"]).shape == (2, embedder.dim)
    assert embedder.encode_tokens(embedder.tokenize(["the cat", "a"])).shape == (2, embedder.dim)

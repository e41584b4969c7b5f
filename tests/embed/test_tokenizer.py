"""The tokenizer of a folder matches `tokenizers` for any text, and works without `tokenizers`."""

from __future__ import annotations

import csv
import gzip
import json
import random
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.embed.oracle import SPECIAL, Pair, describe_tokenizer, model_folder, real

from ridgeline.embed import Tokens, load_tokenizer
from ridgeline.embed.wordpiece import parse_bert_tokenizer
from ridgeline.errors import InputError

HARD = [
    "Toy Story (1995). Genres: Animation, Children's, Comedy", "network.ovs.bridge.create br0 192.168.1.1/24",
    "naïve café ΑΒΓ Straße ﬁ", "东京都 の 天気", "a" * 300, "", "\u200b\x00tab\tnl\n", "İstanbul ǅ ẞ", "e\u0301 vs é",
    "👍🏽 ok", "don't... stop-it!!", "a[SEP]b [MASK][[CLS][CLS]] [SE P] [sep]", "ΟΔΟΣ ΣΑΣ", "한국어 각\u11a8",
    "x" * 100, "x" * 101, "é" * 100, "é" * 101, "각" * 33, "각" * 34, "a\x00b\u00adc\u0300d", "\u3000全角　ＡＢＣ",
    "[UNK]\ud7a3[PAD]", " ", "\n", "\x00",
]  # fmt: skip
WORDS = ["the", "Movie", "EMBEDDING", "tokenization", "unaffable", "kubernetes", "0x7f3a", "1995"]
WORDS += ["antidisestablishmentarianism"]
PIECES = ["##s", "##ing", "##able", "un", "##aff", "token", "##ization", "movie", "embed", "##ding", "19", "##95", "0"]
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
PAD = {"strategy": {"Fixed": 32}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 1, "pad_type_id": 0}


@cache
def small():
    """A small vocabulary that distinguishes many texts."""
    characters = [chr(c) for c in (*range(33, 127), *range(0xA1, 0x180), *range(0x391, 0x460), *range(0x3041, 0x3097))]
    characters += [
        chr(c) for c in (*range(0x1100, 0x1200), *range(0x4E00, 0x4F00), *range(0x1F600, 0x1F640), 0x302E, 0x1D165)
    ]
    letters = [c for c in characters if c.isalnum()]
    return Pair(describe_tokenizer([*characters, *(f"##{c}" for c in letters), *WORDS[:2], *PIECES, "the"]))


cached_real = cache(real)


def texts():
    """Mixtures of words, punctuation, scripts, marks, special tokens, controls and very long words."""
    block = st.one_of(
        st.sampled_from([*WORDS, *(p.removeprefix("##") for p in PIECES)]),
        st.sampled_from([*SPECIAL, "[SEP", "[", "]", "[[MASK]]", "[sep]", "##s", "...", " ", "  ", "\t", "\n"]),
        st.text(st.characters(codec="utf-8"), max_size=12),
        st.text(st.characters(codec="ascii"), max_size=20),
        st.text(st.characters(min_codepoint=0x80, max_codepoint=0xFF), max_size=8),
        st.text(st.characters(min_codepoint=0x300, max_codepoint=0x36F), max_size=5),
        st.text(st.characters(min_codepoint=0xAC00, max_codepoint=0xD7A3), max_size=6),
        st.text(st.characters(min_codepoint=0x4E00, max_codepoint=0x4EFF), max_size=6),
        st.text(st.sampled_from("\u302e\u302f\U0001d165\U0001d16d\U0001d15e\u1b44\u08d4\u0f71\u0301"), max_size=6),
        st.text(st.sampled_from("\x00\x01\x0b\x7f\x85\u00a0\u00ad\u200b\u2028\u3000\ufeff\ufffd\ue000"), max_size=4),
        st.builds(
            lambda c, n: c * n, st.sampled_from(["a", "é", "각", "e\u0301", "a\u200b", "ß"]), st.integers(90, 110)
        ),
        st.builds(str.title, st.sampled_from(WORDS)),
    )
    return st.lists(st.one_of(block, st.just(" ")), max_size=14).map("".join)


@settings(max_examples=250, deadline=None)
@given(st.lists(texts(), max_size=12), st.one_of(st.none(), st.integers(2, 40)))
def test_any_text_has_the_tokens_of_hugging_face(some, max_tokens):
    small().check(some, max_tokens)


@settings(max_examples=150, deadline=None)
@given(st.lists(texts(), max_size=12), st.one_of(st.none(), st.integers(2, 40)))
def test_any_text_in_the_real_vocabulary(some, max_tokens):
    cached_real().check(some, max_tokens)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(texts(), min_size=1, max_size=8),
    st.fixed_dictionaries(dict.fromkeys(("clean_text", "handle_chinese_chars", "lowercase"), st.booleans())),
    st.sampled_from([None, True, False]),
    st.sampled_from([1, 3, 15, 16, 17, 100]),
)
def test_any_settings(some, switches, strip_accents, longest):
    description = describe_tokenizer([*LETTERS, *(f"##{c}" for c in LETTERS[:30] + "é"), *WORDS, *PIECES])
    description["normalizer"].update(switches, strip_accents=strip_accents)
    description["model"]["max_input_chars_per_word"] = longest
    Pair(description).check(some)


@pytest.mark.parametrize("max_tokens", [None, 2, 3, 4, 7, 256])
@pytest.mark.parametrize("threads", [1, 2])
def test_hard_texts(max_tokens, threads):
    small().check(HARD, max_tokens, threads)
    cached_real().check(HARD, max_tokens, threads)


@pytest.mark.slow
def test_many_random_texts_on_several_threads():
    R = random.Random(3)
    spans = [(32, 126), (32, 126), (160, 0x2FFF), (0x3000, 0xD7FF), (0x10000, 0x1FFFF)]
    wild = ["".join(chr(R.randint(*R.choice(spans))) for _ in range(R.randint(1, 60))) for _ in range(8000)]
    words = [w for w in (model_folder() / "vocab.txt").read_text(encoding="utf-8").split("\n") if w.isalpha()]
    plain = [" ".join(R.choices(words, k=R.randint(1, 60))).title() for _ in range(4000)]
    glued = ["".join(R.choices(words, k=R.randint(1, 9))) for _ in range(4000)]  # few words are single tokens
    for threads in (1, 2, 5):
        cached_real().check([*HARD, *wild, *plain, *glued], 64, threads)


def test_a_vocabulary_of_short_pieces_and_long_words():
    R = random.Random(4)
    pieces = {"".join(R.choices("ab", k=R.randint(1, 12))) for _ in range(300)}
    tokens = [
        *pieces,
        *(f"##{p}" for p in pieces if R.random() < 0.7),
        "a",
        "##a",
        "b" * 40,
        "##" + "a" * 40,
        "##é",
        "aé",
    ]
    some = ["".join(R.choices("ab", k=R.randint(1, 60))) for _ in range(5000)]
    some += ["".join(R.choices(["a", "b", "é", "bb"], k=R.randint(1, 30))) for _ in range(3000)]
    Pair(describe_tokenizer(tokens)).check(some)


@pytest.mark.slow
def test_real_titles_and_log_lines(data):
    movies, tags = (data / "movielens" / "ml-latest-small" / name for name in ("movies.csv", "tags.csv"))
    actual = []
    for path in (movies, tags):
        if path.is_file():
            with path.open(encoding="utf-8", newline="") as file:
                actual += [". ".join(row) for row in csv.reader(file)]
    for path in sorted((data / "logs").glob("*.log")):
        actual += path.read_text(encoding="utf-8", errors="replace").split("\n")
    for path in sorted((data / "logs").glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            actual += [line[:2000] for _, line in zip(range(500), file, strict=False)]
    if not actual:
        pytest.skip("neither movielens nor logs in the folder of datasets")
    cached_real().check(actual)
    cached_real().check(actual, 32)


def test_a_very_long_text_is_read_only_as_far_as_needed():
    some = ["word and " * 1_200_000, "x" * 10_000_000, "é " * 3_000_000, "中" * 3_000_000]
    tokens = small().native.encode(some, 256)
    assert tokens.lengths.tolist() == [256, 3, 256, 256]
    small().check([text[:20_000] for text in some], 256)
    assert np.array_equal(tokens[0], small().native.encode([some[0][:20_000]], 256)[0])


def test_without_a_limit_a_long_text_is_complete():
    cached_real().check([" ".join(WORDS * 3000), "中文字" * 5000, "a!" * 9000])


@pytest.mark.parametrize(("bad", "index", "word"), [
    ([None], 0, "NoneType"), (["a", 3], 1, "int: 3"), (["a", b"b"], 1, "bytes"),
    (["a", "b", "x\ud800y"], 2, "character 1"),
    (["ok"] * 5000 + ["\udfff"], 5000, "surrogate"), (["a " * 500 + "\U0001f600 \ud83d"], 0, "character 1002"),
    (["\ud800"] + ["fine " * 50] * 4000 + ["\ud801"], 0, "surrogate"),
])  # fmt: skip
def test_a_value_that_is_not_text_is_refused_with_its_index(bad, index, word):
    with pytest.raises(TypeError):
        small().peer_tokens.encode_batch_fast(bad)
    for tokenizer in (small().native, fallback()):
        with pytest.raises(InputError, match=rf"text {index}\b.*{word}"):
            tokenizer.encode(bad, 16)


def test_one_string_is_refused_and_a_limit_includes_the_special_tokens():
    for tokenizer in (small().native, fallback()):
        with pytest.raises(InputError, match="one str"):
            tokenizer.encode("text")
        with pytest.raises(InputError, match="a int"):
            tokenizer.encode(7)
        with pytest.raises(InputError, match="max_tokens is 1"):
            tokenizer.encode(["text"], 1)
        assert tokenizer.encode([]).offsets.tolist() == [0]
        assert tokenizer.encode(("a", "b")).ids.tolist() == tokenizer.encode(iter(["a", "b"])).ids.tolist()


def test_tokens_are_one_flat_array():
    tokens = small().native.encode(["the the", "", "the"])
    assert isinstance(tokens, Tokens)
    assert (tokens.ids.dtype, tokens.offsets.dtype) == (np.int32, np.int64)
    assert tokens.lengths.tolist() == [4, 2, 3]
    assert [t.tolist() for t in tokens] == [tokens[0].tolist(), tokens[1].tolist(), tokens[-1].tolist()]


# --- folders


def write(folder, description):
    (folder / "tokenizer.json").write_text(json.dumps(description), encoding="utf-8")
    return load_tokenizer(folder)


def word_level():
    return {
        **describe_tokenizer(["x"]),
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "truncation": {"direction": "Left", "max_length": 8, "strategy": "LongestFirst", "stride": 0},
        "padding": {**PAD, "pad_token": "[UNK]"},
        "model": {
            "type": "WordLevel",
            "vocab": {token: k for k, token in enumerate([*SPECIAL, "one", "two", "three"])},
            "unk_token": "[UNK]",
        },
    }


@cache
def fallback():
    from ridgeline.embed.hugging_face import HuggingFaceTokenizer

    description = describe_tokenizer(["a", "b", "text"])
    description["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Lowercase"}]}
    why = parse_bert_tokenizer(description)
    assert isinstance(why, str)
    return HuggingFaceTokenizer(description, why=why, path=Path("tokenizer.json"))


def test_other_tokenizers_use_the_library(tmp_path):
    pytest.importorskip("tokenizers")
    tokenizer = write(tmp_path, word_level())
    assert not tokenizer.native
    assert tokenizer.why == "its model is WordLevel"
    assert tokenizer.encode(["one two", "", "three four"]).ids.tolist() == [5, 6, 7, 1]
    assert tokenizer.encode(["one two three"] * 2, 2).ids.tolist() == [6, 7, 6, 7]  # truncated on the left
    assert tokenizer.encode(["one two three"]).offsets.tolist() == [0, 3]
    assert (tokenizer.vocabulary_size, tokenizer.pad_id, tokenizer.special["[SEP]"]) == (8, 1, 3)


def test_the_real_folder_is_native():
    tokenizer = load_tokenizer(model_folder())
    assert (tokenizer.native, tokenizer.why, tokenizer.vocabulary_size, tokenizer.pad_id) == (True, "", 30522, 0)
    assert tokenizer.special == {"[PAD]": 0, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102, "[MASK]": 103}
    assert tokenizer.encode(["hello world"]).ids.tolist() == [101, 7592, 2088, 102]


@pytest.mark.parametrize(
    "normalizer",
    [
        None,
        {"type": "NFC"},
        {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "StripAccents"}]},
        {"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "Lowercase"}]},
        *(
            {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, **options}
            for options in (
                {"strip_accents": None, "lowercase": True},
                {"strip_accents": False, "lowercase": True},
                {"strip_accents": None, "lowercase": False},
                {"strip_accents": True, "lowercase": False},
            )
        ),
    ],
)
@given(text=st.text(st.sampled_from("aAÀàǅßẞİΣς \t\u0301\u0307東Ⅷ"), max_size=8))
def test_lower_case_comes_before_the_normalizer_and_leaves_special_tokens(tmp_path_factory, normalizer, text):
    folder = tmp_path_factory.mktemp("lower")
    letters = ["a", "à", "ß", "i", "\u0307", "\u0301", "σ", "ς", "東", "ⅷ", "A", "À", "##a", "##à", "##σ", "##A"]
    description = {**describe_tokenizer(letters), "normalizer": normalizer}
    (folder / "tokenizer.json").write_text(json.dumps(description))
    # as sentence-transformers puts it there
    steps = [] if normalizer is None else normalizer.get("normalizers", [normalizer])
    if {"type": "Lowercase"} not in steps:
        steps = [{"type": "Lowercase"}, *steps]
    expected = {**description, "normalizer": {"type": "Sequence", "normalizers": steps}}
    peer = pytest.importorskip("tokenizers").Tokenizer.from_str(json.dumps(expected))
    text = f"{text}[MASK]{text}"
    tokens = load_tokenizer(folder, lower=True).encode([text])
    assert tokens.ids.tolist() == peer.encode(text).ids
    assert SPECIAL.index("[MASK]") in tokens.ids


def test_a_folder_with_only_a_vocabulary(tmp_path):
    lines = (model_folder() / "vocab.txt").read_text(encoding="utf-8")
    (tmp_path / "vocab.txt").write_text(lines, encoding="utf-8")
    full_tokens, bare = load_tokenizer(model_folder()), load_tokenizer(tmp_path)
    assert bare.native
    assert bare.special == full_tokens.special
    assert np.array_equal(bare.encode(HARD).ids, full_tokens.encode(HARD).ids)
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"do_lower_case": False, "cls_token": {"content": "[CLS]"}})
    )
    assert load_tokenizer(tmp_path).encode(["HELLO"]).ids.tolist() != bare.encode(["HELLO"]).ids.tolist()
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "MPNetTokenizer"}')
    with pytest.raises(InputError, match="MPNetTokenizer"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(("file", "content", "word"), [
    (None, "", "neither tokenizer.json nor vocab.txt"), ("tokenizer.json", "{", "not JSON"),
    ("tokenizer.json", "[]", "list"), ("vocab.txt", "a\nb\n", "lacks the token"),
    ("tokenizer.json", '{"model": {"type": "Sorcery"}}', "no tokenizer that this release"),
])  # fmt: skip
def test_a_missing_folder_is_one_sentence(tmp_path, file, content, word):
    pytest.importorskip("tokenizers")
    if file:
        (tmp_path / file).write_text(content)
    with pytest.raises(InputError, match=word):
        load_tokenizer(tmp_path)


OTHER = [
    (["normalizer", "type"], "Lowercase"), (["normalizer", "extra"], 1), (["normalizer"], None),
    (["normalizer", "lowercase"], "yes"), (["pre_tokenizer"], {"type": "Whitespace"}), (["pre_tokenizer"], None),
    (["pre_tokenizer", "extra"], 1), (["model", "type"], "BPE"), (["model", "continuing_subword_prefix"], "@@"),
    (["model", "unk_token"], "nowhere"), (["model", "max_input_chars_per_word"], 0), (["model", "extra"], 1),
    (["model", "vocab", "far"], 10**9), (["model", "vocab", "same"], 3), (["added_tokens", 0, "lstrip"], True),
    (["added_tokens", 0, "rstrip"], True), (["added_tokens", 0, "normalized"], True),
    (["added_tokens", 0, "single_word"], True), (["added_tokens", 0, "content"], "word"),
    (["added_tokens", 0, "content"], ""), (["added_tokens", 0, "id"], 9), (["truncation"], {"direction": "Left"}),
    (["added_tokens", 0], {}), (["model", "vocab", "\ud800"], 7), (["anything"], {}),
    (["post_processor", "special_tokens", "[SEP]", "ids"], ["x"]), (["post_processor", "single", 0], 3),
    (["post_processor", "type"], "RobertaProcessing"), (["post_processor", "single"], []),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value"), OTHER, ids=lambda v: ".".join(map(str, v)) if isinstance(v, list) else None)
def test_tokenizers_that_differ_from_bert_are_not_native(path, value):
    description = describe_tokenizer(["a", "b"])
    assert not isinstance(parse_bert_tokenizer(description), str)
    *way, last = path
    place = description
    for key in way:
        place = place[key]
    place[last] = value
    assert isinstance(parse_bert_tokenizer(description), str)


def test_added_tokens_of_every_plain_kind_are_found_in_the_raw_text():
    description = describe_tokenizer(["<", ">", "e", "mask", "user", "##s", "[", "]", "x", "##x", "1", "_"])
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    beyond = len(description["model"]["vocab"])
    for k, content in enumerate(["<e>", "<e>x", "<E>", "[x y]", "_é中", "!\u0301", "[\x00]"]):
        description["added_tokens"].append({"id": beyond + k, "content": content, "special": k % 2 == 0, **plain})
    R = random.Random(5)
    parts = [
        "<e>",
        "<E>",
        "<e>x",
        "x",
        "<",
        "e",
        ">",
        "[x y]",
        "[X Y]",
        "_é中",
        "_é",
        "中",
        "!\u0301",
        "!",
        "\u0301",
        "[\x00]",
        " ",
        "[SEP]",
        "\U0001d165",
    ]
    Pair(description).check(["".join(R.choices(parts, k=R.randint(1, 9))) for _ in range(20_000)])
    assert Pair(description).native.vocabulary_size == beyond + 7


@pytest.mark.parametrize("processor", [None, {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}])
def test_other_special_tokens_around_a_text(processor):
    description = describe_tokenizer(["a", "##a"])
    description["post_processor"] = processor
    Pair(description).check(["a aa", "", "b a"], 4)


def test_bert_needs_no_other_package(tmp_path):
    (tmp_path / "tokenizer.json").write_text(
        json.dumps(describe_tokenizer(["naive", "##ly", "中", "ᄀ", "##ᅡ"])), encoding="utf-8"
    )
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "tokenizer.json").write_text(json.dumps(word_level()))
    code = f"""
import sys
for name in ("tokenizers", "transformers", "torch"): sys.modules[name] = None
from ridgeline.embed import load_tokenizer
from ridgeline.errors import MissingExtra
print(load_tokenizer({str(tmp_path)!r}).encode(["Naïvely 中가"]).ids.tolist())
try: load_tokenizer({str(tmp_path / "other")!r})
except MissingExtra as error: print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == [
        "[2, 5, 6, 7, 8, 9, 3]",
        f"The tokenizer of {tmp_path / 'other' / 'tokenizer.json'} is not native (its model is WordLevel): it needs an "
        "optional part: pip install '.[embed]' in the folder of Ridgeline's sources.",
    ]

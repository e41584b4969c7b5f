"""Unigram and byte-pair tokenizers match `tokenizers` for any text, and stop at their limit."""

from __future__ import annotations

import gc
import json
import random
import resource
import subprocess
import sys
import threading
from functools import cache
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.embed.oracle import describe_tokenizer, model_folder

from ridgeline.embed import load_tokenizer
from ridgeline.embed.subword import load_subword
from ridgeline.errors import InputError

tokenizers = pytest.importorskip("tokenizers")
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, processors, trainers  # noqa: E402

N, P = normalizers, pre_tokenizers
WORDS = [
    "the", "Movie", "don't", "I'LL", "embedding", "100,000", "1995", "naïve", "café", "ΑΒΓ", "Straße", "ﬁ", "e\u0301",
    "东京都の天気", "한국어", "각\u11a8", "क्षि", "İstanbul", "ſ",
]  # fmt: skip
HARD = [
    "Toy Story (1995). Genres: Animation, Children's", "naïve café ΑΒΓ Straße ﬁ", "东京都 の 天気 は", "a" * 300, "",
    " ", "don't... stop-it!!  two  spaces ", "  lead", "trail \n", "e\u0301 vs é", "👍🏽 ok 👩\u200d👩\u200d👧",
    "İstanbul ǅ ẞ", "line\r\n\r\n  break\ttab",
    "100,000 & 3.14 １２３", "I'LL we'RE 'ſ 's't", "한국어 각\u11a8", "▁a▁▁ ▁b",
    "क्षि ©\u200d© 🇩🇪🇫🇷🇩", "<s>a</s> <mask> x<mask>y  <unk>", "\u0600a\u0301 \r\u0301\n", "x" * 70 + "é" * 70,
    "``quoted''", "\x00\x01\x7f\x85\u200b\ufeff", "[UNK][CLS] e[MASK]", "   <mask>   x", "0 ",
]  # fmt: skip
TIKTOKEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
RICH = [
    c for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000 and (c < 0x3400 or 0xA000 <= c < 0x20000 or c % 97 == 0)
]


@cache
def script():
    """scripts/characters, which can write SentencePiece's tables of replacements."""
    loader = SourceFileLoader("characters", str(Path(__file__).parents[2] / "scripts" / "characters"))
    module = module_from_spec(spec_from_loader("characters", loader))
    loader.exec_module(module)
    return module


def precompiled(replacements):
    return normalizers.Precompiled(script().make_charsmap(replacements))


@cache
def charsmap():
    """The kind of table that XLM-R has (`nmt_nfkc`), smaller: white space, widths, ligatures and accents."""
    nfkc = normalizers.NFKC().normalize_str
    table = {chr(c): " " for c in (9, 10, 13, 0xA0, 0x1680, *range(0x2000, 0x2010), 0x2028, 0x2029, 0x3000, 0xFEFF)}
    table.update(
        {chr(c): nfkc(chr(c)) for c in (0xAA, 0xB2, 0x132, 0x1C4, 0x2126, 0xFB01, 0xFB03, *range(0xFF01, 0xFF20))}
    )
    table.update({f"{a}{m}": nfkc(f"{a}{m}") for a in "aeiouAE" for m in "\u0300\u0301\u0302\u0308"})
    table.update(
        {
            "\x01": "",
            "\x7f": "",
            "e": "e",
            "\u0915": "K",
            "\u0915\u094d": "k",
            "\u00a9": "(c)",
            "\u0301": "'",
            "\u200b": " ",
        }
    )
    return precompiled(table)


def train(model, trainer, normalizer, pre_tokenizer):
    tokenizer = tokenizers.Tokenizer(model)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    R = random.Random(1)
    tokenizer.train_from_iterator([" ".join(R.choices(WORDS, k=6)) for _ in range(400)] + HARD, trainer)
    return tokenizer


def unigram(normalizer, pre_tokenizer, size=400):
    trainer = trainers.UnigramTrainer(vocab_size=size, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False)
    tokenizer = train(models.Unigram(), trainer, normalizer, pre_tokenizer)
    return frame(tokenizer, AddedToken("<mask>", lstrip=True, normalized=False))


def byte_pairs(normalizer, pre_tokenizer, rstrip=True, **model):
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer = train(models.BPE(**model), trainer, normalizer, pre_tokenizer)
    return frame(tokenizer, AddedToken("<mask>", lstrip=True, normalized=False), AddedToken("[MASK]", rstrip=rstrip))


def frame(tokenizer, *added):
    tokenizer.add_tokens(list(added))
    ends = [("<s>", tokenizer.token_to_id("<s>")), ("</s>", tokenizer.token_to_id("</s>"))]
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
    return tokenizer


def tiktoken(digits):
    split = pre_tokenizers.Split(Regex(TIKTOKEN % digits), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def of_characters():
    """Byte pairs of characters with tokens for bytes, as Gemma has them."""
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL, show_progress=False, limit_alphabet=60)
    mark = normalizers.Replace(" ", "▁")
    tokenizer = train(models.BPE(), trainer, mark, pre_tokenizers.Metaspace(prepend_scheme="never"))
    description = json.loads(tokenizer.to_str())
    vocabulary = description["model"]["vocab"]
    for byte in range(256):
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    description["model"].update(byte_fallback=True, fuse_unk=True, unk_token="<unk>")
    description["pre_tokenizer"] = {
        "type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False,
    }  # fmt: skip
    return frame(
        tokenizers.Tokenizer.from_str(json.dumps(description)),
        AddedToken("\n\n", normalized=False),
        AddedToken("▁▁", normalized=False),
    )


def modernbert():
    tokenizer = byte_pairs(N.NFC(), P.ByteLevel(add_prefix_space=False), rstrip=False)
    tokenizer.add_tokens(
        [AddedToken(" " * k, normalized=True) for k in (8, 4, 2)] + [AddedToken("ünk", normalized=True)]
    )
    return tokenizer


def mpnet():
    """WordPiece with MPNet's added tokens: one is matched after normalization, one takes the space before it."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789<>[]().,!'"
    description = describe_tokenizer([*letters, *(f"##{c}" for c in letters), "the", "##ing", "movie", "天", "é"])
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    first = len(description["model"]["vocab"])
    description["added_tokens"] += [
        {"id": first, "content": "<unk>", **plain, "normalized": True},
        {"id": first + 1, "content": "<mask>", **plain, "lstrip": True},
    ]
    description["post_processor"] = {
        "type": "RobertaProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2], "trim_offsets": True,
        "add_prefix_space": False,
    }  # fmt: skip
    return tokenizers.Tokenizer.from_str(json.dumps(description))


def with_bytes():
    tokenizer = unigram(None, pre_tokenizers.Metaspace())
    description = json.loads(tokenizer.to_str())
    first = len(description["model"]["vocab"])
    description["model"]["vocab"] += [[f"<0x{byte:02X}>", -20.0] for byte in range(256)]
    description["model"]["byte_fallback"] = True
    description["added_tokens"] = [row for row in description["added_tokens"] if row["id"] < first]
    return tokenizers.Tokenizer.from_str(json.dumps(description))


SPACES = N.Replace(Regex(" {2,}"), " ")
KINDS = {
    "unigram": lambda: unigram(N.Sequence([N.Nmt(), N.NFKC(), SPACES]), P.Metaspace()),
    "xlm-r": lambda: unigram(charsmap(), P.Sequence([P.WhitespaceSplit(), P.Metaspace()])),
    "bge-m3": lambda: unigram(
        N.Sequence([charsmap(), N.Strip(left=False, right=True), N.Replace(Regex(" {2,}"), "▁")]), P.Metaspace()
    ),
    "deberta-v3": lambda: unigram(N.Sequence([N.Strip(), charsmap(), SPACES]), P.Metaspace()),
    "albert": lambda: unigram(
        N.Sequence([N.Replace("``", '"'), N.NFKD(), N.StripAccents(), N.Lowercase(), charsmap(), SPACES]),
        P.Metaspace(),
    ),
    "plain": lambda: unigram(N.NFD(), P.Metaspace(prepend_scheme="never")),
    "unigram-bytes": with_bytes,
    "mpnet": mpnet,
    "gpt2": lambda: byte_pairs(None, P.ByteLevel(add_prefix_space=False)),
    "roberta": lambda: byte_pairs(None, P.ByteLevel(add_prefix_space=True)),
    "modernbert": modernbert,
    "qwen3": lambda: byte_pairs(N.NFC(), tiktoken(r"\p{N}")),
    "llama3": lambda: byte_pairs(None, tiktoken(r"\p{N}{1,3}"), ignore_merges=True),
    "gemma3": of_characters,
}  # fmt: skip


class Pair:
    """The native tokenizer and the one it must equal."""

    def __init__(self, peer):
        ours = load_subword(json.loads(peer.to_str()))
        assert not isinstance(ours, str), ours
        self.native, self.peer = ours, peer

    def check(self, texts, max_tokens=None, threads=None):
        ours = self.native.encode(texts, max_tokens, threads)
        if max_tokens is None:
            self.peer.no_truncation()
        else:
            self.peer.enable_truncation(max_tokens)
        for k, encoding in enumerate(self.peer.encode_batch_fast(texts)):
            if ours[k].tolist() != encoding.ids:
                raise AssertionError(f"{texts[k]!a}: {ours[k].tolist()[:60]} is not {encoding.ids[:60]}")


@cache
def pair(kind):
    return Pair(KINDS[kind]())


def texts():
    """Mixtures of words, scripts, marks, added tokens, white space and controls."""
    block = st.one_of(
        st.sampled_from([*WORDS, *HARD]),
        st.sampled_from(["<mask>", "<s>", "<UNK>", "≮u\u0301nk>", "[MASK]", "ünk", "u\u0308nk", "    ", "\n\n", "▁▁"]),
        st.text(st.characters(codec="utf-8"), max_size=12),
        st.text(st.characters(codec="ascii"), max_size=20),
        st.text(st.characters(min_codepoint=0x300, max_codepoint=0x36F), max_size=4),
        st.text(st.characters(min_codepoint=0x1100, max_codepoint=0x11FF), max_size=4),
        st.text(st.characters(min_codepoint=0x900, max_codepoint=0x9FF), max_size=6),
        st.text(st.sampled_from(" \t\n\r\x0b\u00a0\u2028\u3000'"), max_size=6),
        st.text(st.sampled_from("a\u0600e\u0301\u200d\u00a9\u00ae\U0001f1e6\u0915\u094d\u200b\r\n\u0e33"), max_size=8),
    )  # fmt: skip
    return st.lists(st.one_of(block, st.just(" ")), max_size=10).map("".join)


@pytest.mark.parametrize("kind", KINDS)
def test_hard_texts(kind):
    for max_tokens, threads in ((None, 1), (2, 1), (3, 2), (7, 2), (64, 1)):
        pair(kind).check(HARD, max_tokens, threads)


@pytest.mark.parametrize("kind", ["bge-m3", "mpnet", "modernbert", "qwen3", "gemma3"])
@settings(max_examples=50, deadline=None)
@given(some=st.lists(texts(), max_size=6), max_tokens=st.one_of(st.none(), st.integers(2, 40)))
def test_any_text_has_the_tokens_of_hugging_face(kind, some, max_tokens):
    pair(kind).check(some, max_tokens)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=500, deadline=None)
@given(some=st.lists(texts(), max_size=8), max_tokens=st.one_of(st.none(), st.integers(2, 40)))
def test_any_text_in_every_kind(kind, some, max_tokens):
    pair(kind).check(some, max_tokens)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bge-m3", "modernbert", "qwen3", "gemma3"])
def test_every_code_point(kind):
    characters = [chr(c) for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]
    pair(kind).check([" x".join(characters[k : k + 32]) for k in range(0, len(characters), 32)])
    for form in ("{0}a{0}b {0}{0}", "'{0}e1{0}\u0301 "):
        pair(kind).check([form.format(chr(c)) for c in RICH])


@cache
def every_character(replaced):
    """Unigram pieces that distinguish all characters, so that nothing a normalizer does stays hidden."""
    characters = [chr(c) for c in RICH]
    vocabulary = [("<unk>", 0.0), ("▁", -1.0), *((c, -2.0) for c in characters if c != "▁")]
    peer = tokenizers.Tokenizer(models.Unigram(vocabulary, 0, False))
    peer.normalizer = replaced() if callable(replaced) else getattr(normalizers, replaced)()
    peer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    return Pair(peer)


@pytest.mark.slow
@pytest.mark.parametrize(
    "normalizer",
    ["Nmt", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Strip", "BertNormalizer", charsmap],
)
def test_every_character_in_every_normalizer(normalizer):
    for form in (
        "{0}a{0}\u0301\u0323 {0}",
        "e{0}\u0345\u0f71 {0}\u1100{0}\u1161{0}\u11a8",
        "\u0600{0}e\u0301\u0301{0}\u200d\u00a9\u0301",
    ):
        every_character(normalizer).check([form.format(chr(c)) for c in RICH])


@pytest.mark.slow
@pytest.mark.parametrize("normalizer", ["NFC", "NFKC", "NFD", charsmap])
def test_marks_and_joiners_in_every_order(normalizer):
    R = random.Random(3)
    pool = [
        chr(c) for c in RICH if normalizers.NFD().normalize_str(f"a\u0301{chr(c)}\u0323") != f"a\u0301{chr(c)}\u0323"
    ]
    pool += (
        list(
            "aeo\u1100\u1161\u11a8\uac00\uac01\u0915\u094d\u0937\u200d\u00a9\u231a\U0001f469\U0001f1e6\U0001f1e9\u0600\u0e33\r\n\u200b"
        )
        * 12
    )
    every_character(normalizer).check(["".join(R.choices(pool, k=R.randint(2, 9))) for _ in range(60_000)])


@pytest.mark.slow
def test_many_random_texts_on_several_threads():
    R = random.Random(3)
    spans = [(32, 126), (32, 126), (160, 0x2FFF), (0x3000, 0xD7FF), (0x10000, 0x1FFFF)]
    wild = ["".join(chr(R.randint(*R.choice(spans))) for _ in range(R.randint(1, 60))) for _ in range(4000)]
    plain = [" ".join(R.choices(WORDS, k=R.randint(1, 60))) for _ in range(4000)]
    for kind in KINDS:
        for threads in (1, 2, 5):
            pair(kind).check([*HARD, *wild, *plain], 64, threads)


@pytest.mark.parametrize("kind", ["bge-m3", "xlm-r", "modernbert", "gemma3"])
def test_a_long_text_is_encoded_in_parts(kind):
    R = random.Random(2)
    long = " ".join(R.choices([*WORDS, " ", "<mask>", "\n", "x'S", "  12"], k=12_000))
    some = [long, long.replace("é", "e"), "ab" * 5_000, "天気" * 5_000]
    for max_tokens in (None, 40, 10_000):
        pair(kind).check(some, max_tokens)


def test_a_very_long_text_is_read_only_as_far_as_needed():
    some = ["word and " * 1_200_000, "é words " * 1_000_000]
    for kind in ("bge-m3", "qwen3", "gemma3"):
        tokens = pair(kind).native.encode(some, 256)
        assert tokens.lengths.tolist() == [256, 256]
        pair(kind).check([text[:20_000] for text in some], 256)
        assert np.array_equal(tokens[0], pair(kind).native.encode([some[0][:20_000]], 256)[0])


@pytest.mark.parametrize(("bad", "index"), [([None], 0), (["a", "b\ud800"], 1), (["ok é中"] * 3000 + ["\udfff"], 3000)])
def test_a_value_that_is_not_text_is_refused_with_its_index(bad, index):
    for kind in ("bge-m3", "qwen3"):
        with pytest.raises(InputError, match=rf"text {index}\b"):
            pair(kind).native.encode(bad, 16)
        with pytest.raises(InputError, match="max_tokens is 1"):
            pair(kind).native.encode(["text"], 1)


def test_repeated_calls_leak_no_memory():
    some = ["Movie don't 1995 é 中 <mask> " * 40, "plain words " * 40] * 20
    for kind in ("bge-m3", "qwen3", "gemma3"):
        tokenizer = pair(kind).native

        def rounds(n, tokenizer=tokenizer):
            for _ in range(n):
                tokenizer.encode(some, 64, 2)

        rounds(20)
        gc.collect()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        rounds(100)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 8 << 10  # KiB


def test_callers_on_many_threads_do_not_disturb_each_other():
    some, wrong = [*HARD, *WORDS] * 40, []
    for kind in ("bge-m3", "llama3"):
        expected = pair(kind).native.encode(some).ids.tolist()

        def call(kind=kind, expected=expected):
            wrong.extend(k for k in range(5) if pair(kind).native.encode(some, threads=2).ids.tolist() != expected)

        callers = [threading.Thread(target=call) for _ in range(4)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    assert not wrong


# --- folders


def test_a_folder_is_native_without_another_package(tmp_path):
    for kind in ("bge-m3", "qwen3"):
        (tmp_path / kind).mkdir()
        pair(kind).peer.no_truncation()
        pair(kind).peer.save(str(tmp_path / kind / "tokenizer.json"))
    code = f"""
import sys
for name in ("tokenizers", "transformers", "torch"): sys.modules[name] = None
from ridgeline.embed import load_tokenizer
for kind in ("bge-m3", "qwen3"):
    tokenizer = load_tokenizer({str(tmp_path)!r} + "/" + kind)
    print(tokenizer.native, tokenizer.encode(["Naïve 中가 don't"]).ids.tolist())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    expected = [f"True {pair(kind).peer.encode('Naïve 中가 don' + chr(39) + 't').ids}" for kind in ("bge-m3", "qwen3")]
    assert done.stdout.splitlines() == expected
    tokenizer = load_tokenizer(tmp_path / "bge-m3")
    assert (tokenizer.vocabulary_size, tokenizer.pad_id) == (pair("bge-m3").peer.get_vocab_size(), 1)


ODD = [
    ("bge-m3", ["pre_tokenizer"], None, "its pre-tokenizer is None"),
    ("bge-m3", ["pre_tokenizer", "prepend_scheme"], "first", "prepends first"),
    ("bge-m3", ["pre_tokenizer", "replacement"], "_", "does not split"),
    ("bge-m3", ["model", "unk_id"], None, "no unknown token"),
    ("bge-m3", ["model", "alpha"], 1, "other settings"),
    ("bge-m3", ["normalizer"], {"type": "BertNormalizer"}, "other settings"),
    ("bge-m3", ["normalizer", "normalizers", 0, "precompiled_charsmap"], "AAA", "not base64"),
    ("bge-m3", ["normalizer", "normalizers", 0, "precompiled_charsmap"], "/////w==", "cut off"),
    ("bge-m3", ["normalizer", "normalizers", 2, "pattern"], {"Regex": "a+"}, "replaces"),
    ("bge-m3", ["added_tokens", 0, "single_word"], True, "special way"),
    ("bge-m3", ["added_tokens", 0, "content"], "", "empty added token"),
    ("bge-m3", ["truncation"], {"direction": "Left"}, "on the left"),
    ("bge-m3", ["post_processor"], {"type": "BertProcessing"}, "not laid out"),
    ("bge-m3", ["extra"], 1, "a part extra"),
    ("qwen3", ["model", "dropout"], 0.1, "at random"),
    ("qwen3", ["model", "end_of_word_suffix"], "</w>", "suffix"),
    ("qwen3", ["model", "continuing_subword_prefix"], "@@", "prefix"),
    ("qwen3", ["model", "merges", 0], ["zz", "qq"], "not laid out"),
    ("qwen3", ["model", "vocab", "Ġ"], 10**6, "large holes"),
    ("qwen3", ["pre_tokenizer", "pretokenizers", 0, "pattern"], {"Regex": r"\w+"}, "regular expression is another"),
    ("qwen3", ["pre_tokenizer", "pretokenizers", 0, "behavior"], "Removed", "odd settings"),
    ("qwen3", ["pre_tokenizer", "pretokenizers", 1, "use_regex"], True, "splits twice"),
    ("qwen3", ["pre_tokenizer"], {"type": "Whitespace"}, "its pre-tokenizer is Whitespace"),
    ("gemma3", ["model", "byte_fallback"], False, "no tokens for bytes"),
    ("gemma3", ["model", "type"], "WordLevel", "its model is WordLevel"),
]


@pytest.mark.parametrize(("kind", "path", "value", "reason"), ODD)
def test_what_the_native_loops_do_not_know_goes_to_the_library(kind, path, value, reason):
    description = json.loads(pair(kind).peer.to_str())
    place = description
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    why = load_subword(description)
    assert isinstance(why, str)
    assert reason in why


def test_a_real_wordpiece_with_other_added_tokens_is_native_too():
    description = json.loads((model_folder() / "tokenizer.json").read_text(encoding="utf-8"))
    description["added_tokens"][1]["normalized"] = True
    real = Pair(tokenizers.Tokenizer.from_str(json.dumps({**description, "padding": None})))
    real.check([*HARD, " ".join(WORDS), "x" * 101, "[unk] [UNK]"])


def test_pieces_that_join_words_go_to_the_library():
    description = json.loads(pair("gemma3").peer.to_str())
    vocabulary = description["model"]["vocab"]
    vocabulary["a▁"] = len(vocabulary)
    description["added_tokens"] = description["added_tokens"][:4]
    description["model"]["merges"].append(["a", "▁"])
    assert load_subword(description) == "its pieces join words"

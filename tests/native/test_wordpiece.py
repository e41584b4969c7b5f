"""The native tokenizer itself: every instruction set and width of string, threads, memory, the GIL."""

from __future__ import annotations

import gc
import random
import resource
import sys
import threading
import time
from itertools import pairwise

import numpy as np
import pytest

from ridgeline import native

ISAS = native.instruction_sets()
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghij0123456789.,!", *(f"##{c}" for c in "abcdefgh012345")]
TOKENS += ["abc", "##def", "abcdefghijabcde", "abcdefghijabcdef", "é", "##é", "中", "😀"]


def build(**options):
    return native.WordPiece(TOKENS, 1, [2], [3], [("[SEP]", 3)], **options)


def encode(tokenizer, texts, max_tokens=-1, threads=1, isa=""):
    offsets = np.empty(len(texts) + 1, np.int64)
    ids, refused = tokenizer.encode(texts, offsets, max_tokens, threads, isa)
    assert refused == -1
    return [ids[a:b].tolist() for a, b in pairwise(offsets)]


def plainly(text, lowercase=True):
    """The slow, obvious way, for words of ASCII letters and digits, spaces and `.,!`."""
    out = [2]
    for c in ".,!":
        text = text.replace(c, f" {c} ")
    for word in (text.lower() if lowercase else text).split():
        pieces, at = [], 0
        while at < len(word):
            ends = [e for e in range(len(word), at, -1) if ("##" if at else "") + word[at:e] in TOKENS]
            if not ends:
                pieces = [1]
                break
            pieces.append(TOKENS.index(("##" if at else "") + word[at : ends[0]]))
            at = ends[0]
        out += pieces if len(word) <= 100 else [1]
    return [*out, 3]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("lowercase", [False, True])
def test_every_instruction_set_and_width_is_the_obvious_way(isa, lowercase):
    tokenizer = build(lowercase=lowercase, strip_accents=False)
    R = random.Random(1)
    texts = ["".join(R.choices("abcdefghABC012 .,!", k=size)) for size in range(70) for _ in range(20)]
    texts += ["abcdefghij" * (k // 10) + "abcdefghij"[: k % 10] for k in range(120)]
    expected = [plainly(text, lowercase) for text in texts]
    assert encode(tokenizer, texts, isa=isa) == expected
    for tail in ("中", "😀"):  # strings of 2 and of 4 bytes a character
        number = TOKENS.index(tail)
        assert encode(tokenizer, [f"{t} {tail}" for t in texts], isa=isa) == [[*w[:-1], number, 3] for w in expected]


def test_a_subclass_of_str_is_a_str():
    class Named(str):
        pass

    for text in ("abc a.", "abc é.", "abc 中.", "abc 😀.", ""):
        assert encode(build(), [Named(text)]) == encode(build(), [text])


def test_letters_at_the_edges_of_classes_are_not_taken_for_others():
    tokenizer = build()
    for c in map(chr, [*range(128), 0xAA, 0xC1, 0xE1, 0x130, 0x141, 0x161, 0x2C61, 0x10041, 0x10061, 0x1F161]):
        alone = encode(tokenizer, [f"a{c}b"])[0]
        assert alone == [*encode(tokenizer, [f"a{c}b 中"])[0][:-2], 3]
        assert alone == [*encode(tokenizer, [f"a{c}b 😀"])[0][:-2], 3]
        assert alone == encode(tokenizer, [f"a{c}b" + " " * 20])[0]


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_threads_give_the_same(threads):
    tokenizer = build()
    R = random.Random(2)
    texts = ["".join(R.choices("abcdefgh012 .é中😀[SEP]", k=R.randint(0, 200))) for _ in range(3000)]
    assert encode(tokenizer, texts, threads=threads) == encode(tokenizer, texts)
    assert encode(tokenizer, texts, 9, threads=threads) == [
        one if len(one) <= 9 else [*one[:8], 3] for one in encode(tokenizer, texts)
    ]


def test_callers_on_many_threads_do_not_disturb_each_other():
    tokenizer = build()
    R = random.Random(3)
    texts = ["".join(R.choices("abcdefgh012 .é", k=R.randint(0, 300))) for _ in range(800)]
    expected, wrong = encode(tokenizer, texts), []

    def call():
        wrong.extend(k for k in range(20) if encode(tokenizer, texts, threads=2) != expected)

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


def test_the_list_may_change_while_it_is_read():
    tokenizer = build()
    texts = ["abc " * 200 + str(k) for k in range(4000)]
    expected = encode(tokenizer, texts)
    stop = threading.Event()

    def change():
        while not stop.is_set():
            texts[:] = [text[:-1] + text[-1] for text in texts]  # the old strings lose their only owner

    changer = threading.Thread(target=change)
    changer.start()
    try:
        for _ in range(10):
            assert encode(tokenizer, texts, threads=2) == expected
    finally:
        stop.set()
        changer.join()


def test_other_threads_run_meanwhile():
    tokenizer = build()
    texts = ["abc def. " * 60_000] * 30
    offsets = np.empty(len(texts) + 1, np.int64)
    ticks = []
    stop = threading.Event()

    def tick():
        while not stop.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.0005)

    ticker = threading.Thread(target=tick)
    before = sys.getswitchinterval()
    sys.setswitchinterval(100)  # the interpreter forces no thread to release the GIL
    try:
        ticker.start()
        begin = time.perf_counter()
        tokenizer.encode(texts, offsets, -1, 1)
        end = time.perf_counter()
    finally:
        sys.setswitchinterval(before)
        stop.set()
        ticker.join()
    assert sum(begin < t < end for t in ticks) >= 5


def test_repeated_calls_leak_no_memory_and_no_reference():
    tokenizer = build()
    text = "abc def. é中 " * 400
    texts = [text] * 50
    count = sys.getrefcount(text)

    def rounds(n):
        for _ in range(n):
            encode(tokenizer, texts, 64, threads=2)
            offsets = np.empty(52, np.int64)
            assert tokenizer.encode([*texts, "\ud800"], offsets, -1, 2) == (None, 50)
            assert tokenizer.encode([*texts, None], offsets, -1, 2) == (None, 50)

    rounds(30)
    gc.collect()
    objects, peak = len(gc.get_objects()), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rounds(150)
    gc.collect()
    assert sys.getrefcount(text) == count
    assert len(gc.get_objects()) <= objects + 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 8 << 10  # KiB


def test_tokens_outlive_the_tokenizer():
    tokenizer = build()
    offsets = np.empty(2, np.int64)
    ids, _ = tokenizer.encode(["abc a"], offsets, -1, 1)
    del tokenizer
    gc.collect()
    assert ids.tolist() == [2, TOKENS.index("abc"), TOKENS.index("a"), 3]
    assert ids.flags.writeable


def test_wrong_arguments_are_refused():
    tokenizer = build()
    with pytest.raises(ValueError, match="offsets"):
        tokenizer.encode(["a"], np.empty(3, np.int64), -1, 1)
    with pytest.raises(TypeError):
        tokenizer.encode(["a"], np.empty(2, np.int32), -1, 1)
    with pytest.raises(TypeError, match="list or a tuple"):
        tokenizer.encode("a", np.empty(2, np.int64), -1, 1)
    with pytest.raises(ValueError, match="max_tokens"):
        tokenizer.encode(["a"], np.empty(2, np.int64), 1, 1)
    with pytest.raises(ValueError, match="nonsense"):
        tokenizer.encode(["a"], np.empty(2, np.int64), -1, 1, "nonsense")
    with pytest.raises(ValueError, match="unknown"):
        native.WordPiece(["a"], 1, [], [], [])
    with pytest.raises(ValueError, match="punctuation"):
        native.WordPiece(["a"], 0, [], [], [("word", 0)])
    with pytest.raises(ValueError, match="max_word"):
        native.WordPiece(["a"], 0, [], [], [], max_word=0)


def test_vocabularies_of_any_size():
    for tokens in (["?"], ["?", "", "a"], ["?", "##"], ["?", "a", "a"], ["?", *map(str, range(5000))]):
        tokenizer = native.WordPiece(tokens, 0, [], [], [])
        known = {token: number for number, token in enumerate(tokens)}  # the last of equal ones counts
        assert encode(tokenizer, ["a", "4999", "zz", ""]) == [[known.get("a", 0)], [known.get("4999", 0)], [0], []]
        assert tokenizer.size == len(tokens)

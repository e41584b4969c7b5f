"""Every character is tokenized as by `tokenizers`, with a vocabulary that distinguishes all characters."""

from __future__ import annotations

import random
import unicodedata
from functools import cache
from itertools import product

import pytest
from tests.embed.oracle import Pair, describe_tokenizer

# All of planes 0 and 1, the Chinese of planes 2 and 3 at the borders of its blocks, tags and selectors.
EDGES = [c for block in (0x20000, 0x2A6E0, 0x2A700, 0x2B740, 0x2B820, 0x2CEB0, 0x2EBF0, 0x30000, 0x31350, 0x323B0)
         for c in range(block - 4, block + 4)]  # fmt: skip
RICH = sorted({*range(0xD800), *range(0xE000, 0x20000), *EDGES, *range(0x2F800, 0x2FA20), *range(0xE0000, 0xE0200)})
FORMS = ["{0} a{0}b {0}{0}", "A{0}\u0301\u0323b \U0001d165{0}\u0f71\U0001d165{0}\u0301"]
OPTIONS = ("clean_text", "handle_chinese_chars", "strip_accents", "lowercase")


@cache
def rich(**options):
    characters = [chr(c) for c in RICH]
    return Pair(describe_tokenizer([*characters, *(f"##{c}" for c in characters)], **options))


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_every_character_that_a_vocabulary_can_hold_alone_and_among_others(form):
    rich().check([form.format(chr(c)) for c in RICH])


@pytest.mark.slow
def test_every_code_point():
    planes = [chr(c) for c in range(0x20000, 0x110000)]
    rich().check([" x".join(planes[k : k + 32]) for k in range(0, len(planes), 32)])


@pytest.mark.slow
@pytest.mark.parametrize("values", list(product([False, True], repeat=4)), ids=lambda v: "".join("01"[b] for b in v))
def test_every_setting_of_the_normalizer(values):
    # All characters that normalisation changes, and some others.
    plain = ("Lo", "So", "Cn", "Co")
    some = [
        c for c in RICH if c % 64 == 0 or unicodedata.category(chr(c)) not in plain or unicodedata.decomposition(chr(c))
    ]
    characters = [chr(c) for c in some] + [chr(c) for c in range(0x300, 0x370)]
    pair = Pair(
        describe_tokenizer([*characters, *(f"##{c}" for c in characters)], **dict(zip(OPTIONS, values, strict=True)))
    )
    pair.check([f"a{chr(c)}\u0301{chr(c)}" for c in some])


@pytest.mark.slow
def test_combining_marks_are_in_canonical_order():
    marks = [chr(c) for c in RICH if unicodedata.category(chr(c)) in ("Mn", "Mc", "Me")]
    # Marks that `tokenizers` keeps because its categories are older than its decompositions, or that are not Mn.
    allowed_marks = [
        0x8D4,
        0x1B44,
        0x1BAA,
        0x1DFB,
        0x302E,
        0xA953,
        0x11442,
        0x11446,
        0x1D165,
        0x1D16D,
        0x1D16E,
        0x1E000,
        0x1E94A,
    ]
    allowed_marks += [0x1D15E, 0x1D160, 0x1D1BB, 0x1D1C0]  # notes that are decomposed into such marks
    other = ["a", "é", "각", "中", " ", "\u200b", "\x00", "\u0f71", "\u0344", "[SEP]", "!", "\u093c"]
    R = random.Random(1)
    pool = [([chr(c) for c in allowed_marks], 6), (marks, 3), (other, 2)]
    texts = [
        "".join(R.choice(R.choices([p for p, _ in pool], [w for _, w in pool])[0]) for _ in range(R.randint(2, 9)))
        for _ in range(60_000)
    ]
    rich().check(texts)

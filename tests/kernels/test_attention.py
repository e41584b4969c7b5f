"""Attention of every family against plain torch in float64: interpreted everywhere, compiled on a GPU.

python -m pytest tests/kernels/test_attention.py
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import torch.nn.functional as F  # noqa: E402
from tests.kernels.test_encoder import (  # noqa: E402, F401
    DEVICE,
    TYPES,
    close,
    few,
    make_offsets,
    make_tensor,
    pytestmark,
)

from ridgeline.kernels.encoder import (  # noqa: E402
    AttentionKind,
    Distances,
    add_then_normalize,
    attend,
    multiply_heads,
    prepare_heads,
)

REACH = 200
KINDS = {
    "plain": AttentionKind(0.3),
    "window": AttentionKind(0.3, window=5),
    "causal": AttentionKind(0.3, causal=True),
    "causal window": AttentionKind(0.3, causal=True, window=3),
    "bias": AttentionKind(0.3),
    "distances": AttentionKind(0.3),
}
kinds = st.sampled_from(list(KINDS))
lengths_of = st.lists(st.sampled_from([1, 2, 16, 17, 40, 65, 70]), min_size=1, max_size=4).map(sorted)


def compute(qkv, lengths, heads, key_heads, width, kind, vectors):
    """Attention text by text, in float64."""
    parts = []
    for part in qkv.double().split(lengths):
        n = len(part)
        q, k, v = part.view(n, -1, width).split([heads, key_heads, key_heads], 1)
        k, v = (s.repeat_interleave(heads // key_heads, 1) for s in (k, v))
        distance = torch.arange(n, device=DEVICE)[None] - torch.arange(n, device=DEVICE)[:, None]
        score = torch.einsum("ihd,jhd->hij", q, k)
        if vectors is not None:
            rows = (distance + REACH) % 7
            score = score + torch.einsum("ihd,hrd->hir", q, vectors.double()).gather(2, rows.expand(heads, n, n))
            by_key = torch.einsum("jhd,hrd->hjr", k, vectors.double())
            score = score + by_key.gather(2, rows.T.expand(heads, n, n)).transpose(1, 2)
        score = score * kind.scale
        if kind.bias is not None:
            score = score + kind.bias[:, distance + REACH].double()
        seen = distance.abs() <= (n if kind.window is None else kind.window)
        seen &= distance <= (0 if kind.causal else n)
        parts.append(torch.einsum("hij,jhd->ihd", score.masked_fill(~seen, -torch.inf).softmax(-1), v).flatten(1))
    return torch.cat(parts)


@few
@given(lengths_of, kinds, st.sampled_from([(2, 2, 8), (4, 2, 16), (1, 1, 80)]), st.sampled_from(TYPES))
def test_every_kind_of_attention(lengths, name, shape, dtype):
    (heads, key_heads, width), kind = shape, KINDS[name]
    if name == "distances":
        key_heads = heads
    kind = replace(kind, key_heads=key_heads)
    qkv = make_tensor(sum(lengths), (heads + 2 * key_heads) * width, dtype=dtype)
    offsets, vectors = make_offsets(lengths), None
    if name == "bias":
        kind = replace(kind, bias=make_tensor(heads, 2 * REACH + 1, seed=1))
    if name == "distances":
        vectors = make_tensor(heads, 7, width, dtype=dtype, seed=1)
        rows = (torch.arange(2 * REACH + 1, device=DEVICE) % 7).int()
        products = (multiply_heads(qkv, first, vectors) for first in (0, heads * width))
        kind = replace(kind, distances=Distances(rows, *products))
    runs = tuple((sum(lengths[:i]), 1, n) for i, n in enumerate(lengths))
    together = attend(qkv, offsets, heads, width, max(lengths), kind, runs)
    wide = torch.float16 if dtype == torch.float32 else torch.bfloat16  # products are rounded, then summed
    close(together, compute(qkv, lengths, heads, key_heads, width, kind, vectors), dtype if vectors is None else wide)
    by_longest = attend(qkv, offsets, heads, width, max(lengths), kind)
    close(by_longest, together.double(), dtype if vectors is None else wide)
    one_run = ((0, len(lengths), max(lengths)),)
    assert torch.equal(attend(qkv, offsets, heads, width, max(lengths), kind, one_run, True), together)
    if vectors is None:
        last = attend(
            qkv[-lengths[-1] :], make_offsets(lengths[-1:]), heads, width, lengths[-1], kind, ((0, 1, lengths[-1]),)
        )
        assert torch.equal(last, together[-lengths[-1] :])


@few
@given(
    st.integers(1, 40), st.sampled_from([(2, 1, 6), (3, 3, 16)]), st.booleans(), st.booleans(), st.sampled_from(TYPES)
)
def test_queries_and_keys_are_normalised_and_turned(tokens, shape, normed, turned, dtype):
    heads, key_heads, width = shape
    x = make_tensor(tokens, (heads + 2 * key_heads) * width, dtype=dtype)
    norms = tuple(make_tensor(width, seed=k) for k in (1, 2)) if normed else None
    positions = torch.randint(0, 50, (tokens,), generator=torch.Generator().manual_seed(3)).to(DEVICE)
    angles = torch.arange(50).double()[:, None] * torch.linspace(0.1, 1, width // 2).double()
    cosine, sine = (table.float().to(DEVICE) for table in (angles.cos(), angles.sin()))
    query, key, value = x.double().view(tokens, -1, width).split([heads, key_heads, key_heads], 1)
    if norms is not None:
        query, key = (F.rms_norm(s, (width,), w.double(), 1e-6) for s, w in zip((query, key), norms, strict=True))
    if turned:
        c, s = (torch.cat([table[positions]] * 2, 1)[:, None].double() for table in (cosine, sine))
        query, key = (r * c + torch.cat([-r[..., width // 2 :], r[..., : width // 2]], -1) * s for r in (query, key))
    got = prepare_heads(x, heads, key_heads, width, norms, 1e-6, (positions, cosine, sine) if turned else None)
    close(got, torch.cat([query, key, value], 1).flatten(1), dtype)


@few
@given(
    st.integers(1, 20), st.sampled_from([8, 48]), st.booleans(), st.booleans(), st.booleans(), st.sampled_from(TYPES)
)
def test_a_sum_and_its_norm_are_one_pass(tokens, width, rms, inner, last, dtype):
    x, residual = make_tensor(tokens, width, dtype=dtype), make_tensor(tokens, width, dtype=dtype, seed=1)
    before, after = ((make_tensor(width, seed=k), None if rms else make_tensor(width, seed=k + 1)) for k in (2, 4))

    def normalize(y, pair):
        weight, bias = pair
        if rms:
            return F.rms_norm(y, (width,), weight.double(), 1e-6)
        return F.layer_norm(y, (width,), weight.double(), bias.double(), 1e-6)

    want = (normalize(x.double(), before) if inner else x.double()) + residual.double()
    rounded = want.to(dtype).double()
    total, normed = add_then_normalize(x, None, residual, before if inner else None, None if last else after, 1e-6, rms)
    close(total, want, dtype)
    close(
        normed, want if last else normalize(rounded, after), torch.float16 if dtype == torch.float32 else torch.bfloat16
    )

"""MaxSim of documents of many vectors: the largest product with each query vector, summed over the query.

`score_documents` reads every vector once for up to four parts of queries (32 query vectors each) and writes one score
per document and part, from products on the matrix units in the type of the rows. Programs take documents in turn. The
vectors of a document are the left operand: Hopper's matrix units read it from shared memory, where it arrives, and the
maxima over a document stay in registers until its end (a quarter less time than with the queries on the left).
`score_pairs` scores chosen documents in float32 products, to rank them exactly. Queries are cut into parts of 32
vectors; a missing vector is zero, whose largest product is 0.

    python -m pytest tests/search/test_multi_cuda.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

MAXSIM_PART = 32  # query vectors
MAX_PARTS = 4  # in one program
BLOCK = 64  # vectors of a document in one product
STAGES = 3  # blocks on their way from memory
PROGRAMS = 132 * 4  # take the documents in turn: four per multiprocessor of an H100 or H200
NO_SCORE = tl.constexpr(float("-inf"))


def score_documents(
    parts: torch.Tensor,
    rows: torch.Tensor,
    offsets: torch.Tensor,
    grid: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """parts float32 [P, 32, D], rows [T, D] of N documents at offsets int64 [N + 1] → scores float32 [P, N].

    Products are in the type of the rows; rows of bytes are decoded by grid (base [D], step [D]) to float16.
    """
    count, depth = len(offsets) - 1, rows.shape[1]
    scores = torch.empty((len(parts), count), dtype=torch.float32, device=rows.device)
    group = min(MAX_PARTS, triton.next_power_of_2(max(1, len(parts))))
    half = rows.dtype != torch.float32
    queries = parts.half() if half else parts
    if len(parts) and count:
        base, step = grid or (None, None)
        _score_documents_kernel[(min(count, PROGRAMS), triton.cdiv(len(parts), group))](
            queries.contiguous(), rows, offsets, base, step, scores, count, len(parts), depth,
            max(16, triton.next_power_of_2(depth)), group, MAXSIM_PART, BLOCK, half, STAGES,
            num_warps=4 if group < 4 else 8,
        )  # fmt: skip
    return scores


@triton.jit(do_not_specialize=["count", "part_count"])
def _score_documents_kernel(
    queries, rows, offsets, base, step, scores, count, part_count, depth, DEPTH: tl.constexpr, GROUP: tl.constexpr,
    PART: tl.constexpr, BLOCK: tl.constexpr, HALF: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(1) * GROUP
    vector = first * PART + tl.arange(0, GROUP * PART)
    d = tl.arange(0, DEPTH)
    inside_query = (vector < part_count * PART)[None, :] & (d < depth)[:, None]
    q = tl.load(queries + vector[None, :] * depth + d[:, None], mask=inside_query, other=0)  # [DEPTH, vectors]
    if base is not None:
        low = tl.load(base + d, mask=d < depth, other=0)
        width = tl.load(step + d, mask=d < depth, other=0)
    part = first + tl.arange(0, GROUP)
    for document in range(tl.program_id(0), count, tl.num_programs(0)):
        begin = tl.load(offsets + document)
        length = (tl.load(offsets + document + 1) - begin).to(tl.int32)
        document_rows = rows + begin * depth
        best = tl.full([BLOCK, GROUP * PART], NO_SCORE, tl.float32)
        for at in tl.range(0, length, BLOCK, num_stages=STAGES):
            place = at + tl.arange(0, BLOCK)
            inside = place < length
            at_rows = document_rows + place[:, None] * depth + d[None, :]
            x = tl.load(at_rows, mask=inside[:, None] & (d < depth)[None, :], other=0)
            if base is not None:
                x = (x.to(tl.float32) * width[None, :] + low[None, :]).to(tl.float16)
            products = tl.dot(x, q, input_precision="tf32" if HALF else "ieee")
            best = tl.maximum(best, tl.where(inside[:, None], products, NO_SCORE))
        total = tl.sum(tl.reshape(tl.max(best, 0), [GROUP, PART]), 1)
        tl.store(scores + part.to(tl.int64) * count + document, total, mask=part < part_count)


def score_pairs(
    parts: torch.Tensor,
    part_offsets: torch.Tensor,
    rows: torch.Tensor,
    offsets: torch.Tensor,
    documents: torch.Tensor,
    grid: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """Scores float32 [Q, C] of documents [Q, C] (-1: none, -inf); query i has the parts at part_offsets [Q + 1]."""
    scores = torch.empty(documents.shape, dtype=torch.float32, device=rows.device)
    if documents.numel():
        base, step = grid or (None, None)
        depth = rows.shape[1]
        _score_pairs_kernel[(documents.shape[1], documents.shape[0])](
            parts, part_offsets, rows, offsets, base, step, documents, scores, documents.shape[1], depth,
            max(16, triton.next_power_of_2(depth)), MAXSIM_PART, BLOCK, num_warps=4,
        )  # fmt: skip
    return scores


@triton.jit
def _score_pairs_kernel(
    parts, part_offsets, rows, offsets, base, step, documents, scores, width, depth, DEPTH: tl.constexpr,
    PART: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    query = tl.program_id(1)
    pair = query.to(tl.int64) * width + tl.program_id(0)
    document = tl.load(documents + pair)
    total = 0.0
    if document >= 0:
        begin = tl.load(offsets + document)
        end = tl.load(offsets + document + 1)
        d = tl.arange(0, DEPTH)
        vector = tl.arange(0, PART)
        for part in range(tl.load(part_offsets + query), tl.load(part_offsets + query + 1)):
            q = tl.load(
                parts + (part * PART + vector)[:, None] * depth + d[None, :], mask=(d < depth)[None, :], other=0
            )
            best = tl.full([PART], NO_SCORE, tl.float32)
            for at in range(begin, end, BLOCK):
                place = at + tl.arange(0, BLOCK)
                inside = place < end
                mask = inside[:, None] & (d < depth)[None, :]
                x = tl.load(rows + place[:, None] * depth + d[None, :], mask=mask, other=0).to(tl.float32)
                if base is not None:
                    low = tl.load(base + d, mask=d < depth, other=0)
                    x = x * tl.load(step + d, mask=d < depth, other=0)[None, :] + low[None, :]
                # Three products on the matrix units have the precision of float32.
                products = tl.dot(q, tl.trans(x), input_precision="tf32x3")
                best = tl.maximum(best, tl.max(tl.where(inside[None, :], products, NO_SCORE), 1))
            total += tl.sum(best, 0)
    else:
        total = NO_SCORE
    tl.store(scores + pair, total)

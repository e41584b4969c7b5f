"""Product codes (PQ): train, encode, decode, and scan them in inverted lists.

A row is the centre of its list plus one of 256 codewords per part, one byte each. The products of a query with all
codewords are a table [parts, 256], which does not depend on the list: the centre adds one number per list, and for
the squared distance `bias` holds the norm of the row. So one table serves all lists under either metric, and the score
of a row is a sum of one table entry per byte.

    python -m pytest tests/kernels/test_search_inverted.py tests/kernels/test_search_kmeans.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ridgeline.kernels.search.inverted_lists import LIST_TILE
from ridgeline.kernels.search.kmeans import MAX_SCORES, ROUNDS, group_by_list
from ridgeline.kernels.search.scan import finish_scores, view_mask

PRODUCT_SCAN_SHAPE = (16, 2)  # parts at a time, warps; not tuned


def scan_product_codes(
    queries: torch.Tensor,
    centres: torch.Tensor,
    books: torch.Tensor,
    codes: torch.Tensor,
    lists: torch.Tensor,
    starts: torch.Tensor,
    tiles_per_list: int,
    *,
    bias: torch.Tensor | None = None,
    allowed: torch.Tensor | None = None,
    factor: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Like `scan_lists`, for codes uint8 [N, parts] and books float32 [parts, 256, D / parts]."""
    (query_count, probes), parts = lists.shape, books.shape[0]
    tiles = probes * tiles_per_list
    table = torch.einsum("qps,pcs->qpc", queries.view(query_count, parts, -1), books).contiguous()
    base = (queries[:, None, :] * centres[lists.long()]).sum(2)
    scores = torch.empty((query_count, tiles * LIST_TILE), dtype=torch.float32, device=codes.device)
    maxima = torch.empty((query_count, tiles), dtype=torch.float32, device=codes.device)
    begin = torch.empty((query_count, tiles), dtype=torch.int32, device=codes.device)
    end = torch.empty_like(begin)
    step, warps = PRODUCT_SCAN_SHAPE
    if query_count and tiles:
        _scan_product_codes_kernel[(query_count * tiles,)](
            table, base, codes, lists, starts, bias, view_mask(allowed), scores, maxima, begin, end, probes,
            tiles_per_list, codes.stride(0), factor, parts, min(step, triton.next_power_of_2(parts)), LIST_TILE,
            num_warps=warps,
        )  # fmt: skip
    return scores, maxima, begin, end


@triton.jit(do_not_specialize=["probes", "tiles_per_list", "code_stride"])
def _scan_product_codes_kernel(
    table, base, codes, lists, starts, bias, allowed, scores, maxima, begin, end, probes, tiles_per_list, code_stride,
    factor, PARTS: tl.constexpr, STEP: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    pair = program // tiles_per_list
    list_id = tl.load(lists + pair)
    first = tl.load(starts + list_id) + (program % tiles_per_list) * TILE
    stop = tl.load(starts + list_id + 1)
    tl.store(begin + program, tl.minimum(first, stop))
    tl.store(end + program, stop)
    left = stop - first
    if left <= 0:
        tl.store(maxima + program, float("-inf"))
        return
    local = tl.arange(0, TILE)
    row = first.to(tl.int64) + local
    clamped = first.to(tl.int64) + tl.minimum(local, left - 1)
    table_ptr = table + (pair // probes).to(tl.int64) * (PARTS * 256)
    acc = tl.zeros([TILE, STEP], tl.float32)
    for start in tl.static_range(0, PARTS, STEP):
        part = start + tl.arange(0, STEP)
        valid = part < PARTS
        code = tl.load(codes + clamped[:, None] * code_stride + part[None, :], mask=valid[None, :], other=0)
        acc += tl.load(table_ptr + part[None, :] * 256 + code.to(tl.int32), mask=valid[None, :], other=0)
    score = tl.sum(acc, 1) + tl.load(base + pair)
    score = finish_scores(score, row, local < left, bias, allowed, factor)
    tl.store(scores + program.to(tl.int64) * TILE + local, score)
    tl.store(maxima + program, tl.max(score, 0))


CODEBOOK_SIZE = 256  # codewords per part: one byte


def train_codebooks(sample: torch.Tensor, parts: int, *, rounds: int = ROUNDS, seed: int = 0) -> torch.Tensor:
    """Train 256 codewords for each part of a row, by squared distance, all parts at once.

    sample [n, D] (for lists: rows less their centres), D a multiple of parts → books float32 [parts, 256, D / parts].
    """
    count, depth = sample.shape
    split = sample.float().view(count, parts, depth // parts).transpose(0, 1).contiguous()
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    books = split[:, order[torch.arange(CODEBOOK_SIZE) % count].to(sample.device)].contiguous()
    shift = (torch.arange(parts, device=sample.device) * CODEBOOK_SIZE)[:, None]
    flat = split.reshape(parts * count, -1)
    for _ in range(rounds):
        codes, score = _find_nearest_codes(split, books)
        _, place, starts = group_by_list((codes + shift).reshape(-1), parts * CODEBOOK_SIZE)
        sizes = starts.diff().long()
        sums = torch.segment_reduce(flat[place], "sum", lengths=sizes, axis=0, unsafe=True)
        means = (sums / sizes.clamp_min(1)[:, None]).view(books.shape)
        farthest_first = (score - split.square().sum(2)).sort(dim=1).indices
        empty = (sizes == 0).view(parts, CODEBOOK_SIZE)
        replacement = farthest_first.gather(1, (empty.cumsum(1) - 1).clamp(0, count - 1))
        replacement_values = split.gather(1, replacement[:, :, None].expand(-1, -1, split.shape[2]))
        books = torch.where(empty[:, :, None], replacement_values, means)
    return books


def encode_product(rows: torch.Tensor, books: torch.Tensor) -> torch.Tensor:
    """rows [N, D], books [parts, 256, D / parts] → the nearest codeword of each part, uint8 [N, parts]."""
    parts, _, size = books.shape
    out = torch.empty((rows.shape[0], parts), dtype=torch.uint8, device=rows.device)
    rows_per_step = max(1, MAX_SCORES // (parts * CODEBOOK_SIZE))
    for at in range(0, rows.shape[0], rows_per_step):
        split = rows[at : at + rows_per_step].float().reshape(-1, parts, size).transpose(0, 1)
        out[at : at + rows_per_step] = _find_nearest_codes(split, books)[0].T
    return out


def decode_product(codes: torch.Tensor, books: torch.Tensor) -> torch.Tensor:
    """codes uint8 [N, parts], books [parts, 256, D / parts] → float32 [N, D]."""
    part = torch.arange(books.shape[0], device=codes.device)
    return books[part, codes.long()].reshape(codes.shape[0], -1)


def _find_nearest_codes(split: torch.Tensor, books: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """split [parts, n, size] → the nearest codeword of each part [parts, n], and its score 2·x·c - |c|²."""
    size = books.square().sum(2)[:, None, :]
    rows_per_step = max(1, MAX_SCORES // (books.shape[0] * CODEBOOK_SIZE))
    nearest = [
        torch.baddbmm(size, split[:, at : at + rows_per_step], books.transpose(1, 2), beta=-1, alpha=2).max(dim=2)
        for at in range(0, split.shape[1], rows_per_step)
    ]
    return torch.cat([part.indices for part in nearest], 1), torch.cat([part.values for part in nearest], 1)

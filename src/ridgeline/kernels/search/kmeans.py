"""k-means for inverted lists and product codes, through torch's own matrix product.

A fused kernel would save writing the scores of rows against centres, some milliseconds for a million rows; but it
would have to be compiled on first use, which takes longer than the whole build. Sums are over sorted rows, so that
the same rows give the same centres each time. Nothing waits for the GPU.

    python -m pytest tests/kernels/test_search_kmeans.py
"""

from __future__ import annotations

import torch

AT_A_TIME = 1 << 26  # scores between rows and centres that are there at once
PER_LIST = 256  # rows of the sample per centre
ROUNDS = 10
CODES = 256  # per part of a product code: one byte


def sample_of(rows: torch.Tensor, lists: int, seed: int = 0, per_list: int = PER_LIST) -> torch.Tensor:
    """rows [N, D] → some of them, [min(N, per_list · lists), D], by chance with a seed."""
    count = rows.shape[0]
    if count <= per_list * lists:
        return rows
    chance = torch.Generator().manual_seed(seed)
    # With repetition, which at a sample's size is rare and does no harm: a permutation of all rows takes longer.
    at = torch.randint(0, count, (per_list * lists,), generator=chance)
    return rows[at.to(rows.device)]


def train(
    sample: torch.Tensor, lists: int, *, metric: str = "ip", rounds: int = ROUNDS, seed: int = 0
) -> torch.Tensor:  # fmt: skip
    """sample [n, D], n > 0 → centres float32 [lists, D]. For "ip" they are kept at unit length, for "l2" not.

    A list without rows starts anew from the row that is farthest from its centre.
    """
    count = sample.shape[0]
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    first = order[torch.arange(lists) % count].to(sample.device)
    centres = _unit(sample[first].float(), metric)
    for _ in range(rounds):
        near, score = assign(sample, centres, metric=metric)
        _, place, starts = grouped(near, lists)
        sizes = starts.diff().long()
        sums = torch.segment_reduce(sample[place].float(), "sum", lengths=sizes, axis=0, unsafe=True)
        means = sums / sizes.clamp_min(1)[:, None]
        far = (score if metric == "ip" else score - sample.float().square().sum(1)).sort().indices
        empty = sizes == 0
        spare = far[(empty.cumsum(0) - 1).clamp(0, count - 1)]
        centres = _unit(torch.where(empty[:, None], sample[spare].float(), means), metric)
    return centres


def assign(
    rows: torch.Tensor, centres: torch.Tensor, *, metric: str = "ip"
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """rows [N, D], centres [C, D] → the nearest one's number int32 [N] and its score float32 [N]: x·c, or for "l2"
    2·x·c - |c|²; of equal ones the lower number."""
    count, lists = rows.shape[0], centres.shape[0]
    near = torch.empty(count, dtype=torch.int32, device=rows.device)
    score = torch.empty(count, dtype=torch.float32, device=rows.device)
    few = max(1, AT_A_TIME // max(1, lists))
    for at in range(0, count, few):
        part = products(rows[at : at + few], centres)
        if metric == "l2":
            part = part.mul_(2).sub_(centres.float().square().sum(1))
        best, where = part.max(dim=1)
        near[at : at + few], score[at : at + few] = where, best
    return near, score


def products(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a [n, D] · b [m, D] → float32 [n, m]; on a GPU 16-bit rows go through its matrix units."""
    if not a.is_cuda or a.dtype == torch.float32:
        return a.float() @ b.float().T
    return torch.mm(a, b.to(a.dtype).T, out_dtype=torch.float32)


def grouped(near: torch.Tensor, lists: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """near [N] → the same sorted, the rows in that order int64 [N] (within a list as they came), and where each list
    starts, int32 [lists + 1]."""
    lined, place = near.sort(stable=True)
    edges = torch.arange(lists + 1, dtype=near.dtype, device=near.device)
    return lined, place, torch.searchsorted(lined, edges, out_int32=True)


def train_codes(sample: torch.Tensor, parts: int, *, rounds: int = ROUNDS, seed: int = 0) -> torch.Tensor:
    """sample [n, D] (for lists: rows less their centres), D a multiple of parts → books float32
    [parts, 256, D / parts]: 256 centres for each part of a row, by squared distance, all parts at once."""
    count, depth = sample.shape
    split = sample.float().view(count, parts, depth // parts).transpose(0, 1).contiguous()
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    books = split[:, order[torch.arange(CODES) % count].to(sample.device)].contiguous()
    shift = (torch.arange(parts, device=sample.device) * CODES)[:, None]
    flat = split.reshape(parts * count, -1)
    for _ in range(rounds):
        near, score = _codes(split, books)
        _, place, starts = grouped((near + shift).reshape(-1), parts * CODES)
        sizes = starts.diff().long()
        sums = torch.segment_reduce(flat[place], "sum", lengths=sizes, axis=0, unsafe=True)
        means = (sums / sizes.clamp_min(1)[:, None]).view(books.shape)
        far = (score - split.square().sum(2)).sort(dim=1).indices
        empty = (sizes == 0).view(parts, CODES)
        spare = far.gather(1, (empty.cumsum(1) - 1).clamp(0, count - 1))
        fresh = split.gather(1, spare[:, :, None].expand(-1, -1, split.shape[2]))
        books = torch.where(empty[:, :, None], fresh, means)
    return books


def encode(rows: torch.Tensor, books: torch.Tensor) -> torch.Tensor:
    """rows [N, D], books [parts, 256, D / parts] → the nearest centre of each part, uint8 [N, parts]."""
    parts, _, size = books.shape
    out = torch.empty((rows.shape[0], parts), dtype=torch.uint8, device=rows.device)
    few = max(1, AT_A_TIME // (parts * CODES))
    for at in range(0, rows.shape[0], few):
        split = rows[at : at + few].float().reshape(-1, parts, size).transpose(0, 1)
        out[at : at + few] = _codes(split, books)[0].T
    return out


def decode(codes: torch.Tensor, books: torch.Tensor) -> torch.Tensor:
    """codes uint8 [N, parts] → float32 [N, D]."""
    at = torch.arange(books.shape[0], device=codes.device)
    return books[at, codes.long()].reshape(codes.shape[0], -1)


def _codes(split: torch.Tensor, books: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """split [parts, n, size] → the nearest of each part's centres [parts, n], and 2·x·c - |c|² of it."""
    size = books.square().sum(2)[:, None, :]
    few = max(1, AT_A_TIME // (books.shape[0] * CODES))
    found = [
        torch.baddbmm(size, split[:, at : at + few], books.transpose(1, 2), beta=-1, alpha=2).max(dim=2)
        for at in range(0, split.shape[1], few)
    ]
    return torch.cat([f.indices for f in found], 1), torch.cat([f.values for f in found], 1)


def _unit(centres: torch.Tensor, metric: str) -> torch.Tensor:
    return torch.nn.functional.normalize(centres, dim=1) if metric == "ip" else centres

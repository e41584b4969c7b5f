"""k-means for inverted lists, by torch's matrix product.

A fused kernel would not write the scores of rows against centres and save some milliseconds for a million rows. But
Triton would compile it on first use, which takes longer than the whole build. Sums are over sorted rows, so the same
rows give the same centres each time. Nothing waits for the GPU.

    python -m pytest tests/kernels/test_search_kmeans.py
"""

from __future__ import annotations

import torch

MAX_SCORES = 1 << 26  # scores of rows against centres in memory at a time
SAMPLE_PER_LIST = 256  # rows of the sample per centre
ROUNDS = 10


def sample_rows(rows: torch.Tensor, lists: int, seed: int = 0, per_list: int = SAMPLE_PER_LIST) -> torch.Tensor:
    """Return a random sample of rows [N, D]: [min(N, per_list · lists), D]."""
    count = rows.shape[0]
    if count <= per_list * lists:
        return rows
    generator = torch.Generator().manual_seed(seed)
    # With repetition, which is rare in a small sample and harmless: a permutation of all rows takes longer.
    positions = torch.randint(0, count, (per_list * lists,), generator=generator)
    return rows[positions.to(rows.device)]


def train_centres(
    sample: torch.Tensor, lists: int, *, metric: str = "ip", rounds: int = ROUNDS, seed: int = 0
) -> torch.Tensor:  # fmt: skip
    """Run k-means over sample [n, D], n > 0, and return centres float32 [lists, D]; "ip" keeps them at unit length.

    A list without rows restarts from the row that is farthest from its centre.
    """
    count = sample.shape[0]
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    first = order[torch.arange(lists) % count].to(sample.device)
    centres = _normalize_centres(sample[first].float(), metric)
    for _ in range(rounds):
        list_ids, score = assign_centres(sample, centres, metric=metric)
        _, place, starts = group_by_list(list_ids, lists)
        sizes = starts.diff().long()
        sums = torch.segment_reduce(sample[place].float(), "sum", lengths=sizes, axis=0, unsafe=True)
        means = sums / sizes.clamp_min(1)[:, None]
        farthest_first = (score if metric == "ip" else score - sample.float().square().sum(1)).sort().indices
        empty = sizes == 0
        replacement = farthest_first[(empty.cumsum(0) - 1).clamp(0, count - 1)]
        centres = _normalize_centres(torch.where(empty[:, None], sample[replacement].float(), means), metric)
    return centres


def assign_centres(
    rows: torch.Tensor, centres: torch.Tensor, *, metric: str = "ip"
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Find the nearest centre of each row: its number, int32 [N], and its score, float32 [N].

    rows [N, D], centres [C, D]. The score is x·c, or for "l2" 2·x·c - |c|²; of equal scores the lower number wins.
    """
    count, lists = rows.shape[0], centres.shape[0]
    list_ids = torch.empty(count, dtype=torch.int32, device=rows.device)
    score = torch.empty(count, dtype=torch.float32, device=rows.device)
    rows_per_step = max(1, MAX_SCORES // max(1, lists))
    for at in range(0, count, rows_per_step):
        part = multiply_rows(rows[at : at + rows_per_step], centres)
        if metric == "l2":
            part = part.mul_(2).sub_(centres.float().square().sum(1))
        best_score, best_list = part.max(dim=1)
        list_ids[at : at + rows_per_step], score[at : at + rows_per_step] = best_list, best_score
    return list_ids, score


def multiply_rows(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a [n, D] · b [m, D] → float32 [n, m]; on a GPU, 16-bit rows use the matrix units."""
    if not a.is_cuda or a.dtype == torch.float32:
        return a.float() @ b.float().T
    return torch.mm(a, b.to(a.dtype).T, out_dtype=torch.float32)


def group_by_list(list_ids: torch.Tensor, lists: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sort rows by list.

    list_ids [N] → the sorted ids, the row numbers in that order, int64 [N] (within a list in the order of the rows),
    and the start of each list, int32 [lists + 1].
    """
    sorted_ids, order = list_ids.sort(stable=True)
    edges = torch.arange(lists + 1, dtype=list_ids.dtype, device=list_ids.device)
    return sorted_ids, order, torch.searchsorted(sorted_ids, edges, out_int32=True)


def _normalize_centres(centres: torch.Tensor, metric: str) -> torch.Tensor:
    return torch.nn.functional.normalize(centres, dim=1) if metric == "ip" else centres

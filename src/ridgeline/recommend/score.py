"""Score rankings that any system wrote against held-out items, by trec_eval's rules.

    ridgeline recommend score run.parquet --truth test.parquet --metrics ndcg@10,recall@20 --against other.parquet

A run is a table (user, item, score) as Parquet, CSV or TSV, a trec run file, or a folder with two matrices (users.npy
and items.npy with user_ids.npy and item_ids.npy, as `recommend fit --vectors` writes it). The truth is a table (user,
item[, rating]) or qrels. The rules are those of `trec_eval -c`:

- Items are sorted by score in float32, equal scores by the item's id as text, descending.
- An item is relevant if its rating is 1 or more; without ratings every item of the truth is.
- NDCG's gain is the rating (above 0), its discount log2(rank + 1); the ideal ranking has all items of the truth.
- Every user of the truth counts; one without a ranking gets 0. Users without truth are left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError
from ridgeline.recommend.data import Floats, Histories, Ints, Problems
from ridgeline.recommend.evaluation import bootstrap_interval
from ridgeline.recommend.readers import SPELLINGS, check_unused_columns
from ridgeline.recommend.tables import FLOAT, ID, read_columns, read_names

TABLES = {".parquet": "", ".csv": ",", ".tsv": "\t", ".inter": "\t"}  # suffixes and delimiters
TREC_COLUMNS = {"run": ("user", "_", "item", "rank", "score", "tag"), "qrels": ("user", "_", "item", "rating")}
DEPTH = 1_000  # items per user from two matrices, as in a trec run
DEFAULT_METRICS = "ndcg@10,recall@20,mrr,map"
_METRIC = re.compile(r"(?:(ndcg|map|mrr)(?:@([1-9]\d{0,5}))?|(recall|precision|hit)@([1-9]\d{0,5}))")


@dataclass(frozen=True)
class Table:
    """Rows of user, item (ids as text) and a number: a score or a rating."""

    users: Any  # pyarrow strings, or a dictionary of them
    items: Any
    values: NDArray[np.float64]


@dataclass(frozen=True)
class _Truth:
    users: Sequence[str]  # sorted
    keys: Ints  # user · items + item, sorted
    gains: NDArray[np.float64]
    relevant: NDArray[np.bool_]


def parse_ranking_metrics(text: str) -> list[str]:
    """Parse a list of metrics such as 'ndcg@10,recall@20,mrr,map'."""
    names = [w.strip().lower() for w in text.split(",") if w.strip()]
    for name in names:
        if not _METRIC.fullmatch(name):
            raise InputError(
                f"there is no metric '{name}'; there are ndcg, map and mrr, with or without @K, and recall@K, "
                "precision@K and hit@K."
            )
    if not names:
        raise InputError(f"no metric is given; give some, such as {DEFAULT_METRICS}.")
    return list(dict.fromkeys(names))


def score_run(
    run: Path,
    truth: Path,
    metrics: Sequence[str],
    *,
    against: Path | None = None,
    seen: Path | None = None,
    min_rating: float = 1.0,
    binary: bool = False,
    device: str = "cpu",
) -> dict[str, Any]:
    """Return {"metrics": {name: {"mean", "ci"}}, "users", "without_ranking"}, and "paired": the differences to
    `against` over the same users. Intervals are 95 %, by bootstrap over users.

    seen        items that two matrices must not recommend: a table (user, item)
    min_rating  ratings from this on are relevant
    binary      every relevant item has the gain 1
    """
    if truth.suffix in TABLES and truth.is_file():
        used = [name for kind in ("user", "item", "time") for name in SPELLINGS[kind]]
        check_unused_columns(truth, read_names(truth, TABLES[truth.suffix] or ","), used)
    table = read_table(truth, "rating", "qrels")
    if not len(table.users):
        raise InputError(f"{truth} has no rows; give the held-out items.")
    hidden = None if seen is None else read_table(seen, "rating", "qrels")
    results, missing = list[dict[str, NDArray[np.float64]]](), 0
    for path in (run, *([against] if against is not None else [])):
        ranking = _read_run(path, table, hidden, device, find_depth(metrics))
        values, users, without = score_table(
            ranking, table, metrics, min_rating=min_rating, binary=binary, device=device, names=(path, truth)
        )
        missing = without if not results else missing
        results.append(values)
    summary: dict[str, Any] = {
        "run": str(run),
        "truth": str(truth),
        "users": len(users),
        "without_ranking": missing,
        "metrics": {name: _summarize(results[0][name]) for name in metrics},
    }
    if against is not None:
        summary["against"] = str(against)
        summary["paired"] = {name: _summarize(results[0][name] - results[1][name]) for name in metrics}
    return summary


def score_table(
    run: Table,
    truth: Table,
    metrics: Sequence[str],
    *,
    min_rating: float = 1.0,
    binary: bool = False,
    device: str = "cpu",
    names: tuple[object, object] = ("the run", "the truth"),
) -> tuple[dict[str, NDArray[np.float64]], Sequence[str], int]:
    """Return ({metric: one value per user of the truth}, these users, how many of them have no ranking)."""
    users, user_codes = _encode(truth.users, run.users)
    items, item_codes = _encode(truth.items, run.items)
    truth_users = np.unique(user_codes[0])
    width = len(items)
    keys = user_codes[0] * width + item_codes[0]
    order = np.argsort(keys, kind="stable")
    _refuse_repeated(keys[order], users, items, names[1])
    values = truth.values[order]
    relevant = values >= min_rating
    gains = np.where(relevant, 1.0, 0.0) if binary else np.maximum(values, 0.0)
    answer = _Truth([users[u] for u in truth_users.tolist()], keys[order], gains, relevant)

    place = np.full(len(users), -1)
    place[truth_users] = np.arange(len(truth_users))
    inside = place[user_codes[1]] >= 0
    rows, columns = user_codes[1][inside], item_codes[1][inside]
    scores = run.values[inside].astype(np.float32)
    bad = np.flatnonzero(np.isnan(scores))
    if len(bad):
        raise InputError(f"{names[0]}: the score of item '{items[columns[bad[0]]]}' is not a number; write one.")
    ranking = _sort(rows, scores, columns, device)
    rows, columns = rows[ranking], columns[ranking]
    run_keys = rows * width + columns
    _refuse_repeated(_sort_keys(run_keys, device), users, items, names[0])
    places = place[rows]
    starts = np.searchsorted(rows, truth_users)
    ranks = np.arange(len(rows)) - starts[places] + 1
    at = np.minimum(_search_keys(answer.keys, run_keys, device), len(answer.keys) - 1)
    known = answer.keys[at] == run_keys
    hits = _Hits(places, ranks, np.where(known, answer.gains[at], 0.0), known & answer.relevant[at], len(truth_users))
    ideal = _make_ideal(answer, place[answer.keys // width], len(truth_users))
    without = len(truth_users) - int(np.count_nonzero(np.bincount(places, minlength=len(truth_users))))
    return {name: _compute(name, hits, ideal) for name in metrics}, answer.users, without


@dataclass(frozen=True)
class _Hits:
    """Ranked items, sorted by user and rank: user, rank from 1, gain, and whether they are relevant."""

    users: Ints
    ranks: Ints
    gains: NDArray[np.float64]
    relevant: NDArray[np.bool_]
    count: int  # of users

    def add_up(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Add values up by user."""
        return np.bincount(self.users, values, minlength=self.count).astype(np.float64)


def _make_ideal(truth: _Truth, users: Ints, count: int) -> _Hits:
    order = np.lexsort((-truth.gains, users))
    users = users[order]
    starts = np.searchsorted(users, np.arange(count))
    return _Hits(users, np.arange(len(users)) - starts[users] + 1, truth.gains[order], truth.relevant[order], count)


def _compute(name: str, hits: _Hits, ideal: _Hits) -> NDArray[np.float64]:
    match = _METRIC.fullmatch(name)
    if match is None:
        raise InputError(f"there is no metric '{name}'.")
    kind, cut = match[1] or match[3], int(match[2] or match[4] or 2**60)
    total = ideal.add_up(ideal.relevant)
    within = hits.relevant & (hits.ranks <= cut)
    if kind == "ndcg":
        dcg, best = (h.add_up(h.gains * (h.ranks <= cut) / np.log2(h.ranks + 1.0)) for h in (hits, ideal))
        return _divide(dcg, best)
    if kind == "recall":
        return _divide(hits.add_up(within), total)
    if kind == "precision":
        return hits.add_up(within) / cut
    if kind == "hit":
        return (hits.add_up(within) > 0).astype(np.float64)
    if kind == "mrr":
        first = np.full(hits.count, np.inf)
        np.minimum.at(first, hits.users[within], hits.ranks[within])
        return 1.0 / first
    relevant_so_far = np.cumsum(hits.relevant)
    before = np.r_[0, relevant_so_far][np.searchsorted(hits.users, np.arange(hits.count))]
    return _divide(hits.add_up(within * (relevant_so_far - before[hits.users]) / hits.ranks), total)


def _divide(values: NDArray[np.float64], by: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.divide(values, by, out=np.zeros_like(values), where=by > 0)


def _sort(users: Ints, scores: Floats, items: Ints, device: str) -> Ints:
    """Sort by user, then score, then item, both descending; item numbers are in the order of their ids."""
    if not device.startswith("cuda"):
        return np.lexsort((-items, -scores, users))
    import torch

    columns = [torch.from_numpy(np.ascontiguousarray(c)).to(device) for c in (items, scores, users)]
    order = torch.argsort(columns[0], descending=True, stable=True)
    order = order[torch.argsort(columns[1][order], descending=True, stable=True)]
    order = order[torch.argsort(columns[2][order], stable=True)]
    return np.asarray(order.cpu().numpy())


def _sort_keys(keys: Ints, device: str) -> Ints:
    if not device.startswith("cuda"):
        return np.sort(keys)
    import torch

    return np.asarray(torch.from_numpy(keys).to(device).sort().values.cpu().numpy())


def _search_keys(keys: Ints, values: Ints, device: str) -> Ints:
    """Return the place of each value in the sorted keys."""
    if not device.startswith("cuda"):
        return np.searchsorted(keys, values)
    import torch

    on_device = (torch.from_numpy(array).to(device) for array in (keys, values))
    return np.asarray(torch.searchsorted(*on_device).cpu().numpy())


def _encode(*columns: Any) -> tuple[list[str], list[Ints]]:
    """Return (all ids, sorted by code point, one array of places per column)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    encoded = [c if pa.types.is_dictionary(c.type) else c.dictionary_encode() for c in columns]
    chunks = pa.chunked_array(encoded).unify_dictionaries()
    words = chunks.chunk(0).dictionary
    order = pc.array_sort_indices(words).to_numpy()  # by bytes of UTF-8, as strcmp
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    codes = [place[np.asarray(chunk.indices.to_numpy(zero_copy_only=False), np.int64)] for chunk in chunks.chunks]
    return words.take(pa.array(order)).to_pylist(), codes


def _refuse_repeated(keys: Ints, users: Sequence[str], items: Sequence[str], name: object) -> None:
    twice = np.flatnonzero(keys[1:] == keys[:-1])
    if len(twice):
        user, item = divmod(int(keys[twice[0]]), len(items))
        raise InputError(f"{name} has item '{items[item]}' of user '{users[user]}' twice; write each pair once.")


def _summarize(values: NDArray[np.float64]) -> dict[str, Any]:
    return {"mean": float(values.mean()), "ci": list(bootstrap_interval(values))}


def read_table(path: Path, value: str, trec: str) -> Table:
    """Read user, item and the column `value` (1 where it is optional and missing), or a file of trec_eval."""
    import pyarrow as pa

    if not path.is_file():
        raise InputError(f"there is no file '{path}'; give a table (.parquet, .csv, .tsv) or a file of trec_eval.")
    if path.suffix not in TABLES:
        return _read_trec(path, value, trec)
    present = read_names(path, TABLES[path.suffix] or ",")
    spellings = {**SPELLINGS, "score": ("score", "prediction")}
    names = {k: next((n for n in spellings[k] if n in present), spellings[k][0]) for k in ("user", "item", value)}
    problems = Problems()
    kinds = {names["user"]: ID, names["item"]: ID, names[value]: FLOAT}
    optional = (names[value],) if value == "rating" else ()
    columns = read_columns(path, kinds, problems, delimiter=TABLES[path.suffix] or ",", optional=optional)
    if problems.total():
        raise InputError(f"{path}: {problems.lines()[0]}; correct or remove these rows.")
    users, items = (columns[names[k]].cast(pa.string()) for k in ("user", "item"))
    values = np.asarray(columns[names[value]].to_numpy(zero_copy_only=False)) if names[value] in columns else None
    return Table(users, items, np.ones(len(users)) if values is None else values.astype(np.float64))


def _read_trec(path: Path, value: str, trec: str) -> Table:
    import pyarrow as pa
    import pyarrow.csv as pc

    names = list(TREC_COLUMNS[trec])
    raw = re.sub(rb"(?m)^ +| +$", b"", re.sub(rb"[ \t\r]+", b" ", path.read_bytes()))
    if not raw.strip():
        raise InputError(f"{path} has no rows; write it again.")
    try:
        table = pc.read_csv(
            pa.BufferReader(raw),
            pc.ReadOptions(column_names=names),
            pc.ParseOptions(delimiter=" ", quote_char=False),
            pc.ConvertOptions(
                column_types={"user": pa.string(), "item": pa.string(), value: pa.float64()},
                include_columns=["user", "item", value],
                strings_can_be_null=False,
                null_values=[],
            ),
        ).combine_chunks()
    except pa.ArrowInvalid:
        for number, line in enumerate(raw.split(b"\n"), start=1):
            words = line.split()
            if words and (len(words) != len(names) or not _is_number(words[names.index(value)])):
                shape = " ".join(names).replace("_", "Q0" if trec == "run" else "0")
                text = line[:60].decode(errors="replace")
                raise InputError(f"{path} line {number} is '{text}', not '{shape}'; correct it.") from None
        raise InputError(f"{path} is no {trec} file of trec_eval in UTF-8; give a table or such a file.") from None
    users, items = (table[name].combine_chunks() for name in ("user", "item"))
    return Table(users, items, np.asarray(table[value].to_numpy(), np.float64))


def _is_number(word: bytes) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def find_depth(metrics: Sequence[str]) -> int:
    """Return how many items per user two matrices must rank: DEPTH, or the largest cut of a metric."""
    cuts = (name.partition("@")[2] for name in metrics)
    return max(DEPTH, *(int(cut) for cut in cuts if cut), 0)


def _read_run(path: Path, truth: Table, seen: Table | None, device: str, depth: int) -> Table:
    if path.is_dir():
        return rank_factors(path, truth, seen, device, depth)
    if seen is not None:
        raise InputError(f"--seen is for two matrices, and {path} is a ranking already; leave --seen out.")
    return read_table(path, "score", "run")


def rank_factors(folder: Path, truth: Table, seen: Table | None, device: str, depth: int = DEPTH) -> Table:
    """Rank `depth` items of a folder of two matrices for each user of the truth, without those of `seen`."""
    import pyarrow as pa

    from ridgeline.recommend.ranking import VectorRanker

    users, items, user_ids, item_ids = (_load_array(folder, n) for n in ("users", "items", "user_ids", "item_ids"))
    if users.ndim != 2 or items.ndim != 2 or users.shape[1] != items.shape[1]:
        raise InputError(f"{folder}: users.npy is {users.shape} and items.npy {items.shape}; give [n, d] and [m, d].")
    for matrix, ids, name in ((users, user_ids, "user"), (items, item_ids, "item")):
        if len(matrix) != len(ids):
            raise InputError(f"{folder}: {len(matrix):,} {name} vectors for {len(ids):,} ids; write one for each.")
        if not np.isfinite(matrix).all():
            raise InputError(f"{folder}: {name}s.npy holds values that are not finite; write it again.")
    user_words, item_words = (pa.array(ids.astype(str).tolist(), pa.string()) for ids in (user_ids, item_ids))
    names, (truth_users, known) = _encode(truth.users, user_words)
    place = np.full(len(names), -1)
    place[known] = np.arange(len(user_ids))
    rows = place[np.unique(truth_users)]
    rows = rows[rows >= 0]
    hidden = _select_seen(seen, user_ids, item_ids, rows)
    if not len(rows):
        raise InputError(f"{folder} has no vector of any user of the truth; are the ids the same?")
    ranker = VectorRanker(np.asarray(items, np.float32), device)
    best, scores = ranker.top_items(np.asarray(users[rows], np.float32), hidden, min(depth, len(items)))
    is_filled = best >= 0
    owners = np.broadcast_to(rows[:, None], best.shape)[is_filled]
    ranked_users = pa.DictionaryArray.from_arrays(pa.array(owners, pa.int32()), user_words)
    ranked_items = pa.DictionaryArray.from_arrays(pa.array(best[is_filled], pa.int32()), item_words)
    return Table(ranked_users, ranked_items, scores[is_filled].astype(np.float64))


def _select_seen(seen: Table | None, user_ids: NDArray[Any], item_ids: NDArray[Any], rows: Ints) -> Histories:
    place = {user: at for at, user in enumerate(user_ids[rows].astype(str).tolist())}
    item_rows = {item: at for at, item in enumerate(item_ids.astype(str).tolist())}
    pairs = [] if seen is None else zip(seen.users.to_pylist(), seen.items.to_pylist(), strict=True)
    entries = sorted({(place[u], item_rows[i]) for u, i in pairs if u in place and i in item_rows})
    owners = np.array([u for u, _ in entries], np.int64)
    starts = np.r_[0, np.cumsum(np.bincount(owners, minlength=len(rows)))].astype(np.int64)
    count = len(entries)
    return Histories(
        starts,
        np.array([i for _, i in entries], np.int64),
        np.ones(count, np.float32),
        np.zeros(count, np.int64),
        len(item_ids),
        np.zeros(len(rows), np.int64),
    )


def _load_array(folder: Path, name: str) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}/{name}.npy cannot be read ({error}); write the matrices as .npy files.") from None
    return array

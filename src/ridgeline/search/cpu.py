"""Search on the CPU: NumPy's matrix product and native loops; no torch, no FAISS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ridgeline.errors import InputError
from ridgeline.search import ranking as ranking
from ridgeline.search.arrays import Array, Doubles, Floats, GrowableArray, Integers, count_threads, wrap_rows
from ridgeline.search.codecs import (
    ByteCodec,
    Codec,
    FlatCodec,
    ProductCodec,
    RabitqCodec,
    make_rabitq_codec,
    train_byte_codec,
    train_product_codec,
    train_rotated_codec,
)
from ridgeline.search.engine import EngineConfig, SearchOptions
from ridgeline.search.flat import FlatRows, compute_biases
from ridgeline.search.graph import GraphEngine, make_graph
from ridgeline.search.inputs import as_matrix, compute_finite_norms, is_tensor
from ridgeline.search.inverted_lists import InvertedLists, OneQuerySearch, RabitqFastPath, Segment
from ridgeline.search.kmeans import find_nearest_centres, train_centres
from ridgeline.search.metric import compute_norms, normalize
from ridgeline.search.spec import Spec, check_dimension

MIN_PER_LIST = 16  # training vectors; with fewer, differences to the centres are smaller than those of new vectors
SINGLE_ROW_COST = 4  # scoring a row by itself takes as long as this many rows of a list
MAX_CANDIDATES = 1 << 22  # rows of all queries that are scored at a time
MAX_SINGLE_QUERIES = 5  # up to this many queries, lists are read by one query after the other in native loops


@dataclass(frozen=True)
class Refiner:
    """The same rows with a finer codec, which ranks the candidates."""

    codec: Codec
    codes: GrowableArray

    @property
    def values(self) -> ranking.CodeValues:
        return ranking.CodeValues(self.codec, self.codes.rows)


@dataclass(frozen=True)
class CpuEngine:
    """Vectors on the CPU."""

    config: EngineConfig
    row_scorer: FlatRows | InvertedLists
    refiner: Refiner | None

    @property
    def count(self) -> int:
        return self.row_scorer.count

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays().values())

    def append(self, vectors: Floats) -> CpuEngine:
        refiner = self.refiner
        if refiner is not None:
            refiner = replace(refiner, codes=refiner.codes.append(refiner.codec.encode(vectors)))
        return replace(self, row_scorer=self.row_scorer.append(vectors), refiner=refiner)

    def select_rows(self, rows: Integers) -> CpuEngine:
        refiner = self.refiner
        if refiner is not None:
            refiner = replace(refiner, codes=wrap_rows(refiner.codes.rows[rows]))
        return replace(self, row_scorer=self.row_scorer.select_rows(rows), refiner=refiner)

    def search(self, queries: Floats, options: SearchOptions) -> tuple[Doubles, Integers]:
        """Search; in lists, a filter that few rows pass, or none in the lists that were read, loses no results."""
        lists, allowed = self.row_scorer, options.allowed
        if allowed is None or not options.filtered or not isinstance(lists, InvertedLists):
            return self._search(queries, options)
        usable, list_count = int(np.count_nonzero(allowed)), len(lists.centres)
        if not usable or usable * SINGLE_ROW_COST * list_count <= self.count * options.nprobe:
            return self._search_allowed(queries, options, usable)
        scores, rows = self._search(queries, options)
        short = np.flatnonzero(rows[:, min(options.k, usable) - 1] < 0)
        if len(short) and options.nprobe < list_count:
            scores[short], rows[short] = self._search(queries[short], replace(options, nprobe=list_count))
        return scores, rows

    def _search_allowed(self, queries: Floats, options: SearchOptions, usable: int) -> tuple[Doubles, Integers]:
        """Score all rows that may be returned by their finest values."""
        parts = []
        step = max(1, MAX_CANDIDATES // max(1, usable))
        for at in range(0, max(1, len(queries)), step):
            part = queries[at : at + step]
            offsets, rows = ranking.list_all_rows(len(part), self.count, options.allowed)
            scores = ranking.rescore_candidates(self._finest, part, offsets, rows, self._squared)
            parts.append(ranking.rank_candidates(offsets, rows, scores, options.k, self._squared, options.ids))
        return np.concatenate([s for s, _ in parts]), np.concatenate([r for _, r in parts])

    def _search(self, queries: Floats, options: SearchOptions) -> tuple[Doubles, Integers]:
        if isinstance(self.row_scorer.codec, RabitqCodec):
            return self._search_rabitq(queries, options)
        candidate_count = options.k * options.depth if self.refiner is not None else options.k
        parts = []
        for part, slack in self._split_queries(queries):
            offsets, rows = ranking.find_candidates(
                self.row_scorer, part, slack, candidate_count, options.nprobe, options.allowed
            )
            scores = ranking.rescore_candidates(self._finest, part, offsets, rows, self._squared)
            parts.append(ranking.rank_candidates(offsets, rows, scores, options.k, self._squared, options.ids))
        if len(parts) == 1:
            return parts[0]
        empty = (np.empty((0, options.k)), np.empty((0, options.k), np.int64))
        return np.concatenate([s for s, _ in [empty, *parts]]), np.concatenate([r for _, r in [empty, *parts]])

    def get_fast_path(self, queries: Floats, options: SearchOptions) -> OneQuerySearch | RabitqFastPath | None:
        """Return a faster search for the next query of this shape, or None."""
        row_scorer = self.row_scorer
        if isinstance(row_scorer, InvertedLists) and isinstance(row_scorer.codec, RabitqCodec):
            if options.allowed is not None or not len(queries) or (self.refiner is not None and not self._reads_floats):
                return None

            def slow(values: Any) -> tuple[Doubles, Integers]:
                prepared = CpuBackend().prepare_vectors(values, self.config.dim, self.config.metric, "queries")
                return self.search(prepared, options)

            floats = self.refiner.codes.rows if self.refiner is not None else None
            return RabitqFastPath(row_scorer, floats, self.config.metric == "cosine", options, slow)
        if not 1 <= len(queries) <= MAX_SINGLE_QUERIES or self.refiner is not None:
            return None
        if not isinstance(row_scorer, InvertedLists) or not OneQuerySearch.supports(row_scorer, options):
            return None
        metric = self.config.metric

        def fallback(query: Any) -> tuple[Doubles, Integers]:
            return self.search(CpuBackend().prepare_vectors(query, self.config.dim, metric, "queries"), options)

        return OneQuerySearch(row_scorer, metric, options, fallback)

    def search_radius(
        self, queries: Floats, radius: float, options: SearchOptions
    ) -> tuple[Integers, Doubles, Integers]:
        """Search by radius; with a refiner, its values decide which candidates of the coarse codes are near enough."""
        limits: list[Integers] = [np.zeros(1, np.int64)]
        scores: list[Doubles] = [np.zeros(0)]
        rows: list[Integers] = [np.zeros(0, np.int64)]
        for part, slack in self._split_queries(queries):
            min_scores = self._min_scores(part, radius)
            offsets, candidate_rows = ranking.find_candidates_within(
                self.row_scorer, part, slack, min_scores, options.nprobe, options.allowed
            )
            values = ranking.rescore_candidates(self._finest, part, offsets, candidate_rows, self._squared)
            ends, best, best_rows = ranking.select_within_radius(
                offsets, candidate_rows, values, radius, self._squared, options.ids
            )
            limits.append(ends[1:] + limits[-1][-1])
            scores.append(best)
            rows.append(best_rows)
        return np.concatenate(limits), np.concatenate(scores), np.concatenate(rows)

    def as_exact(self) -> CpuEngine | None:
        """Return an exact engine over the stored float32 values without a copy; None if they are not stored so."""
        plain = self._finest.as_float32()
        if plain is None:
            return None
        config = replace(self.config, spec=Spec("Flat"), dtype="float32")
        lengths = compute_norms(plain)
        biases = wrap_rows(compute_biases(lengths)) if self._squared else None
        codec = FlatCodec(config.dim, "float32")
        return CpuEngine(config, FlatRows(codec, wrap_rows(plain), biases, float(lengths.max(initial=0.0))), None)

    def vectors(self, rows: Integers) -> Floats:
        plain = self._finest.as_float32()
        return plain[rows] if plain is not None else self._finest.decode_rows(rows)

    def arrays(self) -> Mapping[str, Array]:
        row_scorer, arrays = self.row_scorer, dict(self.row_scorer.codec.arrays())
        if isinstance(row_scorer, InvertedLists):
            merged = (
                row_scorer.select_rows(np.arange(row_scorer.count)) if len(row_scorer.segments) != 1 else row_scorer
            )
            segment = merged.segments[0]
            arrays |= {"codes": segment.codes, "rows": segment.rows, "offsets": segment.offsets}
            arrays |= {"centres": row_scorer.centres}
            arrays |= {} if segment.biases is None else {"biases": segment.biases}
        else:
            arrays["codes"] = row_scorer.codes.rows
            arrays |= {} if row_scorer.biases is None else {"biases": row_scorer.biases.rows}
        if self.refiner is not None:
            arrays["refine_codes"] = self.refiner.codes.rows
            arrays |= {f"refine_{name}": array for name, array in self.refiner.codec.arrays().items()}
        arrays["longest"] = np.array([row_scorer.longest])
        return arrays

    def _search_rabitq(self, queries: Floats, options: SearchOptions) -> tuple[Doubles, Integers]:
        """One native call; a refiner that stores codes ranks the best depth · k rows of the stored values again."""
        lists, squared = self.row_scorer, self._squared
        assert isinstance(lists, InvertedLists)  # noqa: S101  # for the type checker
        again = self.refiner is not None and not self._reads_floats
        width = max(1, min(self.count, options.k * options.depth)) if again else options.k
        values = self.refiner.codes.rows if self.refiner is not None and not again else None
        scores, rows = np.empty((len(queries), width)), np.empty((len(queries), width), np.int64)
        search = lists.make_rabitq_search(values, options.allowed, options.ids)
        read = search(np.ascontiguousarray(queries), options.nprobe, scores, rows, count_threads())
        if read >= 0 and not again:
            return scores, rows
        if read < 0:
            offsets, candidates = ranking.list_all_rows(len(queries), self.count, options.allowed)
        else:
            is_result = rows >= 0
            offsets, candidates = np.concatenate([[0], np.cumsum(is_result.sum(1))]).astype(np.int64), rows[is_result]
        exact = ranking.rescore_candidates(self._finest, queries, offsets, candidates, squared)
        return ranking.rank_candidates(offsets, candidates, exact, options.k, squared, options.ids)

    @property
    def _reads_floats(self) -> bool:
        """Whether the refiner keeps float32 values."""
        return self.refiner is not None and self.refiner.values.as_float32() is not None

    @property
    def _squared(self) -> bool:
        return self.config.metric == "l2"

    @property
    def _finest(self) -> ranking.StoredValues:
        return self.refiner.values if self.refiner is not None else self.row_scorer.values

    def _split_queries(self, queries: Floats) -> list[tuple[Floats, Doubles]]:
        """Split queries into parts with their slack; into single queries if float32 cannot hold the scores."""
        slack = self.row_scorer.slack(queries)
        is_small = len(queries) <= MAX_SINGLE_QUERIES and isinstance(self.row_scorer, InvertedLists)
        step = 1 if is_small or not np.isfinite(slack).all() else ranking.MAX_QUERIES
        return [(queries[at : at + step], slack[at : at + step]) for at in range(0, len(queries), step)]

    def _min_scores(self, queries: Floats, radius: float) -> Doubles:
        """The lowest score of a row that is nearer than `radius`."""
        if not self._squared:
            return np.full(len(queries), radius)
        squares = compute_norms(queries) ** 2
        return (squares - radius) / 2 - 1e-12 * (squares + abs(radius))


@dataclass(frozen=True)
class CpuBackend:
    """Makes engines on the CPU."""

    device: str = "cpu"

    def prepare_vectors(self, vectors: Any, dim: int | None, metric: str, what: str) -> Floats:
        values = as_matrix(vectors, dim, what)
        norms = compute_finite_norms(values, what)
        return normalize(values, norms) if metric == "cosine" else values

    def convert_like(self, values: Array, like: Any) -> Any:
        if not is_tensor(like):
            return values
        import torch

        return torch.from_numpy(np.ascontiguousarray(values)).to(like.device)

    def train_engine(self, config: EngineConfig, vectors: Floats, seed: int = 0) -> CpuEngine | GraphEngine:
        spec, metric = config.spec, config.metric
        check_dimension(spec, config.dim)
        if spec.links is not None:
            flat = CpuEngine(config, _make_empty_rows(config, _train_codec(config, "Flat", vectors, seed), None), None)
            return GraphEngine(config, flat, make_graph(config))
        centres = None
        if spec.trains and not len(vectors):
            raise InputError(f"'{spec}' cannot learn from no vectors; train with some that are like those to come.")
        if spec.lists is not None:
            if len(vectors) < spec.lists:
                raise InputError(
                    f"'{spec}' needs {spec.lists} vectors or more to learn from and was given {len(vectors)}; "
                    "give more or use fewer lists."
                )
            centres = train_centres(vectors, spec.lists, seed=seed, spherical=metric == "cosine")
        residual = vectors
        byte_residual = spec.codec == "SQ8" and centres is not None and len(vectors) >= MIN_PER_LIST * len(centres)
        if centres is not None and (spec.codec == "PQ" or byte_residual):
            sample = vectors
            if len(sample) > 65_536:
                sample = sample[np.random.default_rng(seed).choice(len(sample), 65_536, replace=False)]
            residual = sample - centres[find_nearest_centres(sample, centres)]
        if spec.codec == "RaBitQ" and centres is None:  # one list around the mean
            centres = vectors.mean(0, keepdims=True, dtype=np.float64).astype(np.float32)
        codec = _train_codec(config, spec.codec, residual, seed)
        if isinstance(codec, ByteCodec) and byte_residual:
            codec = replace(codec, residual=True)
        refiner = None
        if spec.refine is not None:
            refine_codec = _train_codec(config, spec.refine, vectors, seed)
            refiner = Refiner(refine_codec, wrap_rows(refine_codec.empty()))
        return CpuEngine(config, _make_empty_rows(config, codec, centres), refiner)

    def restore_engine(self, config: EngineConfig, arrays: Mapping[str, Array]) -> CpuEngine | GraphEngine:
        spec = config.spec
        codec = _restore_codec(config, spec.codec, arrays, "")
        row_scorer: FlatRows | InvertedLists = _make_empty_rows(config, codec, arrays.get("centres"))
        longest = float(arrays["longest"][0])
        biases = arrays.get("biases")
        if isinstance(row_scorer, InvertedLists):
            segment = Segment(0, arrays["rows"], arrays["offsets"], arrays["codes"], biases)
            row_scorer = replace(row_scorer, segments=(segment,), longest=longest)
        else:
            row_biases = None if biases is None else wrap_rows(biases)
            row_scorer = replace(row_scorer, codes=wrap_rows(arrays["codes"]), biases=row_biases, longest=longest)
        refiner = None
        if spec.refine is not None:
            refine_codec = _restore_codec(config, spec.refine, arrays, "refine_")
            refiner = Refiner(refine_codec, wrap_rows(arrays["refine_codes"]))
        engine = CpuEngine(config, row_scorer, refiner)
        return engine if spec.links is None else GraphEngine(config, engine, make_graph(config, arrays))


def open_backend(device: str) -> CpuBackend:
    return CpuBackend()


def _make_empty_rows(config: EngineConfig, codec: Codec, centres: Floats | None) -> FlatRows | InvertedLists:
    distances = config.metric == "l2"
    if centres is not None:
        return InvertedLists(codec, centres, (), distances)
    return FlatRows(codec, wrap_rows(codec.empty()), wrap_rows(np.empty(0, np.float32)) if distances else None)


def _train_codec(config: EngineConfig, name: str, vectors: Floats, seed: int) -> Codec:
    if name == "SQ8":
        return train_byte_codec(vectors)
    if name == "PQ":
        train = train_rotated_codec if config.spec.rotated else train_product_codec
        return train(vectors, config.spec.parts or 1, seed)
    if name == "RaBitQ":
        return make_rabitq_codec(config.dim, config.spec.bits or 1, config.spec.refine is not None, seed)
    return FlatCodec(config.dim, config.dtype)


def _restore_codec(config: EngineConfig, name: str, arrays: Mapping[str, Array], prefix: str) -> Codec:
    if name == "SQ8":
        return ByteCodec(arrays[f"{prefix}base"], arrays[f"{prefix}step"], f"{prefix}residual" in arrays)
    if name == "PQ":
        return ProductCodec(arrays[f"{prefix}words"], arrays.get(f"{prefix}rotation"))
    if name == "RaBitQ":
        return RabitqCodec(np.array(arrays["signs"]), config.spec.bits or 1, config.spec.refine is not None)
    return FlatCodec(config.dim, config.dtype)

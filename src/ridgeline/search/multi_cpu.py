"""MaxSim on the CPU: NumPy's matrix product, the largest score of each document, and a few documents in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ridgeline.search.arrays import Array, Doubles, Flags, Floats, GrowableArray, Integers, wrap_rows
from ridgeline.search.codecs import Codec
from ridgeline.search.metric import compute_norms, compute_slack
from ridgeline.search.multi import Ragged
from ridgeline.search.token_codes import RotatedCodec, make_token_codec, restore_token_codec

BLOCK_SCORES = 1 << 19  # products that stay in the caches until the largest are taken
BLOCK_VALUES = 1 << 22  # components that are decoded at a time
MAX_QUERY_VECTORS = 512  # in one product
GATHER_FACTOR = 4  # if fewer than 1 in 4 documents are allowed, only those are read


@dataclass(frozen=True)
class CpuDocuments:
    """The vectors of all documents as codes."""

    codec: Codec
    codes: GrowableArray
    ends: GrowableArray  # int64 [N] where each document ends
    longest: float = 0.0  # ‖x‖ of the longest stored vector

    @property
    def count(self) -> int:
        return self.ends.count

    @property
    def nbytes(self) -> int:
        return self.codes.rows.nbytes + self.ends.rows.nbytes

    @property
    def offsets(self) -> Integers:
        return np.concatenate([[0], self.ends.rows])

    def append(self, documents: Ragged) -> CpuDocuments:
        codes = self.codec.encode(documents.vectors)
        longest = self.longest
        for at in range(0, len(codes), 65_536):
            longest = max(longest, float(compute_norms(self.codec.decode(codes[at : at + 65_536])).max(initial=0.0)))
        ends = self.ends.append(documents.offsets[1:] + self.codes.count)
        return replace(self, codes=self.codes.append(codes), ends=ends, longest=longest)

    def select_documents(self, numbers: Integers) -> CpuDocuments:
        places, offsets = self._locate(numbers)
        return replace(self, codes=wrap_rows(self.codes.rows[places]), ends=wrap_rows(offsets[1:]))

    def search(self, queries: Ragged, k: int, allowed: Flags | None, ids: Integers | None) -> tuple[Doubles, Integers]:
        scores = np.full((len(queries), k), -np.inf)
        numbers = np.full((len(queries), k), -1, np.int64)
        first = 0
        while first < len(queries):
            # As many queries as one product may have, and one at least.
            last = int(np.searchsorted(queries.offsets, queries.offsets[first] + MAX_QUERY_VECTORS, "right")) - 1
            last = min(len(queries), max(first + 1, last))
            part = queries.slice(first, last)
            chosen = self._find_candidates(part, k, allowed)
            for query, (row, exact) in enumerate(zip(chosen, self.rescore(part, chosen), strict=True), first):
                best = np.lexsort((row if ids is None else ids[row], -exact))[:k]
                scores[query, : len(best)], numbers[query, : len(best)] = exact[best], row[best]
            first = last
        return scores, numbers

    def rescore(self, queries: Ragged, numbers: Sequence[Integers]) -> list[Doubles]:
        return [
            self._score_exactly(queries.slice(query, query + 1).vectors, chosen) for query, chosen in enumerate(numbers)
        ]

    def decode(self, numbers: Integers) -> Ragged:
        places, offsets = self._locate(numbers)
        return Ragged(np.ascontiguousarray(self.codec.decode(self.codes.rows[places])), offsets)

    def arrays(self) -> Mapping[str, Array]:
        return {
            "codes": self.codes.rows,
            "offsets": self.offsets,
            "longest": np.array([self.longest]),
            **self.codec.arrays(),
        }

    def _find_candidates(self, queries: Ragged, k: int, allowed: Flags | None) -> list[Integers]:
        """For each query all documents that can be among its best k."""
        chosen = np.arange(self.count) if allowed is None else np.flatnonzero(allowed)
        norms = np.add.reduceat(compute_norms(queries.vectors), queries.offsets[:-1])
        if isinstance(self.codec, RotatedCodec):  # rounding while query and row are turned: √d · the norm each, in all
            norms = norms * (1 + 3 * queries.vectors.shape[1] ** 0.5)
        slack = compute_slack(queries.vectors.shape[1], norms * self.longest)
        if not np.isfinite(slack).all() or len(chosen) <= k:
            return [chosen] * len(queries)
        is_small = len(chosen) * GATHER_FACTOR < self.count
        scores = self._score_documents(queries, chosen if is_small else None)
        if not is_small and allowed is not None:
            scores[:, allowed == 0] = -np.inf
        needed = np.partition(scores, scores.shape[1] - k, axis=1)[:, scores.shape[1] - k] - slack
        candidates = [np.flatnonzero(row >= least) for row, least in zip(scores, needed, strict=True)]
        return [chosen[n] for n in candidates] if is_small else candidates

    def _score_documents(self, queries: Ragged, numbers: Integers | None) -> Doubles:
        """[q, documents] in float32 products, block by block of whole documents."""
        places, offsets = self._locate(numbers) if numbers is not None else (None, self.offsets)
        width = queries.vectors.shape[1]
        step = max(1, min(BLOCK_SCORES // len(queries.vectors), BLOCK_VALUES // width))
        out = np.empty((len(queries), len(offsets) - 1))
        rotated = self.codec if isinstance(self.codec, RotatedCodec) else None
        decode = self.codec.decode if rotated is None else rotated.decode_rotated
        given = queries.vectors if rotated is None else rotated.rotate(queries.vectors)
        low = 0
        while low < len(offsets) - 1:
            high = max(low + 1, int(np.searchsorted(offsets, offsets[low] + step, "right")) - 1)
            part = slice(offsets[low], offsets[high])
            values = decode(self.codes.rows[part if places is None else places[part]])
            best = np.maximum.reduceat(given @ values.T, offsets[low:high] - offsets[low], axis=1)
            out[:, low:high] = np.add.reduceat(best, queries.offsets[:-1], axis=0, dtype=np.float64)
            low = high
        return out

    def _score_exactly(self, query: Floats, numbers: Integers) -> Doubles:
        """float64 [documents] of one query [t, d]."""
        out, exact = np.empty(len(numbers)), query.astype(np.float64)
        step = 4096  # documents at a time: float64 copies of all of them may not fit
        for at in range(0, len(numbers), step):
            values = self.decode(numbers[at : at + step])
            products = exact @ values.vectors.astype(np.float64).T
            out[at : at + step] = np.maximum.reduceat(products, values.offsets[:-1], axis=1).sum(0)
        return out

    def _locate(self, numbers: Integers) -> tuple[Integers, Integers]:
        """(places of the vectors of some documents, their offsets)."""
        offsets = self.offsets
        lengths = np.diff(offsets)[numbers]
        ends = np.cumsum(lengths)
        starts = np.repeat(offsets[numbers] - (ends - lengths), lengths)
        places = starts + np.arange(len(starts))
        return places, np.concatenate([[0], ends]).astype(np.int64)


def make_engine(codes: str, dtype: str, vectors: Floats, device: str) -> CpuDocuments:
    """Return an engine without documents; SQ8 learns the range of values from `vectors`."""
    codec = make_token_codec(codes, dtype, vectors)
    return CpuDocuments(codec, wrap_rows(codec.empty()), wrap_rows(np.zeros(0, np.int64)))


def restore_engine(codes: str, dtype: str, arrays: Mapping[str, Array], device: str) -> CpuDocuments:
    """Return the engine whose `arrays` were saved."""
    codec = restore_token_codec(codes, dtype, arrays)
    ends = np.asarray(arrays["offsets"])[1:]
    return CpuDocuments(codec, wrap_rows(np.asarray(arrays["codes"])), wrap_rows(ends), float(arrays["longest"][0]))

"""Search on the CPU: NumPy's matrix product and native loops; no torch, no FAISS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ridgeline.errors import InputError
from ridgeline.search import blocks
from ridgeline.search.arrays import Array, Floats, Grown, Whole, Wide, grown
from ridgeline.search.codecs import ByteCodec, Codec, FlatCodec, PartCodec, trained_bytes, trained_parts
from ridgeline.search.engine import Ask, Recipe
from ridgeline.search.inputs import finite_norms, is_tensor, matrix
from ridgeline.search.kmeans import kmeans, nearest
from ridgeline.search.lists import Lists, Segment
from ridgeline.search.metric import norms, unit
from ridgeline.search.one_query import OnLists
from ridgeline.search.scan import Scan
from ridgeline.search.spec import fitting


@dataclass(frozen=True)
class Refiner:
    """The same rows, kept finer: candidates are ranked by these values."""

    codec: Codec
    codes: Grown

    @property
    def values(self) -> blocks.Decoded:
        return blocks.Decoded(self.codec, self.codes.rows)


@dataclass(frozen=True)
class CpuEngine:
    recipe: Recipe
    family: Scan | Lists
    refiner: Refiner | None

    @property
    def count(self) -> int:
        return self.family.count

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays().values())

    def added(self, vectors: Floats) -> CpuEngine:
        refiner = self.refiner
        if refiner is not None:
            refiner = replace(refiner, codes=refiner.codes.appended(refiner.codec.encode(vectors)))
        return replace(self, family=self.family.added(vectors), refiner=refiner)

    def taken(self, rows: Whole) -> CpuEngine:
        refiner = self.refiner
        if refiner is not None:
            refiner = replace(refiner, codes=grown(refiner.codes.rows[rows]))
        return replace(self, family=self.family.taken(rows), refiner=refiner)

    def search(self, queries: Floats, ask: Ask) -> tuple[Wide, Whole]:
        wanted = ask.k * ask.depth if self.refiner is not None else ask.k
        parts = []
        for piece, slack in self._pieces(queries):
            offsets, rows = blocks.candidates(self.family, piece, slack, wanted, ask.nprobe, ask.allowed)
            scores = blocks.rescored(self._finest, piece, offsets, rows, self._squared)
            parts.append(blocks.ranked(offsets, rows, scores, ask.k, self._squared, ask.ids))
        if len(parts) == 1:
            return parts[0]
        empty = (np.empty((0, ask.k)), np.empty((0, ask.k), np.int64))
        return np.concatenate([s for s, _ in [empty, *parts]]), np.concatenate([r for _, r in [empty, *parts]])

    def door(self, queries: Floats, ask: Ask) -> OnLists | None:
        """A shorter way for the next query like this one."""
        family = self.family
        if len(queries) != 1 or self.refiner is not None:
            return None
        if not isinstance(family, Lists) or not OnLists.fits(family, ask):
            return None
        metric = self.recipe.metric

        def otherwise(query: Any) -> tuple[Wide, Whole]:
            return self.search(Cpu().take_in(query, self.recipe.dim, metric, "queries"), ask)

        return OnLists(family, metric, ask, otherwise)

    def within(self, queries: Floats, radius: float, ask: Ask) -> tuple[Whole, Wide, Whole]:
        """With a refiner, what the coarse codes find is held against the radius by the finer values."""
        limits: list[Whole] = [np.zeros(1, np.int64)]
        scores: list[Wide] = [np.zeros(0)]
        rows: list[Whole] = [np.zeros(0, np.int64)]
        for piece, slack in self._pieces(queries):
            least = self._least(piece, radius)
            offsets, near = blocks.candidates_within(self.family, piece, slack, least, ask.nprobe, ask.allowed)
            values = blocks.rescored(self._finest, piece, offsets, near, self._squared)
            ends, best, found = blocks.nearer(offsets, near, values, radius, self._squared, ask.ids)
            limits.append(ends[1:] + limits[-1][-1])
            scores.append(best)
            rows.append(found)
        return np.concatenate(limits), np.concatenate(scores), np.concatenate(rows)

    def vectors(self, rows: Whole) -> Floats:
        plain = self._finest.plain()
        return plain[rows] if plain is not None else self._finest.decoded(rows)

    def arrays(self) -> Mapping[str, Array]:
        family, kept = self.family, dict(self.family.codec.arrays())
        if isinstance(family, Lists):
            whole = family.taken(np.arange(family.count)) if len(family.segments) != 1 else family
            segment = whole.segments[0]
            kept |= {"codes": segment.codes, "rows": segment.rows, "offsets": segment.offsets}
            kept |= {"centres": family.centres}
            kept |= {} if segment.biases is None else {"biases": segment.biases}
        else:
            kept["codes"] = family.codes.rows
            kept |= {} if family.biases is None else {"biases": family.biases.rows}
        if self.refiner is not None:
            kept["refine_codes"] = self.refiner.codes.rows
            kept |= {f"refine_{name}": array for name, array in self.refiner.codec.arrays().items()}
        kept["longest"] = np.array([family.longest])
        return kept

    @property
    def _squared(self) -> bool:
        return self.recipe.metric == "l2"

    @property
    def _finest(self) -> blocks.Values:
        return self.refiner.values if self.refiner is not None else self.family.values

    def _pieces(self, queries: Floats) -> list[tuple[Floats, Wide]]:
        """Queries at a time, with their slack; alone, where float32 will not do and all rows are candidates."""
        slack = self.family.slack(queries)
        step = blocks.QUERIES if np.isfinite(slack).all() else 1
        return [(queries[at : at + step], slack[at : at + step]) for at in range(0, len(queries), step)]

    def _least(self, queries: Floats, radius: float) -> Wide:
        """The score that a row nearer than `radius` has at least."""
        if not self._squared:
            return np.full(len(queries), radius)
        squares = norms(queries) ** 2
        return (squares - radius) / 2 - 1e-12 * (squares + abs(radius))


@dataclass(frozen=True)
class Cpu:
    device: str = "cpu"

    def take_in(self, vectors: Any, dim: int | None, metric: str, what: str) -> Floats:
        values = matrix(vectors, dim, what)
        lengths = finite_norms(values, what)
        return unit(values, lengths) if metric == "cosine" else values

    def give_back(self, values: Array, like: Any) -> Any:
        if not is_tensor(like):
            return values
        import torch

        return torch.from_numpy(np.ascontiguousarray(values)).to(like.device)

    def trained(self, recipe: Recipe, vectors: Floats, seed: int = 0) -> CpuEngine:
        spec, metric = recipe.spec, recipe.metric
        fitting(spec, recipe.dim)
        centres = None
        if spec.trains and not len(vectors):
            raise InputError(f"'{spec}' cannot learn from no vectors; train with some that are like those to come.")
        if spec.lists is not None:
            if len(vectors) < spec.lists:
                raise InputError(
                    f"'{spec}' needs {spec.lists} vectors or more to learn from and was given {len(vectors)}; "
                    "give more or use fewer lists."
                )
            centres = kmeans(vectors, spec.lists, seed=seed, spherical=metric == "cosine")
        residual = vectors
        if spec.codec == "PQ" and centres is not None:
            sample = vectors
            if len(sample) > 65_536:
                sample = sample[np.random.default_rng(seed).choice(len(sample), 65_536, replace=False)]
            residual = sample - centres[nearest(sample, centres)]
        codec = _codec(recipe, spec.codec, residual, seed)
        refiner = None
        if spec.refine is not None:
            finer = _codec(recipe, spec.refine, vectors, seed)
            refiner = Refiner(finer, grown(finer.empty()))
        return CpuEngine(recipe, _empty(recipe, codec, centres), refiner)

    def restored(self, recipe: Recipe, arrays: Mapping[str, Array]) -> CpuEngine:
        spec = recipe.spec
        codec = _known(recipe, spec.codec, arrays, "")
        family: Scan | Lists = _empty(recipe, codec, arrays.get("centres"))
        longest = float(arrays["longest"][0])
        biases = arrays.get("biases")
        if isinstance(family, Lists):
            segment = Segment(0, arrays["rows"], arrays["offsets"], arrays["codes"], biases)
            family = replace(family, segments=(segment,), longest=longest)
        else:
            kept = None if biases is None else grown(biases)
            family = replace(family, codes=grown(arrays["codes"]), biases=kept, longest=longest)
        refiner = None
        if spec.refine is not None:
            finer = _known(recipe, spec.refine, arrays, "refine_")
            refiner = Refiner(finer, grown(arrays["refine_codes"]))
        return CpuEngine(recipe, family, refiner)


def open_place(device: str) -> Cpu:
    return Cpu()


def _empty(recipe: Recipe, codec: Codec, centres: Floats | None) -> Scan | Lists:
    distances = recipe.metric == "l2"
    if centres is not None:
        return Lists(codec, centres, (), distances)
    return Scan(codec, grown(codec.empty()), grown(np.empty(0, np.float32)) if distances else None)


def _codec(recipe: Recipe, name: str, vectors: Floats, seed: int) -> Codec:
    if name == "SQ8":
        return trained_bytes(vectors)
    if name == "PQ":
        return trained_parts(vectors, recipe.spec.parts or 1, seed)
    return FlatCodec(recipe.dim, recipe.dtype)


def _known(recipe: Recipe, name: str, arrays: Mapping[str, Array], prefix: str) -> Codec:
    if name == "SQ8":
        return ByteCodec(arrays[f"{prefix}base"], arrays[f"{prefix}step"])
    if name == "PQ":
        return PartCodec(arrays[f"{prefix}words"])
    return FlatCodec(recipe.dim, recipe.dtype)

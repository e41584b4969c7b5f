"""`embed`: texts → unit vectors, whole and in parts.

    ridgeline bench embed --case stage='end to end',batch=64,tokens=32,dtype=float32

stage   end to end   strings → array in host memory; extras["stages_ns"] holds its stages, on a GPU the copies too
        forward      tokens → array in host memory
        tokenize     strings → tokens
        one          one string → one vector; a sample is one call, or extras["calls_ns"] holds the calls
        load         a model's folder → ready
texts   even         every text has `tokens` tokens
        movies       mixed lengths with a mean of 21, as titles with year and genres have

Texts are random words of the model's vocabulary, one token each, so lengths are exact and tokens known. They are drawn
anew before every turn, and each step of a turn has its own. Arithmetic: layers · (L·(8·h² + 4·h·inner) + 4·L²·h) per
text of L tokens, nothing for padding. Vectors are held against plain torch in float64, tokens against what was drawn.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ridgeline.embed import DEFAULT, Tokens, load_tokenizer
from ridgeline.errors import InputError
from ridgeline.lab import OURS, Case, Check, Profile, Run, Steps, Work, installed
from ridgeline.lab.race import peaks, reset_peaks
from ridgeline.machine import Placement, now_ns, topology
from ridgeline.workloads import _embed_peers as peers
from ridgeline.workloads._embed_cases import BASE, full, quick
from ridgeline.workloads._embed_texts import Model, Ring, flops_of, lengths_of, model_of, words_of
from ridgeline.workloads._stages import KEPT, stages_of
from ridgeline.workloads.trajectory import BYTES, on_device

Call = Callable[[int], Any]  # does one set of the ring
STAGES = ("end to end", "forward", "tokenize", "one", "load")
LEAST = {"float32": 0.99999, "float16": 0.99999, "bfloat16": 0.9998}  # lowest cosine with the reference
CHECKED_TEXTS, CHECKED_TOKENS = 16, 1_024
KEPT_CALLS = 4_096


class Embed:
    name = "embed"
    weight = 3.0
    devices = ("cpu", "cuda")
    note = (
        "ONNX Runtime's weights are int8: it is held to a lowest cosine of "
        f"{peers.INT8_LEAST} where the others are held to {LEAST['float32']} "
        f"(bfloat16: {LEAST['bfloat16']})."
    )

    def cases(self, profile: Profile) -> Iterable[Case]:
        if not installed("torch") or not installed("safetensors"):
            return []
        try:
            model_of(DEFAULT)
        except InputError:  # not on this machine: `ridgeline model get` brings it
            return []
        changes = quick() if profile is Profile.QUICK else full()
        return [Case({**BASE, **change}, device) for device, change in changes]

    def work(self, case: Case) -> Work:
        model, lengths, stage = model_of(case["model"]), _lengths(case), case["stage"]
        tokens, size = int(lengths.sum()), BYTES[case["dtype"]]
        threads = len(topology().usable_cpus)
        if stage == "load":
            read = (model.config.folder / "model.safetensors").stat().st_size
            return Work(case.ranks, "models", bytes={"memory": read * case.ranks}, threads=threads)
        texts = tokens * (words_of(case["model"]).mean_bytes + 1)
        if stage == "tokenize":
            moved = {"memory": (texts + 4 * tokens) * case.ranks}
            return Work(len(lengths) * case.ranks, "texts", bytes=moved, mix="read", threads=threads)
        ids, vectors = 4 * tokens, 4 * len(lengths) * model.config.hidden
        weights = model.parameters * size + tokens * model.config.hidden * size  # layers, and a row for each token
        moved = {"memory": weights + ids + vectors + (0 if stage == "forward" else texts)}
        if case.device != "cpu":
            moved |= {"memory": weights + ids + vectors, "pcie": ids, "pcie_back": vectors}
        return Work(
            items=len(lengths) * case.ranks,
            unit="texts",
            flops=flops_of(model, lengths) * case.ranks,
            bytes={medium: amount * case.ranks for medium, amount in moved.items()},
            dtype=case["dtype"],
            mix="read",
            threads=threads,
        )

    def contenders(self, case: Case) -> Sequence[str]:
        return [OURS, *(name for name in _wanted(case) if peers.there(name))]

    def missing(self, case: Case) -> dict[str, str]:
        return {name: "peers" for name in _wanted(case) if not peers.there(name)}

    def libraries(self, case: Case, contender: str) -> Sequence[str]:
        return ("torch", "ridgeline.embed.embedder") if contender == OURS else peers.NEEDS[contender]

    def prepare(self, case: Case, contender: str, place: Placement) -> Run:
        device, model, stage = on_device(case, place), model_of(case["model"]), case["stage"]
        ring = Ring(words_of(case["model"]), _lengths(case))
        made = _ours(case, ring, device) if contender == OURS else _peer(case, contender, model, ring, device)
        call, arranged, settings = made
        state: dict[str, Any] = {}
        calls: deque[int] = deque(maxlen=KEPT_CALLS)
        kept: deque[Mapping[str, int]] = deque(maxlen=KEPT)
        took = _took(case, device) if contender == OURS and stage == "end to end" else Counter()

        def reset() -> None:
            ring.rewrite()
            arranged()

        def step() -> None:
            state["found"] = call(ring.next())

        def clocked() -> None:
            before = took.copy()
            step()
            kept.append(took - before)

        def timed() -> None:
            began = now_ns()
            step()
            calls.append(now_ns() - began)

        def result() -> dict[str, Any]:
            state.setdefault("peaks", peaks(case.device))  # before the check brings weights of its own
            found = state["found"]() if stage == "load" else state["found"]
            least = peers.INT8_LEAST if contender == peers.ORT else LEAST[case["dtype"]]
            return {"tokens": ring.last[1], "found": found, "least": least}

        def extras() -> dict[str, Any]:
            told = {"tokens": int(ring.last[1].offsets[-1]), "host_bytes_before": state.get("before")}
            held = {k: v for k, v in state.get("peaks", {}).items() if k == "peak_host_bytes"}
            own: dict[str, Any] = {"calls_ns": list(calls)} if stage == "one" else {}
            if contender == OURS and stage == "end to end":
                own = {"stages_ns": stages_of(kept)}
            return {**told, **held, **own}

        arranged()
        _settle()
        reset_peaks(case.device)  # loading is a stage of its own
        state["before"] = peaks(case.device)["peak_host_bytes"]
        told = {"one": timed, "end to end": clocked if contender == OURS else step}.get(stage, step)
        return Steps(told, result, reset, state.clear, settings, extras)

    def check(self, case: Case, result: dict[str, Any]) -> Check:
        tokens, found, least = (result[k] for k in ("tokens", "found", "least"))
        if case["stage"] == "tokenize":
            return _same_tokens(tokens, found)
        found = np.atleast_2d(np.asarray(found, np.float64))
        if found.shape[0] != len(tokens) or not np.isfinite(found).all():
            return Check(False, None, {}, f"{found.shape[0]} vectors for {len(tokens)} texts, or not finite")
        rows = _checked(tokens)
        wanted = _reference(case["model"], tokens, rows)
        norms = np.linalg.norm(found, axis=1)
        cosines = (found[rows] * wanted).sum(1) / norms[rows]
        lowest, off = float(cosines.min()), float(np.abs(norms - 1).max())
        return Check(
            lowest >= least and off < 1e-2,
            1 - lowest,
            {"lowest cosine": lowest},
            f"1 − lowest cosine with float64, {len(rows)} texts; allowed: a cosine of {least}",
        )


def _wanted(case: Case) -> list[str]:
    return peers.wanted(case["stage"], case.device, case["dtype"], case["texts"])


def _lengths(case: Case) -> Any:
    if case["stage"] not in STAGES:
        raise InputError(f"stage is '{case['stage']}'; there are: {', '.join(STAGES)}.")
    return lengths_of(case["texts"], case["batch"] if case["stage"] not in ("one", "load") else 1, case["tokens"])


@lru_cache(maxsize=1)
def _embedder(name: str, device: str, dtype: str, limit: int) -> Any:
    import ridgeline

    return ridgeline.Embedder(name, device=device, dtype=dtype, max_tokens=limit, prompt="")


def _took(case: Case, device: str) -> Counter[str]:
    """Its embedder's own count of what each stage has taken; on a GPU by events on its streams."""
    found: Counter[str] = _embedder(case["model"], device, case["dtype"], _limit(case)).took
    return found


def _limit(case: Case) -> int:
    return model_of(case["model"]).limit(case["tokens"])


def _ours(case: Case, ring: Ring, device: str) -> tuple[Call, Callable[[], None], dict[str, Any]]:
    import warnings

    # A text as long as the model allows is what the case asked for.
    warnings.filterwarnings("ignore", message=".*the limit of .* tokens")
    model, stage, name, dtype = model_of(case["model"]), case["stage"], case["model"], case["dtype"]
    limit = _limit(case)
    if stage == "tokenize":
        own = model.config.folder
        tokenizer = load_tokenizer(own if (own / "tokenizer.json").exists() else model.folder)
        return lambda k: tokenizer.encode(ring.sets[k][0], limit), _nothing, {"native": tokenizer.native}
    if stage == "load":

        def load(k: int) -> Callable[[], Any]:
            fresh = _embedder.__wrapped__(name, device, dtype, limit)
            return lambda: fresh.encode(ring.last[0])

        _embedder.cache_clear()
        return load, _nothing, {"weights": "verified by their SHA-256 where the model is a known one"}
    embedder = _embedder(name, device, dtype, limit)
    settings = {"batch_tokens": "auto", "dtype": embedder.dtype}
    if stage == "one":
        return lambda k: embedder.encode_one(ring.sets[k][0][0]), _nothing, settings
    if stage == "forward":
        return lambda k: embedder.encode_tokens(ring.sets[k][1]), _nothing, settings
    return lambda k: embedder.encode(ring.sets[k][0]), _nothing, settings


def _peer(
    case: Case, contender: str, model: Model, ring: Ring, device: str
) -> tuple[Call, Callable[[], None], dict[str, Any]]:
    limit, stage = model.limit(case["tokens"]), case["stage"]
    dtype = "float32" if contender == peers.SENTENCE_32 else case["dtype"]
    if stage == "tokenize":
        tokenizer = peers.tokenizer(model, limit)
        return lambda k: tokenizer.encode_batch_fast(ring.sets[k][0]), _nothing, {"call": "encode_batch_fast"}
    if contender in (peers.SENTENCE, peers.SENTENCE_32):
        return _sentence(case, model, ring, device, dtype)
    hint = "THROUGHPUT" if len(ring.last[1]) >= peers.MANY else "LATENCY"
    tokenizer = peers.tokenizer(model, limit) if stage != "forward" else None
    if stage == "load":

        def load(k: int) -> Callable[[], Any]:
            run, _ = peers.engine.__wrapped__(contender, model, device, dtype, hint)
            fresh = peers.tokenizer(model, limit)
            return lambda: peers.texts_through(run, fresh, ring.last[0], 1)

        peers.engine(contender, model, device, dtype, hint)  # exports it, if no one has yet
        peers.engine.cache_clear()
        return load, _nothing, {"from": "its own file, exported before"}
    run, settings = peers.engine(contender, model, device, dtype, hint)
    even = case["texts"] == "even"
    arranged: dict[str, list[Any]] = {}

    def arrange() -> None:
        """Tokens as these engines want them; making them is not what is timed."""
        if stage == "forward":
            sets = [tokens for _, tokens in ring.sets]
            if even:
                arranged["rows"] = [t.ids.reshape(len(t), -1).astype(np.int64) for t in sets]
            else:
                arranged["rows"] = [[t[i].tolist() for i in range(len(t))] for t in sets]

    def through(k: int, count: int, size: int) -> Any:
        if stage == "forward":
            rows = arranged["rows"][k][:count]
            return peers.array_through(run, rows, size) if even else peers.rows_through(run, rows, size)
        return peers.texts_through(run, tokenizer, ring.sets[k][0][:count], size)

    arrange()
    count = len(ring.sets[0][1])
    if contender == peers.COMPILED:
        size = max(1, min(count, peers.COMPILED_TOKENS[device.partition(":")[0]] // case["tokens"]))
    else:
        size = peers.best_size(lambda n, s: through(0, n, s), count, device)
    return lambda k: through(k, count, size), arrange, {**settings, "batch": size}


def _sentence(
    case: Case, model: Model, ring: Ring, device: str, dtype: str
) -> tuple[Call, Callable[[], None], dict[str, Any]]:
    limit = model.limit(case["tokens"])
    words = {"normalize_embeddings": True, "convert_to_numpy": True, "show_progress_bar": False}
    if case["stage"] == "load":

        def load(k: int) -> Callable[[], Any]:
            fresh = peers.sentence_transformer(model, device, dtype, limit)
            return lambda: fresh.encode(ring.last[0], **words)

        return load, _nothing, {"dtype": dtype}
    theirs = _kept_sentence(model, device, dtype, limit)
    settings = {"attention": "sdpa", "arithmetic": dtype, "sorted": True}
    if case["stage"] == "one":
        return lambda k: theirs.encode(ring.sets[k][0][0], **words), _nothing, settings
    first = ring.sets[0][0]
    size = peers.best_size(lambda n, s: theirs.encode(first[:n], batch_size=s, **words), len(first), device)
    call = lambda k: theirs.encode(ring.sets[k][0], batch_size=size, **words)  # noqa: E731
    return call, _nothing, {**settings, "batch": size}


_kept_sentence = lru_cache(maxsize=1)(peers.sentence_transformer)


def _settle() -> None:
    """Give back what is free and load what the check needs, so that a case's peak holds little of another's."""
    import ctypes
    import gc

    import torch  # noqa: F401

    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)


def _nothing() -> None:
    """Nothing to arrange."""


def _same_tokens(tokens: Tokens, found: Any) -> Check:
    """Ours are Tokens, those of `tokenizers` a list of encodings."""
    if not isinstance(found, Tokens):
        rows = [np.asarray(encoding.ids, np.int32) for encoding in found]
        found = Tokens(np.concatenate(rows), np.concatenate([[0], np.cumsum([len(r) for r in rows])]))
    same = np.array_equal(found.offsets, tokens.offsets) and np.array_equal(found.ids, tokens.ids)
    return Check(bool(same), 0.0 if same else 1.0, {}, "every token equal")


def _checked(tokens: Tokens) -> Any:
    """Some texts, others each time, the longest and the shortest always among them; fewer where they are long."""
    lengths = tokens.lengths
    count = int(np.clip(CHECKED_TOKENS // max(1, int(lengths.max())), 2, CHECKED_TEXTS))
    drawn = np.random.default_rng().permutation(len(lengths))[: count - 2 if len(lengths) > 2 else 0]
    return np.unique([*drawn, int(lengths.argmin()), int(lengths.argmax())])


def _reference(name: str, tokens: Tokens, rows: Any) -> Any:
    """The same texts by the plain layers in float64, one at a time; not kept, so that no peak of memory is its own."""
    import torch

    from ridgeline.embed import Encoder, Head, Layers, Packed, read_dense, read_encoder

    config = model_of(name).config
    dense = []
    for module in config.dense:
        weight, bias = read_dense(module.folder)
        dense.append((weight.float(), None if bias is None else bias.float(), getattr(torch.nn, module.activation)()))
    plain = Layers(config, torch.device("cpu"), torch.float64)
    encoder = Encoder(config, plain, Head(tuple(dense), None, True), read_encoder(config))
    found = []
    for row in rows:
        ids = torch.from_numpy(tokens[int(row)].copy())
        packed = Packed(torch.tensor([0, len(ids)]), ((0, 1, len(ids)),))
        found.append(encoder(ids, packed)[0].double().numpy())
    wanted = np.stack(found)
    return wanted / np.linalg.norm(wanted, axis=1, keepdims=True)  # to the last digit


workload = Embed()

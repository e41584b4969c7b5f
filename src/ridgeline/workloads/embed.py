"""`embed`: texts → unit vectors, end to end and stage by stage.

    ridgeline bench embed --case stage='end to end',batch=64,tokens=32,dtype=float32

stage   end to end   strings → array in host memory; extras["stages_ns"] has its stages, on a GPU also the copies
        forward      tokens → array in host memory
        tokenize     strings → tokens
        one          one string → one vector; a sample is one call, or extras["calls_ns"] has the calls
        load         a model folder → ready
texts   even         every text has `tokens` tokens
        movies       mixed lengths with a mean of 21, like titles with year and genres

Texts are random words of the vocabulary of the model, one token each, so lengths are exact and tokens known. They are
drawn again before every turn, and each step of a turn has its own. Arithmetic: layers · (L·(8·h² + 4·h·inner) +
4·L²·h) per text of L tokens, nothing for padding. Vectors are compared with plain torch in float64, tokens with the
drawn ones.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ridgeline.embed import DEFAULT, Tokens, choose_cpu_dtype, load_tokenizer
from ridgeline.errors import InputError
from ridgeline.lab import OURS, Case, Check, Profile, Run, Steps, Work, installed
from ridgeline.lab.race import read_peaks, reset_peaks
from ridgeline.machine import Placement, now_ns, topology
from ridgeline.workloads import _embed_peers as peers
from ridgeline.workloads._embed_texts import Model, Ring, count_flops, draw_lengths, find_words, load_model
from ridgeline.workloads._stages import MAX_STEPS, collect_stages
from ridgeline.workloads.trajectory import BYTES, on_device

Call = Callable[[int], Any]  # encodes one set of the ring
STAGES = ("end to end", "forward", "tokenize", "one", "load")
MIN_COSINE = {"float32": 0.99999, "float16": 0.99999, "bfloat16": 0.9998}  # lowest cosine with the reference
CHECKED_TEXTS, CHECKED_TOKENS = 16, 1_024
MAX_CALLS = 4_096


class Embed:
    name = "embed"
    weight = 3.0
    devices = ("cpu", "cuda")
    note = (
        "ONNX Runtime's weights are int8: it is held to a lowest cosine of "
        f"{peers.INT8_MIN_COSINE} where the others are held to {MIN_COSINE['float32']} "
        f"(bfloat16: {MIN_COSINE['bfloat16']})."
    )

    def cases(self, profile: Profile) -> Iterable[Case]:
        if not installed("torch") or not installed("safetensors"):
            return []
        try:
            load_model(DEFAULT)
        except InputError:  # not on this machine: `ridgeline model get` fetches it
            return []
        changes = _list_quick_cases() if profile is Profile.QUICK else _list_full_cases()
        return [Case({**BASE, **change}, device) for device, change in changes]

    def work(self, case: Case) -> Work:
        model, lengths, stage = load_model(case["model"]), _draw_lengths(case), case["stage"]
        tokens, size = int(lengths.sum()), BYTES[case["dtype"]]
        threads = len(topology().usable_cpus)
        if stage == "load":
            read = (model.config.folder / "model.safetensors").stat().st_size
            return Work(case.ranks, "models", bytes={"memory": read * case.ranks}, threads=threads)
        texts = tokens * (find_words(case["model"]).mean_bytes + 1)
        if stage == "tokenize":
            moved = {"memory": (texts + 4 * tokens) * case.ranks}
            return Work(len(lengths) * case.ranks, "texts", bytes=moved, mix="read", threads=threads)
        ids, vectors = 4 * tokens, 4 * len(lengths) * model.config.hidden
        weights = model.parameters * size + tokens * model.config.hidden * size  # layers, and one row for each token
        moved = {"memory": weights + ids + vectors + (0 if stage == "forward" else texts)}
        if case.device != "cpu":
            moved |= {"memory": weights + ids + vectors, "pcie": ids, "pcie_back": vectors}
        return Work(
            items=len(lengths) * case.ranks,
            unit="texts",
            flops=count_flops(model, lengths) * case.ranks,
            bytes={medium: amount * case.ranks for medium, amount in moved.items()},
            dtype=case["dtype"],
            mix="read",
            threads=threads,
        )

    def contenders(self, case: Case) -> Sequence[str]:
        return [OURS, *(name for name in _list_peers(case) if peers.is_available(name))]

    def missing(self, case: Case) -> dict[str, str]:
        return {name: "peers" for name in _list_peers(case) if not peers.is_available(name)}

    def libraries(self, case: Case, contender: str) -> Sequence[str]:
        return ("torch", "ridgeline.embed.embedder") if contender == OURS else peers.NEEDS[contender]

    def prepare(self, case: Case, contender: str, place: Placement) -> Run:
        device, model, stage = on_device(case, place), load_model(case["model"]), case["stage"]
        ring = Ring(find_words(case["model"]), _draw_lengths(case))
        prepared = (
            _prepare_ridgeline(case, ring, device)
            if contender == OURS
            else _prepare_peer(case, contender, model, ring, device)
        )
        call, arrange, settings = prepared
        state: dict[str, Any] = {}
        calls: deque[int] = deque(maxlen=MAX_CALLS)
        samples: deque[Mapping[str, int]] = deque(maxlen=MAX_STEPS)
        stage_times = _get_stage_times(case, device) if contender == OURS and stage == "end to end" else Counter()

        def reset() -> None:
            ring.rewrite()
            arrange()

        def step() -> None:
            state["found"] = call(ring.next())

        def step_with_stages() -> None:
            before = stage_times.copy()
            step()
            samples.append(stage_times - before)

        def step_with_clock() -> None:
            start_ns = now_ns()
            step()
            calls.append(now_ns() - start_ns)

        def result() -> dict[str, Any]:
            state.setdefault("peaks", read_peaks(case.device))  # before the check loads weights
            vectors = state["found"]() if stage == "load" else state["found"]
            min_cosine = peers.INT8_MIN_COSINE if contender == peers.ORT else MIN_COSINE[case["dtype"]]
            return {"tokens": ring.last[1], "found": vectors, "least": min_cosine}

        def extras() -> dict[str, Any]:
            counts = {"tokens": int(ring.last[1].offsets[-1]), "host_bytes_before": state.get("before")}
            peaks = {k: v for k, v in state.get("peaks", {}).items() if k == "peak_host_bytes"}
            timings: dict[str, Any] = {"calls_ns": list(calls)} if stage == "one" else {}
            if contender == OURS and stage == "end to end":
                timings = {"stages_ns": collect_stages(samples)}
            return {**counts, **peaks, **timings}

        arrange()
        _release_memory()
        reset_peaks(case.device)  # loading is a separate stage
        state["before"] = read_peaks(case.device)["peak_host_bytes"]
        steps = {"one": step_with_clock, "end to end": step_with_stages if contender == OURS else step}
        return Steps(steps.get(stage, step), result, reset, state.clear, settings, extras)

    def check(self, case: Case, result: dict[str, Any]) -> Check:
        tokens, vectors, min_cosine = (result[k] for k in ("tokens", "found", "least"))
        if case["stage"] == "tokenize":
            return _compare_tokens(tokens, vectors)
        vectors = np.atleast_2d(np.asarray(vectors, np.float64))
        if vectors.shape[0] != len(tokens) or not np.isfinite(vectors).all():
            return Check(False, None, {}, f"{vectors.shape[0]} vectors for {len(tokens)} texts, or not finite")
        rows = _choose_rows(tokens)
        expected = _compute_reference(case["model"], tokens, rows)
        norms = np.linalg.norm(vectors, axis=1)
        cosines = (vectors[rows] * expected).sum(1) / norms[rows]
        lowest, norm_error = float(cosines.min()), float(np.abs(norms - 1).max())
        return Check(
            lowest >= min_cosine and norm_error < 1e-2,
            1 - lowest,
            {"lowest cosine": lowest},
            f"1 − lowest cosine with float64, {len(rows)} texts; allowed: a cosine of {min_cosine}",
        )


def _list_peers(case: Case) -> list[str]:
    return peers.list_peers(case["stage"], case.device, case["dtype"], case["texts"])


def _draw_lengths(case: Case) -> Any:
    if case["stage"] not in STAGES:
        raise InputError(f"stage is '{case['stage']}'; there are: {', '.join(STAGES)}.")
    return draw_lengths(case["texts"], case["batch"] if case["stage"] not in ("one", "load") else 1, case["tokens"])


@lru_cache(maxsize=1)
def _load_embedder(name: str, device: str, dtype: str, limit: int) -> Any:
    import ridgeline

    return ridgeline.Embedder(name, device=device, dtype=dtype, max_tokens=limit, prompt="")


def _get_stage_times(case: Case, device: str) -> Counter[str]:
    """The embedder's counter of nanoseconds per stage; on a GPU from events on its streams."""
    stage_times: Counter[str] = _load_embedder(case["model"], device, case["dtype"], _choose_limit(case)).stage_ns
    return stage_times


def _choose_limit(case: Case) -> int:
    return load_model(case["model"]).limit(case["tokens"])


def _prepare_ridgeline(case: Case, ring: Ring, device: str) -> tuple[Call, Callable[[], None], dict[str, Any]]:
    import warnings

    # Cases ask for texts as long as the model allows.
    warnings.filterwarnings("ignore", message=".*the limit of .* tokens")
    model, stage, name, dtype = load_model(case["model"]), case["stage"], case["model"], case["dtype"]
    limit = _choose_limit(case)
    if stage == "tokenize":
        folder = model.config.folder
        tokenizer = load_tokenizer(folder if (folder / "tokenizer.json").exists() else model.folder)
        return lambda k: tokenizer.encode(ring.sets[k][0], limit), _arrange_nothing, {"native": tokenizer.native}
    if stage == "load":

        def load(k: int) -> Callable[[], Any]:
            fresh = _load_embedder.__wrapped__(name, device, dtype, limit)
            return lambda: fresh.encode(ring.last[0])

        _load_embedder.cache_clear()
        return load, _arrange_nothing, {"weights": "verified by their SHA-256 where the model is a known one"}
    embedder = _load_embedder(name, device, dtype, limit)
    settings = {"batch_tokens": "auto", "dtype": embedder.dtype}
    if stage == "one":
        return lambda k: embedder.encode_one(ring.sets[k][0][0]), _arrange_nothing, settings
    if stage == "forward":
        return lambda k: embedder.encode_tokens(ring.sets[k][1]), _arrange_nothing, settings
    return lambda k: embedder.encode(ring.sets[k][0]), _arrange_nothing, settings


def _prepare_peer(
    case: Case, contender: str, model: Model, ring: Ring, device: str
) -> tuple[Call, Callable[[], None], dict[str, Any]]:
    limit, stage = model.limit(case["tokens"]), case["stage"]
    dtype = "float32" if contender == peers.SENTENCE_32 else case["dtype"]
    if stage == "tokenize":
        tokenizer = peers.load_tokenizers(model, limit)
        return lambda k: tokenizer.encode_batch_fast(ring.sets[k][0]), _arrange_nothing, {"call": "encode_batch_fast"}
    if contender in (peers.SENTENCE, peers.SENTENCE_32):
        return _prepare_sentence_transformers(case, model, ring, device, dtype)
    hint = "THROUGHPUT" if len(ring.last[1]) >= peers.MIN_THROUGHPUT_TEXTS else "LATENCY"
    tokenizer = peers.load_tokenizers(model, limit) if stage != "forward" else None
    if stage == "load":

        def load(k: int) -> Callable[[], Any]:
            run, _ = peers.load_engine.__wrapped__(contender, model, device, dtype, hint)
            tokenizer_again = peers.load_tokenizers(model, limit)
            return lambda: peers.encode_texts(run, tokenizer_again, ring.last[0], 1)

        peers.load_engine(contender, model, device, dtype, hint)  # exports it if needed
        peers.load_engine.cache_clear()
        return load, _arrange_nothing, {"from": "its own file, exported before"}
    run, settings = peers.load_engine(contender, model, device, dtype, hint)
    even = case["texts"] == "even"
    prepared_rows: dict[str, list[Any]] = {}

    def arrange() -> None:
        """Convert tokens for these engines; this is not timed."""
        if stage == "forward":
            sets = [tokens for _, tokens in ring.sets]
            if even:
                prepared_rows["rows"] = [t.ids.reshape(len(t), -1).astype(np.int64) for t in sets]
            else:
                prepared_rows["rows"] = [[t[i].tolist() for i in range(len(t))] for t in sets]

    def encode(k: int, count: int, size: int) -> Any:
        if stage == "forward":
            rows = prepared_rows["rows"][k][:count]
            return peers.encode_array(run, rows, size) if even else peers.encode_rows(run, rows, size)
        return peers.encode_texts(run, tokenizer, ring.sets[k][0][:count], size)

    arrange()
    count = len(ring.sets[0][1])
    if contender == peers.COMPILED:
        size = max(1, min(count, peers.COMPILED_TOKENS[device.partition(":")[0]] // case["tokens"]))
    else:
        size = peers.find_best_size(lambda n, s: encode(0, n, s), count, device)
    return lambda k: encode(k, count, size), arrange, {**settings, "batch": size}


def _prepare_sentence_transformers(
    case: Case, model: Model, ring: Ring, device: str, dtype: str
) -> tuple[Call, Callable[[], None], dict[str, Any]]:
    limit = model.limit(case["tokens"])
    encode_options = {"normalize_embeddings": True, "convert_to_numpy": True, "show_progress_bar": False}
    if case["stage"] == "load":

        def load(k: int) -> Callable[[], Any]:
            encoder = peers.load_sentence_transformer(model, device, dtype, limit)
            return lambda: encoder.encode(ring.last[0], **encode_options)

        return load, _arrange_nothing, {"dtype": dtype}
    encoder = _cached_sentence_transformer(model, device, dtype, limit)
    settings = {"attention": "sdpa", "arithmetic": dtype, "sorted": True}
    if case["stage"] == "one":
        return lambda k: encoder.encode(ring.sets[k][0][0], **encode_options), _arrange_nothing, settings
    first = ring.sets[0][0]
    size = peers.find_best_size(
        lambda n, s: encoder.encode(first[:n], batch_size=s, **encode_options), len(first), device
    )
    call = lambda k: encoder.encode(ring.sets[k][0], batch_size=size, **encode_options)  # noqa: E731
    return call, _arrange_nothing, {**settings, "batch": size}


_cached_sentence_transformer = lru_cache(maxsize=1)(peers.load_sentence_transformer)


def _release_memory() -> None:
    """Free unused memory and load what the check needs, so that the peak of a case contains little of another one."""
    import ctypes
    import gc

    import torch  # noqa: F401

    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)


def _arrange_nothing() -> None:
    """Nothing to arrange."""


def _compare_tokens(tokens: Tokens, actual: Any) -> Check:
    """Ours are Tokens, those of `tokenizers` a list of encodings."""
    if not isinstance(actual, Tokens):
        rows = [np.asarray(encoding.ids, np.int32) for encoding in actual]
        actual = Tokens(np.concatenate(rows), np.concatenate([[0], np.cumsum([len(r) for r in rows])]))
    same = np.array_equal(actual.offsets, tokens.offsets) and np.array_equal(actual.ids, tokens.ids)
    return Check(bool(same), 0.0 if same else 1.0, {}, "every token equal")


def _choose_rows(tokens: Tokens) -> Any:
    """Some random texts, always with the longest and the shortest; fewer if they are long."""
    lengths = tokens.lengths
    count = int(np.clip(CHECKED_TOKENS // max(1, int(lengths.max())), 2, CHECKED_TEXTS))
    random_rows = np.random.default_rng().permutation(len(lengths))[: count - 2 if len(lengths) > 2 else 0]
    return np.unique([*random_rows, int(lengths.argmin()), int(lengths.argmax())])


def _compute_reference(name: str, tokens: Tokens, rows: Any) -> Any:
    """Encode the texts with the plain layers in float64, one at a time; not cached, to keep it out of memory peaks."""
    import torch

    from ridgeline.embed import Encoder, Layers, Packed, read_encoder, read_head

    config = load_model(name).config
    layers = Layers(config, torch.device("cpu"), torch.float64)
    encoder = Encoder(config, layers, read_head(config, width=None, normalize=True), read_encoder(config))
    vectors = []
    for row in rows:
        ids = torch.from_numpy(tokens[int(row)].copy())
        packed = Packed(torch.tensor([0, len(ids)]), ((0, 1, len(ids)),))
        vectors.append(encoder(ids, packed)[0].double().numpy())
    expected = np.stack(vectors)
    return expected / np.linalg.norm(expected, axis=1, keepdims=True)  # to the last digit


# The cases: common ones, and one parameter at a time around them.


BASE: dict[str, Any] = {"stage": "end to end", "texts": "even", "batch": 64, "tokens": 32, "dtype": "float32"}
BASE |= {"model": DEFAULT}
MOVIES = {"cpu": 1_000, "cuda": 62_423}


def _list_quick_cases() -> list[tuple[str, dict[str, Any]]]:
    small_cases: list[dict[str, Any]] = [{"batch": 32}, {"stage": "one", "batch": 1}]
    cpu: list[dict[str, Any]] = [*small_cases, {"stage": "tokenize", "batch": 1024}]
    gpu: list[dict[str, Any]] = [*small_cases, {"stage": "tokenize", "batch": 4096}, {"batch": 4096}]
    gpu += [{"texts": "movies", "batch": MOVIES["cuda"]}]
    return [("cpu", c) for c in cpu] + [("cuda", {"dtype": "float16", **c}) for c in gpu]


def _list_full_cases() -> list[tuple[str, dict[str, Any]]]:
    """One parameter at a time around the base; the batches are those of the published tables."""
    cpu = _list_sweep((1, 10, 32, 100, 1000), 64, (8, 16, 64, 128, 256, 512), (16, 32, 128), MOVIES["cpu"])
    cpu += [{"stage": "tokenize", "batch": n} for n in (1024, 4096)] + [{"stage": "load", "batch": 1}]
    types: list[dict[str, Any]] = [{}, {"stage": "one", "batch": 1}, {"stage": "forward"}, {"batch": 1000}]
    types += [{"tokens": n} for n in (16, 128)]
    half_precision = [{**c, "dtype": choose_cpu_dtype()} for c in types]

    batches, lengths = (1, 16, 32, 128, 256, 512, 1024, 2048, 4096), (8, 16, 64, 128, 256, 512)
    gpu = _list_sweep(batches, 1024, lengths, (8, 16, 32, 64, 128, 256, 512), MOVIES["cuda"])
    gpu += [{"stage": "forward", "batch": n} for n in batches]
    gpu += [{"stage": "tokenize", "batch": n} for n in (64, 4096)] + [{"stage": "load", "batch": 1}]
    gpu = [{"dtype": "float16", **c} for c in gpu]
    other: list[dict[str, Any]] = [{"batch": 1024}, {"stage": "forward", "batch": 1024}, {"stage": "one", "batch": 1}]
    other += [{"texts": "movies", "batch": MOVIES["cuda"]}, {"stage": "forward", "batch": 1024, "tokens": 512}]
    gpu += [{**c, "dtype": dtype} for c in other for dtype in ("float32", "bfloat16")]
    cases = [("cpu", c) for c in cpu + half_precision] + [("cuda", c) for c in gpu]
    unique = {(device, tuple(sorted({**BASE, **c}.items()))): (device, c) for device, c in cases}
    return list(unique.values())


def _list_sweep(
    batches: Sequence[int], batch: int, lengths: Sequence[int], single_lengths: Sequence[int], movies: int
) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = [{"batch": n} for n in (*batches, batch)]
    for stage in ("end to end", "forward"):
        cases += [{"stage": stage, "batch": batch, "tokens": n} for n in sorted({*lengths, BASE["tokens"]})]
    cases += [{"stage": "one", "batch": 1, "tokens": n} for n in single_lengths]
    return cases + [{"stage": stage, "texts": "movies", "batch": movies} for stage in ("end to end", "tokenize")]


workload = Embed()

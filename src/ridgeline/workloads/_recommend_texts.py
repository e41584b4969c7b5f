"""Task `embed` of the workload `recommend`: encode the texts of a catalogue, `batch` texts at a time.

Texts have the lengths of titles with year and genres. The workload `embed` draws the texts and checks the result: unit
vectors, compared with plain torch in float64. The load time of the model is an extra.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ridgeline.embed import DEFAULT, choose_cpu_dtype
from ridgeline.errors import InputError
from ridgeline.lab import OURS, Case, Check, Run, Steps, Work, installed
from ridgeline.lab.race import read_peaks, reset_peaks
from ridgeline.machine import now_ns
from ridgeline.workloads import _embed_peers as peers
from ridgeline.workloads import embed as embed
from ridgeline.workloads._embed_texts import Ring, draw_lengths, find_words, load_model
from ridgeline.workloads._stages import MAX_STEPS, collect_stages
from ridgeline.workloads.embed import BASE

SENTENCE = peers.SENTENCE
MEAN_TOKENS = 21  # per text: converts a batch of texts to tokens


def possible() -> bool:
    """Whether torch and the model are installed."""
    if not installed("torch") or not installed("safetensors"):
        return False
    try:
        load_model(DEFAULT)
    except InputError:
        return False
    return True


def contenders() -> Sequence[str]:
    return [OURS, *([SENTENCE] if peers.is_available(SENTENCE) else [])]


def missing() -> dict[str, str]:
    return {} if peers.is_available(SENTENCE) else {SENTENCE: "peers"}


def work(case: Case) -> Work:
    return embed.workload.work(_plain(case))


def check(case: Case, result: dict[str, Any]) -> Check:
    return embed.workload.check(_plain(case), result)


def prepare(case: Case, contender: str, device: str) -> Run:
    import torch  # noqa: F401  the import is no load time

    model, dtype = load_model(DEFAULT), _dtype(case.device)
    if contender != OURS and (case.device, dtype) == ("cpu", "float16"):
        dtype = "float32"  # torch has no fast float16 product on a CPU
    ring = Ring(find_words(DEFAULT), draw_lengths("movies", case["items"], MEAN_TOKENS))
    load = _ours if contender == OURS else _sentence
    encode, settings, load_ns, stage_ns = load(case, model, device, dtype, ring.sets[0][0])
    state: dict[str, Any] = {}
    step_stages: deque[Mapping[str, int]] = deque(maxlen=MAX_STEPS)
    reset_peaks(case.device)  # load time is a separate number
    before = read_peaks(case.device)["peak_host_bytes"]

    def step() -> None:
        before = stage_ns.copy()
        state["found"] = encode(ring.sets[ring.next()][0])
        step_stages.append(stage_ns - before)

    def result() -> dict[str, Any]:
        state.setdefault("peaks", read_peaks(case.device))  # before the check loads other weights
        return {"tokens": ring.last[1], "found": state["found"], "least": embed.MIN_COSINE[dtype]}

    def extras() -> dict[str, Any]:
        values = {"load_ns": load_ns, "tokens": int(ring.last[1].offsets[-1]), "host_bytes_before": before}
        stages = {"stages_ns": collect_stages(step_stages)} if contender == OURS else {}
        return {**values, **stages, **state.get("peaks", {})}

    return Steps(step, result, ring.rewrite, state.clear, {**settings, "arithmetic": dtype}, extras)


LoadedEncoder = tuple[Callable[[list[str]], Any], dict[str, Any], int, Counter[str]]  # the last: total ns by stage


def _ours(case: Case, model: Any, device: str, dtype: str, texts: list[str]) -> LoadedEncoder:
    import ridgeline

    start = now_ns()
    embedder = ridgeline.Embedder(DEFAULT, device=device, dtype=dtype, prompt="")
    embedder.encode_one("ready")
    load_ns = now_ns() - start
    tokens = case["batch"] * MEAN_TOKENS or "auto"
    return lambda some: embedder.encode(some, batch_tokens=tokens), {"batch_tokens": tokens}, load_ns, embedder.stage_ns


def _sentence(case: Case, model: Any, device: str, dtype: str, texts: list[str]) -> LoadedEncoder:
    import sentence_transformers  # noqa: F401

    encode_options = {"normalize_embeddings": True, "convert_to_numpy": True, "show_progress_bar": False}
    start = now_ns()
    encoder = peers.load_sentence_transformer(model, device, dtype, model.limit(MEAN_TOKENS))
    encoder.encode("ready", **encode_options)
    load_ns = now_ns() - start
    tried = peers.find_best_size(
        lambda n, s: encoder.encode(texts[:n], batch_size=s, **encode_options), len(texts), device
    )
    size = case["batch"] or tried
    return (
        lambda some: encoder.encode(some, batch_size=size, **encode_options),
        {"attention": "sdpa", "batch": size},
        load_ns,
        Counter(),
    )


def _dtype(device: str) -> str:
    """Return the type that an embedder chooses."""
    return "float16" if device != "cpu" else choose_cpu_dtype()


def _plain(case: Case) -> Case:
    """Return the equivalent case of the workload `embed`."""
    changes = {"texts": "movies", "batch": case["items"], "tokens": MEAN_TOKENS, "dtype": _dtype(case.device)}
    return Case({**BASE, **changes}, case.device, case.ranks)

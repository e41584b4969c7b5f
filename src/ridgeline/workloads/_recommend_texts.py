"""Task `embed` of the workload `recommend`: the texts of a catalogue to vectors, `batch` of them at a time.

Texts have the lengths of titles with year and genres and are drawn as the workload `embed` draws them, and its check is
the one used here: unit vectors, held against plain torch in float64. The time a model takes to load is an extra.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ridgeline.embed import DEFAULT, cpu_dtype
from ridgeline.errors import InputError
from ridgeline.lab import OURS, Case, Check, Run, Steps, Work, installed
from ridgeline.lab.race import peaks, reset_peaks
from ridgeline.machine import now_ns
from ridgeline.workloads import _embed_peers as peers
from ridgeline.workloads import embed
from ridgeline.workloads._embed_cases import BASE
from ridgeline.workloads._embed_texts import Ring, lengths_of, model_of, words_of
from ridgeline.workloads._stages import KEPT, stages_of

SENTENCE = peers.SENTENCE
MEAN_TOKENS = 21  # of a text: what a batch of texts is in tokens


def possible() -> bool:
    """Whether torch and the model are on this machine."""
    if not installed("torch") or not installed("safetensors"):
        return False
    try:
        model_of(DEFAULT)
    except InputError:
        return False
    return True


def contenders() -> Sequence[str]:
    return [OURS, *([SENTENCE] if peers.there(SENTENCE) else [])]


def missing() -> dict[str, str]:
    return {} if peers.there(SENTENCE) else {SENTENCE: "peers"}


def work(case: Case) -> Work:
    return embed.workload.work(_plain(case))


def check(case: Case, result: dict[str, Any]) -> Check:
    return embed.workload.check(_plain(case), result)


def prepare(case: Case, contender: str, device: str) -> Run:
    import torch  # noqa: F401  importing is not loading a model

    model, dtype = model_of(DEFAULT), _dtype(case.device)
    if contender != OURS and (case.device, dtype) == ("cpu", "float16"):
        dtype = "float32"  # torch by itself multiplies float16 number by number on a CPU
    ring = Ring(words_of(DEFAULT), lengths_of("movies", case["items"], MEAN_TOKENS))
    load = _ours if contender == OURS else _sentence
    encode, settings, load_ns, took = load(case, model, device, dtype, ring.sets[0][0])
    state: dict[str, Any] = {}
    kept: deque[Mapping[str, int]] = deque(maxlen=KEPT)
    reset_peaks(case.device)  # loading is told apart
    before = peaks(case.device)["peak_host_bytes"]

    def step() -> None:
        before = took.copy()
        state["found"] = encode(ring.sets[ring.next()][0])
        kept.append(took - before)

    def result() -> dict[str, Any]:
        state.setdefault("peaks", peaks(case.device))  # before the check brings weights of its own
        return {"tokens": ring.last[1], "found": state["found"], "least": embed.LEAST[dtype]}

    def extras() -> dict[str, Any]:
        told = {"load_ns": load_ns, "tokens": int(ring.last[1].offsets[-1]), "host_bytes_before": before}
        stages = {"stages_ns": stages_of(kept)} if contender == OURS else {}
        return {**told, **stages, **state.get("peaks", {})}

    return Steps(step, result, ring.rewrite, state.clear, {**settings, "arithmetic": dtype}, extras)


Made = tuple[Callable[[list[str]], Any], dict[str, Any], int, Counter[str]]  # the last: ns of each stage so far


def _ours(case: Case, model: Any, device: str, dtype: str, texts: list[str]) -> Made:
    import ridgeline

    began = now_ns()
    embedder = ridgeline.Embedder(DEFAULT, device=device, dtype=dtype, prompt="")
    embedder.encode_one("ready")
    took = now_ns() - began
    tokens = case["batch"] * MEAN_TOKENS or "auto"
    return lambda some: embedder.encode(some, batch_tokens=tokens), {"batch_tokens": tokens}, took, embedder.took


def _sentence(case: Case, model: Any, device: str, dtype: str, texts: list[str]) -> Made:
    import sentence_transformers  # noqa: F401

    words = {"normalize_embeddings": True, "convert_to_numpy": True, "show_progress_bar": False}
    began = now_ns()
    theirs = peers.sentence_transformer(model, device, dtype, model.limit(MEAN_TOKENS))
    theirs.encode("ready", **words)
    took = now_ns() - began
    tried = peers.best_size(lambda n, s: theirs.encode(texts[:n], batch_size=s, **words), len(texts), device)
    size = case["batch"] or tried
    return (
        lambda some: theirs.encode(some, batch_size=size, **words),
        {"attention": "sdpa", "batch": size},
        took,
        Counter(),
    )


def _dtype(device: str) -> str:
    """What an embedder would choose by itself."""
    return "float16" if device != "cpu" else cpu_dtype()


def _plain(case: Case) -> Case:
    """The same as a case of the workload `embed`."""
    words = {"texts": "movies", "batch": case["items"], "tokens": MEAN_TOKENS, "dtype": _dtype(case.device)}
    return Case({**BASE, **words}, case.device, case.ranks)

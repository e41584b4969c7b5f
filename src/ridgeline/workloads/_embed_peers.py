"""The other ways to embed texts, each set up as its own documentation would have it.

An engine takes padded tokens and gives unit vectors; around it stand the `tokenizers` library, batches sorted by
length, and a batch size found by trying. sentence-transformers brings all of that itself.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.lab import installed
from ridgeline.workloads._embed_export import onnx_int8, openvino_ir, pooled, quiet
from ridgeline.workloads._embed_texts import Model
from ridgeline.workloads._trajectory_peers import can_compile

Array = NDArray[Any]
Batch = tuple[Array, Array]  # input_ids and attention_mask, int64 [n, longest]
Engine = Callable[[list[Batch]], list[Array]]  # float32 [n, dim] for each

SENTENCE, SENTENCE_32 = "sentence-transformers", "sentence-transformers float32"
EAGER, COMPILED = "transformers", "transformers compiled"
ORT, OPENVINO, TOKENIZERS = "ONNX Runtime int8", "OpenVINO", "tokenizers"
NEEDS = {
    SENTENCE: ("sentence_transformers",),
    SENTENCE_32: ("sentence_transformers",),
    EAGER: ("transformers",),
    COMPILED: ("transformers",),
    ORT: ("onnxruntime", "onnx", "onnxscript", "transformers", "tokenizers"),
    OPENVINO: ("openvino", "transformers", "tokenizers"),
    TOKENIZERS: ("tokenizers",),
}
INT8_LEAST = 0.97  # lowest cosine that int8 weights are allowed; what it is stands in the record
SIZES = {"cpu": (8, 16, 32, 64, 128, 256), "cuda": (64, 128, 256, 512, 1024, 2048, 4096)}
TRIED = 32  # texts at least for one try of a batch size
TUNE_S = 4.0
MANY = 16  # texts from which OpenVINO is asked for throughput, several requests at a time
COMPILED_TOKENS = {"cpu": 2_048, "cuda": 65_536}  # a compiled graph has one shape: no sizes are tried


def wanted(stage: str, device: str, dtype: str, texts: str) -> list[str]:
    """Who takes part in a stage, installed or not."""
    cpu = [ORT, OPENVINO] if device == "cpu" else []
    if stage == "tokenize":
        return [TOKENIZERS]
    slow = device == "cpu" and dtype == "float16"  # torch by itself multiplies it number by number there
    if stage == "forward":
        if slow:
            return cpu
        return [EAGER, *([COMPILED] if texts == "even" and can_compile(device) else []), *cpu]
    half = [SENTENCE_32] if dtype != "float32" and (stage != "load" or slow) else []
    return [*([] if slow else [SENTENCE]), *half, *cpu]


def there(name: str) -> bool:
    return all(installed(module) for module in NEEDS[name])


def sentence_transformer(model: Model, device: str, dtype: str, limit: int) -> Any:
    import torch
    from sentence_transformers import SentenceTransformer

    with quiet():
        words = {"dtype": getattr(torch, dtype), "attn_implementation": "sdpa"}
        made = SentenceTransformer(str(model.folder), device=device, model_kwargs=words, local_files_only=True)
    made.max_seq_length = limit
    return made


@lru_cache(maxsize=1)
def engine(name: str, model: Model, device: str, dtype: str, hint: str) -> tuple[Engine, dict[str, Any]]:
    """An engine and its settings; the last one is kept for the next case."""
    if name in (EAGER, COMPILED):
        return _torch(model, device, dtype, compiled=name == COMPILED)
    return ort_engine(onnx_int8(model)) if name == ORT else _openvino(model, dtype, hint)


def _torch(model: Model, device: str, dtype: str, *, compiled: bool) -> tuple[Engine, dict[str, Any]]:
    import torch

    module = pooled(model, "sdpa", dtype).to(device)
    settings: dict[str, Any] = {"attention": "sdpa", "threads": torch.get_num_threads()}
    if compiled:
        torch.compiler.reset()
        mode = "default" if device == "cpu" else "reduce-overhead"
        module = torch.compile(module, dynamic=False, mode=mode)
        settings |= {"compiled": mode, "dynamic": False}

    def one(batch: Batch) -> Array:
        with torch.inference_mode():
            torch.compiler.cudagraph_mark_step_begin()
            found: Array = module(*(torch.from_numpy(a).to(device) for a in batch)).float().cpu().numpy()
            return found

    return lambda batches: [one(batch) for batch in batches], settings


def ort_engine(file: Path) -> tuple[Engine, dict[str, Any]]:
    """ONNX Runtime with an exported file."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = threads = len(os.sched_getaffinity(0))
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])

    def run(batches: list[Batch]) -> list[Array]:
        return [session.run(None, {"input_ids": ids, "attention_mask": mask})[0] for ids, mask in batches]

    return run, {"arithmetic": "int8", "weights": "per channel, dynamic", "optimisation": "all", "threads": threads}


def _openvino(model: Model, dtype: str, hint: str) -> tuple[Engine, dict[str, Any]]:
    import openvino

    threads = len(os.sched_getaffinity(0))
    settings = {
        "PERFORMANCE_HINT": hint,
        "INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}[dtype],
        "INFERENCE_NUM_THREADS": threads,
    }
    compiled = openvino.Core().compile_model(str(openvino_ir(model)), "CPU", settings)
    request = compiled.create_infer_request()
    queue = openvino.AsyncInferQueue(compiled)  # throughput is several requests at a time, as many as it asks for
    answers: dict[int, Array] = {}
    queue.set_callback(lambda done, k: answers.update({k: np.array(done.get_output_tensor(0).data)}))

    def in_turn(batches: list[Batch]) -> list[Array]:
        return [np.array(request.infer(list(batch), share_inputs=True)[0]) for batch in batches]

    def at_once(batches: list[Batch]) -> list[Array]:
        for k, batch in enumerate(batches):
            queue.start_async(list(batch), k, share_inputs=True)
        queue.wait_all()
        return [answers[k] for k in range(len(batches))]

    told = {**settings, "shapes": "dynamic", "requests": len(queue) if hint == "THROUGHPUT" else 1}
    return (at_once if hint == "THROUGHPUT" else in_turn), told


def tokenizer(model: Model, limit: int) -> Any:
    """The `tokenizers` library with the model's own file."""
    from tokenizers import Tokenizer

    own = model.config.folder
    made = Tokenizer.from_file(str((own if (own / "tokenizer.json").exists() else model.folder) / "tokenizer.json"))
    made.no_padding()
    made.enable_truncation(limit)
    return made


def texts_through(run: Engine, tokens: Any, texts: Sequence[str], size: int) -> Array:
    """Strings → vectors, sorted by length so that little is padded, in batches of `size`."""
    return rows_through(run, [encoding.ids for encoding in tokens.encode_batch_fast(texts)], size)


def rows_through(run: Engine, rows: Sequence[Sequence[int]], size: int) -> Array:
    order = sorted(range(len(rows)), key=lambda k: -len(rows[k]))
    batches = []
    for start in range(0, len(order), size):
        part = [rows[k] for k in order[start : start + size]]
        ids = np.zeros((len(part), len(part[0])), np.int64)
        mask = np.zeros_like(ids)
        for k, row in enumerate(part):
            ids[k, : len(row)] = row
            mask[k, : len(row)] = 1
        batches.append((ids, mask))
    found = np.concatenate(run(batches))
    restored = np.empty_like(found)
    restored[order] = found
    return restored


def array_through(run: Engine, ids: Array, size: int) -> Array:
    """Tokens of one length → vectors."""
    mask = np.ones((min(size, len(ids)), ids.shape[1]), np.int64)
    parts = run([(ids[k : k + size], mask[: len(ids) - k]) for k in range(0, len(ids), size)])
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def best_size(run: Callable[[int, int], Any], texts: int, device: str) -> int:
    """The batch size with the most texts per second; `run(count, size)` does the first `count` texts."""
    sizes = [size for size in SIZES[device.partition(":")[0]] if size < texts]
    sizes.append(min(texts, SIZES[device.partition(":")[0]][-1]))
    began, rates = time.monotonic(), {sizes[0]: 0.0}
    for size in dict.fromkeys(sizes):
        count = min(texts, max(TRIED, size))
        run(min(count, size), size)
        start = time.perf_counter()
        run(count, size)
        rates[size] = count / (time.perf_counter() - start)
        if rates[size] < 0.8 * max(rates.values()) or time.monotonic() - began > TUNE_S:
            break
    return max(rates, key=lambda size: rates[size])

"""The peers of `embed`, each set up as its documentation recommends.

An engine turns padded tokens into unit vectors; the `tokenizers` library, batches sorted by length and a measured batch
size are added to it. sentence-transformers has all of that. Models for ONNX Runtime and OpenVINO are exported once,
with pooling and norm, into a cache folder.
"""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.lab import installed
from ridgeline.store import lock, publish_dir
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
INT8_MIN_COSINE = 0.97  # the record has the measured one
SIZES = {"cpu": (8, 16, 32, 64, 128, 256), "cuda": (64, 128, 256, 512, 1024, 2048, 4096)}
MIN_TRIAL_TEXTS = 32  # per trial of a batch size
TUNE_S = 4.0
MIN_THROUGHPUT_TEXTS = 16  # from here OpenVINO runs several requests at a time
COMPILED_TOKENS = {"cpu": 2_048, "cuda": 65_536}  # a compiled graph has one shape: sizes are not tried


def list_peers(stage: str, device: str, dtype: str, texts: str) -> list[str]:
    """The peers of a stage, installed or not."""
    cpu_peers = [ORT, OPENVINO] if device == "cpu" else []
    if stage == "tokenize":
        return [TOKENIZERS]
    slow_float16 = device == "cpu" and dtype == "float16"  # torch multiplies it element by element
    if stage == "forward":
        if slow_float16:
            return cpu_peers
        return [EAGER, *([COMPILED] if texts == "even" and can_compile(device) else []), *cpu_peers]
    float32_peers = [SENTENCE_32] if dtype != "float32" and (stage != "load" or slow_float16) else []
    return [*([] if slow_float16 else [SENTENCE]), *float32_peers, *cpu_peers]


def is_available(name: str) -> bool:
    return all(installed(module) for module in NEEDS[name])


def load_sentence_transformer(model: Model, device: str, dtype: str, limit: int) -> Any:
    import torch
    from sentence_transformers import SentenceTransformer

    with silence_transformers():
        options = {"dtype": getattr(torch, dtype), "attn_implementation": "sdpa"}
        encoder = SentenceTransformer(str(model.folder), device=device, model_kwargs=options, local_files_only=True)
    encoder.max_seq_length = limit
    return encoder


@lru_cache(maxsize=1)
def load_engine(name: str, model: Model, device: str, dtype: str, hint: str) -> tuple[Engine, dict[str, Any]]:
    """Return an engine and its settings; the last one is cached for the next case."""
    if name in (EAGER, COMPILED):
        return _load_torch(model, device, dtype, compiled=name == COMPILED)
    return load_onnx_runtime(export_onnx_int8(model)) if name == ORT else _load_openvino(model, dtype, hint)


def _load_torch(model: Model, device: str, dtype: str, *, compiled: bool) -> tuple[Engine, dict[str, Any]]:
    import torch

    module = make_pooled_module(model, "sdpa", dtype).to(device)
    settings: dict[str, Any] = {"attention": "sdpa", "threads": torch.get_num_threads()}
    if compiled:
        torch.compiler.reset()
        mode = "default" if device == "cpu" else "reduce-overhead"
        module = torch.compile(module, dynamic=False, mode=mode)
        settings |= {"compiled": mode, "dynamic": False}

    def encode_batch(batch: Batch) -> Array:
        with torch.inference_mode():
            torch.compiler.cudagraph_mark_step_begin()
            vectors: Array = module(*(torch.from_numpy(a).to(device) for a in batch)).float().cpu().numpy()
            return vectors

    return lambda batches: [encode_batch(batch) for batch in batches], settings


def load_onnx_runtime(file: Path) -> tuple[Engine, dict[str, Any]]:
    """ONNX Runtime with an exported file."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = threads = len(os.sched_getaffinity(0))
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])

    def run(batches: list[Batch]) -> list[Array]:
        return [session.run(None, {"input_ids": ids, "attention_mask": mask})[0] for ids, mask in batches]

    return run, {"arithmetic": "int8", "weights": "per channel, dynamic", "optimisation": "all", "threads": threads}


def _load_openvino(model: Model, dtype: str, hint: str) -> tuple[Engine, dict[str, Any]]:
    import openvino

    threads = len(os.sched_getaffinity(0))
    settings = {
        "PERFORMANCE_HINT": hint,
        "INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}[dtype],
        "INFERENCE_NUM_THREADS": threads,
    }
    compiled = openvino.Core().compile_model(str(export_openvino(model)), "CPU", settings)
    request = compiled.create_infer_request()
    queue = openvino.AsyncInferQueue(compiled)  # OpenVINO chooses the number of requests
    results: dict[int, Array] = {}
    queue.set_callback(lambda done, k: results.update({k: np.array(done.get_output_tensor(0).data)}))

    def run_in_turn(batches: list[Batch]) -> list[Array]:
        return [np.array(request.infer(list(batch), share_inputs=True)[0]) for batch in batches]

    def run_concurrently(batches: list[Batch]) -> list[Array]:
        for k, batch in enumerate(batches):
            queue.start_async(list(batch), k, share_inputs=True)
        queue.wait_all()
        return [results[k] for k in range(len(batches))]

    reported = {**settings, "shapes": "dynamic", "requests": len(queue) if hint == "THROUGHPUT" else 1}
    return (run_concurrently if hint == "THROUGHPUT" else run_in_turn), reported


def load_tokenizers(model: Model, limit: int) -> Any:
    """The `tokenizers` library with the file of the model."""
    from tokenizers import Tokenizer

    folder = model.config.folder
    tokenizer = Tokenizer.from_file(
        str((folder if (folder / "tokenizer.json").exists() else model.folder) / "tokenizer.json")
    )
    tokenizer.no_padding()
    tokenizer.enable_truncation(limit)
    return tokenizer


def encode_texts(run: Engine, tokens: Any, texts: Sequence[str], size: int) -> Array:
    """Strings → vectors, sorted by length to avoid padding, in batches of `size`."""
    return encode_rows(run, [encoding.ids for encoding in tokens.encode_batch_fast(texts)], size)


def encode_rows(run: Engine, rows: Sequence[Sequence[int]], size: int) -> Array:
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
    vectors = np.concatenate(run(batches))
    in_order = np.empty_like(vectors)
    in_order[order] = vectors
    return in_order


def encode_array(run: Engine, ids: Array, size: int) -> Array:
    """Tokens of one length → vectors."""
    mask = np.ones((min(size, len(ids)), ids.shape[1]), np.int64)
    parts = run([(ids[k : k + size], mask[: len(ids) - k]) for k in range(0, len(ids), size)])
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def find_best_size(run: Callable[[int, int], Any], texts: int, device: str) -> int:
    """The batch size with the most texts per second; `run(count, size)` encodes the first `count` texts."""
    sizes = [size for size in SIZES[device.partition(":")[0]] if size < texts]
    sizes.append(min(texts, SIZES[device.partition(":")[0]][-1]))
    start_s, rates = time.monotonic(), {sizes[0]: 0.0}
    for size in dict.fromkeys(sizes):
        count = min(texts, max(MIN_TRIAL_TEXTS, size))
        run(min(count, size), size)
        trial_start = time.perf_counter()
        run(count, size)
        rates[size] = count / (time.perf_counter() - trial_start)
        if rates[size] < 0.8 * max(rates.values()) or time.monotonic() - start_s > TUNE_S:
            break
    return max(rates, key=lambda size: rates[size])


NAMES = ["input_ids", "attention_mask"]


def export_onnx_int8(model: Model) -> Path:
    """Weights in int8, one scale per output channel: with one per matrix the cosines of this model fall to 0.91."""

    def export(folder: Path) -> None:
        from onnxruntime.quantization import QuantType, quantize_dynamic

        _export_onnx(model, folder / "float32.onnx")
        quantize_dynamic(
            str(folder / "float32.onnx"), str(folder / "int8.onnx"), weight_type=QuantType.QInt8, per_channel=True
        )
        for file in folder.glob("float32.onnx*"):
            file.unlink()

    return _cache_export(model, "onnx", ("onnxruntime", "onnx", "transformers", "torch"), export) / "int8.onnx"


def export_onnx_float32(model: Model) -> Path:
    def export(folder: Path) -> None:
        _export_onnx(model, folder / "float32.onnx")

    return _cache_export(model, "onnx-float32", ("onnx", "transformers", "torch"), export) / "float32.onnx"


def _export_onnx(model: Model, file: Path) -> None:
    import torch

    rows, columns = torch.export.Dim("rows"), torch.export.Dim("columns")
    torch.onnx.export(
        make_pooled_module(model), _make_example(), str(file), input_names=NAMES, output_names=["vectors"],
        dynamic_shapes=({0: rows, 1: columns}, {0: rows, 1: columns}), dynamo=True, verbose=False,
    )  # fmt: skip


def export_openvino(model: Model) -> Path:
    """OpenVINO's conversion of the torch module, with weights in float32."""

    def export(folder: Path) -> None:
        import openvino

        converted = openvino.convert_model(
            make_pooled_module(model), example_input=dict(zip(NAMES, _make_example(), strict=True))
        )
        openvino.save_model(converted, str(folder / "model.xml"), compress_to_fp16=False)

    return _cache_export(model, "openvino", ("openvino", "transformers", "torch"), export) / "model.xml"


def make_pooled_module(model: Model, attention: str = "eager", dtype: str = "float32") -> Any:
    """The encoder of transformers, then the mean over real tokens, at unit length."""
    import torch
    from transformers import AutoModel

    class Pooled(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            kind = getattr(torch, dtype)
            folder = str(model.config.folder)
            self.encoder = AutoModel.from_pretrained(folder, attn_implementation=attention, dtype=kind).eval()

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state.float()
            weight = attention_mask.unsqueeze(-1).to(hidden.dtype)
            return torch.nn.functional.normalize((hidden * weight).sum(1) / weight.sum(1), dim=1)

    with silence_transformers():
        return Pooled().eval().requires_grad_(False)


@contextmanager
def silence_transformers() -> Iterator[None]:
    """Hide the progress bars and warnings of transformers."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _make_example() -> tuple[Any, Any]:
    """Two texts, one shorter, so that the export takes neither shape nor mask for a constant."""
    import torch

    mask = torch.ones(2, 9, dtype=torch.int64)
    mask[1, 6:] = 0
    return torch.arange(18).view(2, 9) % 7 + 5, mask


def _cache_export(model: Model, kind: str, packages: tuple[str, ...], export: Callable[[Path], None]) -> Path:
    """The folder of an export; another model or another release of the exporter gets another folder."""
    weights = (model.config.folder / "model.safetensors").stat()
    identity = [str(model.folder), weights.st_size, weights.st_mtime_ns, kind, *(version(name) for name in packages)]
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ridgeline" / "peers"
    base.mkdir(parents=True, exist_ok=True)
    folder = base / f"{kind}-{hashlib.sha256(repr(identity).encode()).hexdigest()[:16]}"
    with lock(base / f"{folder.name}.lock", timeout=300):
        if not folder.is_dir():
            with publish_dir(folder) as folder_tmp, silence_transformers():
                export(folder_tmp)
    return folder

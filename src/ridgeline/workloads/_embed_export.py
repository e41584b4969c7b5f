"""A model for ONNX Runtime and OpenVINO: exported once, pooling and norm inside, kept in a cache folder."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ridgeline.store import lock, publish_dir
from ridgeline.workloads._embed_texts import Model

NAMES = ["input_ids", "attention_mask"]


def onnx_int8(model: Model) -> Path:
    """Weights in int8, one scale per output channel: with one per matrix this model's cosines fall to 0.91."""

    def make(folder: Path) -> None:
        import torch
        from onnxruntime.quantization import QuantType, quantize_dynamic

        rows, columns = torch.export.Dim("rows"), torch.export.Dim("columns")
        torch.onnx.export(
            pooled(model), _example(), str(folder / "float32.onnx"), input_names=NAMES, output_names=["vectors"],
            dynamic_shapes=({0: rows, 1: columns}, {0: rows, 1: columns}), dynamo=True, verbose=False,
        )  # fmt: skip
        quantize_dynamic(
            str(folder / "float32.onnx"), str(folder / "int8.onnx"), weight_type=QuantType.QInt8, per_channel=True
        )
        for file in folder.glob("float32.onnx*"):
            file.unlink()

    return _kept(model, "onnx", ("onnxruntime", "onnx", "transformers", "torch"), make) / "int8.onnx"


def openvino_ir(model: Model) -> Path:
    """OpenVINO's own conversion of the torch module, weights left in float32."""

    def make(folder: Path) -> None:
        import openvino

        converted = openvino.convert_model(pooled(model), example_input=dict(zip(NAMES, _example(), strict=True)))
        openvino.save_model(converted, str(folder / "model.xml"), compress_to_fp16=False)

    return _kept(model, "openvino", ("openvino", "transformers", "torch"), make) / "model.xml"


def pooled(model: Model, attention: str = "eager", dtype: str = "float32") -> Any:
    """transformers' own encoder, then the mean over real tokens, at unit length."""
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

    with quiet():
        return Pooled().eval().requires_grad_(False)


@contextmanager
def quiet() -> Iterator[None]:
    """Their progress bars and warnings are not ours to show."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _example() -> tuple[Any, Any]:
    """Two texts, one shorter, so that nothing about their shape or mask is taken for a constant."""
    import torch

    mask = torch.ones(2, 9, dtype=torch.int64)
    mask[1, 6:] = 0
    return torch.arange(18).view(2, 9) % 7 + 5, mask


def _kept(model: Model, kind: str, makers: tuple[str, ...], make: Callable[[Path], None]) -> Path:
    """The folder of an export; another model or another release of what made it gets another folder."""
    weights = (model.config.folder / "model.safetensors").stat()
    told = [str(model.folder), weights.st_size, weights.st_mtime_ns, kind, *(version(name) for name in makers)]
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ridgeline" / "peers"
    base.mkdir(parents=True, exist_ok=True)
    folder = base / f"{kind}-{hashlib.sha256(repr(told).encode()).hexdigest()[:16]}"
    with lock(base / f"{folder.name}.lock", timeout=300):
        if not folder.is_dir():
            with publish_dir(folder) as made, quiet():
                make(made)
    return folder

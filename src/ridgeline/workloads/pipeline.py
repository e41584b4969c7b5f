"""`pipeline`: images from host memory through a vision transformer and back, with and without overlap.

    ridgeline bench pipeline --case depth=0,output=tokens

Compared with the limits of arithmetic and of the copies in each direction. In the extras of a record: `stages_ns` is
the time of each stage while the others run, `alone_ns` its time when it runs alone; the slowest of those over the time
of a step is the overlap. depth 0 is the control: copies only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ridgeline.lab import Case, Check, Profile, Run, Steps, Work, installed
from ridgeline.machine import Placement, now_ns, topology
from ridgeline.pipeline import Fn, GraphRecording, sum_stage_seconds, take_excerpt
from ridgeline.workloads.trajectory import BYTES, host, on_device
from ridgeline.workloads.vit import Vit, build

VIT = {"image": 224, "channels": 3, "patch_size": 16, "depth": 6, "heads": 6, "dim": 384, "mlp_dim": 1536}
BASE: dict[str, Any] = {**VIT, "output": "cls", "batch": 32, "batches": 32, "dtype": "float16", "ring": 2}
SMALL = {"image": 32, "patch_size": 8, "depth": 2, "heads": 2, "dim": 64, "mlp_dim": 128, "batch": 8, "batches": 8}
OURS, LOOP, ONE, GRAPH, LOADER = "ridgeline", "plain loop", "one stream", "one graph", "DataLoader"
TOLERANCE = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}  # largest error, in standard deviations of the result
CHECKED = 4  # images compared with float64
MAX_STEPS = 64  # steps with stage times in the record

Data = tuple[Any, Any]  # images [batches, B, C, H, W], results [batches, B, …], both in host memory
RunBatches = Callable[[Case, Data, Any, str], list[Any]]  # case, data, model, device → the timeline, or []


class Pipeline:
    name = "pipeline"
    weight = 3.0
    devices = ("cpu", "cuda")
    note = (
        f"'{LOOP}' copies from plain memory and waits for each step; '{ONE}' queues pinned copies and arithmetic on "
        f"one CUDA stream, '{GRAPH}' does so with the arithmetic recorded as a CUDA graph, as ours is; '{LOADER}' is "
        "torch's with pin_memory."
    )

    def cases(self, profile: Profile) -> Iterable[Case]:
        if not installed("torch"):
            return []
        cpu: list[dict[str, Any]] = [{}]
        gpu: list[dict[str, Any]] = [{}, {"depth": 0, "output": "tokens"}]
        if profile is Profile.FULL:
            cpu += [{"depth": n} for n in (0, 1, 4)]
            gpu += [{"depth": n} for n in (0, 1, 2, 4, 8, 12, 16)]
            gpu += [{"dim": n, "mlp_dim": 4 * n, "heads": n // 64} for n in (128, 192, 256, 512, 768, 1024)]
            gpu += [{"batch": n} for n in (4, 8, 16, 64, 128)] + [{"image": n} for n in (384, 512, 768)]
            gpu += [{"output": "tokens"}, {"ring": 1}, {"ring": 3}, {"dtype": "bfloat16"}, {"dtype": "float32"}]
        small = {**BASE, **SMALL, "dtype": "float32"}
        cases = [Case({**small, **c}, "cpu") for c in cpu] + [Case({**BASE, **c}, "cuda") for c in gpu]
        return list({case.label: case for case in cases}.values())

    def work(self, case: Case) -> Work:
        vit, images, size = make_vit(case), case["batch"] * case["batches"], BYTES[case["dtype"]]
        up, down = vit.up_bytes(images, size), vit.down_bytes(images, size)
        moved = {"memory": (up + down) * case.ranks}
        if case.device != "cpu":
            moved |= {"pcie": up * case.ranks, "pcie_back": down * case.ranks}
        return Work(
            images * case.ranks,
            "images",
            flops=vit.flops(images) * case.ranks,
            bytes=moved,
            dtype=case["dtype"],
            threads=len(topology().usable_cpus),
            launches=case["batches"],
        )

    def contenders(self, case: Case) -> Sequence[str]:
        return [OURS, LOOP, LOADER] if case.device == "cpu" else [OURS, LOOP, ONE, GRAPH, LOADER]

    def libraries(self, case: Case, contender: str) -> Sequence[str]:
        return ("torch", "torch.utils.data")

    def prepare(self, case: Case, contender: str, place: Placement) -> Run:
        import torch

        device = on_device(case, place)
        dtype = getattr(torch, case["dtype"])
        model = build(make_vit(case)).to(device, dtype)
        images, answers = data = _make_data(case, dtype, pinned=device != "cpu" and contender in (OURS, ONE, GRAPH))
        run = {
            OURS: make_streamed(model),
            LOOP: _run_loop,
            ONE: _run_one_stream,
            GRAPH: _make_one_graph(),
            LOADER: _run_loader,
        }[contender]
        timelines: deque[list[Any]] = deque(maxlen=MAX_STEPS)  # of each step; empty for the peers
        alone = _measure_alone(data, model, device) if contender == OURS else {}

        def step() -> None:
            with torch.inference_mode():
                timelines.append(run(case, data, model, device))

        def reset() -> None:
            images.neg_()
            answers.fill_(float("nan"))

        def result() -> tuple[Any, Any]:
            return host(images[-1, :CHECKED]), host(answers[-1, :CHECKED])

        def extras() -> dict[str, Any]:
            values: dict[str, Any] = {"alone_ns": alone} if alone else {}
            if timelines and timelines[-1]:
                steps = [sum_stage_seconds(timeline) for timeline in timelines]
                values["stages_ns"] = {name: [round(1e9 * s[name]) for s in steps] for name in steps[-1]}
                values["timeline"] = take_excerpt(timelines[-1])
            return values

        reset()
        return Steps(step, result, reset, settings={"host memory": _name_memory(images)}, extras=extras)

    def check(self, case: Case, result: tuple[Any, Any]) -> Check:
        import torch

        images, outputs = (torch.from_numpy(array) for array in result)
        with torch.inference_mode():
            expected = build(make_vit(case)).double()(images)
        error = float((outputs - expected).abs().max() / max(1e-12, float(expected.std())))
        tolerance = TOLERANCE[case["dtype"]]
        note = f"largest error against float64, in standard deviations; allowed {tolerance}"
        return Check(error <= tolerance, error, {}, note)


def make_vit(case: Case) -> Vit:
    side = case["image"]
    sizes = {name: case[name] for name in ("patch_size", "depth", "heads", "dim", "mlp_dim", "output")}
    return Vit(image=(case["channels"], side, side), **sizes)


def _make_data(case: Case, dtype: Any, *, pinned: bool) -> Data:
    import torch

    from ridgeline.pipeline import allocate_pinned

    vit = make_vit(case)

    def allocate(*shape: int) -> Any:
        return allocate_pinned(shape, dtype) if pinned else torch.empty(shape, dtype=dtype)

    images = allocate(case["batches"], case["batch"], *vit.image)
    images.copy_(torch.randn(images.shape[1:], generator=torch.Generator().manual_seed(1)).expand(images.shape))
    return images, allocate(case["batches"], case["batch"], *vit.shape)


def _name_memory(images: Any) -> str:
    return "pinned" if images.is_pinned() else "plain"


def make_streamed(model: Any, *, graph: bool = True) -> RunBatches:
    """Our contender. It reuses pinned memory and recordings from step to step."""
    from ridgeline.pipeline import Staging, stream

    staging, fn = Staging(), _make_fn(model)

    def run(case: Case, data: Data, _: Any, device: str) -> list[Any]:
        images, answers = data
        batches = ({"images": batch} for batch in images)
        options: dict[str, Any] = {"depth": case["ring"], "staging": staging, "graph": graph}
        with stream(batches, fn, device=device, out=lambda i: {"answer": answers[i]}, **options) as results:
            for _ in results:
                pass
        return results.timeline()

    return run


def _run_loop(case: Case, data: Data, model: Any, device: str) -> list[Any]:
    images, answers = data
    for batch, target in zip(images, answers, strict=True):
        target.copy_(model(batch.to(device)))
    return []


def _run_one_stream(case: Case, data: Data, model: Any, device: str) -> list[Any]:
    import torch

    images, answers = data
    for batch, target in zip(images, answers, strict=True):
        target.copy_(model(batch.to(device, non_blocking=True)), non_blocking=True)
    torch.cuda.synchronize()
    return []


def _make_one_graph() -> RunBatches:
    """As in the notes of torch on CUDA graphs: copy inputs to its input tensor, results from its output tensor."""
    recordings: list[GraphRecording] = []

    def run(case: Case, data: Data, model: Any, device: str) -> list[Any]:
        import torch

        images, answers = data
        if not recordings:
            recordings.append(record_model(model, images[0], device))
        (graph,) = recordings
        for batch, target in zip(images, answers, strict=True):
            graph.inputs["images"].copy_(batch, non_blocking=True)
            graph.replay()
            target.copy_(graph.result["answer"], non_blocking=True)
        torch.cuda.synchronize()
        return []

    return run


def record_model(model: Any, images: Any, device: str) -> GraphRecording:
    """Record the model for images of this shape; it is called once before, so that its memory is allocated."""
    import torch

    inputs = images.to(device)
    model(inputs)
    torch.cuda.synchronize()
    return GraphRecording(0, _make_fn(model), {"images": inputs}, inputs.device, None, ())


def _make_fn(model: Any) -> Fn:
    return lambda batch: {"answer": model(batch["images"])}


def _run_loader(case: Case, data: Data, model: Any, device: str) -> list[Any]:
    """As in its documentation: pinned by a separate thread, copied asynchronously."""
    from torch.utils.data import DataLoader, TensorDataset

    images, answers = data
    gpu = device != "cpu"
    loader = DataLoader(TensorDataset(images.flatten(0, 1)), batch_size=images.shape[1], pin_memory=gpu)
    for (batch,), target in zip(loader, answers, strict=True):
        target.copy_(model(batch.to(device, non_blocking=gpu)))
    return []


def _measure_alone(data: Data, model: Any, device: str) -> dict[str, int]:
    """Nanoseconds of each stage alone over all batches; the best of several rounds."""
    import torch

    if device == "cpu":
        return {}
    images, answers = data
    with torch.inference_mode():
        graph = record_model(model, images[0], device)
        inputs, result = graph.inputs["images"], graph.result["answer"]

        def copy_up() -> None:
            for batch in images:
                inputs.copy_(batch, non_blocking=True)

        def compute() -> None:
            for _ in images:
                graph.replay()

        def copy_down() -> None:
            for target in answers:
                target.copy_(result, non_blocking=True)

        return {
            name: _measure_best(step) for name, step in (("h2d", copy_up), ("compute", compute), ("d2h", copy_down))
        }


def _measure_best(step: Callable[[], None], rounds: int = 5) -> int:
    import torch

    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = now_ns()
        step()
        torch.cuda.synchronize()
        times.append(now_ns() - start)
    return min(times)


workload = Pipeline()

"""`pipeline`: images from host memory through a vision transformer and back, overlapped or not.

    ridgeline bench pipeline --case depth=0,output=tokens

Held against arithmetic, and against the way to the device in each direction by itself. In the record's extras:
`stages_ns` what each stage took while the others ran, `alone_ns` what it takes with nothing beside it; the slowest of
those over the time of a step is how well the stages overlap. depth 0 is the control: copies and nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ridgeline.lab import Case, Check, Profile, Run, Steps, Work, installed
from ridgeline.machine import Placement, now_ns, topology
from ridgeline.pipeline import Fn, Recording, busy, excerpt
from ridgeline.workloads.trajectory import BYTES, host, on_device
from ridgeline.workloads.vit import Vit, build

VIT = {"image": 224, "channels": 3, "patch_size": 16, "depth": 6, "heads": 6, "dim": 384, "mlp_dim": 1536}
BASE: dict[str, Any] = {**VIT, "output": "cls", "batch": 32, "batches": 32, "dtype": "float16", "ring": 2}
SMALL = {"image": 32, "patch_size": 8, "depth": 2, "heads": 2, "dim": 64, "mlp_dim": 128, "batch": 8, "batches": 8}
OURS, LOOP, ONE, GRAPH, LOADER = "ridgeline", "plain loop", "one stream", "one graph", "DataLoader"
LEAST = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}  # largest error, in units of the answers' spread
CHECKED = 4  # images held against float64
KEPT = 64  # steps whose stage times go into the record

Data = tuple[Any, Any]  # images [batches, B, C, H, W], answers [batches, B, …], both in host memory
Way = Callable[[Case, Data, Any, str], list[Any]]  # case, data, model, device → the timeline, of those that have one


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
        vit, images, size = vit_of(case), case["batch"] * case["batches"], BYTES[case["dtype"]]
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
        model = build(vit_of(case)).to(device, dtype)
        images, answers = data = _data(case, dtype, pinned_too=device != "cpu" and contender in (OURS, ONE, GRAPH))
        run = {OURS: streamed(model), LOOP: _loop, ONE: _one_stream, GRAPH: _one_graph(), LOADER: _loader}[contender]
        kept: deque[list[Any]] = deque(maxlen=KEPT)  # the timeline of each step, of those that have one
        alone = _alone(data, model, device) if contender == OURS else {}

        def step() -> None:
            with torch.inference_mode():
                kept.append(run(case, data, model, device))

        def reset() -> None:
            images.neg_()
            answers.fill_(float("nan"))

        def result() -> tuple[Any, Any]:
            return host(images[-1, :CHECKED]), host(answers[-1, :CHECKED])

        def extras() -> dict[str, Any]:
            told: dict[str, Any] = {"alone_ns": alone} if alone else {}
            if kept and kept[-1]:
                each = [busy(line) for line in kept]
                told["stages_ns"] = {name: [round(1e9 * s[name]) for s in each] for name in each[-1]}
                told["timeline"] = excerpt(kept[-1])
            return told

        reset()
        return Steps(step, result, reset, settings={"host memory": _memory(images)}, extras=extras)

    def check(self, case: Case, result: tuple[Any, Any]) -> Check:
        import torch

        images, found = (torch.from_numpy(array) for array in result)
        with torch.inference_mode():
            wanted = build(vit_of(case)).double()(images)
        error = float((found - wanted).abs().max() / max(1e-12, float(wanted.std())))
        least = LEAST[case["dtype"]]
        return Check(
            error <= least, error, {}, f"largest error against float64, in units of the spread; allowed {least}"
        )


def vit_of(case: Case) -> Vit:
    side = case["image"]
    sizes = {name: case[name] for name in ("patch_size", "depth", "heads", "dim", "mlp_dim", "output")}
    return Vit(image=(case["channels"], side, side), **sizes)


def _data(case: Case, dtype: Any, *, pinned_too: bool) -> Data:
    import torch

    from ridgeline.pipeline import pinned

    vit = vit_of(case)

    def room(*shape: int) -> Any:
        return pinned(shape, dtype) if pinned_too else torch.empty(shape, dtype=dtype)

    images = room(case["batches"], case["batch"], *vit.image)
    images.copy_(torch.randn(images.shape[1:], generator=torch.Generator().manual_seed(1)).expand(images.shape))
    return images, room(case["batches"], case["batch"], *vit.shape)


def _memory(images: Any) -> str:
    return "pinned" if images.is_pinned() else "plain"


def streamed(model: Any, *, graph: bool = True) -> Way:
    """Our own way for a model. Pinned memory and what was recorded are kept from step to step."""
    from ridgeline.pipeline import Staging, stream

    staging, fn = Staging(), _fn(model)

    def way(case: Case, data: Data, _: Any, device: str) -> list[Any]:
        images, answers = data
        batches = ({"images": batch} for batch in images)
        how: dict[str, Any] = {"depth": case["ring"], "staging": staging, "graph": graph}
        with stream(batches, fn, device=device, out=lambda i: {"answer": answers[i]}, **how) as results:
            for _ in results:
                pass
        return results.timeline()

    return way


def _loop(case: Case, data: Data, model: Any, device: str) -> list[Any]:
    images, answers = data
    for batch, room in zip(images, answers, strict=True):
        room.copy_(model(batch.to(device)))
    return []


def _one_stream(case: Case, data: Data, model: Any, device: str) -> list[Any]:
    import torch

    images, answers = data
    for batch, room in zip(images, answers, strict=True):
        room.copy_(model(batch.to(device, non_blocking=True)), non_blocking=True)
    torch.cuda.synchronize()
    return []


def _one_graph() -> Way:
    """As torch's notes on CUDA graphs have it: inputs go to where it reads, answers come from where it writes."""
    kept: list[Recording] = []

    def way(case: Case, data: Data, model: Any, device: str) -> list[Any]:
        import torch

        images, answers = data
        if not kept:
            kept.append(recorded(model, images[0], device))
        (graph,) = kept
        for batch, room in zip(images, answers, strict=True):
            graph.inputs["images"].copy_(batch, non_blocking=True)
            graph.play()
            room.copy_(graph.answer["answer"], non_blocking=True)
        torch.cuda.synchronize()
        return []

    return way


def recorded(model: Any, images: Any, device: str) -> Recording:
    """The model over images like these; called once before, so that everything has its memory."""
    import torch

    there = images.to(device)
    model(there)
    torch.cuda.synchronize()
    return Recording(0, _fn(model), {"images": there}, there.device, None, ())


def _fn(model: Any) -> Fn:
    return lambda batch: {"answer": model(batch["images"])}


def _loader(case: Case, data: Data, model: Any, device: str) -> list[Any]:
    """As its documentation would have it: pinned by a thread of its own, copied without waiting."""
    from torch.utils.data import DataLoader, TensorDataset

    images, answers = data
    gpu = device != "cpu"
    loader = DataLoader(TensorDataset(images.flatten(0, 1)), batch_size=images.shape[1], pin_memory=gpu)
    for (batch,), room in zip(loader, answers, strict=True):
        room.copy_(model(batch.to(device, non_blocking=gpu)))
    return []


def _alone(data: Data, model: Any, device: str) -> dict[str, int]:
    """Nanoseconds of each stage over all batches with nothing beside it; the best of some."""
    import torch

    if device == "cpu":
        return {}
    images, answers = data
    with torch.inference_mode():
        graph = recorded(model, images[0], device)
        there, back = graph.inputs["images"], graph.answer["answer"]

        def up() -> None:
            for batch in images:
                there.copy_(batch, non_blocking=True)

        def compute() -> None:
            for _ in images:
                graph.play()

        def down() -> None:
            for room in answers:
                room.copy_(back, non_blocking=True)

        return {name: _best(step) for name, step in (("h2d", up), ("compute", compute), ("d2h", down))}


def _best(step: Callable[[], None], rounds: int = 5) -> int:
    import torch

    taken = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        began = now_ns()
        step()
        torch.cuda.synchronize()
        taken.append(now_ns() - began)
    return min(taken)


workload = Pipeline()

"""Artificial records of everything a report shows: sweeps, peers, frontiers, stages, timelines, ranks, nodes, cost."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.lab.conftest import make_record

from ridgeline.lab.record import Record

HOSTILE = "<img src=x onerror=alert(1)>{{7*7}}\"'</script>"
PASSED = {"ok": True, "error": 1e-6, "quality": {}, "note": ""}


def make_race(
    workload: str, case: dict, ours: float, peers: dict[str, float], *, seed: int = 0, work=None, checks=None, **more
) -> Record:
    """Make a record of 16 turns whose samples have 1 % noise around these nanoseconds."""
    rng = random.Random(f"{workload}{case}{seed}")
    times = {n: [ns * rng.lognormvariate(0, 0.01) for _ in range(16)] for n, ns in {"ridgeline": ours, **peers}.items()}
    record = make_record(times, checks=checks, workload=workload, command=f"ridgeline bench {workload}", **more)
    case = {**case, "device": case.get("device", "cpu"), "ranks": case.get("ranks", 1)}
    return replace(record, case=case, work={**record.work, **(work or {})})


def make_sweep() -> list[Record]:
    """Make a sweep of four sizes with a peer, a wrong and a crashed contender, and hostile names."""
    records = []
    for n in (1024, 4096, 16384, 65536):
        bad = {"ok": False, "error": 1.0, "quality": {}, "note": HOSTILE}
        one = make_race(
            "made", {"n": n}, 8 * n, {"peer": 20 * n, "wrong": n, HOSTILE: 9.6 * n}, checks={"wrong": bad},
            work={"items": n, "flops": 16 * n, "bytes": {"memory": 64 * n}}, missing={"absent": "peers"},
        )  # fmt: skip
        contenders = (*one.contenders, replace(one.contenders[1], contender="gone", failure="was killed by SIGSEGV"))
        records.append(replace(one, contenders=contenders, command=f"run {HOSTILE}"))
    return records


def make_knee() -> list[Record]:
    """Make a sweep with a best batch: 200 ns per call and 1 ns per item, until a cache is full."""
    return [
        make_race("batched", {"batch": b}, 200 + b if b <= 1024 else b * 1.2, {"peer": 900 + 2 * b}, work={"items": b})
        for b in (1, 16, 256, 1024, 4096)
    ]


def make_dtypes() -> list[Record]:
    checks = {"float32": PASSED, "bfloat16": {**PASSED, "error": 1e-2}}
    return [
        make_race("typed", {"n": 64, "dtype": d}, ns, {"peer": 2e4}, checks={"ridgeline": checks[d]})
        for d, ns in (("float32", 1e4), ("bfloat16", 2.5e3))
    ]


def make_frontier() -> list[Record]:
    out = []
    for target in (0.8, 0.9, 0.99):
        checks = {
            n: {**PASSED, "quality": {"recall": target + more}} for n, more in (("ridgeline", 0.005), ("peer", 0.001))
        }
        out.append(
            make_race("nearest", {"rows": 1000, "recall": target}, 1e3 / (1 - target), {"peer": 3e4}, checks=checks)
        )
    return out


def make_ranks() -> list[Record]:
    """Make records that follow Amdahl's law with a serial part of 5 %."""
    return [
        make_race("allreduce", {"bytes": 1 << 20, "ranks": n}, 1e6 * (0.05 + 0.95 / n), {"gloo": 2e6})
        for n in (1, 2, 4, 8, 16)
    ]


def make_nodes() -> list[Record]:
    place = {"cpus": [0], "memory": "bind", "gpu": None}
    return [
        replace(make_race("placed", {"n": 8}, ns, {"peer": 2e3}), placement=({**place, "node": node},))
        for node, ns in ((0, 1e3), (1, 1.4e3))
    ]


def make_stages() -> Record:
    one = make_race("staged", {"n": 8}, 1e6, {"peer": 2e6})
    timeline = {"h2d": [[0.0, 0.1], [0.1, 0.2]], "compute": [[0.1, 0.4], [0.4, 0.7]], "d2h": [[0.4, 0.45], [0.7, 0.75]]}
    extras = {"stages_ns": {"tokenize": [7e5, 7e5], "forward": [2e5, 2e5]}, "timeline": timeline}
    return replace(one, contenders=(replace(one.contenders[0], extras=extras), *one.contenders[1:]))


def make_experiment() -> list[Record]:
    """Make points of `ridgeline run`: two models, each from both nodes; the GPU is on node 0."""
    out = []
    for model, penalty in (("small", 1.5), ("large", 1.02)):
        for node in (0, 1):
            for batch in (8, 16, 32):
                ns = 1e5 * batch * (penalty if node else 1.0)
                one = make_race(
                    "study", {"model": model, "batch_size": batch, "dtype": "float16", "device": "cuda"}, ns, {}
                )
                alone = {"h2d": ns / 3 * (1 + node), "compute": ns / 2, "d2h": ns / 9 * (1 + node)}
                plan = {
                    "run_id": f"{model}-{node}-{batch}",
                    "facts": {},
                    "duration_s": 1.0,
                    "placement": f"gpu0-node{node}",
                }
                plan |= {"device_node": 0, "distance": 10 + 11 * node, "key": f"{model}{node}{batch}"}
                out.append(
                    replace(
                        one,
                        plan=plan,
                        placement=({"node": node, "cpus": [0], "memory": "bind", "gpu": 0},),
                        contenders=(replace(one.contenders[0], extras={"alone_ns": alone}),),
                        work={**one.work, "items": batch},
                    )
                )
    return out


def move_to_another_machine(record: Record, **machine) -> Record:
    values = {"fingerprint": "f" * 16, "cpu": "Another CPU", **machine}
    return replace(record, id=f"{random.getrandbits(128):032x}", machine={**record.machine, **values})


def move_to_gpu(record: Record) -> Record:
    """Move a record to a machine that has a list price."""
    gpu = {"name": "NVIDIA H200", "link": "PCIe 5.0 x16", "node": None, "memory_bytes": 150 << 30}
    moved = replace(record, case={**record.case, "device": "cuda"})
    return move_to_another_machine(moved, gpus=[gpu])


def make_all() -> list[Record]:
    one = [
        *make_sweep(),
        *make_knee(),
        *make_dtypes(),
        *make_frontier(),
        *make_ranks(),
        *make_nodes(),
        make_stages(),
        *make_experiment(),
    ]
    return [*one, move_to_gpu(make_knee()[0]), move_to_gpu(make_dtypes()[1])]

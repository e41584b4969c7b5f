"""Read the results of other benchmark tools as records: Google Benchmark, Criterion, nvbench, pytest-benchmark.

    ridgeline records import results.json -o runs/monday

A benchmark becomes a record with one contender, named after the tool. Each repetition is one turn. The outputs of
foreign benchmarks are not checked, and records say so.
"""

from __future__ import annotations

import hashlib
import json
import struct
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError
from ridgeline.lab.record.record import ContenderResult, Record
from ridgeline.lab.record.schema import SCHEMA

UNITS = {"ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}
Table = Mapping[str, Any]


@dataclass(frozen=True)
class _Result:
    """One benchmark of a foreign file."""

    tool: str
    name: str
    params: dict[str, Any]
    samples_ns: tuple[float, ...]
    device: str = "cpu"
    extras: Table = field(default_factory=dict)
    failure: str | None = None  # what the tool reports instead of times


@dataclass(frozen=True)
class _Context:
    """Where and when a foreign file was made, as far as it says."""

    time: str
    host: str = ""
    cpu: str = ""
    cpus: int = 1
    load: float = 0.0
    gpus: tuple[str, ...] = ()
    commit: str | None = None
    libraries: Table = field(default_factory=dict)


def import_results(path: Path) -> list[Record]:
    """Read a file, or a folder of Criterion (target/criterion). Raises InputError for another format."""
    try:
        context, results = _read_criterion_folder(path) if path.is_dir() else _read_file(path)
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        raise InputError(f"'{path}' is damaged or of another version: {type(error).__name__} {error}.") from None
    if not results:
        raise InputError(f"'{path}' holds no benchmark with times.")
    return [_make_record(result, context) for result in results if result.samples_ns or result.failure]


def _read_file(path: Path) -> tuple[_Context, list[_Result]]:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"'{path}' cannot be read: {error}.") from None
    formats = (
        "Google Benchmark (--benchmark_out), pytest-benchmark (--benchmark-json), nvbench (--json), or Criterion "
        "(target/criterion, or cargo criterion --message-format=json)"
    )
    try:
        body = json.loads(text)
    except ValueError:
        lines = [line for line in text.splitlines() if line.startswith("{")]
        if lines and all('"reason"' in line for line in lines):
            return _read_criterion_messages([json.loads(line) for line in lines], path)
        raise InputError(f"'{path}' is no JSON; this command reads {formats}.") from None
    if isinstance(body, dict) and isinstance(body.get("benchmarks"), list):
        if "machine_info" in body:
            return _read_pytest(body)
        if "devices" in body and "meta" in body:
            return _read_nvbench(body, path)
        if "context" in body:
            return _read_google(body)
    if isinstance(body, dict) and "reason" in body:
        return _read_criterion_messages([body], path)
    raise InputError(f"'{path}' is of no format that is known; this command reads {formats}.")


def _read_google(body: Table) -> tuple[_Context, list[_Result]]:
    context = body["context"]
    load = context.get("load_avg") or [0.0]
    where = _Context(
        str(context.get("date", "")),
        str(context.get("host_name", "")),
        f"{context.get('num_cpus', 1)} CPUs at {context.get('mhz_per_cpu', '?')} MHz",
        int(context.get("num_cpus", 1)),
        float(load[0]),
        libraries={"build": str(context.get("library_build_type", ""))},
    )
    times: dict[str, list[float]] = {}
    failures: dict[str, str] = {}
    for run in body["benchmarks"]:
        if run.get("run_type", "iteration") == "iteration":
            name = str(run.get("run_name") or run["name"])
            values = times.setdefault(name, [])
            if run.get("error_occurred"):
                failures[name] = f"failed: {run.get('error_message') or 'no message'}"
            else:
                values.append(float(run["real_time"]) * UNITS[run.get("time_unit", "ns")])
    results = []
    for name, samples in times.items():
        base, *words = name.split("/")
        params: dict[str, Any] = {}
        for word in words:
            key, colon, value = word.rpartition(":")
            params[key if colon else f"arg{len(params)}"] = _parse(value)
        results.append(_Result("google-benchmark", base, params, tuple(samples), failure=failures.get(name)))
    return where, results


def _read_pytest(body: Table) -> tuple[_Context, list[_Result]]:
    info = body["machine_info"]
    cpu = info.get("cpu") or {}
    where = _Context(
        str(body.get("datetime", "")),
        str(info.get("node", "")),
        str(cpu.get("brand_raw") or info.get("processor") or ""),
        int(cpu.get("count") or 1),
        commit=(body.get("commit_info") or {}).get("id"),
        libraries={"python": str(info.get("python_version", ""))},
    )
    results = []
    for one in body["benchmarks"]:
        data = one["stats"].get("data")
        if not data:
            raise InputError(
                f"the benchmark '{one['name']}' has no raw times; write them with --benchmark-json or "
                "--benchmark-save-data."
            )
        params = {key: _to_scalar(value) for key, value in (one.get("params") or {}).items()}
        name = str(one["name"]).partition("[")[0]
        results.append(_Result("pytest-benchmark", name, params, tuple(float(s) * 1e9 for s in data)))
    return where, results


def _read_nvbench(body: Table, path: Path) -> tuple[_Context, list[_Result]]:
    gpus = tuple(str(device["name"]) for device in body["devices"])
    where = _Context(_get_file_time(path), cpu="not recorded", gpus=gpus)
    results = []
    for one in body["benchmarks"]:
        for state in one["states"]:
            if state.get("is_skipped"):
                continue
            params = {axis["name"]: _parse(str(axis["value"])) for axis in state.get("axis_values") or ()}
            summaries = {summary["tag"]: summary for summary in state["summaries"]}
            samples = _read_nvbench_samples(summaries, path)
            device = state.get("device") or 0
            results.append(
                _Result("nvbench", str(one["name"]), params, samples, f"cuda:{device}" if device else "cuda")
            )
    return where, results


def _read_nvbench_samples(summaries: Mapping[str, Table], path: Path) -> tuple[float, ...]:
    """Return the raw times of --jsonbin, or the mean alone, which is too little for a verdict."""
    raw = summaries.get("nv/json/bin:nv/cold/sample_times")
    if raw is not None:
        values = {item["name"]: item["value"] for item in raw["data"]}
        file = path.parent / str(values["filename"])
        if file.is_file():
            content = file.read_bytes()
            return tuple(s * 1e9 for (s,) in struct.iter_unpack("<f", content[: len(content) // 4 * 4]))
    for tag in ("nv/cold/time/gpu/mean", "nv/batch/time/gpu/mean"):
        if tag in summaries:
            return (float(summaries[tag]["data"][0]["value"]) * 1e9,)
    return ()


def _read_criterion_folder(path: Path) -> tuple[_Context, list[_Result]]:
    files = sorted(path.rglob("new/sample.json"))
    if not files:
        raise InputError(f"'{path}' holds no new/sample.json; give the folder target/criterion after cargo bench.")
    results = []
    for file in files:
        sample, meta = json.loads(file.read_text()), file.with_name("benchmark.json")
        about = json.loads(meta.read_text()) if meta.is_file() else {}
        name = str(about.get("group_id") or file.parent.parent.name)
        params = {"function": about.get("function_id"), "value": about.get("value_str")}
        labels = {key: _parse(str(value)) for key, value in params.items() if value}
        pairs = zip(sample["times"], sample["iters"], strict=True)
        results.append(_Result("criterion", name, labels, tuple(t / n for t, n in pairs)))
    return _Context(_get_file_time(files[0]), cpu="not recorded"), results


def _read_criterion_messages(lines: list[Table], path: Path) -> tuple[_Context, list[_Result]]:
    results = []
    for line in lines:
        if line.get("reason") == "benchmark-complete":
            pairs = zip(line["measured_values"], line["iteration_count"], strict=True)
            scale = UNITS[line.get("unit", "ns")]
            name, _, rest = str(line["id"]).partition("/")
            params = {"id": rest} if rest else {}
            results.append(_Result("criterion", name, params, tuple(t * scale / n for t, n in pairs)))
    return _Context(_get_file_time(path), cpu="not recorded"), results


def _make_record(result: _Result, context: _Context) -> Record:
    state = {
        "load_average": context.load,
        "cpu_mhz": None,
        "gpu": None,
        "quota_throttled": None,
        "thermal_events": None,
    }
    identity = f"{context.host}|{context.cpu}|{context.cpus}|{context.gpus}"
    return Record(
        schema=SCHEMA,
        id=uuid.uuid4().hex,
        time=context.time or datetime.now(UTC).isoformat(timespec="seconds"),
        workload=result.name,
        case={**result.params, "device": result.device, "ranks": 1},
        work={"items": 1, "unit": "calls", "flops": 0, "bytes": {}, "launches": 0},
        placement=({"node": None, "cpus": None, "memory": "local", "gpu": None},),
        machine={
            "fingerprint": hashlib.sha256(identity.encode()).hexdigest()[:16],
            "cpu": context.cpu or context.host or "not recorded",
            "usable_cpus": max(1, context.cpus),
            "memory_bytes": 0,
            "gpus": [{"name": name} for name in context.gpus],
            "nics": [],
            "nodes": [],
            "llc_domains": [],
        },
        code={"commit": context.commit, "dirty": None, "libraries": dict(context.libraries)},
        plan={"reference": result.tool, "imported": True},
        race={"rounds": len(result.samples_ns), "ended": "imported"},
        conditions={"before": state, "after": state},
        ceilings={},
        contenders=(
            ContenderResult(
                result.tool,
                result.samples_ns,
                extras=dict(result.extras),
                check={"ok": True, "error": None, "quality": {}, "note": "imported: the output was not checked"},
                failure=result.failure,
            ),
        ),
        note=f"Imported from {result.tool}: the output was not checked, and runs of two files did not take turns.",
    )


def _parse(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _to_scalar(value: Any) -> Any:
    return value if value is None or isinstance(value, int | float | str | bool) else json.dumps(value, default=str)


def _get_file_time(path: Path) -> str:
    return datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat(timespec="seconds")


def merge_records(paths: list[Path], out: Path) -> tuple[int, int]:
    """Write every record of `paths` once, as it is, to records.jsonl in `out`; return how many, and how many were new.

    Records that `out` holds already stay first. Raises InputError for damaged records, or two of one id that differ.
    """
    from ridgeline.lab.record.record import RECORDS_FILE, gather_records, read_records
    from ridgeline.store import publish

    target = out / RECORDS_FILE
    lines: dict[str, str] = {}
    sources = [target] if target.is_file() else []
    before = 0
    for number, path in enumerate([*sources, *paths]):
        gather_records(path)  # every file must hold records
        for file in _list_files(path):
            read_records(file)
            for line in file.read_text().splitlines():
                if not line.strip():
                    continue
                try:
                    key = str(json.loads(line)["id"])
                except ValueError:
                    continue  # the torn end of a stopped run
                if json.loads(lines.setdefault(key, line)) != json.loads(line):
                    raise InputError(f"the record {key[:12]} of '{file}' differs from another one of that id.")
        if sources and number == 0:
            before = len(lines)
    out.mkdir(parents=True, exist_ok=True)
    with publish(target) as temporary:
        temporary.write_text("".join(f"{line}\n" for line in lines.values()))
    return len(lines), len(lines) - before


def _list_files(path: Path) -> Iterator[Path]:
    yield from sorted(path.rglob("*.jsonl")) if path.is_dir() else (path,)

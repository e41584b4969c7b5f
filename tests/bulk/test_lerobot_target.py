"""`bulk resample --format lerobot`: the dataset of `ridgeline resample`, in groups of any size and after any death."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import pytest
from tests.bulk.dies import fork
from tests.bulk.rlds_made import make_rlds, record
from tests.bulk.sources_made import InlineEngine
from tests.trajectory import camera_recordings as cams

import ridgeline.bulk.job as job
from ridgeline import bulk
from ridgeline.bulk import lerobot_target
from ridgeline.bulk.engines import Death
from ridgeline.bulk.resample_job import ResampleWorker
from ridgeline.bulk.storage import LocalStorage
from ridgeline.errors import InputError, RidgelineError
from ridgeline.trajectory import ConversionSettings, convert_many
from ridgeline.trajectory.readers import read

CAMERAS = {"front": cams.FRONT, "wrist": cams.WRIST, "depth": cams.DEPTH}
OPTIONS: dict[str, Any] = {"hz": 10, "cameras": CAMERAS, "state": (cams.JOINTS,), "task": "wave"}
DIED = 77


class Poison(BaseException):
    """Ends the worker of a test."""


class FragileEngine(InlineEngine):
    """A worker that meets poison is dead."""

    stop_after = None

    def run(self, tasks):
        for task in tasks:
            try:
                yield task, self._run(task)
            except Poison:
                yield task, Death("its worker died")


@pytest.fixture
def inline(monkeypatch):
    monkeypatch.setattr(job, "LocalEngine", type("Engine", (InlineEngine,), {"stop_after": None}))
    monkeypatch.setattr(job, "write_summary", lambda *_: None)


@pytest.fixture(scope="module")
def logs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("logs")
    for number, seconds in enumerate((1.0, 1.4, 1.2)):
        cams.mcap(folder / f"{number}.mcap", cams.messages(seconds, gap=(0.4, 0.7)))
    return folder


def read_dataset(folder: Path) -> dict[str, Any]:
    """All rows, the episodes, the statistics and the description of a dataset."""
    data = parquet.read_table(sorted(folder.glob("data/*/*.parquet")))
    episodes = parquet.read_table(sorted(folder.glob("meta/episodes/*/*.parquet"))).to_pylist()
    places = ("data/", "videos/", "meta/episodes/")
    return {
        "columns": data.column_names,
        "rows": data.to_pylist(),
        "episodes": [{k: v for k, v in e.items() if not k.startswith(places)} for e in episodes],
        "info": json.loads((folder / "meta/info.json").read_text()),
        "stats": json.loads((folder / "meta/stats.json").read_text()),
        "tasks": parquet.read_table(folder / "meta/tasks.parquet").to_pylist(),
    }


def read_pictures(folder: Path, camera: str) -> list[int]:
    import av

    numbers = []
    for file in sorted(folder.glob(f"videos/observation.images.{camera}/*/*.mp4")):
        with av.open(str(file)) as video:
            numbers += [cams.read_number(f.to_ndarray(format="rgb24")) for f in video.decode(video=0)]
    return numbers


def list_bytes(folder: Path) -> dict[str, bytes]:
    names = ("data", "videos", "meta")
    files = [file for name in names for file in sorted((folder / name).rglob("*")) if file.is_file()]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


@pytest.mark.parametrize("group_bytes", [1, 50_000_000])
def test_cameras_and_numbers_are_those_of_resample_in_groups_of_any_size(
    tmp_path, logs, inline, monkeypatch, group_bytes
):
    monkeypatch.setattr(lerobot_target, "GROUP_BYTES", group_bytes)
    settings = ConversionSettings(10, cameras=CAMERAS, state=(cams.JOINTS,), task="wave")
    convert_many(sorted(logs.iterdir()), tmp_path / "plain", "lerobot", settings)
    answer = bulk.resample(logs, tmp_path / "out", format="lerobot", chunk_episodes=2, **OPTIONS)
    assert (answer["episodes"], answer["rejects"], answer["chunks"]) == (3, 0, 2)
    ours, plain = read_dataset(tmp_path / "out"), read_dataset(tmp_path / "plain")
    for name in ("columns", "rows", "episodes", "info", "tasks"):
        assert ours[name] == plain[name], name
    for name, stats in plain["stats"].items():
        for what in ("min", "max", "mean", "std", "count"):
            np.testing.assert_allclose(ours["stats"][name][what], stats[what], rtol=1e-6, err_msg=f"{name} {what}")
    for camera in ("front", "wrist"):
        assert read_pictures(tmp_path / "out", camera) == read_pictures(tmp_path / "plain", camera)
    assert not list((tmp_path / "out/_ridgeline").glob("parts/*"))
    assert not list((tmp_path / "out/_ridgeline").glob("building/*"))


def test_a_recording_without_the_camera_is_a_reject(tmp_path, logs, inline):
    folder = tmp_path / "in"
    folder.mkdir()
    os.link(logs / "0.mcap", folder / "a.mcap")
    cams.mcap(folder / "b.mcap", cams.joints(1.0))
    answer = bulk.resample(folder, tmp_path / "out", format="lerobot", **OPTIONS)
    assert (answer["episodes"], answer["rejects"]) == (1, 1)
    [file] = (tmp_path / "out/rejects").glob("*.jsonl")
    assert cams.FRONT in json.loads(file.read_text())["reason"]


def test_images_of_rlds_episodes_become_videos(tmp_path, inline):
    folder = tmp_path / "robot"
    episodes = make_rlds(folder, lengths=(3, 2), shards=1)
    for number, steps in enumerate(episodes):
        pictures = [cams.encode(cams.draw(10 * number + i)) for i in range(len(steps["action"]))]
        steps |= {"observation/image": pictures, "language_instruction": [b"wave"] * len(pictures)}
    next(folder.glob("*.tfrecord*")).write_bytes(b"".join(record(steps) for steps in episodes))
    cameras = {"front": "observation/image"}
    answer = bulk.resample(folder, tmp_path / "out", format="lerobot", hz=10, fps=10, cameras=cameras)
    assert (answer["episodes"], answer["rejects"]) == (2, 0)
    assert read_pictures(tmp_path / "out", "front") == [0, 1, 2, 10, 11]


def test_a_stream_of_one_episode_is_in_the_dataset_and_empty_in_the_others(tmp_path, inline, monkeypatch):
    monkeypatch.setattr(lerobot_target, "GROUP_BYTES", 1)
    folder = tmp_path / "in"
    folder.mkdir()
    for number, extra in enumerate((False, True, False)):
        lines = [f"{i / 10},{i}{f',{i * 2}' if extra else ''}\n" for i in range(11)]
        (folder / f"{number}.csv").write_text(f"time,x{',late' if extra else ''}\n" + "".join(lines))
    for form, chunk in (("lerobot", 1), ("lerobot", 4), ("parquet", 1), ("parquet", 4)):
        out = tmp_path / f"{form}{chunk}"
        bulk.resample(folder, out, hz=10, format=form, chunk_episodes=chunk)
        files = sorted(out.glob("part-*.parquet" if form == "parquet" else "data/*/*.parquet"))
        schemas = {tuple(parquet.read_schema(file).names) for file in files}
        assert len(schemas) == 1, "a reader takes the columns of one file for all"
        rows = parquet.read_table(files).to_pylist()
        name = "late" if form == "parquet" else "observation.late"
        late = [np.ravel(row[name]) if row[name] is not None else np.array([np.nan]) for row in rows]
        assert [float(v[0]) for v in late[11:22]] == [2.0 * i for i in range(11)]
        assert np.isnan([float(v[0]) for v in (*late[:11], *late[22:])]).all()


def test_large_whole_numbers_stay_exact_in_a_dataset(tmp_path, inline):
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(2):
        values = [1_700_000_000_123_456_789 + i for i in range(5)]
        (folder / f"{number}.csv").write_text("time,n\n" + "".join(f"{i}.5,{v}\n" for i, v in enumerate(values)))
    bulk.resample(folder, tmp_path / "out", hz=1, format="lerobot", chunk_episodes=1, kinds={"n": "nearest"})
    [stream] = [s for s in read(tmp_path / "out") if s.name.endswith("n") and s.episode == "1"]
    assert stream.values.tolist() == values


@pytest.mark.parametrize("chunk", [1, 2])
@pytest.mark.parametrize("form", ["lerobot", "parquet"])
def test_streams_that_differ_are_named_with_where_they_lie(tmp_path, inline, form, chunk):
    (tmp_path / "in").mkdir()
    for number, names in enumerate(("p.x,p.y", "p.x,p.y,p.z")):
        lines = [",".join([f"{i}.5", *"123"[: number + 2]]) + "\n" for i in range(3)]
        (tmp_path / f"in/{number}.csv").write_text(f"time,{names}\n" + "".join(lines))
    places = "part-000000.*part-000001" if (form, chunk) == ("parquet", 1) else r"0\.csv.*1\.csv"
    with pytest.raises(RidgelineError, match=f"'p' has the columns p.x, p.y in.*{places}.*--exclude 'p'"):
        bulk.resample(tmp_path / "in", tmp_path / "out", hz=1, format=form, chunk_episodes=chunk)


def test_only_the_recording_that_ends_workers_is_a_reject(tmp_path, monkeypatch):
    monkeypatch.setattr(job, "LocalEngine", FragileEngine)
    make_rlds(tmp_path / "in/robot", lengths=(5, 6), shards=1)
    for name in "abc":
        (tmp_path / f"in/{name}.csv").write_text("time,x\n" + "".join(f"{i / 10},{i}\n" for i in range(11)))
    plain = ResampleWorker._make_episode

    def make(self, recording, read, number, *rest):
        if recording.url.endswith("b.csv"):
            raise Poison
        return plain(self, recording, read, number, *rest)

    monkeypatch.setattr(ResampleWorker, "_make_episode", make)
    answer = bulk.resample(tmp_path / "in", tmp_path / "out", hz=10, fps=10)
    [file] = (tmp_path / "out/rejects").glob("*.jsonl")
    assert json.loads(file.read_text())["source"].endswith("b.csv")
    assert (answer["episodes"], answer["rejects"]) == (4, 1)


def test_cameras_need_a_dataset(tmp_path, logs):
    with pytest.raises(InputError, match="--format lerobot"):
        bulk.resample(logs, tmp_path / "out", **OPTIONS)


def run_and_die(change: int, after: bool, source: Path, out: Path) -> bool:
    """Run in a child that dies before or after the given change of a file; return whether it died."""
    child = fork()
    if child == 0:
        left = change

        def wrap(original):
            def die(*args):
                nonlocal left
                left -= 1
                if left <= 0:
                    if after:
                        original(*args)
                    os._exit(DIED)
                return original(*args)

            return die

        try:
            for name in ("write", "upload", "move", "delete"):
                setattr(LocalStorage, name, wrap(getattr(LocalStorage, name)))
            bulk.resample(source, out, format="lerobot", chunk_episodes=1, **OPTIONS)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == DIED


@pytest.mark.parametrize("change", [3, 9, pytest.param(0, marks=pytest.mark.slow)])  # 0: every one, some 40 runs
def test_a_death_at_a_change_leads_to_the_same_dataset(tmp_path, logs, inline, monkeypatch, change):
    monkeypatch.setattr(lerobot_target, "GROUP_BYTES", 1)
    bulk.resample(logs, tmp_path / "whole", format="lerobot", chunk_episodes=1, **OPTIONS)
    whole = list_bytes(tmp_path / "whole")
    places = 0
    for number in [change] if change else range(1, 90):
        out = tmp_path / f"out{number}"
        died = run_and_die(number, bool(number % 2), logs, out)
        places += died
        assert died or not change
        bulk.resample(logs, out, format="lerobot", chunk_episodes=1, **OPTIONS)
        assert list_bytes(out) == whole, number
        left = {file.name for file in (out / "_ridgeline").rglob("*") if file.is_file()}
        assert left <= {"job.json", "manifest.json", "runs.json", "lock"}, number
        if not died:
            break
    assert places > 20 or change

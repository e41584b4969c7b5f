"""`TrajectoryDataset(folder, delta_timestamps=…)`: items like LeRobot's, with frames decoded on demand."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.trajectory import camera_recordings as cams
from tests.trajectory.camera_recordings import DEPTH, FRONT, JOINTS, WRIST, read_number

from ridgeline.errors import InputError
from ridgeline.trajectory import ConversionSettings, TrajectoryDataset, convert_many
from ridgeline.trajectory.readers.lerobot import BOOKKEEPING

KEY, SECOND = "observation.images.front", "observation.images.wrist"
DELTAS = {KEY: [-1 / 30, 0.0], "observation.state": [-2 / 30, 0.0, 1 / 30]}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two episodes of 30 and 15 frames with two cameras, depth and a task each."""
    folder = tmp_path_factory.mktemp("frames")
    paths = [
        cams.mcap(folder / f"{i}.mcap", cams.messages(seconds, gap=(9, 9))) for i, seconds in enumerate((1.0, 0.5))
    ]
    for path, gop in zip(paths, (10, 10), strict=True):
        settings = ConversionSettings(
            hz=30,
            cameras={"front": FRONT, "wrist": WRIST, "depth": DEPTH},
            state=(f"{JOINTS}/position",),
            task=f"task {path.stem}",
            gop=gop,
        )
        convert_many([path], folder / "set", "lerobot", settings, append=True)
    return folder / "set"


def test_an_item_has_the_shapes_types_and_values_of_lerobots(root: Path):
    dataset = TrajectoryDataset(root, delta_timestamps=DELTAS)
    item = dataset[5]
    assert {k: tuple(v.shape) for k, v in item.items() if k != "task"} == {
        KEY: (2, 3, 64, 96),
        f"{KEY}_is_pad": (2,),
        SECOND: (3, 64, 96),
        "observation.state": (3, 2),
        "observation.state_is_pad": (3,),
        "observation.depth.depth": (6, 8),
        f"{KEY}.valid": (),
        f"{SECOND}.valid": (),
        "observation.depth.depth.valid": (),
        **dict.fromkeys(("timestamp", "frame_index", "episode_index", "index", "task_index"), ()),
    }
    assert (item[KEY].dtype, item["index"].dtype) == (torch.float32, torch.int64)
    assert item["task"] == "task 0"
    assert [read_number(p.numpy()) for p in item[KEY]] == [4, 5]
    assert 0 <= float(item[KEY].min()) < float(item[KEY].max()) <= 1


def test_frames_are_those_of_the_video_in_any_order(root: Path):
    dataset = TrajectoryDataset(root, delta_timestamps={KEY: [0.0]})
    files = sorted((root / "videos" / KEY).rglob("*.mp4"))
    want = [pixels for file in files for _, pixels in cams.decode(file)]
    assert len(dataset) == len(want)
    for i in [*np.random.default_rng(0).permutation(len(want)).tolist(), 3, 3, 2]:
        pixels = dataset[i][KEY].numpy().transpose(1, 2, 0) * 255
        assert np.abs(pixels - want[i]).max() <= 2


def test_offsets_that_leave_the_episode_are_held_at_its_edge_and_marked(root: Path):
    dataset = TrajectoryDataset(root, delta_timestamps={KEY: [-2 / 30, 0.0, 2 / 30], "observation.state": [-1 / 30]})
    last = next(i for i in range(len(dataset)) if int(dataset[i + 1]["episode_index"]) == 1)
    assert dataset[0][f"{KEY}_is_pad"].tolist() == [True, False, False]
    assert dataset[last][f"{KEY}_is_pad"].tolist() == [False, False, True]
    assert [read_number(p.numpy()) for p in dataset[last + 1][KEY]] == [0, 0, 2]
    assert dataset[0]["observation.state"].shape == (1, 2)
    assert dataset[last + 1]["task"] == "task 1"


def test_depth_and_bytes_are_exact(root: Path):
    dataset = TrajectoryDataset(root, delta_timestamps={"observation.depth.depth": [0.0, 1 / 30]}, images="uint8")
    item = dataset[20]
    assert item["observation.depth.depth"].shape == (2, 6, 8)
    base = int(item["observation.depth.depth"][0, 0, 0])
    np.testing.assert_array_equal(item["observation.depth.depth"][0], base + np.arange(48).reshape(6, 8))
    assert (item[KEY].dtype, read_number(item[KEY].numpy().transpose(1, 2, 0))) == (torch.uint8, 20)


def test_a_loader_with_workers_gives_the_same_items(root: Path):
    dataset = TrajectoryDataset(root, delta_timestamps={KEY: [0.0]})
    first = dataset[0]  # opens files that a forked worker must not share
    context = multiprocessing.get_context("fork")
    loader = torch.utils.data.DataLoader(dataset, batch_size=8, num_workers=2, multiprocessing_context=context)
    batches = list(loader)
    numbers = [read_number(p.numpy()) for batch in batches for p in batch[KEY]]
    assert numbers[:30] == list(range(30))
    assert torch.equal(batches[0][KEY][0], first[KEY])
    again = pickle.loads(pickle.dumps(dataset))
    assert torch.equal(again[7][KEY], dataset[7][KEY])


def test_wrong_offsets_features_and_sources_are_told(root: Path, tmp_path: Path):
    for deltas, message in (
        ({KEY: [0.01]}, "multiples of 1 / 30 s"),
        ({KEY: []}, "at least one"),
        ({"observation.image": [0.0]}, "did you mean"),
    ):
        with pytest.raises(InputError, match=message):
            TrajectoryDataset(root, delta_timestamps=deltas)
    with pytest.raises(InputError, match="no LeRobot folder"):
        TrajectoryDataset(tmp_path, delta_timestamps={})
    with pytest.raises(InputError, match="window="):
        TrajectoryDataset(root, delta_timestamps={}, window=1.0)
    with pytest.raises(InputError, match="type of images"):
        TrajectoryDataset(root, delta_timestamps={}, images="float16")
    dataset = TrajectoryDataset(root, delta_timestamps={})
    with pytest.raises(IndexError):
        dataset[len(dataset)]


def test_a_video_that_is_shorter_than_its_index_or_damaged_is_told(root: Path, tmp_path: Path):
    shutil.copytree(root, tmp_path / "set")
    files = sorted((tmp_path / "set/videos" / KEY).rglob("*.mp4"))
    shutil.copyfile(files[1], files[0])  # 15 frames where 30 are expected
    dataset = TrajectoryDataset(tmp_path / "set", delta_timestamps={KEY: [0.0]})
    assert read_number(dataset[3][KEY].numpy()) == 3
    with pytest.raises(InputError, match="has no frame 25: it is shorter"):
        dataset[25]
    files[0].write_bytes(files[0].read_bytes()[:200])
    with pytest.raises(InputError, match="cannot be read"):
        TrajectoryDataset(tmp_path / "set", delta_timestamps={KEY: [0.0]})[0]


def test_a_version_2_dataset_with_a_video_per_episode_is_read(root: Path, tmp_path: Path):
    import pyarrow.parquet as parquet

    old = tmp_path / "v2"
    info = json.loads((root / "meta/info.json").read_text())
    info |= {
        "codebase_version": "v2.1",
        "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    }
    (old / "meta").mkdir(parents=True)
    (old / "meta/info.json").write_text(json.dumps(info))
    (old / "meta/tasks.jsonl").write_text('{"task_index": 0, "task": "task 0"}\n{"task_index": 1, "task": "task 1"}\n')
    (old / "data/chunk-000").mkdir(parents=True)
    for i, file in enumerate(sorted((root / "data").rglob("*.parquet"))):
        parquet.write_table(parquet.read_table(file), old / f"data/chunk-000/episode_{i:06d}.parquet")
    for name in (KEY, SECOND):
        (old / f"videos/chunk-000/{name}").mkdir(parents=True)
        for i, file in enumerate(sorted((root / "videos" / name).rglob("*.mp4"))):
            shutil.copyfile(file, old / f"videos/chunk-000/{name}/episode_{i:06d}.mp4")
    ours, theirs = (TrajectoryDataset(path, delta_timestamps=DELTAS) for path in (root, old))
    for i in (0, 17, 31, len(ours) - 1):
        assert torch.equal(ours[i][KEY], theirs[i][KEY])
        assert ours[i]["task"] == theirs[i]["task"]


def test_the_videos_of_a_dataset_are_cameras_of_another_conversion(root: Path, tmp_path: Path):
    settings = ConversionSettings(hz=15, cameras={"eye": KEY}, state=("observation.state",), kinds={"eye": "previous"})
    (result,) = convert_many([root], tmp_path / "set", "lerobot", settings)
    assert (result.error, result.episodes) == (None, 2)
    dataset = TrajectoryDataset(tmp_path / "set", delta_timestamps={})
    numbers = [read_number(dataset[i]["observation.images.eye"].numpy()) for i in range(len(dataset))]
    assert numbers == [*range(0, 30, 2), *range(0, 15, 2)]
    assert dataset[len(dataset) - 1]["task"] == "task 1"


def test_a_batch_and_prefetched_items_are_the_items_one_by_one(root: Path):
    dataset = TrajectoryDataset(root, delta_timestamps={KEY: [-1 / 30, 0.0], "observation.state": [0.0]})
    order = [29, 3, 3, 40, 0, 7]
    single = [dataset[i] for i in order]
    for together in (dataset.__getitems__(order), list(dataset.prefetch(order, threads=2, ahead=2))):
        assert len(together) == len(single)
        for one, other in zip(single, together, strict=True):
            assert one.keys() == other.keys()
            assert all(torch.equal(one[k], other[k]) for k in one if k != "task")
    assert sum(1 for _ in dataset.prefetch()) == len(dataset)
    with pytest.raises(InputError, match="at least 1"):
        next(iter(dataset.prefetch(threads=0)))
    with pytest.raises(IndexError):
        list(dataset.prefetch([len(dataset)]))


@pytest.mark.parametrize("images", ["float32", "uint8"])
def test_batches_of_threads_are_those_of_a_loader(root: Path, images: str):
    dataset = TrajectoryDataset(root, delta_timestamps=DELTAS, images=images)
    order = np.random.default_rng(0).permutation(len(dataset)).tolist()
    loader = torch.utils.data.DataLoader(dataset, batch_size=8, sampler=order)
    batches = list(dataset.batches(8, order, threads=3))
    assert len(batches) == len(loader)
    for ours, theirs in zip(batches, loader, strict=True):
        assert list(ours) == list(theirs)
        assert all(ours[k] == v if k == "task" else torch.equal(ours[k], v) for k, v in theirs.items())
        assert all(v.dtype == theirs[k].dtype for k, v in ours.items() if k != "task")
    assert len(list(dataset.batches(8, order, drop_last=True))) == len(dataset) // 8
    assert sum(len(b["index"]) for b in dataset.batches(8)) == len(dataset)
    with pytest.raises(InputError, match="at least 1"):
        dataset.batches(0)
    with pytest.raises(InputError, match="at least 1"):
        dataset.batches(8, threads=0)
    with pytest.raises(IndexError):
        list(dataset.batches(8, [len(dataset)]))


def test_memory_of_a_batch_is_used_again_only_when_the_batch_is_gone(root: Path):
    dataset = TrajectoryDataset(root, delta_timestamps={KEY: [0.0]})
    batches = dataset.batches(15, threads=1, ahead=1)
    first = next(batches)[KEY]
    kept, item = first.clone(), first[3]
    places = {first.data_ptr()}
    for batch in batches:
        assert batch[KEY].data_ptr() not in places  # `first` is still in use
    assert torch.equal(first, kept)
    del first, batch
    assert torch.equal(item, kept[3])
    numbers = [read_number(p.numpy()) for batch in dataset.batches(15, threads=1, ahead=1) for p in batch[KEY]]
    assert numbers == [*range(30), *range(15)]
    assert torch.equal(item, kept[3])
    places = {batch[KEY].data_ptr() for _ in range(3) for batch in dataset.batches(15, threads=1, ahead=1)}
    assert len(places) < 9


@pytest.mark.parametrize(
    ("layout", "matrix"), [("yuv420p", 1), ("yuv420p", 9), ("yuv444p", 5), ("yuv422p", 5), ("yuv422p10le", 5)]
)
def test_frames_of_other_layouts_and_matrices_have_their_colours(root: Path, tmp_path: Path, layout: str, matrix: int):
    """`matrix` is 1 for BT.709, 5 for BT.601 and 9 for BT.2020."""
    import av

    shutil.copytree(root, tmp_path / "set")
    colours = [np.stack([p, p // 2, 255 - p], 2) for p in map(cams.draw, range(30))]
    for file in sorted((tmp_path / "set/videos" / KEY).rglob("*.mp4")):
        file.unlink()
        with av.open(str(file), "w") as out:
            stream = out.add_stream("libx264", rate=30)
            stream.width, stream.height, stream.pix_fmt = 96, 64, layout
            stream.codec_context.colorspace = matrix
            for colour in colours:
                frame = av.VideoFrame.from_ndarray(colour, format="rgb24")
                out.mux(stream.encode(frame.reformat(format=layout, dst_colorspace=matrix)))
            out.mux(stream.encode(None))
    dataset = TrajectoryDataset(tmp_path / "set", delta_timestamps={KEY: [0.0]}, images="uint8")
    for i in (0, 17, 3):
        shown = dataset[i][KEY].numpy().transpose(1, 2, 0).astype(int)
        assert np.abs(shown - colours[i])[4:12, 4:12].max() <= 12  # the inside of a square, so chroma is its own


def test_decoders_that_are_not_there_are_told(root: Path):
    with pytest.raises(InputError, match="did you mean 'pyav'"):
        TrajectoryDataset(root, delta_timestamps={}, decoder="pyaw")
    with pytest.raises(InputError, match="PyAV decodes on the CPU"):
        TrajectoryDataset(root, delta_timestamps={}, decoder="pyav", device="cuda")


def test_torchcodec_gives_the_same_frames(root: Path):
    pytest.importorskip("torchcodec.decoders", exc_type=Exception, reason="TorchCodec or FFmpeg is missing")
    both = [TrajectoryDataset(root, delta_timestamps={KEY: [-1 / 30, 0.0]}, decoder=d) for d in ("pyav", "torchcodec")]
    for index in (0, 17, 44, 3):
        one, other = (dataset[index][KEY] for dataset in both)
        assert one.shape == other.shape
        assert (one - other).abs().max() <= 2.5 / 255


def test_stored_images_of_a_dataset_are_items(tmp_path: Path):
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    (tmp_path / "meta").mkdir()
    (tmp_path / "data").mkdir()
    features = {
        "observation.image": {"dtype": "image", "shape": [64, 96, 3], "names": ["height", "width", "channel"]},
        **{n: {"dtype": "int64", "shape": [1], "names": None} for n in BOOKKEEPING if n != "timestamp"},
        "timestamp": {"dtype": "float32", "shape": [1], "names": None},
    }
    about = {"codebase_version": "v3.0", "fps": 10, "features": features}
    (tmp_path / "meta/info.json").write_text(json.dumps(about))
    frame = np.arange(5)
    pictures = [{"bytes": cams.encode(cams.draw(i), "png", "rgb24"), "path": None} for i in range(5)]
    columns = {n: frame if n in ("frame_index", "index") else np.zeros(5, np.int64) for n in BOOKKEEPING}
    rows = {**columns, "timestamp": (frame / 10).astype(np.float32), "observation.image": pictures}
    parquet.write_table(arrow.table(rows), tmp_path / "data/file.parquet", row_group_size=2)
    dataset = TrajectoryDataset(tmp_path, delta_timestamps={"observation.image": [-0.1, 0.0]})
    shown = [[read_number(p.numpy()) for p in dataset[i]["observation.image"]] for i in (3, 0)]
    assert shown == [[2, 3], [0, 0]]
    assert dataset[0]["observation.image_is_pad"].tolist() == [True, False]

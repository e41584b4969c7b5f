"""Mutated recordings with cameras, of five kinds: each becomes a dataset or a sentence, and a topic tells what it lost.

    python -m tests.trajectory.damaged_recordings KIND FIRST COUNT FOLDER    # KIND: mcap, bag, db3, hdf5, rlds

A batch runs in a process of its own, because a decoder in C that crashes or hangs would take the test with it.
"""

from __future__ import annotations

import faulthandler
import os
import random
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tests.bulk import rlds_made
from tests.trajectory import camera_recordings as cams
from tests.trajectory.camera_recordings import DEPTH, FRONT, JOINTS, VIDEO, WRIST, draw, encode

from ridgeline.errors import RidgelineError
from ridgeline.trajectory import ConversionSettings, TrajectoryDataset, build_view, convert_many

LONGEST_S = 120  # of one recording, which takes a fraction of a second
MEMORY = 6 << 30  # of addresses; a length that lies must not fill the machine
STEPS = 8  # of an episode in HDF5 and RLDS
EVERY_VIEW = 20  # seeds, of which one is also drawn


@dataclass(frozen=True)
class Kind:
    """How recordings of a kind are made, which of their files is damaged, and how they are converted."""

    name: str  # of the file or folder
    cameras: Mapping[str, str]
    settings: Mapping[str, Any]
    write: Callable[[Path, random.Random | None], str]  # damages images of a topic if there is a generator; returns it
    damaged: Callable[[Path], Sequence[Path]]  # the files whose bytes are damaged


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """Cut a file, flip bits, or overwrite a few bytes anywhere."""
    out = bytearray(data)
    how = rng.randrange(4)
    at = rng.randrange(len(out))
    if how == 0:
        return bytes(out[:at])
    if how == 1:
        for _ in range(rng.choice((1, 5, 40))):
            out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    elif how == 2:
        out[at : at + 8] = rng.randbytes(8)
    else:  # a length that lies
        out[at : at + 4] = rng.choice((b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0\0\0\0", b"\0\0\0\x40"))
    return bytes(out)


_LIES: Mapping[str, Sequence[Any]] = {
    "width": (0, 1, 7, 2**16, 2**32 - 1),
    "height": (0, 1, 2**20),
    "step": (0, 1, 3, 2**31),
    "encoding": ("", "rgb8", "mono8", "bayer_rggb8", "nv12", "32FC1", "rgb16", "what"),
    "is_bigendian": (1,),
    "format": ("", "png", "h264", "h265", "av1", "vp9", "webp", "compressedDepth", "theora"),
}


def mutate_fields(fields: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Damage an image message, inside or by what it says about itself."""
    data = bytes(fields["data"])
    how = rng.randrange(4)
    if how == 0 or not data:
        name = rng.choice([name for name in _LIES if name in fields])
        return {**fields, name: rng.choice(_LIES[name])}
    if how == 1:
        return {**fields, "data": b""}
    return {**fields, "data": mutate_bytes(data, rng)}


def mutate_some(items: list[cams.Message], topics: Sequence[str], rng: random.Random) -> tuple[list[cams.Message], str]:
    """Damage a share of the images of one topic."""
    topic, share = rng.choice(topics), rng.choice((0.1, 0.5, 1.0))
    damaged = cams.change(items, topic, lambda _, f: f if rng.random() > share else mutate_fields(f, rng))
    return damaged, topic


# --- kinds ---

_CAMERAS = {"front": FRONT, "wrist": WRIST, "depth": DEPTH, "video": VIDEO}
_MESSAGES = {"hz": 10, "cameras": _CAMERAS, "state": (f"{JOINTS}/position",)}


@cache
def list_messages() -> tuple[cams.Message, ...]:
    made = [*cams.messages(0.6, gap=(9, 9)), *cams.video_messages(cams.encode_video(18, gop=6))]
    return tuple(sorted(made, key=lambda m: m[0]))


def _write_messages(path: Path, rng: random.Random | None, write: Callable[[Path, Sequence[cams.Message]], Any]) -> str:
    items, topic = list(list_messages()), ""
    if rng is not None:
        items, topic = mutate_some(items, [*_CAMERAS.values()], rng)
    write(path, items)
    return topic


def write_bag(path: Path, items: Sequence[cams.Message]) -> None:
    """Write messages into a ROS 1 (.bag) or ROS 2 (folder) bag."""
    from rosbags.rosbag1 import Writer as Writer1
    from rosbags.rosbag2 import Writer as Writer2
    from rosbags.typesys import Stores, get_types_from_msg, get_typestore

    first = path.suffix == ".bag"
    store = get_typestore(Stores.ROS1_NOETIC if first else Stores.ROS2_HUMBLE)
    video = "foxglove_msgs/msg/CompressedVideo"
    store.register(get_types_from_msg(cams.SCHEMAS[video].partition("\n===")[0], video))
    types = store.types

    def build_time(stamp: dict[str, int]) -> Any:
        return types["builtin_interfaces/msg/Time"](sec=stamp["sec"], nanosec=stamp["nanosec"])

    def build(kind: str, fields: dict[str, Any]) -> Any:
        out = dict(fields)
        if "timestamp" in out:
            out["timestamp"] = build_time(out["timestamp"])
        if "header" in out:
            extra = {"seq": 0} if first else {}
            out["header"] = types["std_msgs/msg/Header"](
                stamp=build_time(out["header"]["stamp"]), frame_id=out["header"]["frame_id"], **extra
            )
        for name in ("position", "velocity", "effort"):
            if name in out:
                out[name] = np.array(out[name], np.float64)
        if "data" in out:
            out["data"] = np.frombuffer(out["data"], np.uint8)
        return types[kind](**out)

    with Writer1(path) if first else Writer2(path, version=9) as bag:
        links: dict[str, Any] = {}
        for logged, _, topic, kind, fields in items:
            link = links.get(topic) or links.setdefault(topic, bag.add_connection(topic, kind, typestore=store))
            message = build(kind, fields)
            bag.write(
                link, logged, store.serialize_ros1(message, kind) if first else store.serialize_cdr(message, kind)
            )


def _mutate_files(files: list[bytes], rng: random.Random) -> None:
    share = rng.choice((0.1, 0.5, 1.0))
    for i, data in enumerate(files):
        if rng.random() <= share:
            files[i] = b"" if rng.random() < 0.2 else mutate_bytes(data, rng)


_ALOHA = {"front": "observations/images/front", "own": "observations/images/own", "wrist": "observations/images/wrist"}


def _write_aloha(path: Path, rng: random.Random | None) -> str:
    import h5py

    files = {name: [encode(draw(i)) for i in range(STEPS)] for name in ("front", "own")}
    name = rng.choice([*files]) if rng is not None else ""
    if rng is not None:
        _mutate_files(files[name], rng)
    with h5py.File(path, "w") as file:
        file["observations/qpos"] = np.arange(STEPS * 14.0).reshape(STEPS, 14)
        file["action"] = np.ones((STEPS, 14))
        images = file.create_group("observations/images")
        padded = np.zeros((STEPS, max(1, *map(len, files["front"]))), np.uint8)
        for row, data in zip(padded, files["front"], strict=True):
            row[: len(data)] = np.frombuffer(data, np.uint8)
        images["front"] = padded
        images["own"] = np.array([np.frombuffer(d, np.uint8) for d in files["own"]] + [None], object)[:-1].astype(
            h5py.vlen_dtype(np.uint8)
        )
        pixels = np.stack([np.repeat(draw(i)[..., None], 3, 2) for i in range(STEPS)])
        images.create_dataset("wrist", data=pixels, chunks=(1, *pixels.shape[1:]), compression="gzip")
    return _ALOHA[name] if name else ""


_RLDS = {"front": "observation/image"}


def _write_rlds(path: Path, rng: random.Random | None) -> str:
    rlds_made.make_rlds(path, (STEPS, 2), shards=1)
    episodes = rlds_made.make_image_episodes((STEPS, 2), lambda e, i: encode(draw(10 * e + i)))
    if rng is not None:
        _mutate_files(episodes[0]["observation/image"], rng)
    _find_shard(path)[0].write_bytes(b"".join(rlds_made.record(steps) for steps in episodes))
    return _RLDS["front"] if rng is not None else ""


def _find_shard(folder: Path) -> list[Path]:
    return [*folder.glob("*.tfrecord*")]


def _is_itself(path: Path) -> list[Path]:
    return [path]


def _list_files(folder: Path) -> list[Path]:
    big = [*folder.glob("*.db3"), *_find_shard(folder)]
    return [*big * 4, *(f for f in sorted(folder.iterdir()) if f not in big)]


KINDS = {
    "mcap": Kind("it.mcap", _CAMERAS, _MESSAGES, lambda p, r: _write_messages(p, r, cams.mcap), _is_itself),
    "bag": Kind("it.bag", _CAMERAS, _MESSAGES, lambda p, r: _write_messages(p, r, write_bag), _is_itself),
    "db3": Kind("it", _CAMERAS, _MESSAGES, lambda p, r: _write_messages(p, r, write_bag), _list_files),
    "hdf5": Kind(
        "it.hdf5", _ALOHA, {"hz": 25, "fps": 50, "cameras": _ALOHA, "state": ("observations/qpos",)}, _write_aloha,
        _is_itself,
    ),
    "rlds": Kind(
        "it", _RLDS, {"hz": 5, "fps": 5, "cameras": _RLDS, "state": ("observation/state",)}, _write_rlds, _list_files
    ),
}  # fmt: skip


# --- the check of one recording ---


def check_conversion(
    path: Path, out: Path, kind: Kind, topic: str = "", sound: Mapping[str, bytes] | None = None
) -> None:
    """Convert, and check that the result is a sentence, or a dataset whose items can be loaded.

    With `topic`, that losses are in it alone: the other cameras have the videos of the sound recording.
    """
    try:
        (result,) = convert_many([path], out, "lerobot", ConversionSettings(**kind.settings))
    except RidgelineError:
        assert not out.exists()
        return
    assert out.exists() == (result.error is None)
    if result.error is None:
        dataset = TrajectoryDataset(out, delta_timestamps={}, decoder="pyav")
        for number in range(len(dataset)):
            assert dataset[number]
    assert set(result.lost) <= set(kind.cameras.values())
    if not topic:
        return
    assert set(result.lost) <= {topic}
    assert result.error is None or topic in result.error, result.error
    if result.error is None and sound is not None:
        name = next(n for n, t in kind.cameras.items() if t == topic)
        assert {k: v for k, v in read_media(out).items() if f".{name}/" not in k} == {
            k: v for k, v in sound.items() if f".{name}/" not in k
        }


def read_media(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted((folder / "videos").rglob("*.mp4"))}


def run_batch(kind_name: str, seeds: range, folder: Path, watch: Callable[[int], None] = lambda _: None) -> None:
    """Damage and convert a recording for each seed: its bytes (odd seeds) or its images."""
    kind, place, out = KINDS[kind_name], folder / KINDS[kind_name].name, folder / "set"
    clean = folder / "sound" / kind.name
    clean.parent.mkdir()
    kind.write(clean, None)
    check_conversion(clean, out, kind)
    sound = read_media(out)
    assert len(sound) >= len(kind.cameras) - 1  # all but depth
    for seed in seeds:
        watch(seed)
        rng, topic = random.Random(seed), ""
        for left in (place, out):
            shutil.rmtree(left, ignore_errors=True)
            left.unlink(missing_ok=True)
        if seed % 2:
            shutil.copytree(clean, place) if clean.is_dir() else shutil.copyfile(clean, place)
            file = rng.choice(kind.damaged(place))
            file.write_bytes(mutate_bytes(file.read_bytes(), rng))
        else:
            topic = kind.write(place, rng)
        try:
            check_conversion(place, out, kind, topic, sound)
            if seed % EVERY_VIEW == 0:
                assert "<html" in build_view(place, pictures=5)
        except RidgelineError:
            pass
        except BaseException as error:
            error.add_note(f"{kind_name}, seed {seed}, topic '{topic}'")
            raise
        for rest in folder.glob(".set.episodes*"):
            shutil.rmtree(rest, ignore_errors=True)


def run_apart(kind: str, seeds: range, folder: Path) -> None:
    """Run a batch in a process of its own; fail with its last lines if it fails, crashes or hangs."""
    command = [sys.executable, "-m", __name__, kind, str(seeds.start), str(len(seeds)), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60 + LONGEST_S + 30 * len(seeds))
    lines = done.stdout.split()
    assert done.returncode == 0, f"{kind}, seed {lines[-1:]}: exit {done.returncode}\n{done.stderr[-4000:]}"


def main() -> None:
    kind, first, count, folder = sys.argv[1:]
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    os.fsync = lambda _: None  # a disk takes longer for it than the conversion does for the rest

    def watch(seed: int) -> None:
        print(seed, flush=True)
        faulthandler.dump_traceback_later(LONGEST_S, exit=True)  # also if C code does not return

    run_batch(kind, range(int(first), int(first) + int(count)), Path(folder), watch)


if __name__ == "__main__":
    main()

"""Mutated recordings with cameras: no crash, no hang, and what is lost is told by topic."""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.trajectory import camera_recordings as cams
from tests.trajectory.camera_recordings import DEPTH, FRONT, JOINTS, VIDEO, WRIST

from ridgeline.errors import RidgelineError
from ridgeline.trajectory import ConversionSettings, build_view, convert_many

CAMERAS = {"front": FRONT, "wrist": WRIST, "depth": DEPTH, "video": VIDEO}
SETTINGS = ConversionSettings(hz=10, cameras=CAMERAS, state=(f"{JOINTS}/position",))
LONGEST_S = 120  # of one conversion, which takes a fraction of a second


@pytest.fixture(scope="module")
def items() -> list[cams.Message]:
    made = [*cams.messages(0.6, gap=(9, 9)), *cams.video_messages(cams.encode_video(18, gop=6))]
    return sorted(made, key=lambda m: m[0])


@contextmanager
def stop_hangs() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeoutError(f"a conversion takes longer than {LONGEST_S} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LONGEST_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


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


def mutate_messages(items: list[cams.Message], rng: random.Random) -> tuple[list[cams.Message], str]:
    """Damage some images of one topic, inside or by what their message says about them."""
    topic = rng.choice([*CAMERAS.values()])
    share = rng.choice((0.1, 0.5, 1.0))

    def edit(_: int, fields: dict) -> dict:
        if rng.random() > share:
            return fields
        data = fields["data"]
        lies = {
            "width": (0, 1, 7, 2**16, 2**32 - 1),
            "height": (0, 1, 2**20),
            "step": (0, 1, 3, 2**31),
            "encoding": ("", "rgb8", "mono8", "bayer_rggb8", "nv12", "32FC1", "rgb16", "what"),
            "is_bigendian": (1,),
            "format": ("", "png", "h264", "h265", "av1", "vp9", "webp", "compressedDepth", "theora"),
        }
        how = rng.randrange(4)
        known = [name for name in lies if name in fields]
        if how == 0 or not data:
            name = rng.choice(known)
            return {**fields, name: rng.choice(lies[name])}
        if how == 1:
            return {**fields, "data": b""}
        return {**fields, "data": mutate_bytes(data, rng)}

    return cams.change(items, topic, edit), topic


def convert_mutated(path: Path, out: Path, topic: str = "") -> None:
    """Convert, and check that the result is a dataset or a sentence; with `topic`, that losses are in it alone."""
    with stop_hangs():
        try:
            (result,) = convert_many([path], out, "lerobot", SETTINGS)
        except RidgelineError:
            assert not out.exists()
            return
    assert out.exists() == (result.error is None)
    assert set(result.lost) <= set(CAMERAS.values())
    if topic:
        assert set(result.lost) <= {topic}
        assert result.error is None or topic in result.error


def run_many(items: list[cams.Message], folder: Path, seeds: range) -> None:
    data = cams.mcap(folder / "sound.mcap", items).read_bytes()
    for seed in seeds:
        rng = random.Random(seed)
        path, out, topic = folder / f"{seed}.mcap", folder / f"{seed}", ""
        if seed % 2:
            path.write_bytes(mutate_bytes(data, rng))
        else:
            changed, topic = mutate_messages(items, rng)
            cams.mcap(path, changed)
        try:
            convert_mutated(path, out, topic)
            if seed % 20 == 0:
                with stop_hangs():
                    assert "<html" in build_view(path, pictures=5)
        except RidgelineError:
            pass
        except BaseException as error:
            error.add_note(f"seed {seed}, topic '{topic}'")
            raise
        finally:
            path.unlink()
            shutil.rmtree(out, ignore_errors=True)
            for rest in folder.glob(f".{seed}.episodes*"):
                shutil.rmtree(rest, ignore_errors=True)


def test_mutated_recordings_give_a_dataset_or_a_sentence(items: list[cams.Message], tmp_path: Path):
    run_many(items, tmp_path, range(24))


@pytest.mark.slow  # minutes
def test_two_thousand_mutated_recordings_give_a_dataset_or_a_sentence(items: list[cams.Message], tmp_path: Path):
    run_many(items, tmp_path, range(24, 2024))

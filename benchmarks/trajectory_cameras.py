"""Cameras: the time to convert a recording, the memory it takes, and what settings of the encoder cost.

    python benchmarks/trajectory_cameras.py convert [--megabytes 200] [--raw] [--peer COMMAND]
    python benchmarks/trajectory_cameras.py memory  [--megabytes 200 2000]
    python benchmarks/trajectory_cameras.py encoder [--photo FILE]

convert  an MCAP file with two JPEG cameras of 640 × 480 at 30 Hz and joints (100 Hz, or `--joints`) → LeRobot v3, each
         in a process of its own. `--raw`: sensor_msgs/Image in rgb8 instead of JPEG. `--peer` is another converter's
         command with {in} and {out}; it takes turns with ours. Seconds of the wall and of the CPU, and the largest
         memory.
memory   the same without a peer, for recordings that repeat the same pictures.
encoder  x264 with and without CABAC and deblocking: CPU time of encoding and decoding, bytes, and distance to the
         images, which are the texture above or a moving part of a photograph.
"""

from __future__ import annotations

import argparse
import io
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

START = 1_700_000_000_000_000_000
HZ, SIZE, PICTURES = 30, (640, 480), 60
_TIME = "\n" + "=" * 80 + "\nMSG: builtin_interfaces/Time\nint32 sec\nuint32 nanosec"
_HEADER = f"\n{'=' * 80}\nMSG: std_msgs/Header\nbuiltin_interfaces/Time stamp\nstring frame_id{_TIME}"
TYPES = {
    "sensor_msgs/msg/CompressedImage": f"std_msgs/Header header\nstring format\nuint8[] data{_HEADER}",
    "sensor_msgs/msg/Image": "std_msgs/Header header\nuint32 height\nuint32 width\nstring encoding\n"
    f"uint8 is_bigendian\nuint32 step\nuint8[] data{_HEADER}",
    "sensor_msgs/msg/JointState": "std_msgs/Header header\nstring[] name\nfloat64[] position\nfloat64[] velocity\n"
    f"float64[] effort{_HEADER}",
}
X264 = {
    "with CABAC and deblocking": {"preset": "ultrafast", "x264-params": "cabac=1:deblock=0,0"},
    "with CABAC": {"preset": "ultrafast", "x264-params": "cabac=1"},
    "ultrafast": {"preset": "ultrafast"},
}


def make_pictures(size: tuple[int, int], *, raw: bool = False) -> list[bytes]:
    """Images of a moving texture: JPEG, about as large as those of a camera, or rgb8."""
    import av

    rng = np.random.default_rng(0)
    rough = rng.integers(0, 255, (size[1] // 8 + 8, size[0] // 8 + PICTURES, 3), np.uint8)
    out = []
    for i in range(PICTURES):
        pixels = rough[: size[1] // 8, i : i + size[0] // 8].repeat(8, 0).repeat(8, 1).astype(np.int16)
        pixels = (pixels + rng.integers(-6, 6, pixels.shape)).clip(0, 255).astype(np.uint8)
        if raw:
            out.append(pixels.tobytes())
            continue
        encoder = av.CodecContext.create("mjpeg", "w")
        encoder.width, encoder.height, encoder.pix_fmt, encoder.time_base = *size, "yuv420p", 1
        encoder.color_range, encoder.options = 2, {"strict": "unofficial", "qmin": "2", "qmax": "5"}
        frame = av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(format="yuv420p", dst_color_range=2)
        out.append(b"".join(bytes(p) for p in [*encoder.encode(frame), *encoder.encode(None)]))
    return out


def make_recording(
    path: Path, megabytes: float, size: tuple[int, int] = SIZE, *, raw: bool = False, joints_hz: int = 100
) -> float:
    """Write a recording of about this size; return its seconds."""
    from mcap.writer import CompressionType
    from mcap_ros2.writer import Writer

    pictures = make_pictures(size, raw=raw)
    per_second = 2 * HZ * sum(map(len, pictures)) / len(pictures)
    seconds = max(2.0, megabytes * 1e6 / per_second)
    with path.open("wb") as file:
        writer = Writer(file, compression=CompressionType.NONE)  # repeated pictures would shrink
        kinds = {name: writer.register_msgdef(name, text) for name, text in TYPES.items()}
        compressed, plain, joints = kinds.values()
        about = {"height": size[1], "width": size[0], "encoding": "rgb8", "is_bigendian": 0, "step": 3 * size[0]}
        for i in range(int(seconds * joints_hz)):
            stamp = START + i * 10**9 // joints_hz
            header = {"stamp": {"sec": stamp // 10**9, "nanosec": stamp % 10**9}, "frame_id": "base"}
            fields = {"name": ["a", "b"], "position": [np.sin(i / 50), np.cos(i / 50)], "velocity": [], "effort": []}
            writer.write_message("/joint_states", joints, {"header": header, **fields}, stamp, stamp)
            if i * HZ % joints_hz < HZ:
                number = i * HZ // joints_hz
                for camera, offset in (("front", 0), ("wrist", 7)):
                    data = pictures[(number + offset) % PICTURES]
                    image = {"header": header, "data": data, **(about if raw else {"format": "jpeg"})}
                    writer.write_message(f"/{camera}/image", plain if raw else compressed, image, stamp, stamp)
        writer.finish()
    return seconds


def run_measured(command: Sequence[str]) -> tuple[float, float, float]:
    """Return seconds of the wall, seconds of the CPU, and megabytes of a command and its children."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    errors = process.stderr.read() if process.stderr else ""
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    if status:
        raise SystemExit(f"{' '.join(command)}: {errors[-500:]}")
    return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def build_command(path: Path, out: Path) -> list[str]:
    executable = str(Path(sys.executable).parent / "ridgeline")
    return [
        executable, "resample", str(path), "--hz", str(HZ), "-o", str(out), "--format", "lerobot",
        "--camera", "front=/front/image", "--camera", "wrist=/wrist/image",
        "--state", "/joint_states/position", "--task", "pick", "-q",
    ]  # fmt: skip


def measure_conversion(
    folder: Path, megabytes: float, peer: str | None, rounds: int, *, raw: bool, joints_hz: int
) -> None:
    path = folder / "run.mcap"
    seconds = make_recording(path, megabytes, raw=raw, joints_hz=joints_hz)
    gigabytes = path.stat().st_size / 1e9
    kind = "rgb8" if raw else "JPEG"
    print(f"{gigabytes * 1e3:.0f} MB, {seconds:.0f} s, 2 × {kind} 640 × 480 at 30 Hz, joints at {joints_hz} Hz")
    times: dict[str, list[tuple[float, float, float]]] = {"ridgeline": []}
    if peer:
        times["peer"] = []
    for number in range(rounds):
        for name in list(times)[:: 1 if number % 2 else -1]:
            out = folder / "out"
            words = (
                build_command(path, out)
                if name == "ridgeline"
                else shlex.split((peer or "").replace("{in}", str(path)).replace("{out}", str(out)))
            )
            times[name].append(run_measured(words))
            shutil.rmtree(out, ignore_errors=True)
            wall, cpu, memory = times[name][-1]
            print(
                f"{name:10} {wall:6.1f} s wall, {cpu:6.1f} s CPU = {wall / gigabytes:5.1f} and {cpu / gigabytes:5.1f} "
                f"s/GB, {memory:.0f} MB",
                flush=True,
            )
    if peer:
        for what, at in (("wall", 0), ("CPU", 1)):
            ratios = [b[at] / a[at] for a, b in zip(times["ridgeline"], times["peer"], strict=True)]
            print(f"peer ÷ ridgeline, {what}: median {statistics.median(ratios):.2f} of {len(ratios)}")


def measure_memory(folder: Path, megabytes: Sequence[float]) -> None:
    peaks = []
    for size in megabytes:
        path = folder / "run.mcap"
        make_recording(path, size)
        wall, cpu, memory = run_measured(build_command(path, folder / "out"))
        real = path.stat().st_size / 1e6
        peaks.append(memory)
        print(f"{real:6.0f} MB: {memory:.0f} MB at most, {wall:.1f} s wall, {cpu:.1f} s CPU", flush=True)
        shutil.rmtree(folder / "out")
    print(f"difference: {max(peaks) - min(peaks):.0f} MB")


def make_frames(size: tuple[int, int], photo: Path | None, count: int = 120) -> list[Any]:
    """Frames as an encoder takes them: of the texture, or of a photograph that moves by a pixel, with noise."""
    import av

    rng = np.random.default_rng(0)
    if photo is None:
        decoder = av.CodecContext.create("mjpeg", "r")
        frames = [decoder.decode(av.Packet(data))[0] for data in make_pictures(size)] * 2
        return [f.reformat(format="yuv420p", src_color_range=2, dst_color_range=1) for f in frames[:count]]
    with av.open(str(photo)) as file:
        image = next(file.decode(video=0))
    scale = max((size[0] + count) / image.width, size[1] / image.height, 1)
    wide = image.reformat(width=round(image.width * scale), height=round(image.height * scale), format="rgb24")
    pixels = wide.to_ndarray().astype(np.int16)
    out = []
    for i in range(count):
        part = pixels[: size[1], i : i + size[0]]
        part = (part + rng.normal(0, 1.5, part.shape).round().astype(np.int16)).clip(0, 255).astype(np.uint8)
        out.append(av.VideoFrame.from_ndarray(np.ascontiguousarray(part), format="rgb24").reformat(format="yuv420p"))
    return out


def measure_encoder(photo: Path | None, rounds: int) -> None:
    """Compare settings of x264 (crf 23, a key frame every 2) in turn, in one thread."""
    for size in ((224, 224), SIZE):
        frames = make_frames(size, photo)
        best: dict[str, list[float]] = {}
        about: dict[str, str] = {}
        for _ in range(rounds):
            for name, options in X264.items():
                data, encoding = encode(frames, size, options)
                times = [encoding, *decode(data)]
                best[name] = [min(pair) for pair in zip(times, best.get(name, times), strict=True)]
                about[name] = f"{len(data) / len(frames):.0f} bytes per frame, {compare(data, frames):.2f} dB"
        for name, (encoding, key, other) in best.items():
            print(
                f"{size[0]} x {size[1]} {photo.name if photo else 'texture':10} {name:26} {about[name]}, "
                f"ms of CPU time: encoding {encoding:.2f}, decoding a key frame {key:.3f}, another {other:.3f}",
                flush=True,
            )


def encode(frames: Sequence[Any], size: tuple[int, int], options: dict[str, str]) -> tuple[bytes, float]:
    import av

    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as out:
        stream = out.add_stream("libx264", rate=HZ)
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        stream.codec_context.thread_count, stream.codec_context.gop_size = 1, 2
        stream.options = {"crf": "23", "g": "2", "bf": "0", **options}
        start = time.process_time()
        for number, frame in enumerate(frames):
            frame.pts, frame.time_base, frame.pict_type = number, Fraction(1, HZ), 0
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
        spent = time.process_time() - start
    return buffer.getvalue(), spent / len(frames) * 1e3


def decode(data: bytes) -> tuple[float, float]:
    """Return milliseconds for a key frame, and for another one."""
    import av

    with av.open(io.BytesIO(data)) as file:
        packets = [(bytes(p), p.is_keyframe) for p in file.demux(video=0) if p.size]
    spent: dict[bool, list[float]] = {True: [], False: []}
    with av.open(io.BytesIO(data)) as file:
        decoder = file.streams.video[0].codec_context
        decoder.thread_count = 1
        for packet, is_key in packets:
            start = time.process_time()
            decoder.decode(av.Packet(packet))
            spent[is_key].append((time.process_time() - start) * 1e3)
    return statistics.mean(spent[True]), statistics.mean(spent[False])


def compare(data: bytes, frames: Sequence[Any]) -> float:
    import av

    with av.open(io.BytesIO(data)) as file:
        errors = [
            np.mean((a.to_ndarray().astype(float) - b.to_ndarray()) ** 2)
            for a, b in zip(file.decode(video=0), frames, strict=True)
        ]
    return float(10 * np.log10(255**2 / np.mean(errors)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("convert", "memory", "encoder"))
    parser.add_argument("--megabytes", type=float, nargs="+", default=None)
    parser.add_argument("--peer", default=None)
    parser.add_argument("--joints", type=int, default=100)
    parser.add_argument("--raw", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--photo", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.what == "convert":
            megabytes = (options.megabytes or [200])[0]
            measure_conversion(
                folder, megabytes, options.peer, options.rounds, raw=options.raw, joints_hz=options.joints
            )
        elif options.what == "memory":
            measure_memory(folder, options.megabytes or [200, 2000])
        else:
            measure_encoder(options.photo, options.rounds)


if __name__ == "__main__":
    main()

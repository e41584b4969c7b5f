"""Planes of a picture in video's range, against float64.

python -m pytest tests/native/test_planes.py
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline import native

ISAS = native.instruction_sets()
BT601 = np.array([[65.481, 128.553, 24.966], [-37.797, -74.203, 112.0], [112.0, -93.786, -18.214]])


def fold(values: np.ndarray, x: int, y: int) -> np.ndarray:
    height, width = values.shape
    return values.astype(float).reshape(height // y, y, width // x, x).mean((1, 3))


def pad_rows(values: np.ndarray, padding: int) -> tuple[np.ndarray, int]:
    """The rows one after the other, each with bytes behind it."""
    padded = np.pad(values, ((0, 0), (0, padding)), constant_values=77)
    return padded.reshape(-1), padded.shape[1]


@settings(max_examples=80, deadline=None)
@given(
    width=st.sampled_from([1, 2, 31, 32, 33, 64, 129, 320]),
    height=st.integers(1, 6),
    folds=st.sampled_from([(1, 1), (1, 2), (2, 1), (2, 2)]),
    chroma=st.booleans(),
    padding=st.sampled_from([0, 1, 32]),
    isa=st.sampled_from(ISAS),
    seed=st.integers(0, 99),
)
def test_planes_of_jpeg_get_videos_range(width, height, folds, chroma, padding, isa, seed):
    x, y = folds if chroma else (1, 1)
    values = np.random.default_rng(seed).integers(0, 256, (height * y, width * x), np.uint8)
    source, stride = pad_rows(values, padding)
    out, out_stride = pad_rows(np.zeros((height, width), np.uint8), padding)
    native.squeeze_plane(source, stride, x, y, chroma, out, out_stride, width, height, isa)
    mean = np.floor(fold(values, x, y) + 0.5)
    expected = np.rint((mean - 128) * 224 / 255 + 128) if chroma else np.rint(mean * 219 / 255 + 16)
    rows = out.reshape(height, -1)
    np.testing.assert_array_equal(rows[:, :width], expected)
    assert (rows[:, width:] == 77).all()


@settings(max_examples=80, deadline=None)
@given(
    half=st.sampled_from([1, 15, 16, 17, 33, 160]),
    rows=st.integers(1, 3),
    size=st.sampled_from([3, 4]),
    red_first=st.booleans(),
    padding=st.sampled_from([0, 5]),
    isa=st.sampled_from(ISAS),
    seed=st.integers(0, 99),
)
def test_pixels_become_the_planes_of_bt_601(half, rows, size, red_first, padding, isa, seed):
    width, height = 2 * half, 2 * rows
    rng = np.random.default_rng(seed)
    pixels = rng.choice([0, 255, rng.integers(256)], (height, width, size)).astype(np.uint8)
    source, stride = pad_rows(pixels.reshape(height, -1), padding)
    shapes = [(height, width), (rows, half), (rows, half)]
    planes = [pad_rows(np.zeros(shape, np.uint8), padding) for shape in shapes]
    places = [part for plane in planes for part in plane]
    native.rgb_to_planes(source, stride, size, red_first, *places, width, height, isa)
    colours = pixels[..., :3] if red_first else pixels[..., 2::-1]
    for number, ((plane, _), shape) in enumerate(zip(planes, shapes, strict=True)):
        exact = colours @ BT601[number] / 255 + (128 if number else 16)
        exact = fold(exact, 2, 2) if number else exact
        written = plane.reshape(shape[0], -1)
        assert np.abs(written[:, : shape[1]] - exact).max() < 0.51  # rounded to the nearest level
        assert (written[:, shape[1] :] == 77).all()


@settings(max_examples=40, deadline=None)
@given(
    width=st.sampled_from([1, 31, 32, 33, 224]),
    height=st.integers(1, 4),
    padding=st.sampled_from([0, 7]),
    dtype=st.sampled_from([np.uint8, np.float32]),
    isa=st.sampled_from(ISAS),
)
def test_channels_of_pixels_lie_one_after_the_other(width, height, padding, dtype, isa):
    pixels = np.random.default_rng(width).integers(0, 256, (height, width, 3), np.uint8)
    source, stride = pad_rows(pixels.reshape(height, -1), padding)
    out = np.empty((3, height, width), dtype)
    native.split_channels(source, stride, out, isa)
    channels = pixels.transpose(2, 0, 1)
    np.testing.assert_array_equal(out, channels if dtype == np.uint8 else channels * np.float32(1 / 255))


MATRICES = {  # red, green and blue of luma, blue and red differences
    False: np.array([[1, 0, 1.402], [1, -0.344136286, -0.714136286], [1, 1.772, 0]]),
    True: np.array([[1, 0, 1.5748], [1, -0.187324273, -0.468124273], [1, 1.8556, 0]]),
}


@settings(max_examples=80, deadline=None)
@given(
    width=st.sampled_from([1, 2, 31, 32, 33, 129, 224]),
    height=st.integers(1, 5),
    folds=st.sampled_from([(1, 1), (1, 2), (2, 1), (2, 2)]),
    bt709=st.booleans(),
    full=st.booleans(),
    padding=st.sampled_from([0, 7]),
    dtype=st.sampled_from([np.uint8, np.float32]),
    isa=st.sampled_from(ISAS),
    seed=st.integers(0, 99),
)
def test_planes_of_a_video_become_channels(width, height, folds, bt709, full, padding, dtype, isa, seed):
    rng = np.random.default_rng(seed)
    x, y = folds
    shapes = [(height, width), *[(-(-height // y), -(-width // x))] * 2]
    planes = [rng.choice([0, 16, 128, 240, 255, rng.integers(256)], shape).astype(np.uint8) for shape in shapes]
    places = [part for plane in planes for part in pad_rows(plane, padding)]
    out = np.empty((3, height, width), dtype)
    native.planes_to_channels(*places, x, y, bt709, full, out, isa)
    luma, *chroma = (p.astype(float) for p in planes)
    chroma = [c.repeat(y, 0).repeat(x, 1)[:height, :width] - 128 for c in chroma]
    scaled = (
        np.stack([luma, *chroma]) if full else np.stack([(luma - 16) * 255 / 219, *(c * 255 / 224 for c in chroma)])
    )
    exact = np.tensordot(MATRICES[bt709], scaled, 1).clip(0, 255)
    levels = out if dtype == np.uint8 else out * 255
    assert np.abs(levels - exact).max() < 0.51  # rounded to the nearest level
    assert (np.abs(levels - np.rint(levels)) < 1e-4).all()


def test_a_plane_that_is_too_small_is_an_error():
    plane = np.zeros(64, np.uint8)
    with pytest.raises(ValueError, match="smaller than its picture"):
        native.squeeze_plane(plane, 8, 1, 1, False, plane.copy(), 8, 8, 9)
    with pytest.raises(ValueError, match="smaller than its picture"):
        native.squeeze_plane(plane, 7, 1, 1, False, plane.copy(), 8, 8, 8)
    with pytest.raises(ValueError, match="smaller than its picture"):
        native.rgb_to_planes(plane, 12, 3, True, plane, 4, plane[:1], 2, plane, 2, 4, 4)
    with pytest.raises(ValueError, match="smaller than its picture"):
        native.split_channels(plane, 24, np.empty((3, 3, 8), np.uint8))
    with pytest.raises(ValueError, match="smaller than its picture"):
        native.planes_to_channels(plane, 8, plane[:15], 4, plane, 4, 2, 2, False, False, np.empty((3, 8, 8), np.uint8))
    with pytest.raises(ValueError, match="a fold is"):
        native.planes_to_channels(plane, 8, plane, 4, plane, 4, 3, 2, False, False, np.empty((3, 8, 8), np.uint8))
    with pytest.raises(ValueError, match="must be even"):
        native.rgb_to_planes(plane, 9, 3, True, plane, 4, plane, 2, plane, 2, 3, 2)

"""Augmentation of batches on their device, against a slow float64 reference."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import InputError
from ridgeline.trajectory import Augment

KEY, STATE = "observation.images.front", "observation.state"
GRAY = np.array([0.299, 0.587, 0.114])


def make_batch(items: int = 4, frames: int = 2, size: tuple[int, int] = (8, 12)) -> dict[str, object]:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (items, frames, 3, *size), np.uint8)
    return {
        KEY: torch.from_numpy(images),
        f"{KEY}_is_pad": torch.zeros(items, frames, dtype=torch.bool),
        STATE: torch.from_numpy(rng.standard_normal((items, frames, 5)).astype(np.float32)),
        "task": ["pick"] * items,
    }


def test_without_changes_images_are_only_scaled_and_the_rest_stays():
    batch = make_batch()
    out = Augment()(batch)
    assert torch.equal(out[KEY], batch[KEY].float() / 255)
    assert all(out[k] is batch[k] for k in batch if k != KEY)


@given(st.floats(0.3, 1.0), st.integers(0, 1000))
def test_a_crop_is_a_part_of_the_image_and_the_same_for_all_frames_of_an_item(share: float, seed: int):
    rows, columns = np.mgrid[0:16, 0:24].astype(np.float32)
    plane = np.stack([columns / 24, rows / 16, np.zeros_like(rows)])  # each colour says where it was
    images = torch.from_numpy(np.broadcast_to(plane, (3, 2, 3, 16, 24)).copy())
    out = Augment(crop=share, size=(16, 24), seed=seed)({KEY: images})[KEY].numpy()
    assert out.shape == (3, 2, 3, 16, 24)
    for item in out:
        assert np.array_equal(item[0], item[1])
        inner = item[0, :, 2:-2, 2:-2]
        assert np.allclose(np.diff(inner[0], axis=1), share / 24, atol=2e-3)
        assert np.allclose(np.diff(inner[1], axis=0), share / 16, atol=2e-3)
    if share < 0.9:
        assert len({float(item[0, 0, 8, 12]) for item in out}) > 1  # items are cut at different places


@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation"])
def test_colours_are_those_of_the_definition(name: str):
    batch = {KEY: torch.rand(6, 3, 5, 7, generator=torch.Generator().manual_seed(0))}
    pixels = batch[KEY].double().numpy()
    out = Augment(**{name: 0.4}, seed=3)(batch)[KEY].double().numpy()
    for before, after in zip(pixels, out, strict=True):
        gray = np.tensordot(GRAY, before, 1)
        base = {"brightness": 0.0, "contrast": gray.mean(), "saturation": gray[None]}[name]
        inside = (after > 1e-6) & (after < 1 - 1e-6)
        away = np.broadcast_to(before - base, before.shape)
        big = inside & (np.abs(away) > 0.05)
        factor = np.median((after - base)[big] / away[big])
        assert 0.6 - 1e-3 <= factor <= 1.4 + 1e-3
        assert np.abs(np.clip(base + factor * away, 0, 1) - after).max() < 1e-4


def test_hues_turn_around_grey_and_keep_it():
    grey = torch.full((2, 3, 4, 4), 0.5)
    assert torch.allclose(Augment(hue=0.5, seed=0)({KEY: grey})[KEY], grey, atol=1e-6)
    red = torch.tensor([0.6, 0.4, 0.4])[None, :, None, None].expand(2, 3, 4, 4)
    augment = Augment(hue=1 / 3, seed=0)
    augment._draw = lambda device, count, low, high: torch.full((count,), high)  # type: ignore[method-assign]
    assert torch.allclose(augment({KEY: red})[KEY][0, :, 0, 0], torch.tensor([0.4, 0.6, 0.4]), atol=1e-6)


def test_noise_and_dropout_have_the_rates_that_are_asked_for():
    values = torch.ones(4000, 1, 10)
    out = Augment(noise={STATE: 0.1}, dropout=0.25, seed=1)({STATE: values})[STATE]
    dropped = out == 0
    assert abs(float(dropped.float().mean()) - 0.25) < 0.01
    assert abs(float(out[~dropped].std()) - 0.1) < 0.002
    assert abs(float(out[~dropped].mean()) - 1) < 0.002
    steps = Augment(dropout=0.5, seed=1)({STATE: torch.ones(50, 7, 3)})[STATE]
    assert all(len(set(column.tolist())) == 1 for item in steps for column in item.T)  # a column, over all frames


def test_a_seed_gives_the_same_batches_again():
    batch = make_batch()
    kwargs = {"crop": (0.6, 0.9), "brightness": 0.2, "contrast": 0.2, "saturation": 0.2, "hue": 0.1, "noise": 0.1}
    one, other = Augment(**kwargs, seed=5), Augment(**kwargs, seed=5)
    for _ in range(2):
        a, b = one(batch), other(batch)
        assert torch.equal(a[KEY], b[KEY])
        assert torch.equal(a[STATE], b[STATE])
    assert not torch.equal(one(batch)[KEY], a[KEY])
    assert float(a[KEY].min()) >= 0
    assert float(a[KEY].max()) <= 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"crop": 0.0}, "crop=0.0"),
        ({"crop": (0.9, 0.5)}, "crop="),
        ({"hue": 0.6}, "hue=0.6"),
        ({"brightness": -1}, "brightness=-1"),
        ({"noise": math.inf}, "noise="),
        ({"dropout": {STATE: 1.0}}, "dropout="),
        ({"size": (0, 3)}, "size="),
    ],
)
def test_changes_that_cannot_be_are_told(options: dict, words: str):
    with pytest.raises(InputError, match=words.replace("(", r"\(")):
        Augment(**options)


def test_features_and_shapes_that_do_not_fit_are_told():
    with pytest.raises(InputError, match="no 'wrist'"):
        Augment(images=("wrist",))(make_batch())
    with pytest.raises(InputError, match="give \\[B, 3, H, W\\]"):
        Augment()({KEY: torch.zeros(2, 1, 4, 4)})

"""`ridgeline view`: one page with cameras beside curves."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from tests.trajectory import camera_recordings as cams
from tests.trajectory import recordings
from tests.trajectory.camera_recordings import DEPTH, FRONT, JOINTS, WRIST

from ridgeline.cli import main
from ridgeline.errors import InputError
from ridgeline.trajectory import ConversionSettings, build_view, convert_many


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cams.mcap(tmp_path_factory.mktemp("view") / "run.mcap", cams.messages(1.0, gap=(0.4, 0.7)))


def read_data(page: str) -> dict:
    found = re.search(r'<script[^>]*id="page-data"[^>]*>(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(unescape(found[1]))


def test_the_page_holds_cameras_and_curves_and_nothing_from_outside(log: Path):
    page = build_view(log, pictures=12)
    assert not re.findall(r"""(?:src|href)\s*=\s*["'](?!data:|#)""", page)
    for name in (FRONT, WRIST, DEPTH, f"{JOINTS}/position"):
        assert name in page
    cameras = read_data(page)["cameras"]
    assert [len(c["pictures"]) for c in cameras] == [12, 10, 12]  # by their first message
    assert all(url.startswith("data:image/jpeg;base64,/9j/") for c in cameras for url in c["pictures"])
    assert 'aria-label="1 parts without frames"' in page


def test_a_dataset_shows_the_chosen_episode_and_its_masks(log: Path, tmp_path: Path):
    settings = ConversionSettings(hz=30, cameras={"front": FRONT}, state=(JOINTS,))
    convert_many(
        [log, cams.mcap(tmp_path / "b.mcap", cams.messages(0.5, gap=(9, 9)))], tmp_path / "set", "lerobot", settings
    )
    first, second = build_view(tmp_path / "set"), build_view(tmp_path / "set", episode="1")
    assert "episode 0 of 2" in first
    assert "1 parts without frames" in first
    assert "0 parts without frames" in second
    assert read_data(second)["seconds"] < read_data(first)["seconds"]
    with pytest.raises(InputError, match="no episode"):
        build_view(tmp_path / "set", episode="7")


def test_videos_and_damaged_images_are_shown_as_far_as_they_go(tmp_path: Path):
    units = cams.encode_video(20, gop=5)
    units[7] = b""
    items = [*cams.video_messages(units), *cams.change(cams.messages(0.5), FRONT, lambda i, f: {**f, "data": b""})]
    path = cams.mcap(tmp_path / "a.mcap", sorted(items, key=lambda m: m[0]))
    page = build_view(path, pictures=20)
    assert "15 of 15 images cannot be decoded" in page
    assert "No image can be decoded" in page
    assert max(len(c["pictures"]) for c in read_data(page)["cameras"]) >= 15


def test_a_recording_without_cameras_and_a_long_curve(tmp_path: Path):
    page = build_view(recordings.flight(tmp_path / "a.ulg", seconds=60))
    path = next(p for p in re.findall(r'd="(M[^"]+)"', page) if p.count("L") > 100)
    assert path.count("L") < 2000
    assert read_data(page)["cameras"] == []


def test_a_thinned_curve_keeps_its_extremes():
    from ridgeline.trajectory.view import _thin

    y = np.zeros(100_000)
    y[54_321], y[54_400] = 9.0, -9.0
    x, thin, _ = _thin(np.arange(100_000.0), y, np.zeros(99_999, bool))
    assert len(x) < 2000
    assert (thin.max(), thin.min()) == (9.0, -9.0)


def test_the_command_writes_the_page_and_refuses_other_files(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for words, code in ((["-o", tmp_path / "a.html", "--pictures", 3], 0), (["-o", tmp_path / "a.png"], 2),
                        (["-o", tmp_path / "b.html", "--pictures", 0], 2)):  # fmt: skip
        with pytest.raises(SystemExit) as left:
            main([*map(str, ["view", log, *words])])
        assert (left.value.code or 0) == code
    assert "MB" in capsys.readouterr().out
    assert [p.name for p in tmp_path.iterdir()] == ["a.html"]


@pytest.mark.browser
@pytest.mark.slow  # starts a browser
def test_the_slider_moves_cursors_and_pictures(chromium, log: Path, tmp_path: Path):
    (tmp_path / "a.html").write_text(build_view(log))
    page = chromium.new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(f"file://{tmp_path / 'a.html'}")
    images = page.locator("img[data-camera]")
    before = [images.nth(i).get_attribute("src") for i in range(images.count())]
    page.locator("#time").fill("900")
    after = [images.nth(i).get_attribute("src") for i in range(images.count())]
    assert all(a != b for a, b in zip(before, after, strict=True))
    assert all(images.nth(i).evaluate("i => i.complete && i.naturalWidth > 0") for i in range(images.count()))
    assert float(page.locator("line.cursor").last.get_attribute("x1")) == 900
    assert problems == []
    page.close()

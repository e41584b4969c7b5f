"""`ridgeline resample` and `ridgeline streams`, in this process and as users start them."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest
from tests.trajectory import camera_recordings as cams
from tests.trajectory import recordings

from ridgeline.cli import load_command, main, progress
from ridgeline.errors import InputError
from ridgeline.trajectory import Stream, align, conversion, writers
from ridgeline.trajectory.writers import npz


@pytest.fixture
def run_cli(capsys: pytest.CaptureFixture[str]):
    """Runs a command in this process: (exit code, stdout, stderr)."""

    def run(*words: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main([*map(str, words)])
        out, err = capsys.readouterr()
        return left.value.code or 0, out, err

    return run


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return recordings.flight(tmp_path / "flight.ulg")


def test_a_log_becomes_a_table_on_one_clock(run_cli, log: Path, tmp_path: Path):
    code, out, err = run_cli("resample", log, "--hz", 50, "-o", tmp_path / "o.parquet")
    assert (code, out) == (0, "")
    assert "left out for one stamp only: stuck/x" in err
    table = parquet.read_table(tmp_path / "o.parquet")
    assert table.num_rows == 201
    assert table["status/armed"].to_pylist()[-1] is True
    assert np.diff(np.asarray(table["time_ns"])).tolist() == [20_000_000] * 200


def test_json_lists_the_outputs(run_cli, log: Path, tmp_path: Path):
    code, out, _ = run_cli("resample", log, "--hz", 10, "-o", tmp_path / "o.npz", "--json")
    (file,) = json.loads(out)["files"]
    assert code == 0
    assert (file["rows"], file["columns"], file["skipped"], file["error"]) == (41, 7, False, None)
    assert any("stuck" in n for n in file["notes"])


def test_quiet_prints_nothing(run_cli, log: Path, tmp_path: Path):
    assert run_cli("resample", log, "--hz", 10, "-o", tmp_path / "o.npz", "-q") == (0, "", "")


def test_options_choose_kind_shift_and_topics_by_name(run_cli, log: Path, tmp_path: Path):
    words = ["--kind", "attitude/yaw=previous", "--topics", "attitude/yaw,status/mode", "--shift", "status=0.5"]
    assert (
        run_cli("resample", log, "--hz", 1000, "-o", tmp_path / "o.parquet", *words, "--span", "intersection")[0] == 0
    )
    table = parquet.read_table(tmp_path / "o.parquet")
    assert table.column_names == ["time_ns", "attitude/yaw", "status/mode"]
    assert table["time_ns"][0].as_py() == 10_500_000_000
    assert len(set(table["attitude/yaw"].to_pylist())) == 351


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--kind", "attitude/q=round"], "no kind 'round'"),
        (["--kind", "attitude/q"], "NAME=VALUE"),
        (["--kind", "atitude/q=slerp"], "did you mean 'attitude/q'"),
        (["--kind", "attitude/yaw=slerp"], "4 of a quaternion"),
        (["--topics", "gps"], "no topic in"),
        (["--shift", "status=soon"], "no number of seconds"),
        (["--span", "all"], "no span 'all'"),
        (["--device", "tpu"], "no device 'tpu'"),
        (["--format", "hdf5"], "no format 'hdf5'"),
        (["--format", "npz"], "give matching ones"),
        (["--shift", "status=100", "--span", "intersection"], "do not overlap"),
        (["--max-gap", "-1"], "no length of time"),
    ],
)
def test_a_wrong_option_is_one_sentence_and_writes_nothing(
    run_cli, log: Path, tmp_path: Path, words: list, message: str
):
    code, out, err = run_cli("resample", log, "--hz", 50, "-o", tmp_path / "o.parquet", *words)
    assert (code, out) == (2, "")
    assert err.startswith("ridgeline: ")
    assert message in err
    assert err.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["flight.ulg"]


@pytest.mark.parametrize("rate", ["0", "-5", "nan"])
def test_a_wrong_rate_is_an_error(run_cli, log: Path, tmp_path: Path, rate: str):
    code, _, err = run_cli("resample", log, "--hz", rate, "-o", tmp_path / "o.parquet")
    assert code == 2
    assert "is no rate" in err


def test_a_file_that_is_no_log_exits_2_and_writes_nothing(run_cli, tmp_path: Path):
    for folder in ("x.parquet", "folder"):
        code, _, err = run_cli("resample", __file__, "--hz", 50, "-o", tmp_path / folder)
        assert code == 2
        assert "no known recording" in err
        assert not (tmp_path / "x.parquet").exists()
        assert not list(tmp_path.rglob("*.parquet"))


def test_a_finished_output_is_skipped_until_input_or_settings_change(run_cli, log: Path, tmp_path: Path):
    out = tmp_path / "o.parquet"
    ask = ["resample", log, "-o", out, "--hz"]
    assert run_cli(*ask, 50)[0] == 0
    first = out.stat().st_mtime_ns
    code, _, err = run_cli(*ask, 50)
    assert (code, out.stat().st_mtime_ns) == (0, first)
    assert "up to date" in err
    run_cli(*ask, 50, "--force")
    forced = out.stat().st_mtime_ns
    assert forced > first
    run_cli(*ask, 25)
    assert parquet.read_table(out).num_rows == 101
    os.utime(log, ns=(1, 1))
    assert "up to date" not in run_cli(*ask, 25)[2]


def test_many_logs_make_a_folder_and_a_bad_one_stops_no_other(run_cli, tmp_path: Path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        recordings.flight(tmp_path / name / "flight.ulg")
    (tmp_path / "bad.ulg").write_bytes(b"no log")
    inputs = [tmp_path / "a/flight.ulg", tmp_path / "bad.ulg", tmp_path / "b/flight.ulg"]
    code, _, err = run_cli("resample", *inputs, "--hz", 50, "-o", tmp_path / "out")
    assert code == 1
    assert "failed" in err
    assert "bad.ulg" in err
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["a-flight.parquet", "b-flight.parquet"]
    again = run_cli("resample", *inputs, "--hz", 50, "-o", tmp_path / "out")
    assert again[0] == 1
    assert again[2].count("up to date") == 2


def test_if_every_input_fails_the_exit_code_is_2_and_no_file_is_written(run_cli, tmp_path: Path):
    for name in ("a.ulg", "b.ulg"):
        (tmp_path / name).write_bytes(b"no [robot]")
    for more in ([], ["--format", "lerobot"]):
        code, _, err = run_cli(
            "resample", tmp_path / "a.ulg", tmp_path / "b.ulg", "--hz", 5, "-o", tmp_path / "out", *more
        )
        assert code == 2
        assert err.count("failed") == 2
        assert "[robot]" in err  # brackets of a message are no markup
        assert sorted(p.name for p in tmp_path.iterdir()) == ["a.ulg", "b.ulg"]


def test_many_inputs_into_one_file_are_refused(run_cli, log: Path, tmp_path: Path):
    code, _, err = run_cli("resample", log, log, "--hz", 50, "-o", tmp_path / "o.parquet")
    assert code == 2
    assert "give a folder" in err


def test_many_logs_form_one_lerobot_dataset_and_only_failures_are_repeated(run_cli, tmp_path: Path):
    logs = [recordings.flight(tmp_path / f"{n}.ulg", seconds=n) for n in (2, 3)]
    late = tmp_path / "late.ulg"
    late.write_bytes(b"not yet")
    ask = ["resample", *logs, late, "--hz", 20, "-o", tmp_path / "set", "--format", "lerobot"]
    code, _, _ = run_cli(*ask)
    assert code == 1
    info = json.loads((tmp_path / "set/meta/info.json").read_text())
    assert (info["total_episodes"], info["total_frames"]) == (2, 41 + 61)
    code, _, err = run_cli(*ask)  # nothing has changed: the good ones come from their chunks
    assert code == 1
    assert err.count("up to date") == 2
    recordings.flight(late, seconds=1)  # mended: only that one is read
    code, _, err = run_cli(*ask)
    assert (code, err.count("up to date")) == (0, 2)
    assert json.loads((tmp_path / "set/meta/info.json").read_text())["total_episodes"] == 3
    assert not list(tmp_path.glob(".set*"))
    assert run_cli(*ask)[2].count("up to date") == 3


@pytest.fixture
def two_logs(tmp_path: Path) -> list[Path]:
    """Two HDF5 files: a pose and a box of different widths, a speed in both, a current in the second."""
    import h5py

    paths = [tmp_path / "l0.h5", tmp_path / "l1.h5"]
    for path, width in zip(paths, (3, 4), strict=True):
        with h5py.File(path, "w") as file:
            file["time"], file["pose"], file["speed"] = np.arange(100) / 50, np.zeros((100, width)), np.arange(100.0)
            file["box"] = np.zeros((100, 9 - width))
            if width == 4:
                file["current"] = np.ones(100)
    return paths


def test_a_stream_of_two_widths_is_named_with_its_files_and_can_be_excluded_or_renamed(
    run_cli, two_logs: list[Path], tmp_path: Path
):
    ask = ["resample", *two_logs, "--hz", 20, "--format", "lerobot", "-o"]
    code, _, err = run_cli(*ask, tmp_path / "o")
    assert code == 2
    assert "'box' has 6 columns in" in err
    assert "l0.h5' and 5 in" in err
    assert "--exclude 'box,pose'" in err
    assert not (tmp_path / "o").exists()
    code, _, err = run_cli(*ask, tmp_path / "o", "--exclude", "po*,box,nothing")
    assert code == 0, err
    assert "--exclude 'nothing' matches no stream" in err
    assert "l0.h5' lacks current" in err
    features = json.loads((tmp_path / "o/meta/info.json").read_text())["features"]
    assert {"observation.speed", "observation.current"} <= set(features)
    assert "observation.pose" not in features
    code, _, err = run_cli("resample", two_logs[0], "--hz", 20, "-o", tmp_path / "o.parquet", "--exclude", "*")
    assert (code, "leaves no stream" in err) == (2, True)


def test_streams_are_renamed_with_their_columns(run_cli, log: Path, tmp_path: Path):
    words = ["--rename", "attitude=body", "--rename", "status/mode=state", "--include", "attitude,status/mode"]
    assert (
        run_cli("resample", log, "--hz", 10, "-o", tmp_path / "o.parquet", *words, "--kind", "body/yaw=linear")[0] == 0
    )
    names = parquet.read_table(tmp_path / "o.parquet").column_names
    assert names == ["time_ns", *(f"body/q[{i}]" for i in range(4)), "body/yaw", "state"]


def test_joints_in_another_order_are_put_in_order_and_other_joints_are_refused(tmp_path: Path):
    def episode(*labels: str):
        values = np.array([[{"a": 1.0, "b": 2.0, "c": 3.0}[n] for n in labels]] * 3)
        return align([Stream("j", np.arange(3), values, unit="s", columns=tuple(f"j.{n}" for n in labels))], hz=1)

    writers.write(tmp_path / "o.parquet", [episode("a", "b"), episode("b", "a")], "parquet")
    table = parquet.read_table(tmp_path / "o.parquet")
    assert (set(table["j.a"].to_pylist()), set(table["j.b"].to_pylist())) == ({1.0}, {2.0})
    with pytest.raises(InputError, match=r"'j' has a column 'j.b' in episode 0 and 'j.c' in episode 1"):
        writers.write(tmp_path / "x.parquet", [episode("a", "b"), episode("a", "c")], "parquet")


def test_csv_is_a_file_and_other_suffixes_are_refused(run_cli, log: Path, tmp_path: Path):
    assert run_cli("resample", log, "--hz", 50, "-o", tmp_path / "x.csv", "--max-gap", 0.1)[0] == 0
    lines = (tmp_path / "x.csv").read_text().splitlines()
    assert len(lines) == 202
    assert lines[0].startswith('"time_ns","attitude/q[0]"')
    assert lines[3].endswith(",,")  # the mode has no value in its gap
    code, _, _ = run_cli("resample", log, log, "--hz", 50, "-o", tmp_path / "many", "--format", "csv")
    assert (code, len(list((tmp_path / "many").glob("*.csv")))) == (0, 2)
    for name in ("x.h5", "x.xlsx", "x.txt"):
        code, _, err = run_cli("resample", log, "--hz", 50, "-o", tmp_path / name)
        assert (code, "resample writes .parquet, .csv, .npz, .mcap or a folder" in err) == (2, True)
        assert not (tmp_path / name).exists()


def test_a_dataset_resumes_with_fewer_and_with_other_inputs(run_cli, tmp_path: Path):
    logs = [recordings.flight(tmp_path / f"{n}.ulg", seconds=n) for n in (2, 3)]
    bad = tmp_path / "bad.ulg"
    bad.write_bytes(b"no log")
    words = ["--hz", 20, "-o", tmp_path / "set", "--format", "lerobot"]
    assert run_cli("resample", logs[0], bad, *words)[0] == 1
    code, _, err = run_cli("resample", logs[1], logs[0], *words)
    assert (code, err.count("up to date")) == (0, 1)
    info = json.loads((tmp_path / "set/meta/info.json").read_text())
    assert (info["total_episodes"], info["total_frames"]) == (2, 41 + 61)
    assert not list(tmp_path.glob(".set*"))


@pytest.mark.parametrize("form", ["parquet", "lerobot"])
def test_ctrl_c_keeps_what_is_finished(run_cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str):
    logs = [recordings.flight(tmp_path / f"{n}.ulg", seconds=n) for n in (2, 3, 1)]
    ask = ["resample", *logs, "--hz", 20, "-o", tmp_path / "out", "--format", form]
    map_recording = conversion.map_recording

    def interrupt(path: Path, *more, **options):
        if path == logs[1]:
            raise KeyboardInterrupt
        return map_recording(path, *more, **options)

    monkeypatch.setattr(conversion, "map_recording", interrupt)
    code, _, err = run_cli(*ask)
    assert code == 130
    assert "1 of 3 recordings are finished; the same command continues with the rest" in err
    monkeypatch.setattr(conversion, "map_recording", map_recording)
    code, _, err = run_cli(*ask)
    assert (code, err.count("up to date")) == (0, 1)


def test_without_a_terminal_progress_is_a_line_every_few_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def wait_for(word: str) -> str:
        text, end = "", time.monotonic() + 20
        while word not in text and time.monotonic() < end:
            time.sleep(0.01)
            text += capsys.readouterr().err
        return text

    monkeypatch.setattr(progress, "INTERVAL_S", 0.02)
    with progress.show_progress("resampling", 8, "recordings") as report:
        assert "resampling: 0 of 8 recordings, 0 s so far\n" in wait_for("so far\n")
        report(2, 0.5)
        assert "resampling: 2 of 8 recordings, about 0 s left\n" in wait_for("left\n")
    with progress.show_progress("resampling", 8, "recordings", quiet=True) as report:
        report(2, 0.5)
    assert not [t for t in threading.enumerate() if t.name == "progress"]


def test_a_recording_is_not_overwritten(run_cli, tmp_path: Path):
    table = "time,x\n" + "".join(f"{i / 100:.2f},{i}\n" for i in range(200))
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text(table)
        assert run_cli("resample", tmp_path / f"{name}.csv", "--hz", 50, "-o", tmp_path / f"{name}.parquet")[0] == 0
    one, two = tmp_path / "a.parquet", tmp_path / "b.parquet"
    (tmp_path / "link.parquet").symlink_to(one)
    before = {path: path.read_bytes() for path in (one, two)}
    assert run_cli("resample", one, "--hz", 10, "-o", tmp_path / "set", "--format", "lerobot")[0] == 0
    for words in (
        [one, "-o", one],
        [one, "-o", tmp_path / "link.parquet"],
        [one, two, "-o", tmp_path],
        [one, two, "-o", tmp_path, "--format", "lerobot", "--force"],
        [tmp_path / "set", "-o", tmp_path / "set", "--format", "lerobot", "--force"],
    ):
        code, _, err = run_cli("resample", *words, "--hz", 10)
        assert (code, "would overwrite the recording" in err) == (2, True), words
    assert {path: path.read_bytes() for path in (one, two)} == before
    assert run_cli("resample", tmp_path / "a.csv", "--hz", 50, "-o", one)[0] == 0, "beside it is fine"


@pytest.mark.parametrize("form", ["parquet", "npz"])
def test_columns_with_the_name_of_the_clock_are_stored_under_another_name(run_cli, tmp_path: Path, form: str):
    rows = "".join(f"{i / 100:.2f},{500 + 3 * i},{i}.5,{i}.5\n" for i in range(200))
    (tmp_path / "two.csv").write_text("timestamp,time,file,ridgeline\n" + rows)
    out = tmp_path / f"two.{form}"
    code, _, err = run_cli("resample", tmp_path / "two.csv", "--hz", 100, "-o", out)
    assert code == 0, err
    if form == "parquet":
        columns = parquet.read_table(out).to_pydict()
        names = ["time", "file", "ridgeline", "data/time"]
    else:
        with np.load(out) as file:
            columns = {name: file[name] for name in file.files if name != "ridgeline"}
        names = ["time", "data/file", "data/ridgeline", "data/time"]
        (back,) = npz.load_episodes(out)
        assert np.array_equal(back.columns["file"], np.arange(200) + 0.5)
        assert np.array_equal(back.columns["time"], 500 + 3 * np.arange(200))
    assert sorted(columns) == sorted(names)
    np.testing.assert_allclose(columns["time"], np.arange(200) / 100)
    np.testing.assert_allclose(columns["data/time"], 500 + 3 * np.arange(200))


def test_stamps_of_a_regular_log_have_no_gap_however_they_round(run_cli, tmp_path: Path):
    (tmp_path / "ten.csv").write_text("time,x\n" + "".join(f"{i / 10},{i}\n" for i in range(100)))
    assert run_cli("resample", tmp_path / "ten.csv", "--hz", 20, "--max-gap", 0.1, "-o", tmp_path / "o.parquet")[0] == 0
    assert parquet.read_table(tmp_path / "o.parquet")["x"].null_count == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--hz", "10", "--shift", "attitude*=1e10"], "leads beyond a clock of nanoseconds"),
    ],
)
def test_a_clock_beyond_int64_is_an_error(run_cli, log: Path, tmp_path: Path, words: list[str], message: str):
    code, _, err = run_cli("resample", log, "-o", tmp_path / "o.parquet", *words)
    assert (code, message in err) == (2, True)


def test_a_rate_of_one_tick_in_centuries_has_one_tick(run_cli, log: Path, tmp_path: Path):
    assert run_cli("resample", log, "--hz", "1e-10", "-o", tmp_path / "o.parquet")[0] == 0
    assert parquet.read_table(tmp_path / "o.parquet").num_rows == 1


def test_demos_in_one_file_become_episodes(run_cli, tmp_path: Path):
    demos = recordings.robomimic(tmp_path / "d.hdf5")
    assert run_cli("resample", demos, "--hz", 10, "-o", tmp_path / "set", "--format", "lerobot")[0] == 0
    info = json.loads((tmp_path / "set/meta/info.json").read_text())
    assert info["total_episodes"] == 2
    assert {"action", "observation.eef_pos", "observation.eef_quat"} <= set(info["features"])


def test_an_unwritable_output_is_one_sentence(run_cli, log: Path, tmp_path: Path):
    (tmp_path / "file").touch()
    code, _, err = run_cli("resample", log, "--hz", 50, "-o", tmp_path / "file" / "o.parquet")
    assert code == 2
    assert err.count("\n") == 1


def test_streams_shows_rate_gaps_duplicates_and_kind(run_cli, log: Path):
    code, out, _ = run_cli("streams", log)
    assert code == 0
    for word in ("attitude", "100 Hz", "slerp", "previous", "angle", "one stamp", "10.00–14.00 s"):
        assert word in out


@pytest.mark.parametrize("width", [50, 80, 100, 120])
def test_a_narrow_screen_shows_names_and_kinds_and_hides_what_matters_least(
    run_cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int
):
    names = ["vehicle_local_position/timestamp_of_estimate", "vehicle_local_position/velocity_north"]
    stamps = [*np.arange(0, 20, 0.01), 400.0, 400.0, 401.5]
    (tmp_path / "a.csv").write_text(
        f"time,{','.join(names)}\n" + "".join(f"{t},{i},{t}\n" for i, t in enumerate(stamps))
    )
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    _, out, _ = run_cli("streams", tmp_path / "a.csv")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out)
    assert max(map(len, plain.splitlines())) <= width
    for word in ("vehicle_local_position", "timestamp_of_estimate", "velocity_north", "previous", "linear"):
        assert word in plain
    assert ("Not shown at this width: " in plain) == (width <= 100)
    assert "100 Hz" in plain


def test_streams_in_json_has_every_figure(run_cli, tmp_path: Path):
    stamps = [0.0, 0.1, 0.2, 0.2, 0.3, 12.3, 12.4, 12.35]
    (tmp_path / "a.csv").write_text("time,v\n" + "\n".join(f"{t},{i}" for i, t in enumerate(stamps)))
    code, out, _ = run_cli("streams", tmp_path / "a.csv", "--json")
    (v,) = json.loads(out)["streams"]
    assert code == 0
    assert (v["samples"], v["duplicates"], v["backward"], v["gaps"]) == (8, 1, 1, 1)
    assert v["longest_gap_s"] == pytest.approx(12.0)
    assert (v["dtype"], v["kind"]) == ("int64", "previous")


def test_neither_command_imports_torch_or_pandas():
    import subprocess

    code = "import sys, ridgeline.cli.resample, ridgeline.cli.streams; print({'torch', 'pandas'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"


def test_the_flight_log_becomes_69_seconds_of_rows(run_cli, data: Path, tmp_path: Path):
    before = time.perf_counter()
    code, _, err = run_cli("resample", data / "robot/px4_sample.ulg", "--hz", 50, "-o", tmp_path / "o.parquet")
    assert code == 0, err
    assert time.perf_counter() - before < 20  # only guards against a hang
    table = parquet.read_table(tmp_path / "o.parquet")
    assert 3300 < table.num_rows < 3600
    assert table["vehicle_attitude/q[0]"].null_count == 0


def test_the_commands_explain_themselves():
    assert all("Examples" in load_command(name).help for name in ("resample", "streams"))


# --- cameras ---


@pytest.fixture(scope="module")
def camera_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cams.mcap(tmp_path_factory.mktemp("cameras") / "run.mcap", cams.messages(0.5, gap=(9, 9)))


CAMERA_WORDS = ["--hz", 30, "--format", "lerobot", "--camera", f"front={cams.FRONT}", "--state", cams.JOINTS]


def test_streams_lists_cameras(run_cli, camera_log: Path):
    code, out, _ = run_cli("streams", camera_log)
    assert code == 0
    [line] = [line for line in out.splitlines() if "jpeg 96×64" in line]
    assert line.split()[0] == cams.FRONT
    assert "16UC1 8×6" in out
    code, out, _ = run_cli("streams", camera_log, "--json")
    found = {s["name"]: s for s in json.loads(out)["streams"]}
    assert (found[cams.FRONT]["type"], found[f"{cams.JOINTS}/position"]["type"]) == ("image", "number")


def test_cameras_become_videos_beside_the_mapped_numbers(run_cli, camera_log: Path, tmp_path: Path):
    words = [*CAMERA_WORDS, "--action", f"{cams.JOINTS}/position", "--task", "pick", "--crf", 20, "--gop", 5]
    code, _, err = run_cli("resample", camera_log, "-o", tmp_path / "set", *words)
    assert (code, "rows" in err) == (0, True)
    info = json.loads((tmp_path / "set/meta/info.json").read_text())
    assert {"observation.state", "action", "observation.images.front", "observation.images.front.valid"} < {
        *info["features"]
    }
    code, _, err = run_cli("resample", camera_log, "-o", tmp_path / "set", *words)
    assert (code, "up to date" in err) == (0, True)
    code, _, _ = run_cli("resample", camera_log, "-o", tmp_path / "set", *words, "--append")
    assert code == 0


def test_lost_frames_exit_with_1_and_name_topic_and_count(run_cli, tmp_path: Path):
    items = cams.messages(0.5, gap=(9, 9))
    bad = cams.change(items, cams.FRONT, lambda i, f: {**f, "data": b"" if i in (3, 4) else f["data"]})
    path = cams.mcap(tmp_path / "bad.mcap", bad)
    for _ in range(2):  # a second run says it again
        code, _, err = run_cli("resample", path, "-o", tmp_path / "set", *CAMERA_WORDS)
        assert code == 1
        assert f"{cams.FRONT}: 2 " in err
        assert "cannot be decoded" in err
    code, _, _ = run_cli("resample", path, "-o", tmp_path / "set", *CAMERA_WORDS, "--append")
    assert code == 1
    assert json.loads((tmp_path / "set/meta/info.json").read_text())["total_episodes"] == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--camera", "front"], "NAME=TOPIC"),
        (["--camera", "front=/a", "--camera", "front=/b"], "two topics"),
        (["--camera", "front=/nothing"], "/front/compressed"),
        (["--codec", "vp8"], "no video codec"),
        (["--crf", "99"], "no quality of h264"),
        (["--gop", "0"], "no number of frames"),
        (["--fill", "often"], "neither nan, hold nor a number"),
        (["--state", "/nothing"], "/joints"),
    ],
)
def test_wrong_camera_options_are_bad_input(run_cli, camera_log: Path, tmp_path: Path, words: list, message: str):
    out = tmp_path / "set"
    code, _, err = run_cli("resample", camera_log, "--hz", 30, "--format", "lerobot", "-o", out, *words)
    assert code == 2
    assert message in " ".join(err.split())
    assert not out.exists()


def test_a_mapping_file_gives_options_and_the_command_line_counts_more(run_cli, tmp_path: Path):
    run = cams.mcap(tmp_path / "run.mcap", cams.messages(0.5))
    mapping = tmp_path / "robot.toml"
    mapping.write_text(
        'hz = 30\nformat = "lerobot"\nstate = "/joints/position"\ntask = "pick"\n'
        '[camera]\nfront = "/front/compressed"\n'
    )
    code, _, err = run_cli("resample", run, "-o", tmp_path / "set", "--mapping", mapping, "--task", "place")
    assert code == 0, err
    info = json.loads((tmp_path / "set/meta/info.json").read_text())
    assert info["fps"] == 30
    assert {"observation.images.front", "observation.state"} <= set(info["features"])
    assert parquet.read_table(tmp_path / "set/meta/tasks.parquet")["__index_level_0__"].to_pylist() == ["place"]


@pytest.mark.parametrize(
    ("text", "words"),
    [("hertz = 3", "hertz"), ("camera = 3", "[camera]"), ("hz = [1]", "one value"), ("hz = ", "cannot be read")],
)
def test_a_mapping_file_that_says_something_else_is_told(run_cli, tmp_path: Path, text: str, words: str):
    mapping = tmp_path / "robot.toml"
    mapping.write_text(text)
    code, _, err = run_cli("resample", "x.mcap", "-o", tmp_path / "set", "--hz", 3, "--mapping", mapping)
    assert code == 2
    assert words in err

"""Tables and text: TUM, EuRoC, CSV, Parquet; which column is the clock, and in what unit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
from tests.trajectory.recordings import EPOCH, NS, turning

from ridgeline.errors import InputError
from ridgeline.trajectory import readers
from ridgeline.trajectory.readers import Ask
from ridgeline.trajectory.readers.csv import head as table_head
from ridgeline.trajectory.stream import Stream


def noted(path: Path, topics=None, **ask) -> tuple[dict[str, Stream], list[str]]:
    notes: list[str] = []
    return {s.name: s for s in readers.read(path, topics, Ask(say=notes.append, **ask))}, notes


def test_tum_text_gives_position_and_orientation(tmp_path: Path):
    q = turning(5)
    rows = [f"{1305031102.1 + i / 10:.4f} {i} 0 1 0 0 {q[i, 3]} {q[i, 0]}" for i in range(5)]
    (tmp_path / "a.txt").write_text("# timestamp tx ty tz qx qy qz qw\n" + "\n".join(rows))
    found, _ = noted(tmp_path / "a.txt")
    assert {n: s.kind for n, s in found.items()} == {"position": "linear", "orientation": "slerp"}
    assert found["position"].times[1] == 1305031102.2


def test_euroc_text_reads_with_and_without_its_header(tmp_path: Path):
    q = turning(5)
    rows = "\n".join(f"{EPOCH + i * 5_000_000},{i},0,1,{q[i, 0]},0,0,{q[i, 3]}" for i in range(5))
    head = "#timestamp [ns],p_RS_R_x [m],p_RS_R_y [m],p_RS_R_z [m],q_RS_w [],q_RS_x [],q_RS_y [],q_RS_z []\n"
    (tmp_path / "with.csv").write_text(head + rows)
    (tmp_path / "without.csv").write_text(rows + "\n")
    for name, position, turned in (("with", "p_RS_R", "q_RS"), ("without", "p", "q")):
        found, _ = noted(tmp_path / f"{name}.csv")
        assert found[position].times.tolist() == [EPOCH + i * 5_000_000 for i in range(5)]
        assert found[turned].kind == "slerp"
        assert found[turned].columns[0].endswith("w")


@pytest.mark.parametrize(
    ("header", "stamps", "first_step_ns"),
    [
        ("timestamp", [EPOCH, EPOCH + 20_000_000], 20_000_000),
        ("time_us", [0, 20_000], 20_000_000),
        ("t", [0, 20], 20_000_000),  # nothing but milliseconds gives a likely rate
        ("stamp", [0, 4000], 4_000_000),
        ("Time [ms]", [5, 25], 20_000_000),
        ("timestamp", [1_700_000_000_000, 1_700_000_000_020], 20_000_000),
        ("gps_time", [1_700_000_000_000_000, 1_700_000_000_020_000], 20_000_000),
    ],
)
def test_the_time_column_and_its_unit_are_found(tmp_path: Path, header: str, stamps: list[int], first_step_ns: int):
    rows = "\n".join(f"{stamps[0] + i * (stamps[1] - stamps[0])},{i}.5" for i in range(9))
    (tmp_path / "a.csv").write_text(f"{header},v\n{rows}\n")
    found, notes = noted(tmp_path / "a.csv")
    assert found["v"].times.dtype == np.int64
    assert found["v"].times[1] - found["v"].times[0] == first_step_ns
    assert bool(notes) == (header not in ("time_us", "Time [ms]"))


def test_float_seconds_stay_seconds_and_dates_become_nanoseconds(tmp_path: Path):
    (tmp_path / "a.csv").write_text("time,v\n0.0,1\n0.02,2\n")
    assert noted(tmp_path / "a.csv")[0]["v"].times.tolist() == [0.0, 0.02]
    (tmp_path / "b.csv").write_text("time,v\n2024-01-01 00:00:00.5,1\n2024-01-01 00:00:01.5,2\n")
    assert np.diff(noted(tmp_path / "b.csv")[0]["v"].times).tolist() == [NS]


def test_the_column_and_the_unit_can_be_told(tmp_path: Path):
    (tmp_path / "a.csv").write_text("n,v\n0,1\n1,2\n")
    with pytest.raises(InputError, match="no time column"):
        readers.read(tmp_path / "a.csv")
    assert noted(tmp_path / "a.csv", clock="n", unit="s")[0]["v"].times.tolist() == [0, NS]
    with pytest.raises(InputError, match=r"no time column in .* 'm'"):
        readers.read(tmp_path / "a.csv", ask=Ask(clock="m"))


def test_an_empty_cell_is_no_sample(tmp_path: Path):
    (tmp_path / "a.csv").write_text("time,fast,slow\n0.0,1,5\n0.1,2,\n0.2,3,\n0.3,4,6\n")
    found, _ = noted(tmp_path / "a.csv")
    assert len(found["fast"]) == 4
    assert found["slow"].times.tolist() == [0.0, 0.3]


def test_text_columns_are_left_out_and_said(tmp_path: Path):
    (tmp_path / "a.csv").write_text("time;v;note\n0.0;1;on\n0.1;2;off\n")
    found, notes = noted(tmp_path / "a.csv")
    assert list(found) == ["v"]
    assert any("note" in n for n in notes)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("time,v\n0.0,1\n,2\n", "line 3: the time column 'time' is empty"),
        ("time,v\n0.0,1\nsoon,2\n", "line 3: the stamp in 'time' is 'soon'"),
        ("time,v\n0.0,1\n0.1\n", r"1 columns in line 3 \('0.1'\) and 2 in its header"),
        ('time,v,w\n0.0,1,1\n0.1,"2,2\n0.2,3,3\n', r"2 columns in line 3 \('0.1,2,2'\) and 3 in its header"),
        ("time,v\n", "no rows"),
        ("time,v,v\n0.0,1,2\n", "two columns called 'v'"),
        ("0.0,1\n0.1,2\n", "is called a CSV table but is none"),
    ],
)
def test_a_bad_row_is_named_with_its_cure(tmp_path: Path, text: str, said: str):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(InputError, match=said):
        readers.read(tmp_path / "a.csv")


def test_a_table_cut_off_within_its_last_line_gives_the_lines_before_and_says_so(tmp_path: Path):
    said: list[str] = []
    (tmp_path / "a.csv").write_text("time,v,w\n0.0,1,1\n0.1,2,2\n0.2,3")
    found = readers.read(tmp_path / "a.csv", ask=readers.Ask(say=said.append))
    assert [len(s) for s in found] == [2, 2]
    assert any("cut off within its last line" in word for word in said)
    (tmp_path / "a.csv").write_text("time,v,w\n0.0,1,1\n0.1,2\n0.2,3,3\n0.2,3")  # one more that is wrong is named
    with pytest.raises(InputError, match="2 columns in line 3"):
        readers.read(tmp_path / "a.csv")


def test_a_bad_row_that_is_no_text_is_one_sentence_and_nothing_besides(tmp_path: Path, capfd):
    (tmp_path / "a.csv").write_bytes(b"time,v,w\n0.0,1,1\n0.1,\x8c\n0.2,3,3\n")
    with pytest.raises(InputError, match=r"2 columns in line 3 .* and 3 in its header"):
        readers.read(tmp_path / "a.csv")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_a_table_in_another_encoding_is_said_to_be_one(tmp_path: Path, encoding: str):
    (tmp_path / "a.csv").write_text("time,T [°C]\n0.0,1\n0.1,2\n", encoding=encoding)
    with pytest.raises(InputError, match="no text in UTF-8; save it as UTF-8"):
        readers.read(tmp_path / "a.csv")


@pytest.mark.parametrize("shift", [0, 1])
def test_a_character_that_ends_beyond_what_is_looked_at_is_not_taken_for_another_encoding(tmp_path: Path, shift: int):
    (tmp_path / "a.csv").write_text("time,note\n" + "0" * shift + ",ä" + "ä" * 40_000 + "\n", encoding="utf-8")
    assert len(table_head(tmp_path / "a.csv")) == 2


def test_one_cell_that_is_no_text_costs_its_column_only(tmp_path: Path):
    (tmp_path / "a.csv").write_bytes(b"time,v,w\n0.0,1,1\n0.1,\xff,2\n0.2,3,3\n")
    assert [s.name for s in readers.read(tmp_path / "a.csv")] == ["w"]


def test_parquet_lists_structs_and_nulls_become_streams(tmp_path: Path):
    table = arrow.table(
        {
            "timestamp_ns": np.arange(4) * 10,
            "state": arrow.array([[1.0, 2.0]] * 4, arrow.list_(arrow.float32())),
            "pose": [{"x": 1.0, "y": 2.0, "z": float(i)} for i in range(4)],
            "maybe": arrow.array([1, None, 3, None]),
            "ragged": [[1.0], [1.0, 2.0], [], [3.0]],
        }
    )
    parquet.write_table(table, tmp_path / "a.parquet")
    found, notes = noted(tmp_path / "a.parquet")
    assert found["state"].values.shape == (4, 2)
    assert found["state"].values.dtype == np.float32
    assert found["pose"].values.shape == (4, 3)
    assert found["maybe"].times.tolist() == [0, 20]
    assert found["maybe"].values.tolist() == [1, 3]
    assert any("ragged" in n for n in notes)


def test_nan_stamps_in_parquet_are_refused_by_row(tmp_path: Path):
    parquet.write_table(arrow.table({"time": [0.0, float("nan")], "v": [1, 2]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="row 1: the stamp in 'time' is nan"):
        readers.read(tmp_path / "a.parquet")


def test_a_table_cut_in_its_last_line_gives_what_was_before(tmp_path: Path):
    (tmp_path / "a.csv").write_text("time,v,w\n0.0,1,2\n0.1,2,3\n0.2,3")
    found, notes = noted(tmp_path / "a.csv")
    assert len(found["v"]) == 2
    assert any("cut off" in n for n in notes)

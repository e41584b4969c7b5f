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
from ridgeline.trajectory.readers import ReadOptions
from ridgeline.trajectory.readers.csv import head as table_head
from ridgeline.trajectory.stream import Stream


def read_with_notes(path: Path, topics=None, **options) -> tuple[dict[str, Stream], list[str]]:
    notes: list[str] = []
    return {s.name: s for s in readers.read(path, topics, ReadOptions(report=notes.append, **options))}, notes


def test_tum_text_gives_position_and_orientation(tmp_path: Path):
    q = turning(5)
    rows = [f"{1305031102.1 + i / 10:.4f} {i} 0 1 0 0 {q[i, 3]} {q[i, 0]}" for i in range(5)]
    (tmp_path / "a.txt").write_text("# timestamp tx ty tz qx qy qz qw\n" + "\n".join(rows))
    streams, _ = read_with_notes(tmp_path / "a.txt")
    assert {n: s.kind for n, s in streams.items()} == {"position": "linear", "orientation": "slerp"}
    assert streams["position"].times[1] == 1305031102.2


def test_euroc_text_reads_with_and_without_its_header(tmp_path: Path):
    q = turning(5)
    rows = "\n".join(f"{EPOCH + i * 5_000_000},{i},0,1,{q[i, 0]},0,0,{q[i, 3]}" for i in range(5))
    head = "#timestamp [ns],p_RS_R_x [m],p_RS_R_y [m],p_RS_R_z [m],q_RS_w [],q_RS_x [],q_RS_y [],q_RS_z []\n"
    (tmp_path / "with.csv").write_text(head + rows)
    (tmp_path / "without.csv").write_text(rows + "\n")
    for name, position, turned in (("with", "p_RS_R", "q_RS"), ("without", "p", "q")):
        streams, _ = read_with_notes(tmp_path / f"{name}.csv")
        assert streams[position].times.tolist() == [EPOCH + i * 5_000_000 for i in range(5)]
        assert streams[turned].kind == "slerp"
        assert streams[turned].columns[0].endswith("w")


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
    streams, notes = read_with_notes(tmp_path / "a.csv")
    assert streams["v"].times.dtype == np.int64
    assert streams["v"].times[1] - streams["v"].times[0] == first_step_ns
    assert bool(notes) == (header not in ("time_us", "Time [ms]"))


def test_float_seconds_stay_seconds_and_dates_become_nanoseconds(tmp_path: Path):
    (tmp_path / "a.csv").write_text("time,v\n0.0,1\n0.02,2\n")
    assert read_with_notes(tmp_path / "a.csv")[0]["v"].times.tolist() == [0.0, 0.02]
    (tmp_path / "b.csv").write_text("time,v\n2024-01-01 00:00:00.5,1\n2024-01-01 00:00:01.5,2\n")
    assert np.diff(read_with_notes(tmp_path / "b.csv")[0]["v"].times).tolist() == [NS]


def test_options_set_the_time_column_and_its_unit(tmp_path: Path):
    (tmp_path / "a.csv").write_text("n,v\n0,1\n1,2\n")
    with pytest.raises(InputError, match="no time column"):
        readers.read(tmp_path / "a.csv")
    assert read_with_notes(tmp_path / "a.csv", clock="n", unit="s")[0]["v"].times.tolist() == [0, NS]
    with pytest.raises(InputError, match=r"no time column in .* 'm'"):
        readers.read(tmp_path / "a.csv", options=ReadOptions(clock="m"))


def test_an_empty_cell_is_no_sample(tmp_path: Path):
    (tmp_path / "a.csv").write_text("time,fast,slow\n0.0,1,5\n0.1,2,\n0.2,3,\n0.3,4,6\n")
    streams, _ = read_with_notes(tmp_path / "a.csv")
    assert len(streams["fast"]) == 4
    assert streams["slow"].times.tolist() == [0.0, 0.3]


def test_a_cell_of_blanks_is_no_sample(tmp_path: Path):
    (tmp_path / "a.csv").write_text("time,x,n,note\n0.0,1.5,1, \n0.1, ,2,b\n0.2,3.5,   ,c\n")
    streams, _ = read_with_notes(tmp_path / "a.csv")
    assert set(streams) == {"x", "n"}
    assert (streams["x"].times.tolist(), streams["x"].values.tolist()) == ([0.0, 0.2], [1.5, 3.5])
    assert streams["n"].values.tolist() == [1, 2]
    assert streams["n"].values.dtype == np.int64


def test_a_quaternion_without_one_cell_is_no_sample_and_stays_a_quaternion(tmp_path: Path):
    rows = "".join(f"{i / 10},0,0,0,{'' if i == 3 else 1}\n" for i in range(8))
    (tmp_path / "a.csv").write_text(f"time,q_x,q_y,q_z,q_w\n{rows}")
    streams, _ = read_with_notes(tmp_path / "a.csv")
    assert {n: s.values.shape for n, s in streams.items()} == {"q": (7, 4)}


def test_text_columns_are_left_out_with_a_note(tmp_path: Path):
    (tmp_path / "a.csv").write_text("time;v;note\n0.0;1;on\n0.1;2;off\n")
    streams, notes = read_with_notes(tmp_path / "a.csv")
    assert list(streams) == ["v"]
    assert any("note" in n for n in notes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("time,v\n0.0,1\n,2\n", "line 3: the time column 'time' is empty"),
        ("time,v\n0.0,1\nsoon,2\n", "line 3: the stamp in 'time' is 'soon'"),
        ("time,v\n0.0,1\n0.1\n", r"1 columns in line 3 \('0.1'\) and 2 in its header"),
        ('time,v,w\n0.0,1,1\n0.1,"2,2\n0.2,3,3\n', r"2 columns in line 3 \('0.1,2,2'\) and 3 in its header"),
        ("time,v\n", "no rows"),
        ("time,v,v\n0.0,1,2\n", "two columns called 'v'"),
        ("0.0,1\n0.1,2\n", "has the suffix of a CSV table but is none"),
        ('time,v,w\n0.1,"2,2\n0.2,3,3\n', r"2 columns in line 2 \('0.1,2,2'\) and 3 in its header"),
        ("\n\ntime,v\n0.0,1\nsoon,2\n", "line 5: the stamp in 'time' is 'soon'"),
        ("time;v\n0,1;1,5\nsoon;2,5\n", "line 3: the stamp in 'time' is 'soon'; mend or drop"),
        ('time,v\n"0,1","2,5"\n', "line 2: the stamp in 'time' is '0,1', with a decimal comma; write decimals with a"),
        ("time;v\n0,5;1.5\n", "line 2: the stamp in 'time' is '0,5', with a decimal comma; write decimals with a"),
        ("time;v\n1,000;1\n1,001;2\n", "line 2: the stamp in 'time' is '1,000', with a decimal comma"),
    ],
)
def test_a_bad_row_is_named_with_its_cure(tmp_path: Path, text: str, message: str):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        readers.read(tmp_path / "a.csv")


def test_a_table_cut_off_within_its_last_line_gives_the_lines_before_with_a_note(tmp_path: Path):
    notes: list[str] = []
    (tmp_path / "a.csv").write_text("time,v,w\n0.0,1,1\n0.1,2,2\n0.2,3")
    streams = readers.read(tmp_path / "a.csv", options=readers.ReadOptions(report=notes.append))
    assert [len(s) for s in streams] == [2, 2]
    assert any("cut off within its last line" in word for word in notes)
    (tmp_path / "a.csv").write_text("time,v,w\n0.0,1,1\n0.1,2\n0.2,3,3\n0.2,3")  # one more that is wrong is named
    with pytest.raises(InputError, match="2 columns in line 3"):
        readers.read(tmp_path / "a.csv")


def test_a_bad_row_that_is_no_text_is_one_sentence_and_nothing_besides(tmp_path: Path, capfd):
    (tmp_path / "a.csv").write_bytes(b"time,v,w\n0.0,1,1\n0.1,\x8c\n0.2,3,3\n")
    with pytest.raises(InputError, match=r"2 columns in line 3 .* and 3 in its header"):
        readers.read(tmp_path / "a.csv")
    assert capfd.readouterr() == ("", "")


def test_a_table_in_another_encoding_is_read_or_asked_for(tmp_path: Path):
    text = "time,T [°C],Höhe\n0.0,1,2.5\n0.1,2,3.5\n"
    (tmp_path / "wide.csv").write_text(text, encoding="utf-16")
    (tmp_path / "west.csv").write_text(text, encoding="cp1252")
    with pytest.raises(InputError, match=r"no text in UTF-8 \(line 1 has the byte 0xb0\).*--encoding cp1252"):
        readers.read(tmp_path / "west.csv")
    for name, encoding in (("wide.csv", None), ("west.csv", "cp1252"), ("wide.csv", "utf-16")):
        streams, _ = read_with_notes(tmp_path / name, encoding=encoding)
        assert set(streams) == {"T", "Höhe"}
        assert streams["Höhe"].values.tolist() == [2.5, 3.5]
    (tmp_path / "late.csv").write_text("time,x,note\n0.0,1,a\n0.1,2,ä\n")
    with pytest.raises(InputError, match=r"no text in ascii \(byte 26 is 0xc3\); give another --encoding"):
        readers.read(tmp_path / "late.csv", options=ReadOptions(encoding="ascii"))
    with pytest.raises(InputError, match="no encoding 'utf-99'"):
        ReadOptions(encoding="utf-99")


@pytest.mark.parametrize("delimiter", [",", ";", "|", "\t"])
@pytest.mark.parametrize("comment", ["# exported by a tool, version 2\n% second line\n\n", ""])
def test_delimiters_and_comments_before_the_header_are_found(tmp_path: Path, delimiter: str, comment: str):
    text = f"{comment}time,x,y\n0.0,1.5,2\n0.1,2.5,3\n".replace(",", delimiter)
    (tmp_path / "a.csv").write_text(text)
    streams, _ = read_with_notes(tmp_path / "a.csv")
    assert streams["x"].values.tolist() == [1.5, 2.5]
    assert streams["x"].times.tolist() == [0.0, 0.1]


def test_options_set_delimiter_and_comments(tmp_path: Path):
    (tmp_path / "a.csv").write_text("time:x\n0.0:1.5\n# stopped: again\n# a\n0.2:2.5\n")
    streams, _ = read_with_notes(tmp_path / "a.csv", delimiter=":", comment="#")
    assert (streams["x"].times.tolist(), streams["x"].values.tolist()) == ([0.0, 0.2], [1.5, 2.5])
    with pytest.raises(InputError, match=r"1 columns in line 4 .*--comment '#' skips such lines"):
        readers.read(tmp_path / "a.csv", options=ReadOptions(delimiter=":"))
    for wrong in ({"delimiter": "::"}, {"comment": ""}, {"unit": "years"}):
        with pytest.raises(InputError, match=r"not one character|is empty|no unit of time"):
            ReadOptions(**wrong)


@pytest.mark.parametrize("shift", [0, 1])
def test_a_character_across_the_end_of_the_sniffed_bytes_is_no_other_encoding(tmp_path: Path, shift: int):
    (tmp_path / "a.csv").write_text("time,note\n" + "0" * shift + ",ä" + "ä" * 40_000 + "\n", encoding="utf-8")
    assert len(table_head(tmp_path / "a.csv")) == 2


def test_one_cell_that_is_no_text_drops_only_its_column(tmp_path: Path):
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
    streams, notes = read_with_notes(tmp_path / "a.parquet")
    assert streams["state"].values.shape == (4, 2)
    assert streams["state"].values.dtype == np.float32
    assert streams["pose"].values.shape == (4, 3)
    assert streams["maybe"].times.tolist() == [0, 20]
    assert streams["maybe"].values.tolist() == [1, 3]
    assert any("ragged" in n for n in notes)


def test_nan_stamps_in_parquet_are_refused_by_row(tmp_path: Path):
    parquet.write_table(arrow.table({"time": [0.0, float("nan")], "v": [1, 2]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="row 1: the stamp in 'time' is nan"):
        readers.read(tmp_path / "a.parquet")


def test_a_table_cut_in_its_last_line_gives_what_was_before(tmp_path: Path):
    (tmp_path / "a.csv").write_text("time,v,w\n0.0,1,2\n0.1,2,3\n0.2,3")
    streams, notes = read_with_notes(tmp_path / "a.csv")
    assert len(streams["v"]) == 2
    assert any("cut off" in n for n in notes)


# --- which columns --topics means ---

POSITION = "time,pos_x,pos_y,pos_z,b,a[0],a[1]\n0.0,1,2,3,4,5.5,6\n0.1,1.5,2.5,3.5,4.5,5,6.5\n"


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["pos"], ["pos"]),
        (["pos_x"], ["pos"]),
        (["pos_x", "pos_y", "pos_z"], ["pos"]),
        (["pos", "b"], ["pos", "b"]),
        (["pos*"], ["pos"]),
        (["*_x"], ["pos"]),
        (["a"], ["a"]),
        (["a[1]"], ["a"]),
        (["a[0]", "a[1]"], ["a"]),
        (["b"], ["b"]),
        (["*"], ["pos", "b", "a"]),
    ],
)
def test_a_name_chooses_its_stream_and_so_does_that_of_a_column(tmp_path: Path, words: list[str], names: list[str]):
    (tmp_path / "a.csv").write_text(POSITION)
    streams, _ = read_with_notes(tmp_path / "a.csv", words)
    all_streams, _ = read_with_notes(tmp_path / "a.csv")
    assert list(streams) == names
    for name in names:
        assert streams[name].columns == all_streams[name].columns
        np.testing.assert_array_equal(streams[name].values, all_streams[name].values)


@pytest.mark.parametrize("words", [["poss"], ["b", "poss"]])
def test_an_unknown_topic_lists_the_streams_and_not_their_columns(tmp_path: Path, words: list[str]):
    (tmp_path / "a.csv").write_text(POSITION)
    with pytest.raises(InputError, match=r"'poss'; did you mean 'pos'\? There are: pos, b, a\.$"):
        readers.read(tmp_path / "a.csv", words)


def test_columns_that_look_like_one_quantity_and_are_none_keep_their_own_names(tmp_path: Path):
    (tmp_path / "a.csv").write_text("time,pos_x,pos_y,b\n0.0,1.5,true,4\n0.1,1.5,false,4\n")
    assert list(read_with_notes(tmp_path / "a.csv", ["pos_x"])[0]) == ["pos_x"]
    with pytest.raises(InputError, match=r"There are: pos_x, pos_y, b\.$"):
        readers.read(tmp_path / "a.csv", ["pos"])


def test_the_streams_of_a_table_with_episodes_are_chosen_by_the_same_names(tmp_path: Path):
    table = {"time": [0.0, 0.1, 0.0, 0.1], "episode": [0, 0, 1, 1], "p_x": [1.0] * 4, "p_y": [2.0] * 4, "b": [3] * 4}
    parquet.write_table(arrow.table(table), tmp_path / "a.parquet")
    for word in ("p", "p_y"):
        assert [(s.name, s.episode) for s in readers.read(tmp_path / "a.parquet", [word])] == [("p", "0"), ("p", "1")]


@pytest.mark.parametrize("word", ["vehicle/q", "vehicle/q[2]", "vehicle/q*", "vehicle"])
def test_a_resampled_table_knows_the_names_of_its_recording(tmp_path: Path, word: str):
    q = turning(5)
    columns = {"time_ns": np.arange(5) * NS, **{f"vehicle/q[{i}]": q[:, i] for i in range(4)}, "b": np.arange(5)}
    parquet.write_table(arrow.table(columns), tmp_path / "a.parquet")
    streams, _ = read_with_notes(tmp_path / "a.parquet", [word])
    assert {n: s.kind for n, s in streams.items()} == {"vehicle/q": "slerp"}


def test_a_dataset_takes_the_names_of_streams_in_tables(tmp_path: Path):
    from ridgeline.trajectory.dataset import TrajectoryDataset

    (tmp_path / "a.csv").write_text("time,pos_x,pos_y,b\n" + "".join(f"{i / 10},{i}.5,2.5,{i}\n" for i in range(30)))
    for topics in (["pos"], ["pos_x", "pos_y"]):
        assert TrajectoryDataset(str(tmp_path / "a.csv"), topics=topics).names == ("pos_x", "pos_y")


def test_a_tum_trajectory_is_chosen_by_a_column_too_and_an_unknown_name_lists_its_streams(tmp_path: Path):
    (tmp_path / "a.txt").write_text("".join(f"{i} 0 0 0 0 0 0 1\n" for i in range(3)))
    for word in ("position", "position.x"):
        assert list(read_with_notes(tmp_path / "a.txt", [word])[0]) == ["position"]
    with pytest.raises(InputError, match=r"There are: position, orientation\.$"):
        readers.read(tmp_path / "a.txt", ["pose"])


# --- how a table begins ---


def test_a_delimiter_in_quotes_does_not_split_cells(tmp_path: Path):
    (tmp_path / "a.csv").write_text('time,msg,x\n0.0,"hello, world",1.5\n0.1,"a, b",2.5\n0.2,c,3.5\n')
    streams, notes = read_with_notes(tmp_path / "a.csv")
    assert streams["x"].values.tolist() == [1.5, 2.5, 3.5]
    assert any("msg" in n for n in notes)


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_delimiter_in_a_quoted_name_is_part_of_it(tmp_path: Path, delimiter: str):
    name = f"speed{delimiter} left, or; right"
    (tmp_path / "a.csv").write_text(f'time{delimiter}"{name}"\n0.0{delimiter}1.5\n0.1{delimiter}2.5\n')
    assert read_with_notes(tmp_path / "a.csv")[0][name].values.tolist() == [1.5, 2.5]


@pytest.mark.parametrize("before", ["\n", "\n\n", "  \n", "\r\n\r\n", "\ufeff\n"])
@pytest.mark.parametrize("between", ["", "\n", " \n\n"])
def test_blank_lines_before_the_rows_are_skipped(tmp_path: Path, before: str, between: str):
    (tmp_path / "a.csv").write_bytes(f"{before}time,v\n{between}0.0,1\n0.1,2\n".encode())
    assert read_with_notes(tmp_path / "a.csv")[0]["v"].values.tolist() == [1, 2]


@pytest.mark.parametrize("delimiter", [";", "\t"])
@pytest.mark.parametrize("first", ["", "0;1\n"])
def test_decimal_commas_are_read_if_the_delimiter_is_no_comma(tmp_path: Path, delimiter: str, first: str):
    text = f"time;v\n{first}0,1;2,5\n0,2;-1,5e1\n"
    (tmp_path / "a.csv").write_text(text.replace(";", delimiter))
    streams, notes = read_with_notes(tmp_path / "a.csv")
    assert streams["v"].times[-2:].tolist() == [0.1, 0.2]
    assert streams["v"].values[-2:].tolist() == [2.5, -15.0]
    assert any("read with decimal commas, like 0,1" in n for n in notes)


def test_thousands_and_commas_beside_points_are_no_decimal_commas(tmp_path: Path):
    for text in ("time;v;w\n0.1;1,5;2\n0.2;2,5;3\n", "time;v;w\n0;1,000;2\n1;2,500;3\n"):
        (tmp_path / "a.csv").write_text(text)
        streams, notes = read_with_notes(tmp_path / "a.csv")
        assert list(streams) == ["w"]
        assert any("left out" in n and "v" in n for n in notes)

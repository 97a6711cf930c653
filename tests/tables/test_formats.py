"""Reading: every encoding, delimiter and crooked file a user may bring."""

from __future__ import annotations

import bz2
import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from exempla import ExemplaError
from exempla.tables import borrow_names, format_suffix, read_table

ROWS = "name,city,label\nJosé,Zürich,ham\nAnn,Genève,spam\n"


def write(folder: Path, name: str, content: bytes | str) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("codec", "said"),
    [
        ("utf-8", "utf-8,"),
        ("utf-8-sig", "utf-8 with byte-order mark"),
        ("utf-16", "utf-16-le with byte-order mark"),
        ("utf-16-be", "utf-16-be,"),
        ("utf-32", "utf-32-le with byte-order mark"),
        ("cp1252", "cp1252"),
    ],
)
def test_encodings_are_detected_and_reported(tmp_path, codec, said):
    table = read_table(write(tmp_path, "a.csv", ROWS.encode(codec)))
    assert table.names == ("name", "city", "label")
    assert table.strings("city") == ["Zürich", "Genève"]
    assert said in table.notes[0]


def test_latin1_takes_the_bytes_that_cp1252_lacks(tmp_path):
    table = read_table(write(tmp_path, "a.csv", "x,label\n\x81é,a\nb,b\n".encode("latin-1")))
    assert "latin-1" in table.notes[0]
    assert table.strings("x") == ["\x81é", "b"]


def test_wrong_encoding_is_refused_in_a_sentence(tmp_path):
    path = write(tmp_path, "a.csv", ROWS.encode("cp1252"))
    with pytest.raises(ExemplaError, match=r"a\.csv is not utf-8: byte \d+ does not decode"):
        read_table(path, encoding="utf-8")
    with pytest.raises(ExemplaError, match="no encoding called 'utf-9'"):
        read_table(path, encoding="utf-9")


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_delimiters_are_detected(tmp_path, mark):
    table = read_table(write(tmp_path, "a.txt", ROWS.replace(",", mark)))
    assert table.strings("label") == ["ham", "spam"]


def test_semicolons_win_over_decimal_commas(tmp_path):
    table = read_table(write(tmp_path, "a.csv", "x;z;y\n1,5;2,5;a\n2,5;3,5;b\n1,5;2,0;a\n"))
    assert table.names == ("x", "z", "y")


def test_wrong_delimiter_is_refused_with_the_right_one(tmp_path):
    path = write(tmp_path, "a.csv", ROWS.replace(",", "\t"))
    with pytest.raises(ExemplaError, match="looks tab-separated"):
        read_table(path, delimiter=",")
    with pytest.raises(ExemplaError, match="one character"):
        read_table(path, delimiter="ab")
    assert read_table(path, delimiter="tab").names == ("name", "city", "label")


@pytest.mark.parametrize("squeeze", [gzip.compress, bz2.compress])
def test_compressed_files(tmp_path, squeeze):
    assert len(read_table(write(tmp_path, "a.csv.z", squeeze(ROWS.encode())))) == 2


def test_damaged_gzip_is_refused(tmp_path):
    with pytest.raises(ExemplaError, match="damaged gz file"):
        read_table(write(tmp_path, "a.csv.gz", gzip.compress(ROWS.encode() * 50)[:-12]))


def test_duplicate_and_empty_headers_are_named_and_said(tmp_path):
    table = read_table(write(tmp_path, "a.csv", "a,a,,label,a_2\n1,2,3,x,9\n3,4,5,y,8\n"))
    assert table.names == ("a", "a_3", "column_3", "label", "a_2")
    assert any("Repeated column names" in note for note in table.notes)
    assert any("Unnamed columns" in note for note in table.notes)


def test_a_file_without_header_is_noticed(tmp_path):
    rows = "".join(f"{i}, State-gov, {'<=50K' if i % 3 else '>50K'}\n" for i in range(30))
    table = read_table(write(tmp_path, "adult.data", rows))
    assert not table.header
    assert len(table) == 30
    assert table.names == ("column_1", "column_2", "column_3")
    assert table.strings("column_2")[0] == "State-gov"
    assert any("is data, not a header" in note for note in table.notes)
    assert len(read_table(table.path, header=True)) == 29
    assert read_table(table.path, names=["a", "b", "c"]).names == ("a", "b", "c")
    with pytest.raises(ExemplaError, match="2 column names were given"):
        read_table(table.path, names=["a", "b"])


def test_words_repeated_below_the_first_row_are_no_header(tmp_path):
    rows = "a fine film,pos\na dull film,neg\na slow film,neg\na great film,pos\na bad film,neg\n"
    assert not read_table(write(tmp_path, "a.csv", rows)).header


@pytest.mark.parametrize("first", ["0,1,y", "0,1,2", "2019,2020,total"])
def test_numbers_can_be_column_names(tmp_path, first):
    rows = "".join(f"{i * 7 % 5},{i * 3},{i % 2}\n" for i in range(20))
    table = read_table(write(tmp_path, "a.csv", f"{first}\n{rows}"))
    assert table.names == tuple(first.split(","))
    assert len(table) == 20


def test_line_above_the_table_is_passed_over(tmp_path):
    rows = "|1x3 Cross validator\n" + "".join(f"{i}, x{i % 3}, no.\n" for i in range(9))
    table = read_table(write(tmp_path, "adult.test", rows))
    assert len(table) == 9
    assert any("Skipped 1 line" in note for note in table.notes)


def test_names_come_from_the_sister_file(tmp_path):
    train = read_table(write(tmp_path, "a.data", "1,x\n2,y\n3,x\n"))
    test = read_table(write(tmp_path, "a.test", "age,label\n4,y\n5,x\n"))
    assert borrow_names(train, test).names == ("age", "label")
    assert borrow_names(test, train) is test


def test_few_ragged_rows_are_left_out_and_named(tmp_path):
    rows = ["x,label"] + [f"{i},{'ab'[i % 2]}" for i in range(300)]
    rows[100] = "1,2,3"
    table = read_table(write(tmp_path, "a.csv", "\n".join(rows) + "\n"))
    assert table.ragged == (99,)
    assert len(table) == 300
    assert table.missing("label").sum() == 1
    assert any("line(s) 101" in note for note in table.notes)


def test_many_ragged_rows_are_refused(tmp_path):
    with pytest.raises(ExemplaError, match=r"rows of a\.csv do not have 2 cells"):
        read_table(write(tmp_path, "a.csv", "x,label\n1,a\n1,2,a\n3,b\n1,2,3,b\n5,a\n"))


def test_row_names_as_r_writes_them(tmp_path):
    table = read_table(write(tmp_path, "a.csv", "x,label\nr1,1,a\nr2,2,b\nr3,3,b\n"))
    assert table.names == ("column_1", "x", "label")
    trailing = read_table(write(tmp_path, "b.csv", "x,label\n1,a,\n2,b,\n3,b,\n"))
    assert trailing.names == ("x", "label", "column_3")


def test_unpaired_quotes_are_plain_characters(tmp_path):
    table = read_table(write(tmp_path, "a.tsv", 'text\tlabel\n"so good\t1\nbad "\t0\n" hm\t1\n'))
    assert table.strings("text") == ['"so good', 'bad "', '" hm']
    assert any("Quotation marks are ordinary" in note for note in table.notes)


def test_quoted_cells_keep_delimiters_and_lines(tmp_path):
    table = read_table(write(tmp_path, "a.csv", 'text,label\r\n"a, ""b""\r\nc",x\r\nd,y\r\n'))
    assert table.strings("text") == ['a, "b"\r\nc', "d"]


def test_cells_longer_than_the_csv_modules_limit(tmp_path):
    table = read_table(write(tmp_path, "a.csv", "text,label\n" + "w " * 100_000 + ",x\nd,y\n"))
    assert len(table.strings("text")[0] or "") == 200_000


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.csv", b"", "is empty"),
        ("a.csv", b"\n \n", "is empty"),
        ("a.csv", b"x,label\n", "no rows"),
        ("a.jsonl", b"\n", "is empty"),
        ("a.jsonl", b'[{"a": 1}]', "one JSON list"),
        ("a.jsonl", b'{"a": 1}\n{"a": \n', "Line 2 of a.jsonl is not JSON"),
        ("a.jsonl", b"3\n", "not a JSON object"),
        ("a.xlsx", b"PK\x03\x04rest", "Excel workbook"),
        ("a.csv", b"\x89PNG\r\n\x1a\nrest", "an image"),
        ("a.csv", b"a,b\n\x00\x01,c\n" + b"x,y\n" * 9, "zero bytes"),
        ("a.parquet", b"no", "is not"),
        ("a.npz", b"PK\x03\x04no", "cannot be read as an NPZ"),
    ],
)
def test_unreadable_files_are_refused(tmp_path, name, content, why):
    with pytest.raises(ExemplaError, match=why):
        read_table(write(tmp_path, name, content))


def test_absent_file_and_absent_column(tmp_path):
    with pytest.raises(ExemplaError, match="There is no file"):
        read_table(tmp_path / "none.csv")
    table = read_table(write(tmp_path, "a.csv", ROWS))
    with pytest.raises(ExemplaError, match="did you mean 'label'"):
        table.position("lable")
    with pytest.raises(ExemplaError, match="its columns are 'name', 'city', 'label'"):
        table.position("zzzzzz")
    assert table.position("Label".lower()) == table.position("3") == table.position(-1) == 2
    with pytest.raises(ExemplaError, match="has rows 0 to 1"):
        table.row(2)


def test_jsonl_keeps_numbers_as_written(tmp_path):
    lines = [{"a": 1.50, "b": "007", "c": None}, {"a": 2, "b": "x", "d": True, "e": [1, "é"]}]
    text = "\n".join(json.dumps(line) for line in lines).replace("1.5", "1.50")
    table = read_table(write(tmp_path, "a.jsonl", text))
    assert table.strings("a") == ["1.50", "2"]
    assert table.strings("b") == ["007", "x"]
    assert table.strings("c") == [None, None]
    assert table.strings("d") == [None, "true"]
    assert table.strings("e") == [None, '["1", "é"]']


def test_half_a_surrogate_pair_in_json_is_readable(tmp_path):
    table = read_table(
        write(tmp_path, "a.jsonl", '{"a": "\\ud800x", "y": 1}\n{"a": "b", "y": 2}\n')
    )
    assert (table.strings("a")[0] or "").endswith("x")


def test_parquet_and_npz_keep_their_types(tmp_path):
    pq.write_table(
        pa.table({"x": np.arange(5, dtype=np.int16), "y": list("ababa")}), tmp_path / "a.parquet"
    )
    table = read_table(tmp_path / "a.parquet")
    assert table.column("x").type == pa.int16()
    np.savez(tmp_path / "a.npz", X=np.zeros((3, 2), np.float32), y=np.array([0, 1, 0]))
    table = read_table(tmp_path / "a.npz")
    assert table.names == ("x0", "x1", "y")
    assert table.column("x0").type == pa.float32()
    np.savez(tmp_path / "i.npz", X=np.zeros((3, 4, 4), np.uint8), y=np.array(list("aba")))
    images = read_table(tmp_path / "i.npz").images
    assert images is not None
    assert images.shape == (3, 4, 4)


def test_npz_with_pickles_or_wrong_shapes_is_refused(tmp_path):
    np.savez(tmp_path / "p.npz", X=np.array([{"a": 1}], dtype=object), y=np.array([0]))
    with pytest.raises(ExemplaError, match="objects are refused"):
        read_table(tmp_path / "p.npz")
    np.savez(tmp_path / "s.npz", X=np.zeros((3, 2)), y=np.zeros(4))
    with pytest.raises(ExemplaError, match="needs X of shape"):
        read_table(tmp_path / "s.npz")
    np.savez(tmp_path / "n.npz", data=np.zeros((3, 2)))
    with pytest.raises(ExemplaError, match="no array 'X', 'y'"):
        read_table(tmp_path / "n.npz")


def test_a_hundred_thousand_rows(tmp_path):
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=(100_000, 3)).round(3)
    lines = [f"{a},{b},{c},k{i % 4000},{i % 2}" for i, (a, b, c) in enumerate(numbers)]
    table = read_table(write(tmp_path, "a.csv", "a,b,c,k,y\n" + "\n".join(lines) + "\n"))
    assert len(table) == 100_000
    assert table.row(99_999)["k"] == f"k{99_999 % 4000}"


@pytest.mark.parametrize(
    ("name", "suffix"),
    [
        ("data.csv", ".csv"), ("data.2024.csv", ".csv"), ("data.2024-01-02.csv.gz", ".csv.gz"),
        ("DATA.CSV", ".CSV"), ("a.json.csv", ".csv"), ("a.csv.json", ".json"), ("a.data", ".data"),
        ("v1.2.parquet", ".parquet"), ("a.tsv.bz2", ".tsv.bz2"), ("plain", ""),
        ("a.csv.z", ".csv.z"), ("adult.data.gz", ".data.gz"), (".hidden", ""), ("x.npz/y", ""),
    ],
)  # fmt: skip
def test_the_suffix_is_the_format_and_not_a_date(name, suffix):
    assert format_suffix(name) == suffix


def test_the_last_format_in_a_name_counts(tmp_path):
    assert read_table(write(tmp_path, "a.json.csv", ROWS)).format == "csv"
    line = '{"x": "1,2", "y": "p"}\n'
    assert read_table(write(tmp_path, "a.csv.jsonl", line * 2)).format == "jsonl"

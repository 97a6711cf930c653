"""Handing back: only decided cells differ, byte for byte."""

from __future__ import annotations

import bz2
import gzip
import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from exempla import ExemplaError
from exempla.tables import Decision, corrected, export, read_table

BOM = b"\xef\xbb\xbf"
AWKWARD = BOM + (
    b'id,"text",y\r\n007,"say ""hi"", then\r\nleave",ham\r\n008,=1+1,"ham"\r\n\r\n'
    b'009,<script>alert(1)</script>,spam\r\n010,"@x", spam'
)


def check(path: Path, decisions: list[Decision], label: str = "y", **reading) -> bytes:
    """Export, and compare with the bytes that are promised."""
    table = read_table(path, **reading)
    out = export(table, decisions, path.parent / f"out-{path.name}", label=label).read_bytes()
    assert out == corrected(table, decisions, label=label)
    return out


def test_no_decisions_give_the_same_bytes(tmp_path):
    for name, raw in {
        "a.csv": AWKWARD,
        "a.csv.gz": gzip.compress(AWKWARD, mtime=7),
        "a.csv.bz2": bz2.compress(AWKWARD),
        "b.csv": AWKWARD.decode("utf-8-sig").encode("utf-16"),
        "a.jsonl": b'{"y" : "ham",  "a": 1.50}\r\n\r\n{"y": "spam"}',
    }.items():
        (tmp_path / name).write_bytes(raw)
        assert check(tmp_path / name, []) == raw
        assert check(tmp_path / name, [Decision(0, "keep"), Decision(1, "keep")]) == raw


def test_only_the_decided_cells_differ(tmp_path):
    (tmp_path / "a.csv").write_bytes(AWKWARD)
    decisions = [
        Decision(0, "relabel", "spam", "a note", "2026-01-01T00:00:00Z"),
        Decision(1, "relabel", 'so, "called"'),
        Decision(3, "relabel", "ham"),
    ]
    expected = AWKWARD.replace(b'leave",ham', b'leave",spam')
    expected = expected.replace(b'=1+1,"ham"', b'=1+1,"so, ""called"""')
    expected = expected.removesuffix(b" spam") + b"ham"
    assert check(tmp_path / "a.csv", decisions) == expected


def test_a_new_value_is_quoted_only_if_it_must(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"x,y\n1,a\n2,b\n3,a\n")
    assert check(tmp_path / "a.csv", [Decision(1, "relabel", "c,d")]) == b'x,y\n1,a\n2,"c,d"\n3,a\n'
    assert check(tmp_path / "a.csv", [Decision(1, "relabel", "c d")]) == b"x,y\n1,a\n2,c d\n3,a\n"


def test_removed_rows_go_with_their_line_ends(tmp_path):
    (tmp_path / "a.csv").write_bytes(AWKWARD)
    out = check(tmp_path / "a.csv", [Decision(0, "remove"), Decision(3, "remove")])
    assert out == BOM + (
        b'id,"text",y\r\n008,=1+1,"ham"\r\n\r\n009,<script>alert(1)</script>,spam\r\n'
    )


def test_spaces_after_delimiters_and_lines_above_stay(tmp_path):
    raw = b"|1x3 Cross validator\n25, Private, <=50K.\n38, Private, >50K.\n28, Gov, <=50K.\n"
    (tmp_path / "adult.test").write_bytes(raw)
    out = check(tmp_path / "adult.test", [Decision(1, "relabel", "<=50K.")], label="column_3")
    assert out == raw.replace(b">50K.", b"<=50K.")


def test_packed_files_are_packed_again(tmp_path):
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"x,y\n1,a\n2,b\n"))
    out = check(tmp_path / "a.csv.gz", [Decision(0, "relabel", "b")])
    assert gzip.decompress(out) == b"x,y\n1,b\n2,b\n"


def test_json_lines_are_edited_in_place(tmp_path):
    raw = (
        '{"y":0, "t": "é, \\"y\\": 1", "n": 1.50}\n'
        '{"t": {"y": 5}, "y" :  "ham" }\n{"t": "x"}\n{"y": 1}\n'
    ).encode()
    (tmp_path / "a.jsonl").write_bytes(raw)
    decisions = [Decision(i, "relabel", "1") for i in (0, 1, 2)] + [Decision(3, "remove")]
    assert check(tmp_path / "a.jsonl", decisions).decode() == (
        '{"y":1, "t": "é, \\"y\\": 1", "n": 1.50}\n'
        '{"t": {"y": 5}, "y" :  "1" }\n{"t": "x", "y": 1}\n'
    )


def test_parquet_keeps_its_schema(tmp_path):
    fields = [
        pa.field("x", pa.int16()),
        pa.field("y", pa.dictionary(pa.int8(), pa.string()), metadata={"k": "v"}),
        pa.field("z", pa.list_(pa.float32())),
    ]
    schema = pa.schema(fields, metadata={"origin": "here"})
    columns = [[1, None, 3, 4], ["a", "b", "a", None], [[1.0], [], None, [2.0, 3.0]]]
    data = pa.table([pa.array(v, f.type) for v, f in zip(columns, schema)], schema=schema)
    pq.write_table(data, tmp_path / "a.parquet", compression="zstd", row_group_size=2)
    assert check(tmp_path / "a.parquet", []) == (tmp_path / "a.parquet").read_bytes()
    out = check(tmp_path / "a.parquet", [Decision(0, "relabel", "b"), Decision(2, "remove")])
    file = pq.ParquetFile(io.BytesIO(out))
    before = pq.ParquetFile(tmp_path / "a.parquet").schema_arrow
    assert file.schema_arrow.equals(before, check_metadata=True)
    assert file.schema_arrow.field("y").metadata == {b"k": b"v"}
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"
    assert file.read().column("y").to_pylist() == ["b", "b", None]
    assert file.read().column("z").to_pylist() == [[1.0], [], [2.0, 3.0]]


def test_npz_changes_y_and_drops_rows_everywhere(tmp_path):
    np.savez_compressed(
        tmp_path / "a.npz", X=np.arange(12).reshape(4, 3), y=list("aaba"), w=np.arange(4.0), k=3
    )
    assert check(tmp_path / "a.npz", []) == (tmp_path / "a.npz").read_bytes()
    out = check(tmp_path / "a.npz", [Decision(0, "relabel", "longer"), Decision(1, "remove")])
    made = np.load(io.BytesIO(out))
    assert made["y"].tolist() == ["longer", "b", "a"]
    assert made["X"][:, 0].tolist() == [0, 6, 9]
    assert made["w"].tolist() == [0, 2, 3]
    assert made["k"] == 3


def test_labels_that_do_not_fit_the_column_are_refused(tmp_path):
    pq.write_table(
        pa.table({"x": [1, 2], "y": pa.array([0, 1], pa.int8())}), tmp_path / "a.parquet"
    )
    table = read_table(tmp_path / "a.parquet")
    with pytest.raises(ExemplaError, match="'spam' does not fit the column 'y' of type int8"):
        corrected(table, [Decision(0, "relabel", "spam")], label="y")
    np.savez(tmp_path / "a.npz", X=np.zeros((2, 2)), y=np.array([0, 1]))
    with pytest.raises(ExemplaError, match="does not fit the column 'y' of type int64"):
        corrected(read_table(tmp_path / "a.npz"), [Decision(0, "relabel", "spam")], label="y")
    (tmp_path / "l.csv").write_bytes("x,y\né,a\nb,b\n".encode("latin-1"))
    with pytest.raises(ExemplaError, match="cannot be written in this file's encoding cp1252"):
        corrected(read_table(tmp_path / "l.csv"), [Decision(0, "relabel", "日")], label="y")
    (tmp_path / "q.tsv").write_bytes(b'x\ty\n"a\t1\nb\t0\n')
    with pytest.raises(ExemplaError, match="without changing other cells"):
        corrected(read_table(tmp_path / "q.tsv"), [Decision(0, "relabel", "a\tb")], label="y")


def test_impossible_decisions_are_refused_together(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"x,y\n1,a\n2,b\n")
    table = read_table(tmp_path / "a.csv")
    wrong = [Decision(0, "drop"), Decision(1, "relabel"), Decision(9, "keep")]
    with pytest.raises(ExemplaError, match=r"row 0: there is no action.*row 1: .*row 9: ") as info:
        corrected(table, wrong, label="y")
    assert len(str(info.value).splitlines()) == 1
    with pytest.raises(ExemplaError, match="decided twice"):
        corrected(table, [Decision(0, "keep"), Decision(0, "remove")], label="y")
    with pytest.raises(ExemplaError, match="is the original"):
        export(table, [], tmp_path / "a.csv", label="y")


def test_a_changed_original_is_refused(tmp_path):
    pq.write_table(pa.table({"x": [1, 2], "y": ["a", "b"]}), tmp_path / "a.parquet")
    table = read_table(tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": [2, 1], "y": ["b", "a"]}), tmp_path / "a.parquet")
    with pytest.raises(ExemplaError, match="has changed since it was read"):
        corrected(table, [], label="y")


def test_no_export_goes_onto_an_input_or_through_a_link(tmp_path):
    source, victim = tmp_path / "patch.csv", tmp_path / "victim"
    source.write_bytes(b"x,y\n1,a\n2,b\n")
    table = read_table(source)
    (tmp_path / "link.csv").symlink_to(source)
    for path in (source, tmp_path / "link.csv"):
        with pytest.raises(ExemplaError, match="is the original"):
            export(table, [Decision(0, "remove")], path, label="y")
    assert source.read_bytes() == b"x,y\n1,a\n2,b\n"
    victim.write_text("mine")
    (tmp_path / "out.csv").symlink_to(victim)
    export(table, [Decision(0, "remove")], tmp_path / "out.csv", label="y")
    assert victim.read_text() == "mine"
    assert (tmp_path / "out.csv").read_bytes() == b"x,y\n2,b\n"
    assert not (tmp_path / "out.csv").is_symlink()


def test_what_is_written_is_for_its_owner_alone_unless_the_folder_is_shared(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"x,y\n1,a\n2,b\n")
    table = read_table(tmp_path / "a.csv")
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o770)
    for folder, mode in (("private", 0o600), ("shared", 0o660)):
        export(table, [], tmp_path / folder / "b.csv", label="y")
        assert (tmp_path / folder / "b.csv").stat().st_mode & 0o777 == mode
    assert (tmp_path / "private").stat().st_mode & 0o777 == 0o700


def test_formulas_are_exported_unaltered_unless_asked(tmp_path):
    raw = b'x,n,y\n=cmd(),-5,a\n@SUM(A1),+1.5,b\n"-1+2,x",3,a\n'
    (tmp_path / "a.csv").write_bytes(raw)
    table = read_table(tmp_path / "a.csv")
    assert corrected(table, [], label="y") == raw
    safe = corrected(table, [Decision(1, "relabel", "a")], label="y", excel_safe=True)
    assert safe == b"x,n,y\n'=cmd(),-5,a\n'@SUM(A1),+1.5,a\n\"'-1+2,x\",3,a\n"


CELLS = st.text(
    st.one_of(
        st.sampled_from(list(",;\t\"' \r\n=<>&|0\x0b\x0c\x1c\x85\u2028")),
        st.characters(codec="utf-8", exclude_characters="\x00\ufeff"),
    ),
    max_size=6,
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_table_comes_back_byte_for_byte(tmp_path, data):
    """Any cells, each quoted or not at random, any line end, delimiter, mark and last line."""
    mark = data.draw(st.sampled_from([",", ";", "\t", "|"]))
    end = data.draw(st.sampled_from(["\n", "\r\n"]))
    bom = data.draw(st.sampled_from([b"", BOM]))
    labels = data.draw(
        st.lists(st.sampled_from(["ham", "spam", "the rest"]), min_size=2, max_size=6)
    )
    rows = [[*data.draw(st.lists(CELLS, min_size=2, max_size=2)), label] for label in labels]

    def written(cell: str) -> str:
        needed = any(c in cell for c in [mark, '"', "\r", "\n"])
        if needed or data.draw(st.booleans()):
            return '"' + cell.replace('"', '""') + '"'
        return cell

    pieces = [[written(cell) for cell in row] for row in rows]
    text = mark.join(["one", "two", "y"]) + end + end.join(mark.join(row) for row in pieces)
    raw = bom + (text + data.draw(st.sampled_from(["", end]))).encode()
    path = tmp_path / "h.csv"
    path.write_bytes(raw)
    table = read_table(path, delimiter=mark, header=True)
    assert corrected(table, [], label="y") == raw
    assert [table.strings("one"), table.strings("two"), table.strings("y")] == [
        [row[i] for row in rows] for i in range(3)
    ]
    row = data.draw(st.integers(0, len(rows) - 1))
    changed = corrected(table, [Decision(row, "relabel", "new one")], label="y")
    old = pieces[row][2]
    pieces[row][2] = '"new one"' if old.startswith('"') else "new one"
    again = mark.join(["one", "two", "y"]) + end + end.join(mark.join(row) for row in pieces)
    assert changed == bom + again.encode() + raw[len(bom + text.encode()) :]

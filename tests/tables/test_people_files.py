"""Files as people have them: Excel, zip, nested JSON, an index, ids that repeat, a web address."""

from __future__ import annotations

import io
import json
import sys
import zipfile

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from exempla import ExemplaError
from exempla.tables import (
    Column,
    Decision,
    Table,
    corrected,
    feature_frame,
    infer_columns,
    label_of,
    read_table,
)
from exempla.tables.dataset import spellings
from exempla.tables.infer import label_values
from exempla.tables.table import show
from tests.cli.case import run

ROWS = "size,colour,the label\n" + "3,red,ham\n4,blue,spam\n3,red,ham\n5,green,spam\n" * 6


def kinds(table, label: str, **more) -> dict[str, str]:
    return {c.name: c.kind for c in infer_columns(table, label, **more)}


# ---- Excel


@pytest.fixture
def workbook(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.append(["size", "when", "ok", "label"])
    for i in range(30):
        day = pd.Timestamp("2024-01-01") + pd.Timedelta(days=i)
        sheet.append([i % 7 + 0.5, day.to_pydatetime(), i % 2 == 0, ["ham", "spam"][i % 2]])
    sheet.cell(40, 1).value = None  # an empty tail, as Excel leaves it
    book.create_sheet("notes").append(["more"])
    path = tmp_path / "mail.xlsx"
    book.save(path)
    return path


def test_excel_is_read_and_written_back(workbook, tmp_path):
    import openpyxl

    table = read_table(workbook)
    assert len(table) == 30
    assert table.row(0) == {"size": "0.5", "when": "2024-01-01", "ok": "True", "label": "ham"}
    assert "first of 2 sheets" in table.notes[0]
    assert kinds(table, "label")["when"] == "date"
    fixed = corrected(table, [Decision(1, "relabel", "ham"), Decision(2, "remove")], label="label")
    again = openpyxl.load_workbook(io.BytesIO(fixed))
    assert again.sheetnames == ["Sheet", "notes"]
    values = [[cell.value for cell in row] for row in again.worksheets[0].iter_rows(max_row=31)]
    assert values[2][3] == "ham"
    assert values[3][0] == 3.5, "row 2 is gone, row 3 has come up"
    assert corrected(table, [], label="label") == workbook.read_bytes()


def test_excel_through_the_command_line(workbook, tmp_path):
    out = tmp_path / "out"
    assert run("fix-labels", workbook, "--label", "label", "--quiet", "--out", out) == 0
    assert run("review", out, "--export") == 0
    assert (out / "corrected.xlsx").read_bytes() == workbook.read_bytes()


def test_excel_without_openpyxl_says_what_to_install(workbook, monkeypatch):
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(ExemplaError, match=r"pip install 'exempla\[excel\]'"):
        read_table(workbook)


# ---- zip


def zipped(path, **files: str):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name.replace("__dot__", "."), text)
    return path


def test_a_zip_of_one_table(tmp_path):
    path = tmp_path / "mail.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("folder/mail.csv", ROWS)
        archive.writestr("__MACOSX/folder/._mail.csv", "rubbish")
        archive.writestr("folder/.DS_Store", "rubbish")
    table = read_table(path)
    assert len(table) == 24
    assert table.format == "csv"
    fixed = corrected(table, [Decision(0, "relabel", "spam")], label="the label")
    with zipfile.ZipFile(io.BytesIO(fixed)) as archive:
        assert archive.namelist() == ["folder/mail.csv"]
        assert archive.read("folder/mail.csv").decode() == ROWS.replace("ham", "spam", 1)


def test_a_zip_of_json_lines_and_zips_that_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.jsonl", '{"x": 1, "y": "a"}\n{"x": 2, "y": "b"}\n')
    assert read_table(tmp_path / "a.zip").format == "jsonl"
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        archive.writestr("a.csv", ROWS)
        archive.writestr("b.csv", ROWS)
    with pytest.raises(ExemplaError, match=r"zip archive of 2 files \(a.csv, b.csv\)"):
        read_table(tmp_path / "b.zip")
    with zipfile.ZipFile(tmp_path / "c.zip", "w"):
        pass
    with pytest.raises(ExemplaError):
        read_table(tmp_path / "c.zip")
    (tmp_path / "d.zip").write_bytes(b"PK\x03\x04rest")
    with pytest.raises(ExemplaError, match="damaged zip archive"):
        read_table(tmp_path / "d.zip")


def test_a_zip_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.csv", ROWS * 200)
    monkeypatch.setenv("EXEMPLA_LIMITS", "unpacked=1000")
    with pytest.raises(ExemplaError, match="unpacked"):
        read_table(tmp_path / "a.zip")


# ---- nested JSON


def test_nested_json_becomes_columns_and_goes_back(tmp_path):
    lines = [
        {"user": {"age": 20 + i % 9, "home": {"town": "ab"[i % 2]}}, "meta": {"y": i % 2},
         "tags": ["x"], "none": {}}
        for i in range(30)
    ]  # fmt: skip
    text = "\n".join(json.dumps(line) for line in lines) + "\n"
    (tmp_path / "a.jsonl").write_text(text)
    table = read_table(tmp_path / "a.jsonl")
    assert table.names == ("user.age", "user.home.town", "meta.y", "tags", "none")
    assert kinds(table, "meta.y")["user.age"] == "number"
    fixed = corrected(table, [Decision(0, "relabel", "1")], label="meta.y").decode()
    lines[0]["meta"]["y"] = 1
    assert fixed == "\n".join(json.dumps(line) for line in lines) + "\n"


def test_a_key_and_a_way_of_the_same_name_are_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"a.b": 1, "a": {"b": 2}}\n')
    with pytest.raises(ExemplaError, match=r"Line 1 of a.jsonl has 'a.b' both as a key"):
        read_table(tmp_path / "a.jsonl")


# ---- what columns are


def test_an_index_is_no_feature(tmp_path):
    frame = pd.DataFrame({"x": np.arange(40) % 7, "y": ["a", "b"] * 20})
    mixed = np.random.default_rng(0).permutation(4000)[:40]
    frame.index = pd.Index(mixed)
    frame.to_parquet(tmp_path / "a.parquet")
    assert kinds(read_table(tmp_path / "a.parquet"), "y")["__index_level_0__"] == "id"
    frame.to_csv(tmp_path / "a.csv")
    assert kinds(read_table(tmp_path / "a.csv"), "y")["column_1"] == "id"
    frame.rename_axis("client").to_parquet(tmp_path / "b.parquet")
    table = read_table(tmp_path / "b.parquet")
    assert kinds(table, "y")["client"] == "id"
    assert kinds(table, "y", overrides={"client": "number"})["client"] == "number"


def test_nearly_unique_strings_are_ids(tmp_path):
    names = [f"Ann Smith {i}" for i in range(98)] + ["Ann Smith 0"] * 2
    towns = [f"town {i % 60}" for i in range(100)]
    frame = pd.DataFrame({"name": names, "town": towns, "y": ["a", "b"] * 50})
    frame.to_csv(tmp_path / "a.csv", index=False)
    found = {c.name: c for c in infer_columns(read_table(tmp_path / "a.csv"), "y")}
    assert found["name"].kind == "id"
    assert found["name"].reason == "nearly unique strings (98 of 100 differ)"
    assert found["town"].kind == "category"


@pytest.mark.parametrize("label", ["the label", " the label ", "3"])
def test_a_label_name_with_spaces(tmp_path, label):
    (tmp_path / "a.csv").write_text(ROWS)
    assert label_of(infer_columns(read_table(tmp_path / "a.csv"), label)).name == "the label"


def test_spaces_around_a_title_do_not_hide_it(tmp_path):
    (tmp_path / "a.tsv").write_text("size\t label \n" + "3\tham\n4\tspam\n" * 9)
    assert label_of(infer_columns(read_table(tmp_path / "a.tsv"), "label")).name.strip() == "label"


# ---- regression


@pytest.mark.parametrize("form", ["{:.2f}", "{:.1f}"])
def test_decimal_targets_are_a_regression_and_the_option_is_named(tmp_path, form, capsys):
    rng = np.random.default_rng(0)
    x = rng.normal(size=120)
    y = np.round(50 + 20 * x) if form == "{:.1f}" else 50 + 20 * x
    values = [form.format(v) for v in y]
    pd.DataFrame({"x": x.round(3), "y": values}).to_csv(tmp_path / "a.csv", index=False)
    column = label_of(infer_columns(read_table(tmp_path / "a.csv"), "y"))
    assert column.detail == "regression"
    assert column.reason.startswith("decimal numbers: ")
    assert run("explain", tmp_path / "a.csv", "--label", "y", "-k", 3, "--out", tmp_path / "o") == 0
    assert "--task classes" in capsys.readouterr().out


def test_a_decimal_comma_in_the_label(tmp_path):
    rows = "".join(f"{i % 9};{i % 31},{i % 10}\n" for i in range(90))
    (tmp_path / "a.csv").write_text("x;y\n" + rows)
    table = read_table(tmp_path / "a.csv")
    assert label_of(infer_columns(table, "y")).detail == "regression"
    assert label_values(table, "y", "regression", np.array([12])).tolist() == [12.2]


# ---- addresses


@pytest.mark.parametrize(
    "address", ["https://example.org/mail.csv", "s3://bucket/mail.csv", "HTTP://x/y.csv"]
)
def test_an_address_is_refused_as_such(address, capsys):
    with pytest.raises(ExemplaError, match="is a URL, and exempla downloads nothing"):
        read_table(address)
    assert run("explain", address, "--label", "y") == 2
    assert "download it with" in capsys.readouterr().err


# ---- headers, numbers, chats, spellings


MAILS = "text,spam\n" + "".join(
    f"please call me about {w} number {i} today,{['ham', 'spam'][i % 2]}\n"
    for i, w in enumerate(["lunch", "prize"] * 40)
)


def test_a_header_that_is_also_a_value_is_a_header(tmp_path, capsys):
    path = tmp_path / "mails.csv"
    path.write_text(MAILS)
    assert read_table(path).names == ("text", "spam"), "a word above sentences names them"
    short = tmp_path / "short.csv"
    short.write_text("animal,spam\n" + "cat,ham\ndog,spam\ncow,ham\ncat,spam\n" * 20)
    assert not read_table(short).header
    assert read_table(short, expected=["spam"]).names == ("animal", "spam")
    words = ("--label", "spam", "--quiet", "--out", tmp_path / "fix-labels")
    assert run("fix-labels", path, *words) == 0
    review = json.loads((tmp_path / "fix-labels" / "review.json").read_text())
    assert review["source"]["options"]["header"] is True


@pytest.mark.parametrize("delimiter", [",", ";"])
def test_german_numbers_are_numbers(tmp_path, delimiter):
    frame = pd.DataFrame(
        {"price": ["1.597,50", "12,00", "1.002.003,5"] * 9, "y": ["a", "b", "a"] * 9}
    )
    frame.to_csv(tmp_path / "a.csv", index=False, sep=delimiter)
    table = read_table(tmp_path / "a.csv")
    columns = infer_columns(table, "y")
    assert (columns[0].kind, columns[0].detail) == ("number", ",")
    assert feature_frame(table, columns)["price"][:3].tolist() == [1597.5, 12.0, 1002003.5]


def test_english_thousands_are_numbers_and_versions_are_not(tmp_path):
    frame = pd.DataFrame(
        {"pay": ["1,597.50", "12.00", "1,002,003"] * 9, "version": ["1.2.3", "1.2.4", "2.0.1"] * 9,
         "y": ["a", "b", "b"] * 9}
    )  # fmt: skip
    frame.to_csv(tmp_path / "a.csv", index=False)
    table = read_table(tmp_path / "a.csv")
    columns = infer_columns(table, "y")
    assert [c.kind for c in columns] == ["number", "category", "label"]
    assert feature_frame(table, columns)["pay"][:3].tolist() == [1597.5, 12.0, 1002003.0]


def test_a_chat_is_text(tmp_path):
    lines = [
        {"messages": [{"role": "user", "content": f"how do I cook dish number {i} well"},
                      {"role": "assistant", "content": [{"type": "text", "text": "slowly"}]}],
         "rating": ["good", "bad"][i % 2]}
        for i in range(60)
    ]  # fmt: skip
    path = tmp_path / "chat.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    table = read_table(path)
    assert table.row(1)["messages"] == "user: how do I cook dish number 1 well\nassistant: slowly"
    assert kinds(table, "rating")["messages"] == "text"
    fixed = corrected(table, [Decision(0, "relabel", "bad")], label="rating").decode()
    assert json.loads(fixed.splitlines()[0]) == {**lines[0], "rating": "bad"}


def test_spellings_of_a_label_are_proposed_and_merged(tmp_path, capsys):
    path, out = tmp_path / "a.csv", tmp_path / "out"
    path.write_text(
        MAILS + "one more of these,Spam\nanother one of these,sapm\nand so on here,ham \n"
    )
    words = ("fix-labels", path, "--label", "spam", "--out", out)
    assert run(*words) == 0
    said = capsys.readouterr()
    assert "3 label(s) in 'spam' look like other spellings" in said.err
    assert "'Spam' → 'spam'" in said.err
    assert "'sapm' → 'spam'" in said.err
    assert "'ham ' → 'ham'" in said.err
    assert run(*words, "--merge-labels", "auto") == 0
    said = capsys.readouterr()
    assert "look like" not in said.err
    assert "2 classes" in said.out
    cheap = ("embed", *words[1:])
    assert run(*cheap, "--merge-labels", "Spam=spam,sapm=spam", "--quiet") == 0
    assert "1 label(s)" not in capsys.readouterr().err
    assert run(*words, "--merge-labels", "egg=spam") == 2
    assert "is not understood at 'egg=spam'" in capsys.readouterr().err


def test_labels_that_only_resemble_each_other_stay_apart():
    def proposals(*labels: str) -> dict:
        data = pa.table({"y": [each for each in labels for _ in range(40)]})
        return spellings(Table(None, "csv", data, None), Column("y", "label", "", "classes"))  # pyright: ignore

    assert proposals("form", "from") == {}, "both are frequent"
    assert proposals("class1", "class2", "cat", "car") == {}


def test_a_stray_cell_far_from_the_table_is_refused_at_once(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.append(["x", "y"])
    book.active.cell(1_048_576, 16_384).value = 1
    book.save(tmp_path / "a.xlsx")
    with pytest.raises(ExemplaError, match="spans 1,048,576 rows and 16,384 columns, but only 3"):
        read_table(tmp_path / "a.xlsx")


def test_an_empty_zip_is_called_so(tmp_path):
    zipfile.ZipFile(tmp_path / "a.csv.zip", "w").close()
    with pytest.raises(ExemplaError, match="is an empty zip archive"):
        read_table(tmp_path / "a.csv.zip")


@pytest.mark.parametrize("shape", [(20, 4, 0), (20, 0, 4, 3), (20, 0)])
def test_arrays_without_values_are_refused(tmp_path, shape, capsys):
    np.savez(tmp_path / "a.npz", X=np.zeros(shape), y=np.arange(20) % 2)
    assert run("explain", tmp_path / "a.npz", "--out", tmp_path / "out") == 2
    assert "so it has no values" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "form"),
    [("explain", "csv"), ("fix-labels", "parquet"), ("clean", "csv"), ("summarize", "parquet"),
     ("attack", "csv"), ("embed", "parquet")],
)  # fmt: skip
def test_numbers_around_1e200_are_missing_values(tmp_path, command, form):
    rng = np.random.default_rng(0)
    a, gaps = rng.normal(size=60), np.full(60, np.nan)
    gaps[7] = 1.0
    frame = pd.DataFrame(
        {
            "a": a,
            "b": rng.normal(size=60) * 1e200,
            "mixed": np.where(a > 1, 1e200, a),
            "nearly empty": gaps,
            "y": np.where(a + 0.5 * rng.normal(size=60) > 0, "p", "q"),
        }
    )
    path = tmp_path / f"a.{form}"
    frame.to_csv(path, index=False) if form == "csv" else frame.to_parquet(path)
    assert run(command, path, "--label", "y", "--quiet", "--out", tmp_path / "out") in (0, 2)


def test_lists_in_sentences_have_no_numpy_in_them():
    assert show(["O", np.str_("I")]) == "'O', 'I'"


def test_unique_german_numbers_are_numbers_not_ids(tmp_path):
    prices = [f"{1000 + 7 * i:,}".replace(",", ".") + f",{i:02d}" for i in range(60)]
    rows = "".join(f"{price};{i % 2}\n" for i, price in enumerate(prices))
    path = tmp_path / "german.csv"
    path.write_text("preis;y\n" + rows)
    assert {c.name: c.kind for c in infer_columns(read_table(path), label="y")}["preis"] == "number"

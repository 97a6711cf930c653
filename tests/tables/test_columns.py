"""The column rules: each by a column it must catch and one it must leave alone."""

from __future__ import annotations

import hashlib
import uuid
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from exempla import ExemplaError
from exempla.tables import feature_frame, infer_columns, read_table, show_columns
from exempla.tables.infer import Column, label_of

N = 120


def table_of(folder: Path, **columns):
    pd.DataFrame({**columns, "y": ["ab"[i % 2] for i in range(N)]}).to_csv(
        folder / "a.csv", index=False
    )
    return read_table(folder / "a.csv")


def kind_of(folder: Path, values, name: str = "col", **options) -> Column:
    table = table_of(folder, **{name: values, "pad": [i % 7 for i in range(N)]})
    return infer_columns(table, "y", **options)[0]


SENTENCES = [f"the {i} quick brown foxes jump {i % 9}" for i in range(N)]
CASES = {
    "one value": ("constant", ["x"] * N),
    "nothing": ("constant", [""] * N),
    "one value and gaps": ("category", ["x", ""] * (N // 2)),
    "copy": ("leak", ["ab"[i % 2] for i in range(N)]),
    "renamed copy": ("leak", [["no", "yes"][i % 2] for i in range(N)]),
    "consecutive": ("id", [i + 5 for i in range(N)]),
    "consecutive shuffled": ("id", np.random.default_rng(0).permutation(N)),
    "uuid": ("id", [str(uuid.UUID(int=i * 7919)) for i in range(N)]),
    "hash": ("id", [hashlib.md5(str(i).encode()).hexdigest() for i in range(N)]),
    "short unique": ("id", [f"person {i}" for i in range(N)]),
    "unique numbers": ("number", [i * i for i in range(N)]),
    "unique floats": ("number", [i + 0.25 for i in range(N)]),
    "leading zero": ("category", ["007", *[str(i % 40) for i in range(N - 1)]]),
    "zero and decimals": ("number", ["0", "0.5", "10"] * (N // 3)),
    "numbers": ("number", [i % 40 for i in range(N)]),
    "numbers, one word": ("number", ["?", *[str(i % 40) for i in range(N - 1)]]),
    "numbers, 5 % words": ("category", ["?"] * 6 + [str(i % 40) for i in range(N - 6)]),
    "numbers and gaps": ("number", ["", "NA", "NaN", "null"] * 9 + [i % 30 for i in range(84)]),
    "None is a word": ("category", ["None", "1", "2"] * (N // 3)),
    "date": ("date", [f"2024-01-{i % 28 + 1:02}" for i in range(N)]),
    "unique date": ("date", [str(d.date()) for d in pd.date_range("2020-01-01", periods=N)]),
    "german date": ("date", [f"{i % 28 + 1:02}.03.2024" for i in range(N)]),
    "time": ("date", [f"2024-01-02T03:{i % 60:02}:00Z" for i in range(N)]),
    "two date formats": ("category", ["2024-01-02", "01.02.2024", "2024-01-03"] * (N // 3)),
    "text": ("text", [SENTENCES[i % 60] for i in range(N)]),
    "unique text": ("text", SENTENCES),
    "text, 50 distinct": ("category", [SENTENCES[i % 50] for i in range(N)]),
    "many short": ("category", [f"town {i % 80}" for i in range(N)]),
    "category": ("category", ["red", "blue", "green", "red"] * (N // 4)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_rule(tmp_path, case):
    kind, values = CASES[case]
    column = kind_of(tmp_path, values)
    assert column.kind == kind
    assert column.reason


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("id", "id"), ("user_id", "id"), ("ID", "id"), ("customerID", "id"), ("order-id", "id"),
        ("key", "id"), ("index", "id"), ("paid", "number"), ("idle", "number"),
        ("keyboard", "number"),
    ],
)  # fmt: skip
def test_names_of_ids(tmp_path, name, kind):
    assert kind_of(tmp_path, [i * i + 3 for i in range(N)], name).kind == kind


def test_a_measured_index_is_no_id(tmp_path):
    assert kind_of(tmp_path, [i * 1.37 for i in range(N)], "heat_index").kind == "number"


def test_day_or_month_first_is_said(tmp_path):
    column = kind_of(tmp_path, [f"0{i % 9 + 1}/0{i % 7 + 1}/2024" for i in range(N)])
    assert (column.kind, column.detail) == ("date", "%d/%m/%Y")
    assert "%m/%d/%Y fits as well" in column.reason


def test_decimal_commas_where_the_delimiter_is_another(tmp_path):
    rows = "".join(f"{i % 9},{i % 5};{'ab'[i % 2]}\n" for i in range(N))
    (tmp_path / "a.csv").write_text("x;y\n" + rows)
    table = read_table(tmp_path / "a.csv")
    column = infer_columns(table, "y")[0]
    assert (column.kind, column.detail) == ("number", ",")
    assert feature_frame(table, [column])["x"][12] == 3.2


def test_overrides_win_and_are_checked(tmp_path):
    assert kind_of(tmp_path, list(range(N)), overrides={"col": "number"}).kind == "number"
    assert kind_of(tmp_path, ["a b"] * N, text="col").kind == "text"
    assert kind_of(tmp_path, list(range(N)), overrides={"col": "ignored"}).reason == "set by --kind"
    date = kind_of(tmp_path, [20240101 + i % 28 for i in range(N)], overrides={"col": "category"})
    assert date.kind == "category"
    with pytest.raises(ExemplaError, match="no column kind 'float'"):
        kind_of(tmp_path, [1] * N, overrides={"col": "float"})
    with pytest.raises(ExemplaError, match="did you mean 'col'"):
        kind_of(tmp_path, [1] * N, overrides={"cole": "number"})
    with pytest.raises(ExemplaError, match="is the label"):
        kind_of(tmp_path, [1] * N, overrides={"y": "number"})
    with pytest.raises(ExemplaError, match="no value is one"):
        kind_of(tmp_path, ["x", "z"] * (N // 2), overrides={"col": "number"})
    with pytest.raises(ExemplaError, match="cannot be a date"):
        kind_of(tmp_path, ["x", "z"] * (N // 2), overrides={"col": "date"})


def label_kind(folder: Path, values, task: str = "auto") -> Column:
    pd.DataFrame({"x": np.arange(len(values)) % 5, "y": values}).to_csv(
        folder / "l.csv", index=False
    )
    return label_of(infer_columns(read_table(folder / "l.csv"), "y", task=task))


def test_labels_are_classes_or_asked_about(tmp_path):
    assert label_kind(tmp_path, ["ham", "spam"] * 20).detail == "classes"
    assert label_kind(tmp_path, [i % 50 for i in range(200)]).detail == "classes"
    many = [i % 51 for i in range(200)]
    with pytest.raises(ExemplaError, match="has 51 distinct numbers"):
        label_kind(tmp_path, many)
    with pytest.raises(ExemplaError, match="Use --task regression to predict a number, or"):
        label_kind(tmp_path, [i % 10 + 0.5 for i in range(200)])  # grades, perhaps
    assert label_kind(tmp_path, many, "regression").detail == "regression"
    assert label_kind(tmp_path, many, "classes").detail == "classes"
    with pytest.raises(ExemplaError, match="has words"):
        label_kind(tmp_path, ["ham", "spam"] * 20, "regression")


def test_labels_with_nothing_to_learn_are_refused(tmp_path):
    with pytest.raises(ExemplaError, match="only the value 'ham'"):
        label_kind(tmp_path, ["ham"] * 20)
    with pytest.raises(ExemplaError, match="no value at all"):
        label_kind(tmp_path, [""] * 20)
    with pytest.raises(ExemplaError, match="is it an id or a text"):
        label_kind(tmp_path, [f"name {i}" for i in range(20)])


def test_the_printed_table_names_reason_and_override(tmp_path):
    rows = "a b,\x1b[31mred,y\n" + "".join(f"{i % 9},{i % 4},{i % 2}\n" for i in range(36))
    (tmp_path / "h.csv").write_text(rows)
    shown = show_columns(infer_columns(read_table(tmp_path / "h.csv"), "y"))
    assert "--kind 'a b=category'" in shown
    assert "all 36 values are numbers" in shown
    assert "\x1b" not in shown


def test_typed_columns_follow_the_same_rules(tmp_path):
    n = 60
    columns = {
        "key": np.arange(n),
        "size": np.arange(n) % 9,
        "ratio": np.where(np.arange(n) % 5 == 0, np.nan, np.arange(n) / 7),
        "flag": np.arange(n) % 3 == 0,
        "when": pa.array(pd.date_range("2024-01-01", periods=n).to_pydatetime()),
        "town": pa.array([f"t{i % 4}" for i in range(n)]).dictionary_encode(),
        "list": [[1, 2]] * n,
        "y": np.arange(n) % 2,
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    table = read_table(tmp_path / "a.parquet")
    kinds = {c.name: c.kind for c in infer_columns(table, "y")}
    assert kinds == {
        "key": "id", "size": "number", "ratio": "number", "flag": "category", "when": "date",
        "town": "category", "list": "ignored", "y": "label",
    }  # fmt: skip
    frame = feature_frame(table, infer_columns(table, "y"))
    assert frame["when"].dtype.kind == "M"
    assert frame["ratio"].isna().sum() == 12
    assert frame["flag"][0] == "true"


def test_nested_json_is_left_out_and_said(tmp_path):
    lines = "".join(f'{{"tags": ["a", {i}], "x": {i % 5}, "y": {i % 2}}}\n' for i in range(40))
    (tmp_path / "a.jsonl").write_text(lines)
    kinds = {c.name: c.kind for c in infer_columns(read_table(tmp_path / "a.jsonl"), "y")}
    assert kinds == {"tags": "ignored", "x": "number", "y": "label"}


def test_no_column_left_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("id,y\n" + "".join(f"{i},{i % 2}\n" for i in range(30)))
    table = read_table(tmp_path / "a.csv")
    with pytest.raises(ExemplaError, match=r"No usable feature column: 'id \(id\)'"):
        feature_frame(table, infer_columns(table, "y"))


def test_features_follow_the_order_of_the_rows_asked_for(tmp_path):
    table = table_of(
        tmp_path, size=[i % 50 for i in range(N)], town=[f"t{i % 9}" for i in range(N)]
    )
    columns = infer_columns(table, "y")
    for rows in (np.arange(N)[::-1], np.array([7, 3, 3])):
        frame = feature_frame(table, columns, rows)
        assert frame.index.tolist() == rows.tolist()
        assert frame["size"].tolist() == [i % 50 for i in rows]
        assert frame["town"].tolist() == [f"t{i % 9}" for i in rows]

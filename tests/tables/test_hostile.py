"""Files that are odd, huge or hostile: read as they are meant, or refused in one quick sentence."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import zipfile
from datetime import time as clock
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from exempla import ExemplaError
from exempla.tables import (
    Decision,
    default_model,
    export,
    feature_frame,
    image_features,
    infer_columns,
    load_images,
    read_table,
    split,
)
from exempla.tables.formats.encoding import _LIMITS, limit
from exempla.tables.table import to_numbers

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3))
Y = (X[:, 0] > 0).astype(int)


def learnt(path: Path, label: str = "y", **named):
    """Read, understood, split, fitted: whatever the file holds, this must not stumble."""
    table = read_table(path)
    columns = infer_columns(table, label, **named)
    parts = split(table, columns)
    model = default_model(table, columns, rows=parts.train)
    return table, columns, parts, model.fit(parts.X_train, parts.y_train)


def refused(path: Path, match: str, **named) -> None:
    with pytest.raises(ExemplaError, match=match) as found:
        read_table(path, **named)
    assert "\n" not in str(found.value)


# ---- numbers


@pytest.mark.parametrize("cell", ["1e308", "-1e308", "1e200"])
def test_cells_too_large_to_compute_with_count_as_missing_and_are_said(cell, tmp_path):
    frame = pd.DataFrame(X.round(3), columns=list("abc")).astype(str).assign(y=Y)
    frame.loc[7, "a"] = cell
    frame.to_csv(tmp_path / "a.csv", index=False)
    table, columns, parts, model = learnt(tmp_path / "a.csv")
    assert columns[0].kind == "number"
    assert "1 too large to compute with" in columns[0].reason
    assert np.isnan(feature_frame(table, columns).loc[7, "a"])
    assert model.score(parts.X_test, parts.y_test) > 0.7
    with pytest.raises(ExemplaError, match="too large to compute with; correct that cell"):
        infer_columns(table, "a", task="regression")


def test_whole_numbers_beyond_what_a_float_holds(tmp_path):
    vast = pa.array([2**64 - 1 - i for i in range(40)], pa.uint64())
    gaps = pa.array([None if i % 9 == 0 else 2**63 + i * 2**57 for i in range(40)], pa.uint64())
    signed = pa.array([2**62 + (i * 7 % 40) * 2**55 + 1 for i in range(40)], pa.int64())
    data = {"vast": vast, "gaps": gaps, "signed": signed, "x": X[:, 0], "y": Y}
    pq.write_table(pa.table(data), tmp_path / "a.parquet")
    table, columns, *_ = learnt(tmp_path / "a.parquet")
    assert [c.kind for c in columns] == ["id", "number", "number", "number", "label"]
    assert to_numbers(table.column("gaps"))[1] == pytest.approx(2**63 + 2**57)
    labels = pa.array(Y.astype(np.uint64) + np.uint64(2**63), pa.uint64())
    pq.write_table(pa.table({"x": X[:, 0], "y": labels}), tmp_path / "y.parquet")
    *_, model = learnt(tmp_path / "y.parquet")
    assert model.classes_.tolist() == [2**63, 2**63 + 1]


@pytest.mark.parametrize(
    "kind",
    [">f8", ">i4", ">u2", np.longdouble, np.float16, np.uint64, bool, "U6", "S6", "M8[h]", "M8[Y]"],
)
def test_arrays_of_every_type_are_read_as_what_they_are(kind, tmp_path):
    whole = np.abs(X * 100).astype(np.int64)
    x = (X > 0) if kind is bool else whole.astype(kind)
    np.savez(tmp_path / "x.npz", X=x, y=Y)
    table, columns, *_ = learnt(tmp_path / "x.npz")
    if columns[0].kind == "number":
        found = feature_frame(table, columns)
        assert np.allclose(found.to_numpy(np.float64), whole, rtol=1e-3)
    np.savez(tmp_path / "y.npz", X=X, y=Y.astype(kind))
    if str(kind).startswith("M8"):
        refused(tmp_path / "y.npz", "y of y.npz has type datetime64.*give plain numbers or words")
        return
    *_, model = learnt(tmp_path / "y.npz")
    assert [str(label) for label in model.classes_] in (["0", "1"], ["False", "True"])
    np.savez(
        tmp_path / "wide.npz",
        X=np.zeros((4, 8, 8), kind if kind not in ("U6", "S6") else int),
        y=Y[:4],
    )
    if not str(kind).startswith("M8"):
        images = read_table(tmp_path / "wide.npz").images
        assert images is not None
        assert images.dtype.isnative


@pytest.mark.parametrize("place", ["X", "y"])
def test_arrays_that_cannot_be_used_are_refused(place, tmp_path):
    for wrong, words in (
        (np.zeros(40, complex), "real and imaginary parts"),
        (np.zeros(40, [("a", "f8")]), "plain numbers or words"),
        (np.array([b"\xff\xfe"] * 40), "not UTF-8 text"),
    ):
        given = {"X": X, "y": Y, place: wrong if place == "y" else wrong.reshape(20, 2)}
        np.savez(tmp_path / "a.npz", **given)
        refused(tmp_path / "a.npz", words)
    images = {"X": np.full((4, 8, 8), "a"), "y": Y[:4]}
    np.savez(tmp_path / "i.npz", **images)
    refused(tmp_path / "i.npz", "give numbers")
    np.savez(tmp_path / "c.npz", X=np.zeros((4, 3, 8, 8)), y=Y[:4])
    refused(tmp_path / "c.npz", r"np.moveaxis\(X, 1, -1\)")


def test_pickles_are_refused_when_read_and_when_written_back(tmp_path):
    masked = np.ma.masked_less(X, 0)
    for name, objects in (("y", Y.astype(object)), ("X", np.array([[masked]], dtype=object))):
        np.savez(tmp_path / "a.npz", **{"X": X, "y": Y, name: objects})
        refused(tmp_path / "a.npz", "they can run code")
    np.savez(tmp_path / "b.npz", X=X, y=Y, meta=np.array([{"a": 1}], dtype=object))
    table = read_table(tmp_path / "b.npz")
    with pytest.raises(ExemplaError, match=r"An array of b\.npz has Python objects"):
        export(table, [Decision(0, "remove")], tmp_path / "c.npz", label="y")


def test_arrays_of_any_name_are_written_back(tmp_path):
    names = {"file": np.arange(40), "allow_pickle": np.arange(3)}
    np.savez(tmp_path / "a.npz", X=X, y=Y)
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
        for name, array in names.items():
            out = io.BytesIO()
            np.save(out, array)
            archive.writestr(f"{name}.npy", out.getvalue())
    table = read_table(tmp_path / "a.npz")
    made = export(table, [Decision(0, "remove")], tmp_path / "b.npz", label="y")
    with np.load(made) as back:
        assert back["file"].tolist() == list(range(1, 40))
        assert back["allow_pickle"].tolist() == [0, 1, 2]
        assert np.array_equal(back["X"], X[1:])


def test_fractions_can_be_classes(tmp_path):
    np.savez(tmp_path / "a.npz", X=X, y=Y + 0.5)
    table, _, parts, model = learnt(tmp_path / "a.npz", task="classes")
    assert model.classes_.tolist() == ["0.5", "1.5"]
    made = export(table, [Decision(0, "relabel", "0.5")], tmp_path / "b.npz", label="y")
    assert np.load(made)["y"][0] == 0.5
    assert parts.y_train.tolist() == table.strings("y", parts.train)


def test_images_of_sixteen_bits_are_scaled():
    deep = RNG.integers(0, 65_536, (6, 8, 8), dtype=np.uint16)
    ready = image_features(deep, Y[:6], kind="pixels").transform(deep)
    assert 0.9 < np.abs(ready).max() <= 1.0
    shares = RNG.random((6, 8, 8))
    made = image_features(shares, Y[:6], kind="pixels")
    assert np.allclose(made.transform(shares), shares.reshape(6, -1))


def test_strings_of_every_arrow_type(tmp_path):
    words = ["u", "v", "w", "v"] * 10
    for kind in (
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.dictionary(pa.int32(), pa.string()),
    ):
        try:
            labels = pa.array(["p", "q"] * 20).cast(kind)
        except pa.ArrowNotImplementedError:  # views are newer than the oldest Arrow we take
            continue
        data = {
            "a": pa.array(words).cast(kind),
            "x": X[:, 0],
            "t": [clock(i % 24) for i in range(40)],
        }
        pq.write_table(pa.table({**data, "y": labels}), tmp_path / "a.parquet")
        table, columns, *_ = learnt(tmp_path / "a.parquet")
        assert [c.kind for c in columns] == ["category", "number", "ignored", "label"]
        decisions = [Decision(0, "relabel", "q"), Decision(1, "remove")]
        made = export(table, decisions, tmp_path / "b.parquet", label="y")
        back = pq.read_table(made)
        assert back.schema.field("y").type == kind
        assert back.column("y").to_pylist() == ["q", *["p", "q"] * 19]


# ---- sizes


@pytest.mark.parametrize("name", list(_LIMITS))
def test_every_limit_can_be_raised_by_the_environment(name, monkeypatch):
    monkeypatch.setenv("EXEMPLA_LIMITS", f"{name}=7e11")
    assert limit(name) == 7 * 10**11
    monkeypatch.setenv("EXEMPLA_LIMITS", f"{name}=lots")
    with pytest.raises(ExemplaError, match="in EXEMPLA_LIMITS is not understood"):
        limit(name)
    monkeypatch.setenv("EXEMPLA_LIMITS", "size=3")
    with pytest.raises(ExemplaError, match="NAME is one of unpacked, columns"):
        limit(name)


def raised(path: Path, name: str, low: int, monkeypatch) -> None:
    """Refused under a low limit, with the way to raise it, and read under a higher one."""
    monkeypatch.setenv("EXEMPLA_LIMITS", f"{name}={low}")
    refused(path, rf"the limit is {low:,}\. .* set the environment variable EXEMPLA_LIMITS={name}=")
    monkeypatch.delenv("EXEMPLA_LIMITS")
    assert len(read_table(path)) > 0


@pytest.mark.parametrize("name", ["a.csv.gz", "a.csv.xz", "a.npz", "a.parquet"])
def test_what_unpacks_to_too_much_is_refused(name, tmp_path, monkeypatch):
    path, rows = tmp_path / name, b"a,y\n" + b"1,p\n2,q\n" * 50_000
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(rows))
    elif name.endswith(".xz"):
        path.write_bytes(lzma.compress(rows))
    elif name.endswith(".npz"):
        np.savez_compressed(path, X=np.zeros((50_000, 2)), y=np.arange(50_000) % 2)
    else:
        frame = pd.DataFrame({"a": np.arange(100_000), "y": np.arange(100_000) % 2})
        frame.to_parquet(path, index=False)
    assert path.stat().st_size < 1_000_000
    raised(path, "unpacked", 50_000, monkeypatch)


def test_an_archive_that_is_not_packed_is_no_bomb(tmp_path, monkeypatch):
    np.savez(tmp_path / "a.npz", X=np.zeros((500, 2)), y=np.arange(500) % 2)
    monkeypatch.setenv("EXEMPLA_LIMITS", "unpacked=10")
    assert len(read_table(tmp_path / "a.npz")) == 500


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.npz", "a.parquet"])
def test_too_many_columns(name, tmp_path, monkeypatch):
    frame = pd.DataFrame(RNG.normal(size=(6, 20))).rename(columns=lambda i: f"c{i}")
    frame["y"] = [0, 1] * 3
    path = tmp_path / name
    if name == "a.csv":
        frame.to_csv(path, index=False)
    elif name == "a.jsonl":
        frame.to_json(path, orient="records", lines=True)
    elif name == "a.npz":
        np.savez(path, X=frame.to_numpy()[:, :20], y=[0, 1] * 3)
    else:
        frame.to_parquet(path, index=False)
    raised(path, "columns", 15, monkeypatch)


def test_keys_that_only_one_row_has(tmp_path, monkeypatch):
    lines = [json.dumps({"a": i, f"k{i}": 1, "y": i % 2}) for i in range(100)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    raised(tmp_path / "a.jsonl", "gaps", 1000, monkeypatch)
    table = read_table(tmp_path / "a.jsonl")
    assert table.strings("k7") == [None] * 7 + ["1"] + [None] * 92
    (tmp_path / "b.jsonl").write_text("\n".join(json.dumps({f"k{i}": 1}) for i in range(20_000)))
    refused(tmp_path / "b.jsonl", "cells without a value")


def test_json_nested_too_deeply(tmp_path, monkeypatch):
    line = '{"a": ' + '{"k": [' * 20 + "1" + "]}" * 20 + ', "y": "p"}\n'
    (tmp_path / "a.jsonl").write_text(line * 4)
    raised(tmp_path / "a.jsonl", "depth", 39, monkeypatch)
    (tmp_path / "b.jsonl").write_text('{"a": ' + "[" * 90_000 + "]" * 90_000 + "}\n")
    refused(tmp_path / "b.jsonl", "JSON values inside each other")


@pytest.mark.parametrize("where", ["header", "row", "only", "jsonl"])
def test_one_long_line(where, tmp_path, monkeypatch):
    long, rows = "x" * 2_000_000, "1,p\n2,q\n" * 20
    text = {
        "header": f"{long},y\n{rows}",
        "row": f"a,y\n{long},p\n{rows}",
        "only": f"a,y\n{rows}3,{long}",
        "jsonl": f'{{"a": "{long}", "y": "p"}}\n{{"a": "b", "y": "q"}}\n',
    }[where]
    path = tmp_path / ("a.jsonl" if where == "jsonl" else "a.csv")
    path.write_text(text)
    raised(path, "line", 1_500_000, monkeypatch)
    assert long in (
        *read_table(path).names,
        *map(str, read_table(path).row(0).values()),
        *map(str, read_table(path).row(-1 + len(read_table(path))).values()),
    )
    path.write_text(text.replace(long, "x" * 10_000_000))
    refused(path, "more than 5,000,000 characters in one line")


# ---- names, links, pipes


def pictures(root: Path) -> Path:
    for label in ("cat", "dog"):
        (root / label).mkdir(parents=True)
        for i in range(3):
            Image.fromarray(RNG.integers(0, 256, (6, 6), dtype=np.uint8)).save(
                root / label / f"{i}.png"
            )
    return root


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with names")
def test_pipes_and_devices_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    refused(tmp_path / "pipe.csv", "is a pipe or a device, not a file")
    for device in ("/dev/zero", "/dev/null"):
        refused(Path(device), "is a pipe or a device, not a file")
    root = pictures(tmp_path / "data")
    os.mkfifo(root / "cat" / "pipe.png")
    table = read_table(root)
    assert "cat/pipe.png" not in table.strings("file")
    assert any("cat/pipe.png" in note for note in table.notes)
    assert len(load_images(table)) == 6
    # A pipe that took the place of a file after the folder was listed.
    (root / "dog" / "0.png").unlink()
    os.mkfifo(root / "dog" / "0.png")
    assert len(load_images(table)) == 5


def test_links_that_lead_in_a_circle(tmp_path):
    (tmp_path / "loop.csv").symlink_to("loop.csv")
    refused(tmp_path / "loop.csv", "There is no file")
    root = pictures(tmp_path / "data")
    (root / "cat" / "loop.png").symlink_to("loop.png")
    (root / "dog" / "up").symlink_to("..")
    (root / "dog" / "gone.png").symlink_to("nowhere.png")
    table = read_table(root)
    assert len(table) == 6
    assert any("cat/loop.png" in note for note in table.notes)
    (root / "cat" / "0.png").unlink()
    (root / "cat" / "0.png").symlink_to("0.png")
    with pytest.raises(ExemplaError, match="leads outside its folder"):
        load_images(table)


def test_names_that_are_not_utf8(tmp_path):
    strange = os.fsdecode(b"n\xff.csv")
    try:
        (tmp_path / strange).write_text("a,y\n1,p\n2,q\n")
    except OSError:
        pytest.skip("this file system has only UTF-8 names")
    refused(tmp_path / strange, r"n\\udcff.csv' is not valid UTF-8; rename the file")
    root = pictures(tmp_path / "data")
    (root / "cat" / os.fsdecode(b"\xff.png")).write_bytes((root / "cat" / "0.png").read_bytes())
    table = read_table(root)
    assert len(table) == 6
    "".join(table.notes).encode()
    (root / os.fsdecode(b"\xff")).mkdir()
    (root / os.fsdecode(b"\xff") / "0.png").write_bytes((root / "cat" / "0.png").read_bytes())
    assert set(read_table(root).strings("label")) == {"cat", "dog"}


def test_columns_of_the_same_name(tmp_path):
    rows = "".join(f"{a:.3f},{b:.3f},{'pq'[y]}\n" for (a, b, _), y in zip(X, Y))
    (tmp_path / "a.csv").write_text("a,a,y\n" + rows)
    _, columns, *_ = learnt(tmp_path / "a.csv")
    assert [c.name for c in columns] == ["a", "a_2", "y"]
    (tmp_path / "a.jsonl").write_text('{"a": 1, "a": 2, "y": "p"}\n{"a": 3, "y": "q"}\n')
    assert read_table(tmp_path / "a.jsonl").strings("a") == ["2", "3"]
    twice = pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])
    pq.write_table(twice, tmp_path / "a.parquet")
    refused(tmp_path / "a.parquet", "two columns of the same name")

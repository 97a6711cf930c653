"""A user's file: read it, infer its columns, build a model, and export it with corrections.

Read
    read_table(path, encoding=None, delimiter=None, header=None, names=None) -> Table
        CSV, TSV, JSONL (each also .gz, .bz2, .xz, .zip), Parquet, Excel (.xlsx, with openpyxl), NPZ
        (X, y), or a folder of images with one sub-folder per class. `table.notes` says what was
        detected; `table.row(i)` returns a row.
    borrow_names(table, other) -> Table
        Column names for a file without a header, from another file that has one.
    format_suffix(path) -> str
        The extension that names the format: ".csv" of data.2024.csv, ".csv.gz" of mails.csv.gz.
    The environment variable EXEMPLA_LIMITS raises the size limits ("columns=500000"): see
    `exempla.tables.formats.encoding`.

Columns
    infer_columns(table, label, text=(), overrides={}, task="auto") -> list[Column]
        Column(name, kind, reason, detail); kinds: number, category, text, date, id, constant, leak,
        label, ignored. The first rule that matches wins:
            copy of the label, or one-to-one with it → leak; one value → constant; unique and
            (consecutive integers, UUID, hash, named like an id, or short strings, also nearly
            unique ones) or the index of the table → id; leading
            zeros → category; ≥ 99 % numbers → number; ≥ 95 % dates of one format → date;
            > 50 distinct and ≥ 5 words on average → text; else category.
    show_columns(columns) -> str        column | kind | reason | override
    feature_frame(table, columns, rows=None) -> pandas.DataFrame, what the default model takes

Model
    default_model(table, columns, rows=None, seed=0) -> unfitted sklearn Pipeline
    choose_model(table, columns, X, y, rows=…) -> Chosen: that or boosting, by cross-validation
    cross_validated_accuracy(model, X, y) -> CrossValidation(mean, se, majority), `.warning`
    default_image_model(pixels, labels, kind="auto") -> unfitted model with fit and predict

Split
    split(table, columns, test=None, test_size=0.2, curated=None, seed=0) -> Split
        Row numbers are 0-based data rows of the original file.
    stratified(y, size=0.2, seed=0) -> mask of test rows, for images (which have no columns)

Decide and export
    Decision(row, action, new_label=None, note="", time=""), action: keep, relabel, remove
    export(table, decisions, path, label=…, excel_safe=False) -> Path
    corrected(table, decisions, label=…) -> bytes

Images
    load_images(folder_or_table, rows=None, size=None) -> Images (.pixels, .labels, .rows, …)
    thumbnail(image, most=128) -> bytes (WebP)
    safe_path(root, name) -> Path, refusing every way out of `root`

>>> import pathlib, tempfile
>>> folder = pathlib.Path(tempfile.mkdtemp())
>>> _ = (folder / "mail.csv").write_text("words,y\\n" + "3,ham\\n9,spam\\n4,ham\\n9,ham\\n" * 9)
>>> table = read_table(folder / "mail.csv")
>>> columns = infer_columns(table, label="y")
>>> parts = split(table, columns)
>>> model = default_model(table, columns, rows=parts.train).fit(parts.X_train, parts.y_train)
>>> fixed = export(table, [Decision(3, "relabel", "spam")], folder / "fixed.csv", label="y")
>>> read_table(fixed).row(3)
{'words': '9', 'y': 'spam'}
"""

from exempla.images import thumbnail
from exempla.tables.corrections import Decision, corrected, export
from exempla.tables.dataset import borrow_names, read_table
from exempla.tables.formats.encoding import format_suffix
from exempla.tables.formats.folder import Images, load_images, safe_path
from exempla.tables.infer import Column, infer_columns, kind_flag, label_of, show_columns
from exempla.tables.models.choose import (
    Chosen,
    CrossValidation,
    choose_model,
    cross_validated_accuracy,
    default_model,
)
from exempla.tables.models.image import default_image_model
from exempla.tables.split import Split, feature_frame, split, stratified
from exempla.tables.table import Table

__all__ = [
    "Table", "read_table", "borrow_names", "format_suffix",
    "Column", "infer_columns", "show_columns", "kind_flag", "label_of", "feature_frame",
    "default_model", "choose_model", "Chosen", "cross_validated_accuracy", "CrossValidation",
    "default_image_model",
    "Split", "split", "stratified",
    "Decision", "export", "corrected",
    "Images", "load_images", "thumbnail", "safe_path",
]  # fmt: skip

"""A user's file: read it, infer its columns, build a model, and export it with corrections.

`read_table` reads CSV, TSV, JSONL (each also .gz, .bz2, .xz, .zip), Parquet, Excel (.xlsx, with
openpyxl), NPZ (X, y), or a folder of images with one sub-folder per class. `table.notes` says what
was detected. The environment variable EXEMPLA_LIMITS raises the size limits ("columns=500000"): see
`exempla.tables.formats.encoding`.

`infer_columns` returns the kind of each column: number, category, text, date, id, constant, leak,
label or ignored. The first rule that matches wins:
    copy of the label, or one-to-one with it → leak; one value → constant; unique and (consecutive
    integers, UUID, hash, named like an id, or short strings, also nearly unique ones) or the index
    of the table → id; leading zeros → category; ≥ 99 % numbers → number; ≥ 95 % dates of one
    format → date; > 50 distinct and ≥ 5 words on average → text; else category.

`split` divides the rows; their numbers are 0-based data rows of the original file. `choose_model`
compares `default_model` with boosting by cross-validation; images have `image_features`.
`export` writes the file with decisions (keep, relabel, remove) in its own format.

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
from exempla.tables.infer import Column, infer_columns, label_of, show_columns
from exempla.tables.models.choose import (
    Chosen,
    CrossValidation,
    choose_model,
    cross_validated_accuracy,
    default_model,
    tuned_classifier,
)
from exempla.tables.models.image import image_features
from exempla.tables.split import Split, feature_frame, split
from exempla.tables.table import Table

__all__ = [
    "Table", "read_table", "borrow_names", "format_suffix",
    "Column", "infer_columns", "show_columns", "label_of", "feature_frame",
    "default_model", "choose_model", "Chosen", "cross_validated_accuracy", "CrossValidation",
    "image_features", "tuned_classifier",
    "Split", "split",
    "Decision", "export", "corrected",
    "Images", "load_images", "thumbnail", "safe_path",
]  # fmt: skip

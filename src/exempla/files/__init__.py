"""Your own file: read it, learn what its columns are, build a model, hand it back corrected."""

from exempla.files.columns import Column, infer_columns, kind_flag, label_of, show_columns
from exempla.files.crossval import CrossValidation, cross_validated_accuracy
from exempla.files.features import feature_frame
from exempla.files.model import default_model
from exempla.files.reading import borrow_names, read_table
from exempla.files.split import Split, split
from exempla.files.table import Table

__all__ = [
    "Table", "read_table", "borrow_names",
    "Column", "infer_columns", "show_columns", "kind_flag", "label_of", "feature_frame",
    "default_model", "cross_validated_accuracy", "CrossValidation",
    "Split", "split",
]  # fmt: skip

"""Rows on disk that need not fit in memory, and fitted objects.

`shards`: rows in several files read as one array, and whole objects; `folder`: a set of shards as
it is made, and the identity of a store. Imports: arrays, io, errors, progress.
"""

from exempla.store.folder import RowSet, claim, delete_rows, disk_errors, identity_of
from exempla.store.shards import Shard, StoredRows, read_object, write_object

__all__ = [
    "RowSet", "Shard", "StoredRows", "claim", "delete_rows", "disk_errors", "identity_of",
    "read_object", "write_object",
]  # fmt: skip

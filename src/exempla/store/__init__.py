"""What is kept on disk: rows that need not fit in memory, and whole fitted objects.

Inside: shards (rows in several files read as one array), reading (ahead of the caller), folder (a
set of shards as it is made), sealed (one file of them), identity (what a store belongs to), objects
(a fitted Explainer). Imports: arrays, atomic, errors, version.
"""

from exempla.io import publish_first, read_seal
from exempla.store.folder import RowSet, claim, failing_disk, identity_of, shard_height
from exempla.store.shards import Shard, StoredRows, read_object, write_object

__all__ = [
    "RowSet", "Shard", "StoredRows", "claim", "failing_disk", "identity_of", "publish_first",
    "read_object", "read_seal", "shard_height", "write_object",
]  # fmt: skip

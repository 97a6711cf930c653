"""What is kept on disk: rows that would not fit in memory, and whole fitted objects.

Imports: arrays, atomic, errors, version.
"""

from exempla.store.objects import on_disk, open_rows, read_object, write_object
from exempla.store.shards import Shard, StoredRows

__all__ = ["Shard", "StoredRows", "on_disk", "open_rows", "read_object", "write_object"]

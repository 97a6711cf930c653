"""More machines by an existing engine: Ray's actors, or the processes of torch.distributed.

`OnRay` and `OnTorch` are what `Sharded(selector, backend=…)` takes; "ray" and "torch" are short for
them. `opened` keeps rows in place for several questions. ray and torch are imported when used.

Imports: selection's shards, store, progress.
"""

from exempla.distributed.files import in_files
from exempla.distributed.ray_backend import OnRay
from exempla.distributed.torch_backend import OnTorch

__all__ = ["OnRay", "OnTorch", "in_files"]

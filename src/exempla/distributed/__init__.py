"""More machines by an existing engine: Ray's actors, or the processes of torch.distributed.

`OnRay` and `OnTorch` are what `Sharded(selector, backend=…)` takes; "ray" and "torch" are short for
them; their `opened` keeps rows in place for several questions. `fit_on_ray` and `fit_ranks` share
out the embedding. ray and torch are imported when used.

Imports: explainer, selection's shards, store, progress.
"""

from exempla.distributed.ray_backend import OnRay, in_files
from exempla.distributed.torch_backend import OnTorch, fit_on_ray, fit_ranks, rank_rows

__all__ = ["OnRay", "OnTorch", "fit_on_ray", "fit_ranks", "in_files", "rank_rows"]

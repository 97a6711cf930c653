"""Run on several machines with an existing engine: Ray actors or torch.distributed processes.

`OnRay` and `OnTorch` are backends of `Sharded(selector, backend=…)`, with the short names "ray" and
"torch"; their `opened` keeps rows in place for several selections. `fit_on_ray` and `fit_ranks`
distribute the embedding. Ray and torch are imported on first use.
"""

from exempla.distributed.ray_backend import OnRay, fit_on_ray, in_files
from exempla.distributed.torch_backend import OnTorch, fit_ranks, rank_rows

__all__ = ["OnRay", "OnTorch", "fit_on_ray", "fit_ranks", "in_files", "rank_rows"]

"""Whether models can tell the classes apart at all: if not, they know nothing about the labels."""

from __future__ import annotations

import numpy as np
from scipy.stats import rankdata

__all__ = ["tells_apart"]

SURE = 3.0
"""Standard deviations above chance."""
MOST_CLASSES = 20


def tells_apart(log_proba: np.ndarray, codes: np.ndarray) -> bool:
    """Whether rows of some class get a higher probability of it than others do, beyond chance.

    By ranks (Mann and Whitney's U), so that a model may be as overconfident as it likes.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> codes = rng.integers(0, 2, 500)
    >>> chance = np.log(rng.dirichlet([1, 1], 500))
    >>> tells_apart(chance, codes), tells_apart(chance + np.eye(2)[codes], codes)
    (False, True)
    """
    n = len(codes)
    sizes = np.bincount(codes, minlength=log_proba.shape[1])
    best = 0.0
    for c in np.argsort(-sizes)[:MOST_CLASSES]:
        k = int(sizes[c])
        if not 0 < k < n:
            continue
        ranks = rankdata(np.round(log_proba[:, c], 9))
        U = ranks[codes == c].sum() - k * (k + 1) / 2
        spread = np.sqrt(k * (n - k) * (n + 1) / 12)
        best = max(best, (U - k * (n - k) / 2) / spread)
    return bool(best > SURE)

"""cleanlab on given labels and out-of-fold probabilities; run in its own environment.

python run_cleanlab.py case.npz …   reads labels and proba, leaves case.out.npz: the rows by two
                                    label quality scores, worst first, and the number of issues
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from cleanlab.count import num_label_issues
from cleanlab.rank import get_label_quality_scores


def main(path: Path) -> None:
    with np.load(path) as case:
        labels, proba = case["labels"], case["proba"]
    orders = {
        method: np.argsort(get_label_quality_scores(labels, proba, method=method), kind="stable")
        for method in ("self_confidence", "normalized_margin")
    }
    count = num_label_issues(labels=labels, pred_probs=proba)
    np.savez(path.with_suffix(".out.npz"), count=count, **orders)


if __name__ == "__main__":
    for given in sys.argv[1:]:
        main(Path(given))

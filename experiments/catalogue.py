"""Every experiment: what it shows, and the data it reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["EXPERIMENTS", "Experiment", "missing"]


@dataclass(frozen=True)
class Experiment:
    """One experiment: what it shows, and the files it reads, below the data folder."""

    what: str
    needs: tuple[str, ...] = ()


MNIST = tuple(
    f"mnist/{name}-ubyte.gz"
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
)
EXPERIMENTS = {
    "toy": Experiment("nearest and farthest points in RBF space and in Fisher space"),
    "theorem": Experiment("measured convergence against proved and estimated bounds"),
    "influence": Experiment("influence functions as a special case, and leave-one-out refits"),
    "variants": Experiment("objective, time and memory of every greedy variant"),
    "enron": Experiment("flipped spam labels found and fixed", ("enron1/enron1.jsonl.gz",)),
    "label_errors": Experiment(
        "wrong labels in Adult, SST-2 and digits",
        (
            "tabular/adult.data.gz",
            "tabular/adult.test.gz",
            "text/sst2_train.tsv.gz",
            "text/sst2_dev.tsv.gz",
        ),
    ),
    "label_noise": Experiment(
        "five kinds of wrong labels: numbers, probabilities, order",
        (
            "enron1/enron1.jsonl.gz",
            "tabular/adult.data.gz",
            "tabular/adult.test.gz",
            "text/sst2_train.tsv.gz",
            "text/sst2_dev.tsv.gz",
            "covtype/covtype.npz",
            "chemreact/ds1.10.csv.bz2",
            *MNIST[:2],
        ),
    ),
    "covtype": Experiment("CovType in 10 to 2000 weighted rows", ("covtype/covtype.npz",)),
    "chemreact": Experiment(
        "ChemReact in 10 to 2000 weighted rows",
        ("chemreact/ds1.10.csv.bz2", "chemreact/ds1.100_subset2674.npz"),
    ),
    "mnist_clean": Experiment("digits removed, network retrained: are mistakes mended?", MNIST),
    "attack": Experiment("two training digits moved: which predictions flip?", MNIST),
}


def missing(name: str, data: Path | None) -> str:
    """What this experiment lacks, in words; "" if nothing.

    >>> missing("toy", None), missing("covtype", None)
    ('', 'its data are unknown; name their folder with --data DIR or EXEMPLA_DATA')
    """
    needs = EXPERIMENTS[name].needs
    if not needs:
        return ""
    if data is None:
        return "its data are unknown; name their folder with --data DIR or EXEMPLA_DATA"
    absent = [need for need in needs if not (data / need).exists()]
    return f"{data} lacks {', '.join(absent)}" if absent else ""

"""What common commands cost on this machine, in processor seconds and peak memory:
`python docs/measure_laptop.py`.

Processor seconds, because they depend less on what else the machine is doing; one core.
"""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer, load_digits, make_classification

ROOT = Path(__file__).parents[1]


def files(folder: Path) -> None:
    """Tables of three sizes and kinds, made from what scikit-learn brings."""
    cells = load_breast_cancer(as_frame=True).frame
    cells.to_csv(folder / "cells.csv", index=False)
    X, y = load_digits(return_X_y=True)
    np.savez(folder / "digits.npz", X=X, y=y)
    X, y = make_classification(50_000, 30, n_informative=12, flip_y=0.05, random_state=0)
    pd.DataFrame(X.round(4)).assign(y=y).to_csv(folder / "wide.csv", index=False)


COMMANDS = (
    ("demo", 898, ["demo"]),
    ("explain, 30 columns", 455, ["explain", "cells.csv", "--label", "target"]),
    ("fix-labels, 30 columns", 569, ["fix-labels", "cells.csv", "--label", "target"]),
    ("explain, 64 columns, 10 classes", 1437, ["explain", "digits.npz"]),
    ("explain, 30 columns", 40_000, ["explain", "wide.csv", "--label", "y"]),
    ("summarize, 30 columns", 40_000, ["summarize", "wide.csv", "--label", "y"]),
)


def cost(words: list[str], folder: Path) -> tuple[float, float]:
    """Processor seconds and peak MiB of one command."""
    code = (
        "import resource, sys; from exempla.cli.main import main; main(sys.argv[1:]); "
        "u = resource.getrusage(resource.RUSAGE_SELF); "
        "print(u.ru_utime + u.ru_stime, u.ru_maxrss / 1024, file=sys.stderr)"
    )
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", code, *words, "--quiet", "--out", f"out-{len(words)}"]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=True)
    seconds, peak = done.stderr.splitlines()[-1].split()
    return float(seconds), float(peak)


def main() -> None:
    out = ROOT / "docs" / "experiments" / "laptop.csv"
    with tempfile.TemporaryDirectory() as name, out.open("w", newline="") as file:
        folder, table = Path(name), csv.writer(file, lineterminator="\n")
        files(folder)
        table.writerow(["command", "rows", "cpu_s", "peak_mib"])
        for what, rows, words in COMMANDS:
            seconds, peak = cost(words, folder)
            table.writerow([what, rows, f"{seconds:.1f}", f"{peak:.0f}"])
            file.flush()


if __name__ == "__main__":
    main()
